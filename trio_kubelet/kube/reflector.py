"""A copy of some of the API server's objects that follows it through everything.

The thin shell around `reflector_core`: one task, `run`, that lists, watches and waits as the core says.
It never ends by itself and never loses what it knows; `objects` is what to read, `changed` is told after
each change. A callback must not wait: it sets a flag or wakes somebody, the events keep coming meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.backoff import generator
from trio_kubelet.common.log import get_logger
from trio_kubelet.kube.doors import APIDoor, APIRequest, EventStream
from trio_kubelet.kube.errors import APIError, APIFailure, APIUnavailable, error_from
from trio_kubelet.kube.recovery import WAKE_WITHIN
from trio_kubelet.kube.reflector_core import FetchPage, Reaction, ReflectorCore, Timings, WatchFrom
from trio_kubelet.kube.watch_events import Unreadable

log = get_logger(__name__)

T = TypeVar("T", bound=v1.Object)

LIST_TIMEOUT = 60.0
PROBE_TIMEOUT = 15.0
LOGGED_FAILURES = 3


def _ignore() -> None:
    pass


def _ignore_key(key: str) -> None:
    pass


class Reflector(Generic[T]):
    """Follows the objects under `path` (with selectors in `params`).

    `changed` is called, once the first list is complete, after each change of `objects`; before it `touched`
    with the key of the object that came, changed or went, or with an empty one: there is a new list.
    """

    def __init__(
        self,
        door: APIDoor,
        path: str,
        kind: type[T],
        *,
        params: Mapping[str, str] | None = None,
        changed: Callable[[], None] = _ignore,
        touched: Callable[[str], None] = _ignore_key,
        rng: random.Random | None = None,
        timings: Timings = Timings(),  # noqa: B008 - frozen
        warnings: int = LOGGED_FAILURES,
    ) -> None:
        """`warnings`: failures in a row that are worth one; 0 for those of whom one speaks for all."""
        self.synced = trio.Event()
        self._door = door
        self._path = path
        self._changed = changed
        self._touched = touched
        self._ping_period = timings.ping_period
        self._random = generator(rng).random
        self._core: ReflectorCore[T] = ReflectorCore(kind, params or {}, timings)
        self._warnings = warnings
        self._failed = 0
        self._heard = 0.0
        self._answers = trio.Event()

    @property
    def objects(self) -> Mapping[str, T]:
        """The objects by `namespace/name`, as last known. A new list replaces it whole: do not keep it."""
        return self._core.objects

    def find(self, key: str) -> T | None:
        """The object of that `namespace/name`, if there is one."""
        return self._core.objects.get(key)

    async def run(self) -> None:
        """Follows until cancelled."""
        while True:
            self._answers = trio.Event()
            step = self._core.next_step(trio.current_time(), self._random())
            try:
                if isinstance(step, FetchPage):
                    await self._fetch(step)
                    pause = 0.0
                else:
                    await self._watch(step)
                    pause = self._core.on_end(trio.current_time(), self._random())
            except APIFailure as exc:
                pause = self._core.on_failure(exc, trio.current_time(), self._random())
                self._log_failure(exc, pause)
            await self._rest(pause)

    def hurry(self) -> None:
        """The server answers others again: after a failure, try soon."""
        self._answers.set()

    async def _rest(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._answers.wait()
            self._core.on_recovery()
            await trio.sleep(WAKE_WITHIN * self._random())

    async def _fetch(self, step: FetchPage) -> None:
        self._react(self._core.on_page(await self._get(step.params, LIST_TIMEOUT)))

    async def _get(self, params: Mapping[str, str], timeout: float) -> bytes:
        answer = await self._door.request(APIRequest("GET", self._path, params), timeout)
        if answer.status != 200:
            raise error_from(answer.status, answer.body, answer.retry_after, "GET", self._path)
        return answer.body

    async def _watch(self, step: WatchFrom) -> None:
        """Follows one watch to its end: the server's, or ours when it is of no use any more."""
        failure: list[APIFailure] = []
        async with self._door.watch(self._path, step.params, self._ping_period) as events:
            self._heard = trio.current_time()
            async with trio.open_nursery() as nursery:

                async def guard() -> None:
                    await self._guard(failure)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(guard)
                await self._receive(events, failure)
                nursery.cancel_scope.cancel()
        if failure:
            raise failure[0]

    async def _receive(self, events: EventStream, failure: list[APIFailure]) -> None:
        try:
            while (data := await events.next_event()) is not None:
                self._heard_something()
                if self._react(self._core.on_event(data)):
                    return
        except APIFailure as exc:
            failure.append(exc)

    async def _guard(self, failure: list[APIFailure]) -> None:
        """Returns when the watch should end because nothing came for too long."""
        while True:
            quiet_until = self._heard + self._core.silence_allowed()
            if trio.current_time() < quiet_until:
                await trio.sleep_until(quiet_until)
                continue
            if not self._core.on_silence(trio.current_time()):
                log.v(2).info("Initial events did not come, listing instead", path=self._path)
                return
            try:
                if self._core.on_probe(await self._get(self._core.probe_params(), PROBE_TIMEOUT)):
                    return
            except APIUnavailable as exc:
                failure.append(exc)
                return
            except APIError as exc:  # it answers, and that is all we know: the watch stays
                log.v(2).info("The API server refuses to say where it is", path=self._path, err=exc)
            self._heard_something()

    def _heard_something(self) -> None:
        self._heard = trio.current_time()
        if self._failed:
            level = log if self._warnings else log.v(4)
            level.info("The API server answers again", path=self._path)
            self._failed = 0

    def _react(self, reaction: Reaction) -> bool:
        """Tells who wants to know; whether the watch should end."""
        for item in reaction.unreadable:
            self._log_unreadable(item)
        if self._core.synced and not self.synced.is_set():
            self.synced.set()
        if reaction.changed:
            self._touched(reaction.key)
            self._changed()
        return reaction.stop

    def _log_unreadable(self, item: Unreadable) -> None:
        log.error(
            "Object cannot be read, keeping what was known of it",
            path=self._path, object=item.key, reason=item.reason,
        )  # fmt: skip

    def _log_failure(self, exc: APIFailure, pause: float) -> None:
        if not pause:  # another way is tried at once
            log.v(2).info("Listing anew", path=self._path, reason=str(exc))
            return
        self._failed += 1
        level = log if self._failed <= self._warnings else log.v(4)
        level.warning("Cannot follow the API server, will try again", path=self._path, err=exc)

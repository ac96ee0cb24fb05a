"""Looks at single pods: many at once, each with a deadline, a failed one repeated by itself.

A look reads a pod's status from the runtime, puts it into the cache, hands the pod's events on and
commits the pod in the relist table. What asks for one is a relist that found the pod changed, a
runtime event, or a worker that has just acted. At most one look per pod is under way; whatever is
asked meanwhile makes it go round once more.

Why a look can race with a relist and still be right: the table holds, per pod, what was committed and
what was last listed. Of a look's own list and that of a relist requested *before its answer* nobody knows
which is older; if they agree that does not matter, else the pod is listed again. A later list that shows
something else than what the look started from makes it go round again. Only a round that nothing overtook
commits. Events may then be told twice but never too seldom.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import trio

from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.places import Places
from trio_kubelet.cri.errors import CRIError, Unavailable
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.native.doors import RelistTableLike
from trio_kubelet.native.types import MalformedList, PodChange, PodView
from trio_kubelet.observed.types import (
    ContainerState,
    ContainerStatus,
    PodLifecycleEvent,
    PodLifecycleEventType,
    PodParts,
    PodStatus,
)
from trio_kubelet.pleg.cache import StatusCache
from trio_kubelet.pleg.doors import PodStatusReader
from trio_kubelet.pleg.lists import list_both
from trio_kubelet.pleg.outbox import Outbox

log = get_logger(__name__)


class LookLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the looks; times in seconds.

    Pods whose last look failed have places of their own, and a look that takes longer than `lent` gives its
    place up, so that many hung pods cannot keep the healthy ones waiting; `aside` bounds how many do that.
    """

    parallel: int = 32
    parallel_retries: int = 8
    lent: float = 0.5
    aside: int = 128
    deadline: float = 20.0
    retries: Pauses = Pauses(0.5, 10.0, jitter=0.2)
    patience: float = 2.0  # of what is expected to be looked at anyway
    patience_at_work: float = 10.0  # the same while the pod's worker is at it, who looks when it has done


@dataclass(slots=True, eq=False)
class _Look:
    """The look of one pod that is wanted or under way."""

    change: PodChange | None = None  # what it will tell once the status was read
    needs_lists: bool = False  # list the pod first: the table may not show what happened
    rebuild: bool = False  # put the status together anew even if the lists show no change
    inspect: bool = False  # read all of it anew, what the lists show or not
    again: bool = False  # something overtook this round
    listing: bool = False  # its lists are under way
    relisted: tuple[PodChange | None] | None = None  # what a relist showed meanwhile
    told: frozenset[PodLifecycleEvent] = frozenset()  # by the last round, which something overtook
    listed_at: float = -math.inf  # when the lists it rests on were requested
    failures: int = 0
    done: trio.Event = field(default_factory=trio.Event)

    def is_contradicted(self) -> bool:
        """Whether a relist that came in while the pod was being listed shows something else."""
        return self.relisted is not None and self.relisted[0] != self.change


def keep_ips(status: PodStatus, known: PodStatus | None) -> PodStatus:
    """A pod whose sandbox ended keeps the IPs it had, for its status (kubelet: `getPodIPs`)."""
    if status.ips or known is None or any(s.ready for s in status.sandboxes):
        return status
    return msgspec.structs.replace(status, ips=known.ips)


def still_true(known: PodStatus | None, view: PodView) -> dict[str, ContainerStatus]:
    """What is known of containers, by id, that the lists show as they were when they were read.

    A container that runs, and one that has ended, does not change unless its state does, but for what the
    agent itself does to it. So of a pod that is starting each container is read once, not again with each
    next one.
    """
    if known is None:
        return {}
    listed = {c.id: (c.state, c.created_at_ns) for c in view.containers}
    return {
        c.id: c
        for c in known.containers
        if c.state in _LASTING and listed.get(c.id) == (c.state, c.created_at_ns)
    }


_LASTING = (ContainerState.RUNNING, ContainerState.EXITED)
_STEPS = (PodLifecycleEventType.CONTAINER_STARTED, PodLifecycleEventType.CONTAINER_DIED)


class PodLooks:
    """All looks of an agent; `run` is the task that owns them."""

    def __init__(
        self,
        *,
        table: RelistTableLike,
        runtime: RuntimeService,
        reader: PodStatusReader,
        cache: StatusCache,
        outbox: Outbox,
        clock: Clock,
        limits: LookLimits = LookLimits(),  # noqa: B008 - frozen
        on_listed: Callable[[str], None] = lambda uid: None,
        on_stepped: Callable[[str], None] = lambda uid: None,
        on_relisted: Callable[[float], None] = lambda seconds: None,
        runtime_away: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_listed` is called with each pod that was listed by itself, `on_relisted` with the seconds that
        took with reading its status, `on_stepped` with each pod of which a container was seen to have started
        or ended. While `runtime_away`, that a look cannot reach the runtime says nothing of its pod: who
        wants to know waits for a later look, as with the kubelet, which then has no relist.
        """
        self._table = table
        self._runtime = runtime
        self._reader = reader
        self._cache = cache
        self._outbox = outbox
        self._clock = clock
        self._limits = limits
        self._on_listed = on_listed
        self._on_stepped = on_stepped
        self._on_relisted = on_relisted
        self._runtime_away = runtime_away
        self._back = trio.Event()  # the runtime answers again
        self._looks: dict[str, _Look] = {}
        self._listed_at: dict[str, float] = {}  # pods a look got lists of since the last relist: when
        self._expected: dict[str, float] = {}  # pods that any look which begins later will do for: since when
        self._some_expected = trio.Event()
        self._at_work: set[str] = set()  # pods whose worker is
        self._places = Places(limits.parallel, lent=limits.lent, aside=limits.aside)
        self._retry_places = Places(limits.parallel_retries, lent=limits.lent, aside=limits.aside)
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs looks until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for uid, look in self._looks.items():
                    nursery.start_soon(self._run_look, uid, look)
                task_status.started()
                await self._look_at_expected()
            finally:
                # While the agent stops, a worker's clean-up may still ask; a closed nursery would refuse.
                self._nursery = None

    def request(self, uid: str, *, inspect: bool = False) -> trio.Event:
        """Asks for a look at a pod that lists it afresh; the event is set once it was tried."""
        look = self._looks.get(uid)
        if look is None:
            look = self._start(uid, _Look(needs_lists=True))
        else:
            look.needs_lists = look.again = True
        look.inspect = look.inspect or inspect
        return look.done

    def is_coming(self, uid: str, since: float) -> bool:
        """Whether a look is wanted or under way already whose lists were asked for after that moment."""
        look = self._looks.get(uid)
        return look is not None and look.listed_at > since

    def expect(self, uid: str) -> None:
        """Asks for a look that may wait a little, for who has changed the pod will ask for one, too.

        Any look whose lists are asked for from now on is the one.
        """
        look = self._looks.get(uid)
        if uid in self._expected or (look is not None and look.needs_lists):
            return
        self._cache.mark_dirty(uid)
        self._expected[uid] = trio.current_time()
        self._some_expected.set()

    @contextmanager
    def at_work(self, uid: str) -> Iterator[None]:
        """For a worker, of which each pod has one: it looks when it has done what changes the pod."""
        self._at_work.add(uid)
        try:
            yield
        finally:
            self._at_work.discard(uid)
            self._look_if_due(uid)

    async def _look_at_expected(self) -> None:
        """Asks for the looks that were expected and nobody asked for, for ever."""
        while True:
            await self._some_expected.wait()
            # None that is expected from now on is due sooner than that.
            most = trio.current_time() + self._limits.patience
            await trio.sleep_until(min([most, *map(self._expected_by, self._expected)]))
            for uid in tuple(self._expected):
                self._look_if_due(uid)
            if not self._expected:
                self._some_expected = trio.Event()

    def _look_if_due(self, uid: str) -> None:
        if self._expected_by(uid) <= trio.current_time():
            del self._expected[uid]
            self.request(uid)

    def _expected_by(self, uid: str) -> float:
        """When a look that is expected is due."""
        patience = self._limits.patience_at_work if uid in self._at_work else self._limits.patience
        return self._expected.get(uid, math.inf) + patience

    def hurry(self) -> None:
        """The runtime answers again: what could not be looked at is looked at now."""
        self._back.set()
        self._back = trio.Event()

    def take(self, changes: Sequence[PodChange], requested_at: float) -> None:
        """Takes what a relist found, whose lists were requested at `requested_at`."""
        reported = {change.uid: change for change in changes}
        for uid, look in self._looks.items():
            change = reported.pop(uid, None)
            if look.needs_lists:
                continue
            if look.listing:
                look.relisted = (change,)  # compared as soon as its own lists are there
            elif change == look.change:
                continue
            elif self._listed_at.get(uid, -math.inf) >= requested_at:
                # One of the two lists is older than the other: only a third one tells.
                look.needs_lists = look.again = True
            else:
                look.change, look.again = change, True
        for uid, change in reported.items():
            older = self._listed_at.get(uid, -math.inf) >= requested_at
            self._start(uid, _Look(change=change, needs_lists=older, listed_at=requested_at))
        self._listed_at.clear()

    def _start(self, uid: str, look: _Look) -> _Look:
        self._looks[uid] = look
        self._cache.mark_dirty(uid)
        if self._nursery is not None:
            self._nursery.start_soon(self._run_look, uid, look)
        return look

    async def _run_look(self, uid: str, look: _Look) -> None:
        """Rounds until one succeeded and nothing overtook it."""
        while True:
            async with self._retry_places if look.failures else self._places:
                done, look.done, look.again = look.done, trio.Event(), False
                moment, by_itself = trio.current_time(), look.needs_lists
                try:
                    with trio.fail_after(self._limits.deadline):
                        await self._round(uid, look)
                    look.failures = 0
                except Exception as exc:  # what one pod makes the look raise is that pod's
                    if not isinstance(exc, CRIError | MalformedList | trio.TooSlowError):
                        log.error("Unexpected error in a look at a pod", podUID=uid, err=exc)
                    look.failures += 1
                    look.rebuild = True  # an error in the cache must not outlive the next good look
                    look.told = frozenset()  # whoever heard of them met the error
                    if not (isinstance(exc, Unavailable) and self._runtime_away()):
                        self._cache.set_error(uid, exc, moment)
                    log.v(0 if look.failures == 1 else 4).warning(
                        "Could not look at pod, trying again", podUID=uid, failures=look.failures, err=exc
                    )
                if by_itself:
                    self._on_relisted(trio.current_time() - moment)
            if look.failures == 0 and not look.again:
                del self._looks[uid]
                if uid not in self._expected:
                    self._cache.mark_clean(uid)
                done.set()
                return
            done.set()
            if look.failures:
                with trio.move_on_after(self._limits.retries.after(look.failures, random.random())):
                    await self._back.wait()

    async def _round(self, uid: str, look: _Look) -> None:
        if look.needs_lists:
            await self._list(uid, look)
            if look.change is None and not look.inspect and not look.rebuild:
                self._cache.touch(uid, look.listed_at)
                look.told = frozenset()
                return
        change, moment = look.change, look.listed_at  # what was read later is of the containers listed then
        view = self._table.pod(uid)
        status = await self._read(uid, view, everything=look.inspect)
        if status is None:
            self._cache.delete(uid, moment)
        else:
            self._cache.set(uid, status, moment)
        events = change.events if change is not None else ()
        fresh = [event for event in events if event not in look.told]
        look.told = frozenset(events)
        self._log_exits(status, fresh)
        self._outbox.put(fresh)
        if any(event.type in _STEPS for event in fresh):
            self._on_stepped(uid)
        if look.again:
            # The cache now shows what is not committed. Should the next list show what is, it is no change
            # to the table, but it is one to the cache.
            look.rebuild = look.rebuild or change is not None
        else:
            self._table.commit(uid)

    async def _list(self, uid: str, look: _Look) -> None:
        """Lists this pod alone and compares it with what was committed."""
        look.needs_lists = look.again = listed = False
        self._expected.pop(uid, None)
        look.listing, look.relisted = True, None
        look.listed_at = trio.current_time()
        try:
            sandboxes, containers = await list_both(self._runtime, uid)
            self._listed_at[uid] = trio.current_time()
            look.change = self._table.relist_pod(uid, sandboxes, containers)
            listed = True
            if look.is_contradicted():
                look.needs_lists = look.again = True
        finally:
            look.listing, look.needs_lists = False, look.needs_lists or not listed
        self._on_listed(uid)

    async def _read(self, uid: str, view: PodView | None, *, everything: bool) -> PodStatus | None:
        if view is None:
            return None
        known = self._cache.get(uid)
        parts = PodParts(
            uid=uid,
            name=view.name,
            namespace=view.namespace,
            sandbox_ids=[s.id for s in view.sandboxes],
            container_ids=[c.id for c in view.containers],
            timestamp_ns=self._clock.now_ns(),
            known={} if everything else still_true(known, view),
            ready=() if everything else [s.id for s in view.sandboxes if s.state is ContainerState.RUNNING],
        )
        status = await self._reader.read_pod_status(parts)
        return keep_ips(status, known)

    @staticmethod
    def _log_exits(status: PodStatus | None, events: Sequence[PodLifecycleEvent]) -> None:
        died = {e.data for e in events if e.type is PodLifecycleEventType.CONTAINER_DIED}
        for container in status.containers if status and died else ():
            if container.id in died and container.state is ContainerState.EXITED:
                log.v(2).info(
                    "Container finished",
                    pod=f"{status.namespace}/{status.name}" if status else "",
                    container=container.name,
                    containerID=container.id,
                    exitCode=container.exit_code,
                )

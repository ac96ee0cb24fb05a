"""Answers for many: what is asked by several at once is asked once (`SingleFlight`), an answer is kept for a
while (`ExpiringCache`), one value serves all who want it now (`Shared`), and who may hang is waited for only
so long (`LastGood`). Time is Trio's clock.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import trio

from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.trouble import Trouble

log = get_logger(__name__)

PATIENCE: Final = 2.0
"""Seconds that somebody waits for an answer while there is an older one, or none at all will do."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Flight(Generic[V]):
    """A question that is under way; after its end with neither answer nor error it was given up."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answers: list[V] = []
        self.error: Exception | None = None


class SingleFlight(Generic[K, V]):
    """Questions by their key. One task asks, the others wait for what it finds; when that task is cancelled
    (its client left), the next one asks itself.
    """

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[V]] = {}

    async def ask(self, key: K, look_up: Callable[[], Awaitable[V]]) -> V:
        """What `look_up` returns or raises, called by whoever came first."""
        while (flight := self._flights.get(key)) is not None:
            await flight.done.wait()
            if flight.error is not None:
                raise flight.error
            if flight.answers:
                return flight.answers[0]
        flight = self._flights[key] = _Flight[V]()
        try:
            answer = await look_up()
            flight.answers.append(answer)
        except Exception as exc:
            flight.error = exc
            raise
        finally:
            del self._flights[key]
            flight.done.set()
        return answer


class Shared(Generic[V]):
    """A value that is made on demand by `make` and may be `max_age` seconds old; ten readers at once cost one
    `make`.
    """

    def __init__(self, make: Callable[[], Awaitable[V]], max_age: float) -> None:
        self._make = make
        self._max_age = max_age
        self._made: tuple[V, float] | None = None
        self._asked: SingleFlight[None, V] = SingleFlight()

    async def get(self, max_age: float | None = None) -> V:
        """The value, not older than it may be, or than `max_age` for a reader in need of a fresh one."""
        await trio.lowlevel.checkpoint_if_cancelled()
        oldest = trio.current_time() - (self._max_age if max_age is None else max_age)
        if self._made is not None and self._made[1] >= oldest:
            return self._made[0]
        return await self._asked.ask(None, self._make_now)

    async def _make_now(self) -> V:
        value = await self._make()
        self._made = value, trio.current_time()
        return value


class LastGood(Generic[V]):
    """What somebody tells who may hang: the answer to a question asked from now on, if it comes within
    `PATIENCE`, else the last there was.

    One task (`run`) asks. So one question is under way at a time, however many want it answered and whoever
    of them leaves, and once nobody has patience with it any more, nobody waits for it.
    """

    def __init__(self, what: str, ask: Callable[[], Awaitable[V]], deadline: float) -> None:
        self.last: V | None = None
        """The last answer there was."""
        self.failed = True
        """Whether the last question was not answered within `deadline` seconds, or with an error."""
        self._what = what
        self._ask = ask
        self._deadline = deadline
        self._trouble = Trouble()
        self._wanted = trio.Event()
        self._over = trio.Event()  # set when the next question is over that is not asked yet
        self._asked_at = math.inf  # the question that is under way
        self._answered = -math.inf  # the last one that was answered: when it was asked

    async def get(self, max_age: float | None = None) -> V | None:
        """The answer, None if there has not been any. With `max_age` the last will do if it was asked for no
        more than so many seconds ago.
        """
        if max_age is not None and trio.current_time() - self._answered <= max_age:
            return self.last
        if trio.current_time() - self._asked_at < PATIENCE:
            self._wanted.set()
            with trio.move_on_after(PATIENCE):
                await self._over.wait()
        return self.last

    async def run(self) -> None:
        """Asks what is wanted until cancelled; whatever a question ends with, the last answer stays."""
        while True:
            await self._wanted.wait()
            self._wanted, over, self._over = trio.Event(), self._over, trio.Event()
            self._asked_at = trio.current_time()
            try:
                with trio.fail_after(self._deadline):
                    self.last = await self._ask()
                self.failed, self._answered = False, self._asked_at
                self._trouble.over()
            except Exception as exc:  # what was told before is there for all who ask meanwhile
                self.failed = True
                if self._trouble.is_new(error_words(exc)):
                    log.error("What was asked has no answer; the last one stays", about=self._what, err=exc)
            finally:
                self._asked_at = math.inf
                over.set()


class ExpiringCache(Generic[K, V]):
    """At most `size` answers; the one that was used least recently goes first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._asked: SingleFlight[K, V] = SingleFlight()

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: K, look_up: Callable[[], Awaitable[V]], lifetime: Callable[[V], float]) -> V:
        """The kept answer, or what `look_up` gives now.

        `lifetime` tells for how many seconds an answer is kept (0: not at all). What `look_up` raises is not
        kept, but reaches all who waited for it.
        """
        kept = self._kept.get(key)
        if kept is not None:
            if trio.current_time() < kept[0]:
                self._kept.move_to_end(key)
                return kept[1]
            del self._kept[key]

        async def ask() -> V:
            answer = await look_up()
            if (seconds := lifetime(answer)) > 0:
                self._kept[key] = (trio.current_time() + seconds, answer)
                while len(self._kept) > self._size:
                    self._kept.popitem(last=False)
            return answer

        return await self._asked.ask(key, ask)

"""An asyncio event loop that runs inside a Trio task, for the library that knows nothing else (grpclib).

No thread and no second wait: the loop runs in turns. A turn is `run_forever` with a selector that never
blocks; where the loop would wait, the selector ends the turn and says until when. In between, a Trio task
waits for the selector's own descriptor (an epoll of what the loop listens to is itself readable), for the
loop's next timer, or for somebody who gives the loop work. So both loops share one thread, callbacks may wake
Trio tasks synchronously, and the loop's time is Trio's, mock clocks included. What is used of asyncio is
public.

Ways across the border: a Trio task runs a coroutine to its end with `run`; an asyncio task waits for an async
function of Trio with `call_trio`; what is synchronous (events, queues) may be used from either side.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, Final, TypeVar, TypeVarTuple

import trio

from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_ROUNDS: Final = 32
"""How often a turn may go round before other Trio tasks have theirs."""

_CLOSE_SECONDS: Final = 5.0


class LoopClosed(Exception):
    """The asyncio loop ends or has ended: what was to run on it does not, or not to its end."""


class _Selector(selectors.EpollSelector):
    """Ends the loop's turn where the loop would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.wait: float | None = None
        """For how long the loop would have waited, in seconds; None: until something comes."""
        self.rounds = 0
        self.end_turn: Callable[[], None] = lambda: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        self.rounds += 1
        if self.rounds >= _ROUNDS:
            self.wait = 0
            self.end_turn()
        elif not found and (timeout is None or timeout > 0):
            self.wait = timeout
            self.end_turn()
        return found


class _TurningLoop(asyncio.SelectorEventLoop):
    """A loop that tells when it is given work while it has no turn."""

    def __init__(self, selector: _Selector) -> None:
        self.stir: Callable[[], None] = lambda: None
        super().__init__(selector)

    def time(self) -> float:
        return trio.current_time()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.stir()
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.stir()
        return super().call_at(when, callback, *args, context=context)


class AsyncioLoop:
    """The loop and the ways across; made by `open_asyncio_loop`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._selector = _Selector()
        self._loop = _TurningLoop(self._selector)
        self._loop.set_exception_handler(_log_stray_error)
        self._loop.stir = self._stir
        self._selector.end_turn = self._end_turn
        self._driving = trio.CancelScope(
            shield=True
        )  # tasks are brought to their end after a cancellation too
        self._waiting: trio.CancelScope | None = None
        self._stirred = True
        self._closed = False
        self._waiters: set[trio.lowlevel.Task] = set()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins an asyncio task. Raises LoopClosed."""
        if self._closed:
            coroutine.close()
            raise LoopClosed
        return self._loop.create_task(coroutine)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Calls a function in the loop's next turn; an error in it is logged."""
        self._loop.call_soon(function, *args)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine of asyncio to its end and returns or raises what it does.

        Cancelled, it cancels the coroutine and waits for its end. Raises LoopClosed when the loop ends first.
        """
        task = self.start(coroutine)
        me = trio.lowlevel.current_task()
        cancelled: list[Callable[[], Any]] = []

        def wake(_: asyncio.Task[T]) -> None:
            if me in self._waiters:
                self._waiters.discard(me)
                trio.lowlevel.reschedule(me)

        def abort(raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
            cancelled.append(raise_cancel)
            task.cancel()
            return trio.lowlevel.Abort.FAILED

        self._waiters.add(me)
        task.add_done_callback(wake)
        await trio.lowlevel.wait_task_rescheduled(abort)
        if not task.done():
            raise LoopClosed
        if task.cancelled():
            if cancelled:
                cancelled[0]()
            raise LoopClosed
        return task.result()

    async def call_trio(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """For asyncio's side: runs an async function of Trio, returns or raises what it does.

        When the asyncio task is cancelled, so is the function.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        scope = trio.CancelScope()
        self._nursery.start_soon(_answer, future, scope, function, args)
        try:
            return await future
        finally:
            scope.cancel()

    async def drive(self) -> None:
        """Gives the loop its turns, until it is closed. An error that ends the loop is raised."""
        try:
            with self._driving:
                while True:
                    self._selector.rounds = 0
                    self._loop.run_forever()
                    await self._until_next_turn()
        finally:
            self._closed = True
            waiters, self._waiters = self._waiters, set()
            for waiter in waiters:
                trio.lowlevel.reschedule(waiter)
            self._loop.close()

    async def close(self) -> None:
        """Cancels what still runs on the loop, waits for its end, and closes the loop."""
        with trio.move_on_after(_CLOSE_SECONDS) as closing:
            closing.shield = True
            while not self._closed and (left := asyncio.all_tasks(self._loop)):
                for task in left:
                    task.cancel()
                await self.run(_ended(left))
            if not self._closed:
                await self.run(self._loop.shutdown_asyncgens())
        if closing.cancelled_caught:
            log.error("Asyncio tasks did not end in time", tasks=len(asyncio.all_tasks(self._loop)))
        self._driving.cancel()

    async def _until_next_turn(self) -> None:
        wait = 0 if self._stirred else self._selector.wait
        if wait == 0:
            await trio.lowlevel.checkpoint()
            return
        with trio.CancelScope() as self._waiting:
            if wait is not None:
                self._waiting.deadline = trio.current_time() + wait
            await trio.lowlevel.wait_readable(self._selector.fileno())
        self._waiting = None

    def _end_turn(self) -> None:
        self._stirred = False  # what comes after this, in the turn or behind it, wants another turn
        self._loop.stop()

    def _stir(self) -> None:
        self._stirred = True
        if self._waiting is not None:
            self._waiting.cancel()


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(
    future: asyncio.Future[T],
    scope: trio.CancelScope,
    function: Callable[..., Awaitable[T]],
    args: tuple[object, ...],
) -> None:
    """Brings what an async function of Trio returns or raises to the asyncio task that waits for it."""
    try:
        with scope:
            result = await function(*args)
            if not future.done():
                future.set_result(result)
    except Exception as exc:
        if not future.done():
            future.set_exception(exc)
    finally:
        future.cancel()  # nothing, if it is done


@asynccontextmanager
async def open_asyncio_loop() -> AsyncIterator[AsyncioLoop]:
    """A running loop; leaving the context cancels what still runs on it.

    An error that an asyncio callback drops, such as a peer that sends a frame grpclib does not expect, is
    logged; the connection it came from is closed by asyncio, and its calls fail. An error of the loop itself
    ends the context.
    """
    async with trio.open_nursery() as driver, trio.open_nursery() as calls:
        loop = AsyncioLoop(calls)
        driver.start_soon(loop.drive)
        try:
            yield loop
        finally:
            await loop.close()
            calls.cancel_scope.cancel()


def _log_stray_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    del loop
    log.warning("Error in an asyncio callback", what=context.get("message", ""), err=context.get("exception"))

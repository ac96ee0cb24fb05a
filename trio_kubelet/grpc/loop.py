"""An asyncio event loop that runs inside a Trio task, for the library that knows nothing else (grpclib).

No thread and no second wait: the loop runs in turns. A turn is `run_forever` with a selector that never
blocks; where the loop would wait, the selector ends the turn and says until when. In between, a Trio task
waits for the selector's own descriptor (an epoll of what the loop listens to is itself readable), for the
loop's next timer, or for somebody who gives the loop work. So both loops share one thread, callbacks may wake
Trio tasks synchronously, and the loop's time is Trio's, mock clocks included. What is used of asyncio is
public. It is imported when the loop is first given work: an agent that starts has none for it.

Ways across the border: a Trio task runs a coroutine to its end with `run`; an asyncio task waits for an async
function of Trio with `call_trio`; what is synchronous (events, queues) may be used from either side.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from trio_kubelet.common.log import get_logger

if TYPE_CHECKING:  # imported with the first asyncio task, see `_turning`
    import asyncio

    from trio_kubelet.grpc.turns import TurningLoop

log = get_logger(__name__)

T = TypeVar("T")

_CLOSE_SECONDS: Final = 5.0


class LoopClosed(Exception):
    """The asyncio loop ends or has ended: what was to run on it does not, or not to its end."""


class AsyncioLoop:
    """The loop and the ways across; made by `open_asyncio_loop`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._made: TurningLoop | None = None
        self._wanted = trio.Event()
        # Tasks are brought to their end after a cancellation too.
        self._driving = trio.CancelScope(shield=True)
        self._waiting: trio.CancelScope | None = None
        self._stirred = True
        self._closed = False
        self._waiters: set[trio.lowlevel.Task] = set()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins an asyncio task, which the caller has to hold: asyncio does not, so the collector could take
        one that waits. Raises LoopClosed.
        """
        if self._closed:
            coroutine.close()
            raise LoopClosed
        return self._turning().create_task(coroutine)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Calls a function in the loop's next turn; an error in it is logged."""
        self._turning().call_soon(function, *args)

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
        future: asyncio.Future[T] = self._turning().create_future()
        scope = trio.CancelScope()
        self._nursery.start_soon(_answer, future, scope, function, args)
        try:
            return await future
        finally:
            scope.cancel()

    def start_soon(self, function: Callable[[], Awaitable[object]]) -> None:
        """Starts a task of Trio that lives no longer than the loop."""
        self._nursery.start_soon(function)

    async def drive(self) -> None:
        """Gives the loop its turns, until it is closed. An error that ends the loop is raised."""
        try:
            with self._driving:
                await self._wanted.wait()
                loop = self._turning()
                while True:
                    loop.selector.rounds = 0
                    loop.run_forever()
                    await self._until_next_turn(loop)
        finally:
            self._closed = True
            waiters, self._waiters = self._waiters, set()
            for waiter in waiters:
                trio.lowlevel.reschedule(waiter)
            if self._made is not None:
                self._made.close()

    async def close(self) -> None:
        """Cancels what still runs on the loop, waits for its end, and closes the loop."""
        if self._made is not None:
            await self._end_tasks(self._made)
        self._driving.cancel()

    async def _end_tasks(self, loop: TurningLoop) -> None:
        import asyncio

        from trio_kubelet.grpc.turns import ended

        with trio.move_on_after(_CLOSE_SECONDS) as closing:
            closing.shield = True
            while not self._closed and (left := asyncio.all_tasks(loop)):
                for task in left:
                    task.cancel()
                await self.run(ended(left))
            if not self._closed:
                await self.run(loop.shutdown_asyncgens())
        if closing.cancelled_caught:
            log.error("Asyncio tasks did not end in time", tasks=len(asyncio.all_tasks(loop)))

    def _turning(self) -> TurningLoop:
        """The loop itself, which begins when it is first wanted."""
        if self._made is None:
            from trio_kubelet.grpc.turns import TurningLoop

            self._made = TurningLoop(stir=self._stir, end_turn=self._end_turn)
            self._wanted.set()
        return self._made

    async def _until_next_turn(self, loop: TurningLoop) -> None:
        wait = 0 if self._stirred else loop.selector.wait
        if wait == 0:
            await trio.lowlevel.checkpoint()
            return
        with trio.CancelScope() as self._waiting:
            if wait is not None:
                self._waiting.deadline = trio.current_time() + wait
            await trio.lowlevel.wait_readable(loop.selector.fileno())
        self._waiting = None

    def _end_turn(self) -> None:
        self._stirred = False  # what comes after this, in the turn or behind it, wants another turn
        self._turning().stop()

    def _stir(self) -> None:
        self._stirred = True
        if self._waiting is not None:
            self._waiting.cancel()


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

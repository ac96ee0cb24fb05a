"""The asyncio loop inside Trio: both ways across, cancellation, time, stray errors, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Coroutine
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from trio_kubelet.common.error_groups import leaves
from trio_kubelet.grpc.loop import AsyncioLoop, LoopClosed, open_asyncio_loop


async def value(of: int) -> int:
    await asyncio.sleep(0)
    return of


async def test_a_coroutine_runs_to_its_end_and_its_error_comes_back() -> None:
    async def broken() -> None:
        await asyncio.sleep(0)
        raise KeyError("told")

    async with open_asyncio_loop() as loop:
        assert await loop.run(value(3)) == 3
        with pytest.raises(KeyError, match="told"):
            await loop.run(broken())
        assert await loop.run(value(4)) == 4


async def test_a_cancelled_task_cancels_its_coroutine_and_waits_for_its_end() -> None:
    seen: list[str] = []

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append("tidied")
            raise

    async with open_asyncio_loop() as loop, trio.open_nursery() as nursery:
        nursery.start_soon(loop.run, tidy())
        await trio.testing.wait_all_tasks_blocked()
        assert not seen
        nursery.cancel_scope.cancel()
    assert seen == ["tidied"]
    assert nursery.cancel_scope.cancelled_caught


async def test_what_has_its_result_in_spite_of_a_cancellation_returns_it() -> None:
    scope = trio.CancelScope()

    async def stubborn() -> str:
        scope.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "done"

    async with open_asyncio_loop() as loop:
        with scope:
            assert await loop.run(stubborn()) == "done"
        assert scope.cancel_called
        assert not scope.cancelled_caught


async def test_a_coroutine_that_ends_itself_is_no_cancellation_of_trio() -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    async with open_asyncio_loop() as loop:
        with pytest.raises(LoopClosed):
            await loop.run(gives_up())


async def test_asyncio_waits_for_trio() -> None:
    async def twice(number: int) -> int:
        await trio.lowlevel.checkpoint()
        if number < 0:
            raise ValueError("negative")
        return 2 * number

    async with open_asyncio_loop() as loop:
        assert await loop.run(loop.call_trio(twice, 21)) == 42
        with pytest.raises(ValueError, match="negative"):
            await loop.run(loop.call_trio(twice, -1))


async def test_a_cancelled_asyncio_task_cancels_what_it_waits_for_in_trio() -> None:
    ended = trio.Event()

    async def endless() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with open_asyncio_loop() as loop:
        task = loop.start(loop.call_trio(endless))
        await trio.testing.wait_all_tasks_blocked()
        task.cancel()
        with trio.fail_after(10):
            await ended.wait()


async def test_time_is_trios(autojump_clock: trio.testing.MockClock) -> None:
    began = time.monotonic()
    async with open_asyncio_loop() as loop:
        await loop.run(asyncio.sleep(3600))
        assert trio.current_time() == pytest.approx(3600, abs=1)
        with trio.move_on_after(10) as scope:
            await loop.run(asyncio.sleep(60))
        assert scope.cancelled_caught
    assert time.monotonic() - began < 30


async def test_bytes_come_through_sockets_and_callbacks_wake_trio() -> None:
    """What Go's side of a socket says is with the Trio task without anybody polling."""
    ours, theirs = socket.socketpair()
    send, receive = trio.open_memory_channel[bytes](10)

    class Told(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            send.send_nowait(data)

    async def connect() -> asyncio.Transport:
        transport, _ = await asyncio.get_running_loop().create_connection(Told, sock=ours)
        return transport

    async with open_asyncio_loop() as loop:
        transport = await loop.run(connect())
        for said in (b"one", b"two"):
            theirs.sendall(said)
            with trio.fail_after(10):
                assert await receive.receive() == said
        transport.close()  # from Trio's side: the loop notices
        with trio.fail_after(10):
            while await trio.to_thread.run_sync(theirs.recv, 1):
                pass
    theirs.close()


async def test_a_busy_loop_lets_others_have_their_turn() -> None:
    stop = False

    async def spin() -> None:
        while not stop:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async with open_asyncio_loop() as loop, trio.open_nursery() as nursery:
        nursery.start_soon(loop.run, spin())
        for _ in range(10):
            await trio.sleep(0.001)
        stop = True


async def test_an_idle_loop_takes_no_turn() -> None:
    """No wake-ups in the event loop of a node at rest."""

    class Steps(trio.abc.Instrument):
        count = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.count += 1

    async with open_asyncio_loop() as loop:
        await loop.run(value(1))
        await trio.testing.wait_all_tasks_blocked()
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(0.2)
        trio.lowlevel.remove_instrument(steps)
    assert steps.count <= 2  # this task's own


async def test_a_stray_error_in_an_asyncio_callback_ends_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise OSError("stray")

    async with open_asyncio_loop() as loop:
        loop.call_soon(broken)
        await loop.run(value(1))
        assert await loop.run(value(2)) == 2
    assert "stray" in capfd.readouterr().err


async def test_leaving_ends_what_still_runs() -> None:
    seen: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    async def endless_in_trio() -> None:
        try:
            await trio.sleep_forever()
        finally:
            seen.append("ended in Trio")

    async with open_asyncio_loop() as loop:
        waiting = loop.start(endless())
        in_trio = loop.start(loop.call_trio(endless_in_trio))
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(seen) == ["ended", "ended in Trio"]
    assert waiting.cancelled()
    assert in_trio.cancelled()
    with pytest.raises(LoopClosed):
        await loop.run(value(1))


async def test_leaving_after_a_cancellation_does_so_too() -> None:
    seen: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("ended")

    with trio.CancelScope() as scope:
        async with open_asyncio_loop() as loop:
            waiting = loop.start(endless())
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep_forever()
    assert seen == ["ended"]
    assert waiting.cancelled()
    assert scope.cancelled_caught


async def test_who_waits_for_a_coroutine_learns_that_the_loop_ends() -> None:
    found: list[BaseException] = []

    async def wait(loop: AsyncioLoop) -> None:
        try:
            await loop.run(forever())
        except LoopClosed as exc:
            found.append(exc)

    def forever() -> Coroutine[Any, Any, object]:
        return asyncio.Event().wait()

    async with trio.open_nursery() as nursery, open_asyncio_loop() as loop:
        nursery.start_soon(wait, loop)
        await trio.testing.wait_all_tasks_blocked()
    assert len(found) == 1


async def test_an_error_of_the_loop_itself_ends_the_context_and_its_waiters() -> None:
    def broken() -> None:
        raise SystemExit(3)  # of the kind that asyncio does not give to its handler

    found: list[LoopClosed] = []

    async def wait(loop: AsyncioLoop) -> None:
        try:
            await loop.run(asyncio.sleep(3600))
        except LoopClosed as exc:
            found.append(exc)

    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
        async with trio.open_nursery() as nursery, open_asyncio_loop() as loop:
            nursery.start_soon(wait, loop)
            await trio.testing.wait_all_tasks_blocked()
            loop.call_soon(broken)
            with trio.fail_after(10):
                await trio.sleep_forever()
    assert [type(each) for each in leaves(caught.value)] == [SystemExit]
    assert len(found) == 1

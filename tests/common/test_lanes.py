"""Worker threads in lanes: bounds, deadlines, and whose account work that hangs is on."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from trio_kubelet.common import lanes
from trio_kubelet.common.lanes import Lane, WorkHangs, count_left_behind

PACKAGE = Path(lanes.__file__).parents[1]
SOON = 1.5
"""Seconds within which a thread has begun with its work, on a busy machine too."""


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """What blocking work hangs at until the end of the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "PATIENCE", 0.05)


async def until(condition: object) -> None:
    assert callable(condition)
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 (threads set no Trio event)
            await trio.sleep(0.002)


async def test_results_and_errors_come_back() -> None:
    lane = Lane("test", threads=1, deadline=5)
    assert await lane.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await lane.run(divmod, 7, 0, owner="a")
    assert (lane.busy, lane.left_behind) == (0, 0)


async def test_no_more_threads_than_the_lane_has() -> None:
    lane = Lane("test", threads=2, deadline=5)
    lock, now, most = threading.Lock(), [0], [0]

    def work() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.01)
        with lock:
            now[0] -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(lane.run, work)
    assert most[0] == 2
    assert lane.busy == 0


async def test_an_owner_whose_work_hangs_costs_only_itself(hung: threading.Event) -> None:
    lane = Lane("test", threads=2, deadline=SOON)
    for owner in "abcde":  # more than the lane has threads
        with pytest.raises(WorkHangs):
            await lane.run(hung.wait, owner=owner)
    assert (lane.busy, lane.left_behind) == (0, 5)
    assert await lane.run(divmod, 7, 2, owner="healthy") == (3, 1)
    with pytest.raises(WorkHangs, match="earlier work still hangs"):
        await lane.run(divmod, 7, 2, owner="a")
    assert lane.left_behind == 5
    hung.set()
    await until(lambda: lane.left_behind == 0)
    assert await lane.run(divmod, 7, 2, owner="a") == (3, 1)


async def test_slow_work_that_is_still_waited_for_gives_way(
    monkeypatch: pytest.MonkeyPatch, hung: threading.Event
) -> None:
    """A lane full of hung mounts would keep everybody waiting until their deadline."""
    monkeypatch.setattr(lanes, "SLOW", 0.05)
    lane = Lane("test", threads=2, deadline=30)
    async with trio.open_nursery() as nursery:
        for owner in "ab":
            nursery.start_soon(partial(lane.run, hung.wait, owner=owner))
        await until(lambda: lane.busy == 2)
        with trio.fail_after(20):
            assert await lane.run(divmod, 7, 2, owner="healthy") == (3, 1)
            assert await lane.run(divmod, 7, 2) == (3, 1)
        hung.set()
    assert (lane.busy, lane.left_behind, len(lane.counted)) == (0, 0, 0)


async def test_an_owner_waits_for_its_own_work(
    monkeypatch: pytest.MonkeyPatch, hung: threading.Event
) -> None:
    monkeypatch.setattr(lanes, "PATIENCE", 5)
    lane = Lane("test", threads=4, deadline=5, interruptible=True)
    with trio.move_on_after(SOON):
        await lane.run(hung.wait, owner="a")
    assert lane.left_behind == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run, hung.is_set)
        nursery.start_soon(_expect_set, lane, hung)
        await trio.sleep(0.05)
        hung.set()
    assert (lane.busy, lane.left_behind) == (0, 0)


async def test_many_wait_for_one_owner_as_long_as_its_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each does one thing after the other, and so comes before others that wait."""
    monkeypatch.setattr(lanes, "PATIENCE", 3.0)  # the last ones wait longer than that
    lane, done = Lane("test", threads=4, deadline=60, per_owner=2), 0

    async def one() -> None:
        nonlocal done
        for _ in range(3):
            await lane.run(time.sleep, 0.03, owner="a")
            done += 1

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(one)
    assert done == 300


async def _expect_set(lane: Lane, hung: threading.Event) -> None:
    assert await lane.run(hung.is_set, owner="a")


async def test_work_of_the_agent_itself_keeps_its_thread(hung: threading.Event) -> None:
    lane = Lane("test", threads=1, deadline=SOON)
    with pytest.raises(WorkHangs, match="no end within"):
        await lane.run(hung.wait)
    for owner in ("", "a", "a"):
        with pytest.raises(WorkHangs, match="no thread is free"):
            await lane.run(divmod, 7, 2, owner=owner)
    hung.set()
    await until(lambda: lane.left_behind == 0)
    assert await lane.run(divmod, 7, 2) == (3, 1)


async def test_begun_work_is_waited_for_when_its_caller_is_cancelled(hung: threading.Event) -> None:
    lane, done = Lane("test", threads=1, deadline=5), []

    def work() -> None:
        hung.wait()
        done.append(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run, work)
        await until(lambda: lane.busy == 1)
        nursery.cancel_scope.cancel()
        threading.Timer(0.05, hung.set).start()
    assert done == [1]
    assert lane.left_behind == 0


async def test_nothing_begins_for_a_caller_that_is_cancelled() -> None:
    lane = Lane("test", threads=1, deadline=5)
    begun: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await lane.run(begun.append, 1)
    assert begun == []
    assert lane.busy == 0


async def test_a_waiting_caller_that_is_cancelled_leaves_nothing(hung: threading.Event) -> None:
    lane = Lane("test", threads=1, deadline=5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run, hung.wait)
        await until(lambda: lane.busy == 1)
        with trio.move_on_after(0.02) as scope:
            await lane.run(divmod, 7, 2, owner="a")
        assert scope.cancelled_caught
        hung.set()
    assert await lane.run(divmod, 7, 2, owner="a") == (3, 1)


async def test_what_comes_back_too_late_is_discarded(hung: threading.Event) -> None:
    """A descriptor, say, that nobody would close; whether the caller gave up before the end or just after."""
    thrown: list[int] = []

    def late(value: int) -> int:
        hung.wait()
        return value

    lane = Lane("test", threads=2, deadline=SOON)
    with pytest.raises(WorkHangs):
        await lane.run(late, 1, owner="a", discard=thrown.append)
    impatient = Lane("test", threads=2, deadline=5, interruptible=True)
    with trio.move_on_after(SOON):
        await impatient.run(late, 2, discard=thrown.append)
    assert thrown == []
    hung.set()
    await until(lambda: sorted(thrown) == [1, 2])
    assert await lane.run(late, 3, owner="b", discard=thrown.append) == 3
    with pytest.raises(ZeroDivisionError):
        await lane.run(divmod, 1, 0, discard=thrown.append)
    assert sorted(thrown) == [1, 2]


async def test_what_came_back_as_its_caller_was_cancelled_is_discarded(
    monkeypatch: pytest.MonkeyPatch, hung: threading.Event
) -> None:
    """The thread has ended, but Trio has not brought the result yet."""
    ended, thrown = threading.Event(), list[int]()
    lane = Lane("test", threads=1, deadline=5, interruptible=True)
    end = lanes._Work._end

    def ends(work: lanes._Work[int]) -> None:
        end(work)
        ended.set()
        hung.wait()

    monkeypatch.setattr(lanes._Work, "_end", ends)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(lane.run, int, "7", discard=thrown.append))
            await until(ended.is_set)
            scope.cancel()
    assert thrown == [7]
    assert (lane.busy, lane.left_behind) == (0, 0)


def test_inline_under_a_clock_that_jumps() -> None:
    async def main() -> int:
        return await lanes.NODE_FILES.run(threading.get_ident)

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == threading.get_ident()


async def test_abandoned_threads_are_a_metric(hung: threading.Event) -> None:
    registry, lane = CollectorRegistry(), Lane("test", threads=1, deadline=SOON)
    count_left_behind(registry, [lane])
    with pytest.raises(WorkHangs):
        await lane.run(hung.wait, owner="a")
    assert registry.get_sample_value("trio_kubelet_abandoned_threads", {"lane": "test"}) == 1
    hung.set()
    await until(lambda: lane.left_behind == 0)
    assert registry.get_sample_value("trio_kubelet_abandoned_threads", {"lane": "test"}) == 0
    assert registry.get_sample_value("trio_kubelet_abandoned_work_total", {"lane": "test"}) == 1


def test_every_lane_is_in_the_metric() -> None:
    named = {value for value in vars(lanes).values() if isinstance(value, Lane)}
    assert named == set(lanes.LANES)


def test_threads_are_used_through_lanes_only() -> None:
    outside = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "lanes.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("to_thread", "run_sync") and _is_trio(node)
    ]
    assert outside == []


def _is_trio(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "trio"

"""A machine that goes down, seen from a logind played by the test."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from tests.node.world import Said
from tests.nodeshutdown.test_plan import GOLDEN, a_pod
from tests.shapes import SHAPES
from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.dbus.values import BusUnavailable, Descriptor, Method, Signals
from trio_kubelet.nodeshutdown.manager import ShutdownManager
from trio_kubelet.nodeshutdown.plan import SYSTEM_CRITICAL, Period
from trio_kubelet.nodeshutdown.state import NodeShutdown
from trio_kubelet.nodeshutdown.times import STATE_FILE, ShutdownTimes
from trio_kubelet.pods.admission.admitter import Reject

Clock = trio.testing.MockClock
PERIODS = (Period(0, 18), Period(SYSTEM_CRITICAL, 12))


class Logind:
    """A bus with logind on it. `locks` are the reading ends of the delays it gave."""

    def __init__(self, configured: Path) -> None:
        self.calls: list[str] = []
        self.away = False
        self.delay: object = ("t", 5_000_000)
        self.going_down: object = ("b", False)
        self.heeds = True  # reads its configuration when it is told to
        self.locks: list[int] = []
        self._configured = configured
        self._send, self._receive = trio.open_memory_channel[tuple[Any, ...] | None](100)

    async def call(self, method: Method, *arguments: Any, seconds: float) -> tuple[Any, ...]:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise BusUnavailable("no bus")
        name = arguments[1] if method.name == "Get" else method.name
        self.calls.append(name)
        match name:
            case "InhibitDelayMaxUSec":
                return (self.delay,)
            case "PreparingForShutdown":
                return (self.going_down,)
            case "KillUnit":
                assert arguments == ("systemd-logind.service", "all", 1)
                if self.heeds:
                    text = (self._configured / "99-kubelet.conf").read_text()
                    self.delay = ("t", int(text.rpartition("=")[2]) * 1_000_000)
                return ()
            case "Inhibit":
                expected = ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")
                assert arguments == expected
                reading, writing = os.pipe()
                os.set_blocking(reading, False)
                self.locks.append(reading)
                return (Descriptor(writing),)
        raise AssertionError(name)

    @asynccontextmanager
    async def subscribe(self, signals: Signals) -> AsyncIterator[Logind]:
        assert signals.name == "PrepareForShutdown"
        yield self

    async def next(self) -> tuple[Any, ...] | None:
        return await self._receive.receive()

    def say(self, *body: Any) -> None:
        self._send.send_nowait(body)

    def start_anew(self) -> None:
        """Whoever listens may have missed something; delays are forgotten."""
        self._send.send_nowait(None)

    def is_held(self) -> bool:
        """Whether a delay is held."""
        return any(_is_open(lock) for lock in self.locks)


def _is_open(reading: int) -> bool:
    try:
        return os.read(reading, 1) != b""
    except BlockingIOError:
        return True


class Pods:
    """Pods that stop so many seconds after they were told to."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds
        self.pods = [a_pod(name, SYSTEM_CRITICAL if name == "critical" else None) for name in seconds]
        self.ended: list[tuple[str, int, float]] = []
        self.stopped: set[str] = set()
        self.nursery: trio.Nursery | None = None

    def active(self) -> list[v1.Pod]:
        return self.pods

    def shut_down(self, pod: v1.Pod, *, grace: int, reason: str, message: str) -> trio.Event:
        name = pod.metadata.name
        self.ended.append((name, grace, trio.current_time()))
        stopped = trio.Event()
        assert self.nursery is not None
        self.nursery.start_soon(self._stop, name, stopped)
        return stopped

    async def _stop(self, name: str, stopped: trio.Event) -> None:
        await trio.sleep(self.seconds[name])
        self.stopped.add(name)
        stopped.set()

    async def wait_stopped(self, pod: v1.Pod, stopped: trio.Event, grace: int) -> bool:
        with trio.move_on_after(10):
            await stopped.wait()
            return True
        return False

    def is_finished(self, uid: str) -> bool:
        return uid in self.stopped


class World:
    def __init__(self, tmp_path: Path, **pods: float) -> None:
        self.said, self.registry, self.root = Said(), CollectorRegistry(), tmp_path
        self.drop_ins = tmp_path / "logind.conf.d"
        self.logind = Logind(self.drop_ins)
        self.pods = Pods(**pods)
        self.clock = TrioClock(1_700_000_000 * NANOSECONDS)
        self.shutdown = NodeShutdown()
        self.turned: list[list[str]] = []
        self.shutdown.changed.listen(lambda: self.turned.append(self.shutdown.errors()))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        manager = ShutdownManager(
            PERIODS,
            bus=self.logind,
            node=self.shutdown,
            pods=self.pods,
            times=ShutdownTimes(str(self.root), self.clock, self.registry),
            events=self.said,
            drop_in_directory=str(self.drop_ins),
        )
        async with trio.open_nursery() as nursery:
            self.pods.nursery = nursery
            nursery.start_soon(manager.run)
            yield
            nursery.cancel_scope.cancel()

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"kubelet_graceful_shutdown_{name}_time_seconds")


async def test_pods_end_in_order_and_then_the_machine(tmp_path: Path, autojump_clock: Clock) -> None:
    world = World(tmp_path, web=2, critical=3, slow=7)
    async with world.running():
        await trio.sleep(1)
        assert world.logind.calls == [
            "InhibitDelayMaxUSec", "KillUnit", "InhibitDelayMaxUSec", "Inhibit", "PreparingForShutdown"
        ]  # fmt: skip
        text = "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=30\n"
        assert (world.drop_ins / "99-kubelet.conf").read_text() == text
        assert world.logind.is_held()
        assert world.shutdown.refusal(a_pod("new")) is None
        world.logind.say(True)
        await trio.sleep(0.1)
        assert world.turned == [["node is shutting down"]]
        refused = Reject("NodeShutdown", "Pod was rejected as the node is shutting down.")
        assert world.shutdown.refusal(a_pod("new")) == refused
        assert world.metric("end") == 0
        await trio.sleep(9)
        assert world.logind.is_held()
        await trio.sleep(2)
        assert not world.logind.is_held()
    ended = sorted((name, grace) for name, grace, _ in world.pods.ended)
    assert ended == [("critical", 5), ("slow", 5), ("web", 5)]
    began = world.pods.ended[0][2]
    assert world.pods.ended[2][2] - began == pytest.approx(7, abs=0.3)
    assert world.said.events == [("Normal", "Shutdown", GOLDEN["events"][0]["message"])]
    state = json.loads((tmp_path / STATE_FILE).read_text())
    assert list(state) == ["startTime", "endTime"]
    assert state["endTime"] > state["startTime"] > "2023-11-14T"
    # After the boot the times are there again, and the node is ready.
    after = World(tmp_path)
    async with after.running():
        await trio.sleep(1)
        assert after.metric("start") == world.metric("start")
        assert after.metric("end") == world.metric("end")
        assert after.shutdown.errors() == []


async def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, autojump_clock: Clock) -> None:
    for content in ("", "{", "[]", '{"startTime":"x"}', '{"a":' + "[" * 4096):
        (tmp_path / STATE_FILE).write_text(content)
        world = World(tmp_path)
        async with world.running():
            await trio.sleep(1)
            assert world.metric("start") == world.metric("end") == 0


async def test_a_stuck_pod_has_the_time_of_its_group(tmp_path: Path, autojump_clock: Clock) -> None:
    world = World(tmp_path, stuck=1000, critical=1)
    async with world.running():
        world.logind.say(True)
        await trio.sleep(17.5)
        assert [name for name, _, _ in world.pods.ended] == ["stuck"]
        await trio.sleep(3)
        assert not world.logind.is_held()
    assert [name for name, _, _ in world.pods.ended] == ["stuck", "critical"]


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_one_pod_raises_the_others_are_waited_for(
    shape: str, tmp_path: Path, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Pods.shut_down

    def shut_down(self: Pods, pod: v1.Pod, **how: Any) -> trio.Event:
        if pod.metadata.name == "bad":
            self.stopped.add("bad")
            raise SHAPES[shape]()
        return real(self, pod, **how)

    monkeypatch.setattr(Pods, "shut_down", shut_down)
    world = World(tmp_path, bad=1, web=2, critical=3)
    async with world.running():
        await trio.sleep(1)
        world.logind.say(True)
        await trio.sleep(1)
        assert world.logind.is_held()
        await trio.sleep(9)
        assert not world.logind.is_held()
    assert [name for name, _, _ in world.pods.ended] == ["web", "critical"]


async def test_a_shutdown_that_is_called_off(tmp_path: Path, autojump_clock: Clock) -> None:
    world = World(tmp_path, web=8, critical=1)
    async with world.running():
        world.logind.say(True)
        await trio.sleep(3)
        world.logind.say(False)
        await trio.sleep(30)
        assert [name for name, _, _ in world.pods.ended] == ["web"]
        assert world.shutdown.errors() == []
        assert world.logind.is_held()
        world.logind.say(True)
        await trio.sleep(1)
        assert world.turned == [["node is shutting down"], [], ["node is shutting down"]]
    cancelled = ("Normal", "Shutdown", "Shutdown manager detected shutdown cancellation")
    assert world.said.events[1] == cancelled


async def test_a_logind_that_is_started_anew_is_asked_again(tmp_path: Path, autojump_clock: Clock) -> None:
    world = World(tmp_path, web=1)
    async with world.running():
        await trio.sleep(1)
        world.logind.start_anew()
        await trio.sleep(1)
        assert world.logind.calls.count("Inhibit") == 2
        assert world.logind.is_held()
        assert len([lock for lock in world.logind.locks if _is_open(lock)]) == 1


async def test_a_shutdown_that_began_before_the_agent(tmp_path: Path, autojump_clock: Clock) -> None:
    world = World(tmp_path, web=1)
    world.logind.going_down = ("b", True)
    async with world.running():
        await trio.sleep(3)
        assert [name for name, _, _ in world.pods.ended] == ["web"]
        assert not world.logind.is_held()


@pytest.mark.parametrize("garbage", [("s", "soon"), ("t",), 7, ("t", None), ("u", 5_000_000)])
async def test_a_logind_that_answers_garbage_is_tried_again(
    tmp_path: Path, autojump_clock: Clock, garbage: object
) -> None:
    world = World(tmp_path, web=1)
    world.logind.delay = garbage
    async with world.running():
        await trio.sleep(100)
        assert "Inhibit" not in world.logind.calls
        assert len(world.logind.calls) < 12
        world.logind.delay = ("t", 60_000_000)
        world.logind.say("soon")
        world.logind.say()
        await trio.sleep(70)
        assert world.logind.is_held()
        world.logind.say(True)
        await trio.sleep(3)
        assert not world.logind.is_held()
    assert not (world.drop_ins / "99-kubelet.conf").exists()


async def test_a_bus_that_is_away_and_a_logind_that_does_not_listen(
    tmp_path: Path, autojump_clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, web=1)
    world.logind.away = True
    async with world.running():
        await trio.sleep(10)
        world.logind.away, world.logind.heeds = False, False
        await trio.sleep(100)
        assert not world.logind.is_held()
        world.logind.heeds = True
        await trio.sleep(70)
        assert world.logind.is_held()
    said = capfd.readouterr().err
    assert "no bus" in said
    assert (
        "node shutdown manager was timed out after 5 attempts waiting for logind InhibitDelayMaxSec "
        "to update to 30s (ShutdownGracePeriod), current value is 5s" in said
    )

"""What a pod's start asks of systemd, at a peer that writes it down: one call, whatever its class needs."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.cgroups.machine import wait_for
from tests.dbus.fake_bus import FakeBus
from trio_kubelet.api import v1
from trio_kubelet.cgroups.drivers import JOB_REMOVED, SystemdDriver
from trio_kubelet.cgroups.files import CgroupTree
from trio_kubelet.cgroups.plan import CgroupSettings
from trio_kubelet.cgroups.pods import PodCgroups
from trio_kubelet.dbus.bus import MessageBus
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.pods.doors import CgroupError

NODE = NodeContext(node_name="n", cgroup_driver="systemd", cgroup_v2=True)
BURSTABLE = "kubepods-burstable.slice"
FILES = ("cpu.weight", "cpu.max", "memory.max", "pids.max")


class Systemd:
    """Makes and stops slices, as directories; `classes` lets changes of the classes through."""

    def __init__(self, root: Path, socket: Path) -> None:
        self.root = root
        self.bus = FakeBus(socket, self._answer)
        self.classes = trio.Event()
        self.jobs = 0
        self.stops: list[str] = []  # how the next of them end; after that they are done
        self.nonsense: tuple[str, tuple[Any, ...]] | None = None
        self._plain(root)

    def calls(self, name: str) -> list[str]:
        """The units that this was called for."""
        return [arguments[0] for called, arguments in self.bus.calls if called == name]

    def path(self, unit: str) -> Path:
        parts = unit.removesuffix(".slice").split("-")
        return self.root.joinpath(*("-".join(parts[: end + 1]) + ".slice" for end in range(len(parts))))

    async def _answer(self, name: str, arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        unit = arguments[0]
        if name == "SetUnitProperties":
            await self.classes.wait()
            return "", ()
        if self.nonsense is not None:
            return self.nonsense
        if name == "StartTransientUnit":
            self.path(unit).mkdir(parents=True, exist_ok=True)
            self._plain(self.path(unit))
            for file in FILES:
                (self.path(unit) / file).touch()
        result = "done"
        if name == "StopUnit":
            result = self.stops.pop(0) if self.stops else result
            shutil.rmtree(self.path(unit))
            if result != "done":
                self.path(unit).mkdir()  # could be removed, as a cgroup without processes
        self.jobs += 1
        job = f"/org/freedesktop/systemd1/job/{self.jobs}"
        signals, body = JOB_REMOVED, (self.jobs, job, unit, result)
        await self.bus.signal(signals.path, signals.interface, signals.name, "uoss", body)
        return "o", (job,)

    @staticmethod
    def _plain(directory: Path) -> None:
        for file in ("cgroup.subtree_control", "cgroup.controllers"):
            (directory / file).touch()


def burstable(number: int) -> v1.Pod:
    resources = {"requests": {"cpu": "100m"}}
    spec = {"containers": [{"name": "c", "resources": resources}]}
    return msgspec.convert({"metadata": {"uid": f"u{number}"}, "spec": spec}, v1.Pod)


@asynccontextmanager
async def world(base: Path) -> AsyncIterator[tuple[Systemd, PodCgroups]]:
    root, socket = base / "cgroup", base / "bus"
    root.mkdir()
    systemd, bus = Systemd(root, socket), MessageBus(str(socket))
    tree = CgroupTree({"": str(root)})
    driver = SystemdDriver(tree, (bus,))
    settings = CgroupSettings(pids_limit=100, node_cpu=1000)
    cgroups = PodCgroups(tree=tree, driver=driver, node=lambda: NODE, settings=settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(systemd.bus.run)
        await nursery.start(bus.run)
        await nursery.start(driver.run)
        nursery.start_soon(cgroups.run)
        await cgroups.start()
        systemd.bus.calls.clear()
        yield systemd, cgroups
        nursery.cancel_scope.cancel()


async def test_a_start_waits_for_one_call_and_not_for_its_class(tmp_path: Path) -> None:
    async with world(tmp_path) as (systemd, cgroups):
        with trio.fail_after(60):
            await cgroups.ensure(burstable(1))
        assert [name for name, _ in systemd.bus.calls] == ["StartTransientUnit"]
        [(unit, _, properties, _)] = [arguments for _, arguments in systemd.bus.calls]
        assert unit == "kubepods-burstable-podu1.slice"
        assert {"CPUWeight", "TasksMax"} <= {name for name, _ in properties}
        await systemd.bus.heard("SetUnitProperties")  # the class gets its share, which nobody waits for
        with trio.fail_after(60):
            await cgroups.ensure(burstable(2))
        assert systemd.calls("StartTransientUnit") == [unit, "kubepods-burstable-podu2.slice"]


async def test_pods_that_start_together_are_one_change_of_their_class(tmp_path: Path) -> None:
    async with world(tmp_path) as (systemd, cgroups):
        await cgroups.ensure(burstable(0))
        await systemd.bus.heard("SetUnitProperties")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(1, 51):
                    nursery.start_soon(cgroups.ensure, burstable(number))
        assert systemd.calls("SetUnitProperties") == [BURSTABLE], "the first pod's change still hangs"
        systemd.classes.set()
        await wait_for(lambda: len(systemd.calls("SetUnitProperties")) > 1)
        assert systemd.calls("SetUnitProperties") == [BURSTABLE] * 2
        weights = [
            dict(arguments[2])["CPUWeight"]
            for name, arguments in systemd.bus.calls
            if name == "SetUnitProperties"
        ]
        assert weights[0] == ("t", 4)
        assert weights[1] == ("t", 200), "51 pods that ask for 100m each"


async def test_an_end_waits_for_its_own_slice_only(tmp_path: Path) -> None:
    async with world(tmp_path) as (systemd, cgroups):
        await cgroups.ensure(burstable(1))
        await systemd.bus.heard("SetUnitProperties")
        systemd.bus.calls.clear()
        with trio.fail_after(60):
            await cgroups.remove("u1")
        assert [name for name, _ in systemd.bus.calls] == ["StopUnit"]
        assert not systemd.path("kubepods-burstable-podu1.slice").exists()


async def test_a_slice_is_stopped_again_where_a_scope_in_it_canceled_that(tmp_path: Path) -> None:
    """Its directory could be removed, and it stayed listed as active."""
    async with world(tmp_path) as (systemd, cgroups):
        await cgroups.ensure(burstable(1))
        unit = "kubepods-burstable-podu1.slice"
        systemd.stops = ["canceled", "canceled", "canceled"]
        with trio.fail_after(60):
            await cgroups.remove("u1")
        assert systemd.calls("StopUnit") == [unit] * 4
        assert not systemd.path(unit).exists()


NONSENSE: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("", ()),
    ("s", ("nonsense",)),
    ("uasss", (1, ["/job"], "a.slice", "done")),
    ("uosu", (1, "/job", "a.slice", 7)),
)


async def test_a_systemd_that_says_what_it_should_not_fails_that_call_alone(tmp_path: Path) -> None:
    """The end of a job in other words, and an answer that is no job."""
    async with world(tmp_path) as (systemd, cgroups):
        for signature, body in NONSENSE:
            signals = JOB_REMOVED
            await systemd.bus.signal(signals.path, signals.interface, signals.name, signature, body)
        for signature, body in NONSENSE:
            if signature == "s":
                continue  # a text could be a job
            systemd.nonsense = signature, body
            with pytest.raises(CgroupError, match="without a job"), trio.fail_after(60):
                await cgroups.ensure(burstable(1))
        systemd.nonsense = None
        with trio.fail_after(60):
            await cgroups.ensure(burstable(1))
        assert systemd.path("kubepods-burstable-podu1.slice").exists()

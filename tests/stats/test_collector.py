"""Collections from a simulated runtime and made-up cgroups; what is missing never breaks the whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from tests.hung_filesystem import hung_filesystem
from tests.node.nodes import FACTS
from tests.runtime_configs.pods import NODE
from tests.stats.trees import hierarchies, write_cgroup, write_machine, write_process
from trio_kubelet.common.caching import PATIENCE
from trio_kubelet.common.clock import Clock, SystemClock, TrioClock
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.info import sandbox_image
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.eviction.ranking import working_set
from trio_kubelet.machine.values import VolumeUse
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.server.http.messages import Request, Response
from trio_kubelet.server.pages.local import metrics_page
from trio_kubelet.sim.door import sim_services
from trio_kubelet.sim.faults import Fault, Faults, Kind
from trio_kubelet.sim.populate import Population
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.service import SimService
from trio_kubelet.stats.cadvisor_metrics import MachineLabels
from trio_kubelet.stats.collector import StatsSettings
from trio_kubelet.stats.pods import PodFigures
from trio_kubelet.stats.room import StatsRoom, stats_settings
from trio_kubelet.stats.runtime_values import current_sandboxes, pinned_image, runtime_use
from trio_kubelet.stats.volumes import VolumeMeter

EPOCH = 1_795_270_560 * 10**9
MACHINE = MachineLabels(cores=2, physical_cores=2, sockets=1, memory=1 << 34, swap=0)


class World:
    """A simulated runtime with pods, and cgroups for the first of them."""

    def __init__(
        self, base: Path, pods: int = 3, with_cgroups: int = 2, clock: Clock | None = None, **more: Any
    ) -> None:
        self.base = base
        self.clock: Clock = clock or TrioClock(EPOCH)
        self.runtime = SimRuntime()
        Population(self.runtime).add_pods(pods, 2, self.clock.now_ns() - 10**12)
        self.faults = Faults()
        self.service = SimService(self.runtime, self.clock, faults=self.faults)
        self.proc = base / "proc"
        write_machine(self.proc)
        write_cgroup(base / "cgroup", "/", 1)
        for number, sandbox in enumerate(list(self.runtime.sandboxes.values())[:with_cgroups]):
            pod = f"/kubepods/besteffort/pod{sandbox.config.metadata.uid}"
            write_cgroup(base / "cgroup", pod, 1)
            write_cgroup(base / "cgroup", f"{pod}/{sandbox.id}", 1, pid=100 + number)
            write_process(self.proc, 100 + number)
        for container in self.runtime.containers.values():
            uid = self.runtime.sandboxes[container.sandbox_id].config.metadata.uid
            if (base / f"cgroup/memory/kubepods/besteffort/pod{uid}").is_dir():
                write_cgroup(base / "cgroup", f"/kubepods/besteffort/pod{uid}/{container.id}", 1, pid=500)
        meta = next(iter(self.runtime.sandboxes.values())).config.metadata
        logs = base / "logs" / f"{meta.namespace}_{meta.name}_{meta.uid}" / "c0"
        logs.mkdir(parents=True)
        (logs / "0.log").write_bytes(bytes(5000))
        self.volume: tuple[VolumeUse, ...] | None = None
        services = sim_services(self.service)
        settings = StatsSettings(
            node_name="node1",
            **{"root_dir": str(base), "pod_logs_dir": str(base / "logs"), **more},
            names=CgroupNames(),
            memory_capacity=1 << 34,
            proc=str(self.proc),
        )
        meter = VolumeMeter(lambda: (), str(base), self.clock, 0)
        tree = hierarchies(base / "cgroup", 1)
        self.room = StatsRoom(services.runtime, services.images, tree, self.clock, settings, MACHINE, meter)

    async def summary(self, only_cpu_and_memory: bool = False) -> dict[str, object]:
        pieces = [piece async for piece in self.room.pages.summary_page(only_cpu_and_memory)]
        found = json.loads(b"".join(pieces))
        assert isinstance(found, dict)
        return found

    async def node(self) -> Any:
        return (await self.summary())["node"]

    async def pods(self) -> dict[str, dict[str, object]]:
        found = (await self.summary())["pods"]
        assert isinstance(found, list)
        return {each["podRef"]["name"]: each for each in found}

    async def text(self, page: AsyncIterator[bytes]) -> str:
        return b"".join([piece async for piece in page]).decode()


@asynccontextmanager
async def running(base: Path, pods: int = 3, **settings: Any) -> AsyncIterator[World]:
    world = World(base, pods, **settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(world.service.run)
        nursery.start_soon(world.room.run)
        yield world
        nursery.cancel_scope.cancel()


async def test_a_summary_of_pods_with_and_without_cgroups(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        pods = await world.pods()
    assert set(pods) == {"sim-0", "sim-1", "sim-2"}
    assert pods["sim-0"]["network"]["name"] == "eth0"  # type: ignore[index]
    assert pods["sim-0"]["process_stats"] == {"process_count": 2}
    assert "network" not in pods["sim-2"]
    (logged,) = [c for c in pods["sim-0"]["containers"] if c["name"] == "c0"]  # type: ignore[attr-defined]
    assert logged["logs"]["usedBytes"] >= 4096
    assert logged["cpu"]["usageNanoCores"] > 0


@pytest.mark.parametrize("name", ["", "..", "../..", "a/b", "a\nb", "ü", "\x00", "x" * 300])
@pytest.mark.parametrize("field", ["uid", "namespace", "name"])
async def test_what_others_start_may_be_called_anything(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, field: str, name: str
) -> None:
    async with running(tmp_path, with_cgroups=3) as world:
        theirs = list(world.runtime.sandboxes.values())[-1]
        setattr(theirs.config.metadata, field, name)
        pods = await world.pods()
    assert "ephemeral-storage" in pods["sim-0"]
    (logged,) = [c for c in pods["sim-0"]["containers"] if c["name"] == "c0"]  # type: ignore[attr-defined]
    assert logged["logs"]["usedBytes"] >= 4096


async def test_the_sizes_of_logs_are_a_family_of_the_agents_metrics(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        uid = (await world.pods())["sim-0"]["podRef"]["uid"]  # type: ignore[index]
        page = metrics_page(CollectorRegistry(), world.room.pages.log_metrics)
        answer = await page(Request(method="GET", path="/metrics", target="/metrics", query={}, headers=()))
        assert isinstance(answer, Response)
        assert isinstance(answer.body, AsyncIterator)
        lines = (await world.text(answer.body)).splitlines()
    name = "kubelet_container_log_filesystem_used_bytes"
    assert lines[:2][1] == f"# TYPE {name} gauge"
    labels = f'container="c0",namespace="default",pod="sim-0",uid="{uid}"'
    assert [line for line in lines if line.startswith(f"{name}{{{labels}}} ")]


async def test_the_sizes_of_logs_wait_for_no_figures_of_the_runtime(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """It asks each container's shim for them, which takes seconds on a dense node that is busy."""
    async with running(tmp_path) as world:
        world.faults.add(Fault(Kind.HANG, "ListContainerStats"))
        began = trio.current_time()
        assert 'pod="sim-0"' in await world.text(world.room.pages.log_metrics())
        assert trio.current_time() - began < 1
        assert "ListContainerStats" not in world.service.calls


async def test_a_runtime_that_hangs_does_not_hold_up_the_agents_metrics(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        world.faults.add(Fault(Kind.HANG, "*"))
        began = trio.current_time()
        assert await world.text(world.room.pages.log_metrics()) == ""
        assert trio.current_time() - began == pytest.approx(PATIENCE, abs=0.1)


async def test_a_pod_whose_cgroup_is_not_found_is_looked_up_at_the_runtime(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        figures = PodFigures(world.room.collector, world.room.meter, world.clock)
        assert (await figures.in_use() or {}).keys() == (await figures.measured() or {}).keys()
        assert world.service.calls["ListContainerStats"]


async def test_nothing_is_known_until_the_runtime_has_told_its_pods(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        began = trio.current_time()
        figures = PodFigures(world.room.collector, world.room.meter, world.clock)
        world.faults.add(Fault(Kind.HANG, "ListPodSandbox", count=1))
        assert await figures.in_use() is None
        assert await figures.measured() is None
        assert trio.current_time() - began == pytest.approx(PATIENCE, abs=0.1)
        assert world.service.calls["ListPodSandbox"] == 1
        await trio.sleep(10)
        assert len(await figures.in_use() or {}) == 3
        assert len(await figures.measured() or {}) == 3
        world.faults.add(Fault(Kind.HANG, "ListPodSandbox"))
        assert len(await figures.in_use() or {}) == 3, "those it named last"


async def test_use_is_read_from_cgroups_when_the_runtimes_figures_take_long(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path, 2) as world:
        figures = PodFigures(world.room.collector, world.room.meter, world.clock)
        complete = await figures.measured() or {}
        for name in ("ListContainerStats", "ImageFsInfo"):
            world.faults.add(Fault(Kind.HANG, name))
        before, calls = trio.current_time(), dict(world.service.calls)
        found = await figures.in_use() or {}
        assert trio.current_time() == before
        for name in ("ListContainerStats", "ImageFsInfo"):
            assert world.service.calls[name] == calls[name]
        known = [uid for uid, stats in found.items() if stats.process_stats is not None]
        assert len(known) == 2
        for uid in known:
            assert found[uid].memory == complete[uid].memory
            assert found[uid].process_stats == complete[uid].process_stats
            assert [each.name for each in found[uid].containers] == [
                each.name for each in complete[uid].containers
            ]


async def test_a_pod_between_two_crashes_is_known_to_use_what_its_cgroup_holds(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path, 3) as world:
        figures = PodFigures(world.room.collector, world.room.meter, world.clock)
        everything = await figures.measured() or {}
        crashed = list(world.runtime.sandboxes.values())[0:3:2]
        for container in world.runtime.containers.values():
            if container.sandbox_id in {each.id for each in crashed}:
                container.state = cri.CONTAINER_EXITED
        await trio.sleep(1)
        found = await figures.in_use() or {}
        with_cgroup, without = (each.config.metadata.uid for each in crashed)
        assert found.keys() == everything.keys()
        assert working_set(found[with_cgroup].memory) == working_set(everything[with_cgroup].memory) > 0
        assert found[without].memory is None
        assert not found[with_cgroup].containers
        assert (await figures.measured() or {}).keys() == everything.keys() - {with_cgroup, without}


async def test_ten_scrapers_cost_one_collection(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        world.faults.add(Fault(Kind.SLOW, "ListContainerStats", seconds=1))
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(world.summary)
                nursery.start_soon(world.text, world.room.pages.resource_metrics_page())
                nursery.start_soon(world.text, world.room.pages.cadvisor_page())
        assert world.service.calls["ListContainerStats"] == 1
        await trio.sleep(6)
        await world.summary()
        assert world.service.calls["ListContainerStats"] == 2


async def test_rates_come_from_two_collections(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        assert (await world.pods())["sim-0"]["cpu"]["usageNanoCores"] == 0  # type: ignore[index]
        for usage in (tmp_path / "cgroup/cpuacct").rglob("cpuacct.usage"):
            usage.write_text(str(int(usage.read_text()) + 5 * 10**9))
        await trio.sleep(10)
        found = await world.pods()
        assert found["sim-0"]["cpu"]["usageNanoCores"] == 500_000_000  # type: ignore[index]
        assert found["sim-0"]["containers"][0]["cpu"]["usageNanoCores"] == 500_000_000  # type: ignore[index]


async def test_a_runtime_that_is_away_leaves_the_pods_it_named_last(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        before = set(await world.pods())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.service.restart, 60.0)
            await trio.sleep(6)
            assert set(await world.pods()) == before
            assert "resource_scrape_error 1" in await world.text(world.room.pages.resource_metrics_page())
            assert "container_scrape_error 1" in await world.text(world.room.pages.cadvisor_page())
        await trio.sleep(6)
        page = await world.text(world.room.pages.resource_metrics_page())
        assert "resource_scrape_error 0" in page
        assert "\nscrape_error" not in page


async def test_metrics_that_will_go_away_are_shown_on_demand(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    config = KubeletConfiguration(show_hidden_metrics_for_version="1.35")
    wanted = stats_settings(NODE, config, FACTS).hidden_metrics
    assert not stats_settings(NODE, KubeletConfiguration(), FACTS).hidden_metrics
    async with running(tmp_path, hidden_metrics=wanted) as world:
        page = await world.text(world.room.pages.resource_metrics_page())
    assert {"scrape_error 0", "resource_scrape_error 0"} <= set(page.splitlines())


async def test_a_runtime_that_was_never_there_leaves_the_node(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world, trio.open_nursery() as nursery:
        nursery.start_soon(world.service.restart, 600.0)
        await trio.sleep(1)
        found = await world.summary()
        nursery.cancel_scope.cancel()
    assert found["pods"] == []
    assert found["node"]["cpu"]["usageCoreNanoSeconds"] > 0  # type: ignore[index]


async def test_a_runtime_that_hangs_is_waited_for_only_shortly(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        world.faults.add(Fault(Kind.HANG, "ListContainerStats"))
        began = trio.current_time()
        pods = await world.pods()
        assert trio.current_time() - began == pytest.approx(PATIENCE, abs=0.1)
    # The containers are known from their cgroups; of the third pod nothing is.
    assert set(pods) == {"sim-0", "sim-1"}
    assert "rootfs" not in pods["sim-0"]["containers"][0]  # type: ignore[index]


async def test_shims_that_hang_leave_what_the_runtime_told_last_and_make_no_cgroup_old(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """Whoever scrapes the node gives up after some ten seconds, and a runtime that hangs is not asked more
    often for that.
    """
    async with running(tmp_path) as world:
        before = await world.summary()
        world.faults.add(Fault(Kind.HANG, "ListContainerStats"))
        calls, began = world.service.calls["ListContainerStats"], trio.current_time()
        for number in range(12):
            await trio.sleep(5.1)
            asked_at = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.text, world.room.pages.resource_metrics_page())
                nursery.start_soon(world.text, world.room.pages.cadvisor_page())
                found = await world.summary()
            assert trio.current_time() - asked_at <= PATIENCE + 0.1, number
        asked = world.service.calls["ListContainerStats"] - calls
        assert 1 < asked <= (trio.current_time() - began) / 10 + 1
        assert "resource_scrape_error 1" in await world.text(world.room.pages.resource_metrics_page())

        def of(summary: Any, pod: str) -> Any:
            return next(each for each in summary["pods"] if each["podRef"]["name"] == pod)["containers"][0]

        for pod in ("sim-0", "sim-2"):
            assert of(found, pod)["rootfs"]["usedBytes"] == of(before, pod)["rootfs"]["usedBytes"]
            assert of(found, pod)["rootfs"]["time"] == of(before, pod)["rootfs"]["time"]
        for figure in ("cpu", "memory"):
            assert of(found, "sim-2")[figure] == of(before, "sim-2")[figure], "without a cgroup: as then"
        assert of(found, "sim-0")["cpu"]["time"] > of(before, "sim-0")["cpu"]["time"]
        world.faults.clear()
        await trio.sleep(15)
        assert of(await world.summary(), "sim-2")["cpu"]["time"] > of(before, "sim-2")["cpu"]["time"]
        assert "resource_scrape_error 0" in await world.text(world.room.pages.resource_metrics_page())


async def test_a_runtime_that_takes_some_seconds_has_not_failed(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """As on a dense node that is busy: its answers are there for the next reader."""
    async with running(tmp_path) as world:
        world.faults.add(Fault(Kind.SLOW, "ListContainerStats", seconds=4))
        await world.summary()
        for _ in range(3):
            await trio.sleep(30)
            assert set(await world.pods()) == {"sim-0", "sim-1", "sim-2"}
            assert "resource_scrape_error 0" in await world.text(world.room.pages.resource_metrics_page())


async def test_a_disk_that_hangs_leaves_all_that_is_not_on_it(tmp_path: Path) -> None:
    """Evictions for memory need that, and whoever scrapes the node gives up after some ten seconds."""
    with hung_filesystem(tmp_path / "away") as away:
        on_it: dict[str, Any] = {"root_dir": str(away.at), "pod_logs_dir": f"{away.at}/part"}
        async with running(tmp_path, clock=SystemClock(), **on_it) as world:
            before = await world.node()
            assert before["fs"]["capacityBytes"] == 0
            away.hang()
            try:
                figures = PodFigures(world.room.collector, world.room.meter, world.clock)
                for look in (figures.in_use, figures.measured, figures.measured):
                    began = trio.current_time()
                    found = await look() or {}
                    assert trio.current_time() - began < 8
                    assert len([each for each in found.values() if working_set(each.memory)]) == 3
                after = await world.node()
                assert "fs" not in after
                assert after["runtime"]["imageFs"]["usedBytes"] == before["runtime"]["imageFs"]["usedBytes"]
                assert "container_memory_rss" in await world.text(world.room.pages.cadvisor_page())
            finally:
                away.go_on()


async def test_the_image_of_sandboxes_is_waited_for_only_shortly(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        world.faults.add(Fault(Kind.HANG, "Status"))
        began = trio.current_time()
        assert "machine_cpu_cores" in await world.text(world.room.pages.cadvisor_page())
        assert trio.current_time() - began == pytest.approx(PATIENCE, abs=0.1)


async def test_cgroups_that_vanish_are_left_out(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        await world.summary()
        shutil.rmtree(tmp_path / "cgroup" / "memory" / "kubepods")
        shutil.rmtree(tmp_path / "cgroup" / "cpuacct" / "kubepods")
        shutil.rmtree(world.proc / "100")
        await trio.sleep(6)
        pods = await world.pods()
        assert set(pods) == {"sim-0", "sim-1", "sim-2"}
        assert "process_stats" not in pods["sim-0"]
        assert "machine_cpu_cores" in await world.text(world.room.pages.cadvisor_page())


async def test_the_page_for_cadvisor_has_a_row_for_each_cgroup(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        text = await world.text(world.room.pages.cadvisor_page())
    lines = [line for line in text.splitlines() if line.startswith("container_memory_rss{")]
    assert len(lines) == 1 + 2 * (1 + 1 + 2)  # the root; two pods, each with a sandbox and two containers
    received = [
        line for line in text.splitlines() if line.startswith("container_network_receive_bytes_total{")
    ]
    assert len(received) == 1 + 2
    assert 'container_ulimits_soft{container="",id="/kubepods' in text


async def test_settings_of_a_cgroup_are_read_again_after_some_minutes(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async def throttled_and_quota(world: World) -> tuple[set[str], set[str]]:
        text = await world.text(world.room.pages.cadvisor_page())
        lines = [line.split()[:2] for line in text.splitlines() if "besteffort/pod" in line]
        return (
            {value for name, value in lines if name.startswith("container_cpu_cfs_periods_total{")},
            {value for name, value in lines if name.startswith("container_spec_cpu_quota{")},
        )

    def write(name: str, content: str) -> None:
        for path in (tmp_path / "cgroup/cpu").rglob(name):
            path.write_text(content)

    async with running(tmp_path) as world:
        assert await throttled_and_quota(world) == ({"239"}, {"10000"})
        write("cpu.stat", "nr_periods 300\n")
        write("cpu.cfs_quota_us", "20000\n")
        await trio.sleep(11)
        assert await throttled_and_quota(world) == ({"300"}, {"10000"})
        await trio.sleep(130)
        assert await throttled_and_quota(world) == ({"300"}, {"20000"})


async def test_hundreds_of_pods_come_in_slices(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path, pods=100) as world:
        pieces = [piece async for piece in world.room.pages.summary_page()]
        assert len(pieces) >= 100 // 16 + 2
        assert len(json.loads(b"".join(pieces))["pods"]) == 100


def test_of_sandboxes_with_one_name_the_ready_ones_count() -> None:
    def sandbox(name: str, uid: str, created: int, ready: bool) -> cri.PodSandbox:
        state = cri.SANDBOX_READY if ready else cri.SANDBOX_NOTREADY
        metadata = cri.PodSandboxMetadata(name=name, namespace="default", uid=uid)
        return cri.PodSandbox(id=f"{name}-{created}", metadata=metadata, state=state, created_at=created)

    found = current_sandboxes(
        [
            sandbox("a", "1", 3, True),
            sandbox("a", "1", 2, False),
            sandbox("b", "2", 1, False),
            sandbox("c", "3", 5, False),
            sandbox("c", "4", 4, False),
        ]
    )
    assert {each.id for each in found} == {"a-3", "b-1", "c-5"}


def test_the_image_of_sandboxes() -> None:
    assert sandbox_image({"x": "no json", "config": '{"sandboxImage": "pause:3"}'}) == "pause:3"
    assert sandbox_image({"config": '{"sandboxImage": 7}', "y": "[]"}) == ""
    pause, other = cri.Image(pinned=True, repo_tags=["pause:3"]), cri.Image(repo_tags=["app:1"])
    assert pinned_image([other, pause]) == "pause:3"
    assert pinned_image([pause, pause]) == pinned_image([cri.Image(pinned=True)]) == ""


def test_what_the_runtime_says_of_a_container() -> None:
    stats = cri.ContainerStats(attributes=cri.ContainerAttributes(id="x"))
    assert runtime_use(stats).cpu_at_ns is None
    stats.cpu.timestamp = -(2**63)
    stats.cpu.usage_core_nano_seconds.value = 2**64 - 1
    stats.cpu.psi.Some.Avg10 = float("inf")
    stats.writable_layer.fs_id.mountpoint = "/x"
    found = runtime_use(stats)
    assert (found.cpu_at_ns, found.cpu, found.nano_cores) == (-(2**63), 2**64 - 1, None)
    assert found.cpu_pressure is not None
    assert found.cpu_pressure.some.avg10 == 0
    assert found.layer is not None
    assert (found.layer.mountpoint, found.layer.used) == ("/x", None)

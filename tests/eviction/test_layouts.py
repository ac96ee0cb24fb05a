"""Node, images and containers on real filesystems of their own, in the three layouts there are: what is read
of each, which thresholds count, which one is met, who goes, and what `/stats/summary` says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from tests.disks import disk
from tests.eviction.build import pod_stats
from tests.node.world import Said
from tests.stats.test_collector import World
from trio_kubelet.api import v1
from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.eviction.decision import reclaims, victim
from trio_kubelet.eviction.monitor import PressureMonitor, PressureSettings
from trio_kubelet.eviction.signals import SignalPlaces, read_signals
from trio_kubelet.eviction.thresholds import Layout, Threshold
from trio_kubelet.machine.cgroup_reader import cgroup_reader
from trio_kubelet.sim import answers
from trio_kubelet.sim.door import sim_services

pytestmark = [pytest.mark.node, pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")]

MIB = 1 << 20
SIZES = {"node": 24, "images": 32}
THRESHOLDS = (Threshold("nodefs.available", "4Mi"), Threshold("imagefs.available", "6Mi"))
PLACES = {
    Layout.ONE: ("node", "node"),
    Layout.IMAGES_APART: ("images", "images"),
    Layout.SPLIT: ("images", "node"),
}


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Path]:
    """Two small filesystems."""
    with ExitStack() as stack:
        for name, size in SIZES.items():
            make = ["mkfs.ext4", "-q", "-m", "0"]
            stack.enter_context(disk(tmp_path / name, tmp_path / f"{name}.img", size, make))
        yield tmp_path


def tell(monkeypatch: pytest.MonkeyPatch, images: Path, containers: Path) -> None:
    """What the runtime says of its filesystems."""

    def answer(self: answers.Answers, request: cri.ImageFsInfoRequest) -> cri.ImageFsInfoResponse:
        said = cri.ImageFsInfoResponse()
        for path, used, into in (
            (images, 1111, said.image_filesystems),
            (containers, 2222, said.container_filesystems),
        ):
            found = into.add(timestamp=self.now_ns())
            found.fs_id.mountpoint = str(path)
            found.used_bytes.value = used
        return said

    monkeypatch.setitem(answers.METHODS, "ImageFsInfo", answer)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("full", ["node", "images"])
async def test_each_layout(
    layout: Layout,
    full: str,
    disks: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    images, containers = (disks / name for name in PLACES[layout])
    tell(monkeypatch, images, containers)
    world = World(disks / "node", pods=1)
    clock, cgroups = SystemClock(), cgroup_reader(find_hierarchies(), SystemClock())
    settings = PressureSettings(
        places=SignalPlaces(memory=1 << 50, root_dir=str(disks / "node"), pods_cgroup="/none"),
        thresholds=THRESHOLDS,
    )
    monitor = PressureMonitor(
        settings,
        sim_services(world.service).images,
        lambda places: read_signals(places, cgroups, clock),
        Said(),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(world.service.run)
        nursery.start_soon(world.room.run)
        seen = await monitor.look()
        assert seen.layout is layout
        assert seen.met == ()
        sizes = {name: os.statvfs(disks / name) for name in SIZES}
        for signal, name in zip(("nodefs", "imagefs", "containerfs"), ("node", *PLACES[layout]), strict=True):
            capacity = sizes[name].f_blocks * sizes[name].f_frsize
            assert seen.signals[f"{signal}.available"].capacity == capacity
            assert seen.signals[f"{signal}.inodesFree"].capacity == sizes[name].f_files
        free = sizes[full].f_bavail * sizes[full].f_frsize
        (disks / full / "big").write_bytes(bytes(free - 3 * MIB))
        seen = await monitor.look()
        summary: Any = await world.summary()
        nursery.cancel_scope.cancel()
    assert monitor.conditions == ({"DiskPressure"} if seen.met else set())
    assert {each.signal.partition(".")[0] for each in seen.met} == expected(layout, full)
    runtime = summary["node"]["runtime"]
    image_size, container_size = (sizes[name].f_blocks * sizes[name].f_frsize for name in PLACES[layout])
    assert (runtime["imageFs"]["capacityBytes"], runtime["imageFs"]["usedBytes"]) == (image_size, 1111)
    split = layout is Layout.SPLIT
    assert runtime["containerFs"]["usedBytes"] == (2222 if split else 1111)
    assert runtime["containerFs"]["capacityBytes"] == container_size
    if seen.met:
        assert whom(seen.met, seen.signals, layout) == goes(layout, seen.met[0].signal)
        frees = layout is not Layout.IMAGES_APART or full == "images"
        assert bool(reclaims(seen.met[0].signal, layout)) is frees


def expected(layout: Layout, full: str) -> set[str]:
    """The filesystems that run short. The container's goes with the image's where both are apart from the
    node's, else with the node's.
    """
    if layout is Layout.ONE:
        return {"nodefs", "imagefs", "containerfs"} if full == "node" else set()
    if layout is Layout.IMAGES_APART:
        return {"nodefs"} if full == "node" else {"imagefs", "containerfs"}
    return {"nodefs", "containerfs"} if full == "node" else {"imagefs"}


def whom(met: tuple[Threshold, ...], signals: Any, layout: Layout) -> str:
    """Three pods, each the largest in one thing."""
    uses = {"layers": [9, 0, 0], "logs": [0, 9, 0], "volumes": [1, 1, 6]}
    pods, stats = [], {}
    for name, (layer, log, volume) in uses.items():
        source = v1.Volume(name="v", empty_dir=v1.EmptyDirVolumeSource())
        spec = v1.PodSpec(containers=[v1.Container(name="c")], volumes=[source])
        pods.append(v1.Pod(metadata=v1.ObjectMeta(name=name, namespace="d", uid=name), spec=spec))
        container = {"n": "c", "root": [layer, 1], "logs": [log, 1]}
        stats[name] = pod_stats(name, {"c": [container], "v": {"v": (volume, 1)}})
    chosen = victim(met, signals, layout, pods, stats, 30)
    assert chosen is not None
    return chosen.pod.metadata.name


def goes(layout: Layout, signal: str) -> str:
    """Where the layers are on another disk than logs and volumes, each disk's own user goes."""
    if layout is Layout.IMAGES_APART:
        return "logs" if signal.startswith("nodefs") else "layers"
    return "layers"

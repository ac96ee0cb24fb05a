"""Layers of containers: found among the mounts, measured, newer figures taken instead of the runtime's."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from tests.stats.samples import NOW, pod
from tests.stats.test_collector import running
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.common.mountinfo import Mount
from trio_kubelet.machine.values import DiskUse, VolumeUse
from trio_kubelet.stats.pods import PodFigures, layer_use, upper_directories, with_layers
from trio_kubelet.stats.volumes import VolumeMeter

OPTIONS = "rw,lowerdir=/s/1/fs:/s/2/fs,upperdir=/s/{}/fs,workdir=/s/{}/work"


def test_a_layer_is_found_by_the_containers_id() -> None:
    found = [
        Mount("/", "overlay", options=OPTIONS.format(9, 9)),
        Mount("/run/k8s.io/abc/rootfs", "overlay", options=OPTIONS.format(3, 3)),
        Mount("/run/k8s.io/xyz/rootfs", "overlay", options=OPTIONS.format(4, 4)),
        Mount("/run/k8s.io/def/rootfs", "ext4", options="rw,upperdir=/nonsense"),
        Mount("/run/k8s.io/ghi/rootfs", "overlay", options="ro,lowerdir=/s/1/fs"),
    ]
    assert upper_directories({"abc", "def", "ghi"}, found) == {"abc": "/s/3/fs"}


def test_what_a_layer_takes(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(bytes(100_000))
    use = layer_use(str(tmp_path), SystemClock(), 10)
    assert use is not None
    assert use.used >= 100_000
    assert use.inodes == 3
    assert layer_use(str(tmp_path), SystemClock(), 2) is None
    assert layer_use(str(tmp_path / "none"), SystemClock(), 10) is None


def layer_of(measured: dict[str, DiskUse]) -> tuple[int | None, int]:
    [found] = with_layers([pod()], measured)
    runtime = found.containers[0].runtime
    assert runtime is not None
    assert runtime.layer is not None
    return runtime.layer.used, runtime.layer.at_ns


def test_the_newer_figure_counts() -> None:
    name = pod().containers[0].id
    used, at_ns = layer_of({})
    assert layer_of({name: DiskUse(at_ns + 1, 77, 7)}) == (77, at_ns + 1)
    assert layer_of({name: DiskUse(at_ns - 1, 77, 7)}) == (used, at_ns)
    assert layer_of({"other": DiskUse(at_ns + 1, 77, 7)}) == (used, at_ns)


async def test_what_a_look_has_found_is_there_right_after_it(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only once what was put together before it is old."""
    uses: list[VolumeUse] = []

    async def measure_all(meter: VolumeMeter) -> None:
        await trio.sleep(0.01)
        uses.append(
            VolumeUse(
                name="v",
                at_ns=NOW,
                available=1,
                capacity=9,
                used=7,
                inodes=9,
                inodes_free=1,
                inodes_used=3,
                ephemeral=True,
            )
        )

    monkeypatch.setattr(VolumeMeter, "of", lambda meter, uid: tuple(uses))
    monkeypatch.setattr(VolumeMeter, "measure_all", measure_all)
    async with running(tmp_path, 1) as world:
        figures = PodFigures(world.room.collector, world.room.meter, world.clock)
        [before] = (await figures.measured() or {}).values()
        await figures.look_at_disks()
        [after] = (await figures.measured() or {}).values()
    assert not before.volume
    assert [each.used_bytes for each in after.volume or ()] == [7]

"""The meter of volumes: which volumes it measures, when, and that it forgets pods that are gone."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from tests.shapes import SHAPES
from trio_kubelet.api import v1
from trio_kubelet.common.clock import TrioClock
from trio_kubelet.common.lanes import WorkHangs
from trio_kubelet.machine.values import VolumeUse
from trio_kubelet.stats import disk, volumes
from trio_kubelet.stats.volumes import ClaimStats, VolumeMeter, measured_volumes

USE = VolumeUse(
    name="v",
    at_ns=0,
    available=1,
    capacity=2,
    used=1,
    inodes=4,
    inodes_free=3,
    inodes_used=1,
    ephemeral=False,
    namespace="ns",
)


def pod(uid: str = "u-1", *more: v1.Volume) -> v1.Pod:
    every = [
        v1.Volume(name="secret", secret=v1.SecretVolumeSource(secret_name="s")),
        v1.Volume(name="memory", empty_dir=v1.EmptyDirVolumeSource(medium="Memory")),
        v1.Volume(name="host", host_path=v1.HostPathVolumeSource(path="/")),
        v1.Volume(name="scratch", empty_dir=v1.EmptyDirVolumeSource()),
        v1.Volume(name="config", config_map=v1.ConfigMapVolumeSource(name="c")),
        *more,
    ]
    return v1.Pod(metadata=v1.ObjectMeta(name=uid, uid=uid), spec=v1.PodSpec(containers=[], volumes=every))


def scratch_of(base: Path, uid: str = "u-1") -> Path:
    return base / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / "scratch"


def test_a_pods_own_volumes_are_measured_local_ones_first() -> None:
    found = measured_volumes(pod(), "/var/lib/kubelet")
    assert [(each.name, each.ephemeral) for each in found] == [
        ("scratch", True),
        ("config", True),
        ("secret", False),
        ("memory", False),
    ]
    assert found[0].path == "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/scratch"
    assert measured_volumes(v1.Pod(spec=v1.PodSpec(containers=[])), "/var/lib/kubelet") == []


async def test_each_pod_is_measured_once_a_period(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    pods = [pod()]
    directory = scratch_of(tmp_path)
    directory.mkdir(parents=True)
    registry = CollectorRegistry(auto_describe=False)
    meter = VolumeMeter(lambda: pods, str(tmp_path), TrioClock(0), 60, registry)
    assert meter.of("u-1") is None
    async with trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        await trio.sleep(3)
        first = meter.of("u-1")
        assert first is not None
        assert [each.name for each in first] == ["scratch"]  # the others are not mounted
        (directory / "data").write_bytes(bytes(100_000))
        await trio.sleep(50)
        assert meter.of("u-1") == first
        await trio.sleep(75)
        (later,) = meter.of("u-1") or ()
        assert later.used >= first[0].used + 100_000
        assert later.inodes_used == first[0].inodes_used + 1
        pods.clear()
        await trio.sleep(6)
        assert meter.of("u-1") is None
        nursery.cancel_scope.cancel()
    name, walks = "kubelet_volume_metric_collection_duration_seconds", {"metric_source": "du"}
    assert (registry.get_sample_value(f"{name}_count", walks) or 0) >= 2
    assert registry.get_sample_value(f"{name}_sum", walks) == pytest.approx(0, abs=1)


@pytest.mark.parametrize(("module", "bound"), [(volumes, "MOST_FILES"), (disk, "_DEEPEST")])
async def test_a_volume_that_cannot_be_walked_counts_with_all_of_its_filesystem(
    autojump_clock: trio.testing.MockClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    bound: str,
) -> None:
    monkeypatch.setattr(module, bound, 3)
    monkeypatch.setattr(volumes, "LARGE", 2)
    directory = scratch_of(tmp_path)
    directory.joinpath("1/2/3/4/5").mkdir(parents=True)
    statvfs = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: statvfs)
    meter = VolumeMeter(lambda: [pod()], str(tmp_path), TrioClock(0), 60)
    async with trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        await trio.sleep(3)
        (use,) = meter.of("u-1") or ()
        assert use.used == (statvfs.f_blocks - statvfs.f_bfree) * statvfs.f_frsize
        assert use.inodes_used == statvfs.f_files - statvfs.f_ffree
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("most", [volumes.MOST_FILES, 3])
async def test_a_volume_that_goes_while_it_is_measured_is_left_out(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(volumes, "MOST_FILES", most)
    monkeypatch.setattr(volumes, "LARGE", 2)
    monkeypatch.setattr(volumes, "filesystem_of", lambda path, clock: None)
    scratch_of(tmp_path).joinpath("1/2/3/4/5").mkdir(parents=True)
    meter = VolumeMeter(lambda: [pod()], str(tmp_path), TrioClock(0), 60)
    await meter.measure_all()
    assert meter.of("u-1") == ()


class SlowDisk:
    """A lane whose walks over many files take their time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.walks: list[tuple[str, int]] = []  # UID of the pod, and how many files at most

    async def run(self, work: Callable[[], object], owner: str) -> object:
        assert isinstance(work, partial)
        if owner.endswith("/scratch"):
            self.walks.append((owner.split("/")[-4], work.keywords["most"]))
            if work.keywords["most"] == volumes.MOST_FILES:
                await trio.sleep(self.seconds)
            if self.seconds > 300:
                raise WorkHangs
        return work()


async def test_pods_with_large_volumes_hold_up_no_others(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDisk(250)
    monkeypatch.setattr(volumes, "METER", slow)
    monkeypatch.setattr(volumes, "LARGE", 10)
    pods = [pod(f"u-{number}") for number in range(5)]
    for number in range(5):
        scratch_of(tmp_path, f"u-{number}").mkdir(parents=True)
    for uid, files in (("u-0", 20), ("u-1", 20)):
        for number in range(files):
            scratch_of(tmp_path, uid).joinpath(str(number)).touch()
    meter = VolumeMeter(lambda: pods, str(tmp_path), TrioClock(0), 60)
    async with trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        await trio.sleep(3)
        assert [meter.of(each.metadata.uid) is None for each in pods] == [True, True, False, False, False]
        for uid in ("u-2", "u-3", "u-4"):
            scratch_of(tmp_path, uid).joinpath("new").touch()
        await trio.sleep(130)
        assert [use.inodes_used for uid in ("u-2", "u-3", "u-4") for use in meter.of(uid) or ()] == [2, 2, 2]
        assert meter.of("u-0") is None
        await trio.sleep(400)
        assert [use.inodes_used for uid in ("u-0", "u-1") for use in meter.of(uid) or ()] == [21, 21]
        assert slow.walks.count(("u-0", volumes.MOST_FILES)) > 1
        assert slow.walks.count(("u-0", 10)) == 1, "nobody waits again for what is known to be large"
        for number in range(20):  # it is like others again, and measured with them
            scratch_of(tmp_path, "u-0").joinpath(str(number)).unlink()
        pods[1:] = []
        await trio.sleep(800)
        slow.walks.clear()
        await trio.sleep(500)
        assert set(slow.walks) == {("u-0", 10)}
        assert 4 <= len(slow.walks) <= 9
        nursery.cancel_scope.cancel()


async def test_a_pod_whose_walks_take_long_holds_up_no_others(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few files it has, in volumes however small."""
    walks = []

    class Sleepy:
        async def run(self, work: Callable[[], object], owner: str) -> object:
            assert isinstance(work, partial)
            if owner.split("/")[-4] == "slow":
                walks.append(work.keywords["most"])
                await trio.sleep(1.5)
            return work()

    monkeypatch.setattr(volumes, "METER", Sleepy())
    more = [v1.Volume(name=name, empty_dir=v1.EmptyDirVolumeSource()) for name in ("a", "b")]
    for each in ("scratch", "a", "b"):
        scratch_of(tmp_path, "slow").with_name(each).mkdir(parents=True)
    meter = VolumeMeter(lambda: [pod("slow", *more)], str(tmp_path), TrioClock(0), 60)
    async with trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        await trio.sleep(30)
        assert walks[:3] == [volumes.LARGE, volumes.LARGE, volumes.MOST_FILES]
        assert {each.name for each in meter.of("slow") or ()} == {"scratch", "a", "b"}
        nursery.cancel_scope.cancel()


class HungDisk:
    """A lane in which walks over the volumes of some pods never end: of large ones, those over all of it."""

    async def run(self, work: Callable[[], object], owner: str) -> object:
        assert isinstance(work, partial)
        most = volumes.MOST_FILES if "large" in owner else volumes.LARGE
        if "/pods/hung" in owner and work.keywords["most"] == most:
            await trio.sleep(300)
            raise WorkHangs
        return work()


@pytest.mark.parametrize("size", ["small", "large"])
async def test_volumes_whose_walks_hang_hold_up_no_others(
    size: str, autojump_clock: trio.testing.MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither their first walk nor any later one."""
    monkeypatch.setattr(volumes, "METER", HungDisk())
    monkeypatch.setattr(volumes, "LARGE", 10)
    pods = [pod(f"{kind}-{size}-{number}") for number in range(4) for kind in ("hung", "fine")]
    for each in pods:
        scratch_of(tmp_path, each.metadata.uid).mkdir(parents=True)
        for number in range({"small": 5, "large": 20}[size]):
            scratch_of(tmp_path, each.metadata.uid).joinpath(str(number)).touch()
    fine = [each.metadata.uid for each in pods if each.metadata.uid.startswith("fine")]
    meter = VolumeMeter(lambda: pods, str(tmp_path), TrioClock(0), 60)
    async with trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        await trio.sleep(150)
        for _ in range(5):
            ages = [trio.current_time() - use.at_ns / 1e9 for uid in fine for use in meter.of(uid) or ()]
            assert len(ages) == len(fine)
            assert max(ages) <= 150
            await trio.sleep(100)
        nursery.cancel_scope.cancel()


async def test_figures_of_a_volume_whose_walk_takes_too_long_stay(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch_of(tmp_path).mkdir(parents=True)
    meter = VolumeMeter(lambda: [pod()], str(tmp_path), TrioClock(0), 60)
    async with trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        await trio.sleep(3)
        before = meter.of("u-1")
        monkeypatch.setattr(volumes, "METER", SlowDisk(301))
        await trio.sleep(500)
        assert meter.of("u-1") == before != ()
        nursery.cancel_scope.cancel()


async def test_a_volume_that_cannot_be_read_any_more_is_left_out(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*what: object, **how: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    scratch_of(tmp_path).mkdir(parents=True)
    meter = VolumeMeter(lambda: [pod()], str(tmp_path), TrioClock(0), 60)
    await meter.measure_all()
    assert meter.of("u-1") != ()
    monkeypatch.setattr(volumes, "measure", fails)
    await meter.measure_all()
    assert meter.of("u-1") == ()


async def test_a_period_of_nothing_measures_nothing(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    scratch_of(tmp_path).mkdir(parents=True)
    meter = VolumeMeter(lambda: [pod()], str(tmp_path), TrioClock(0), 0)
    with trio.fail_after(1):
        await meter.run()
    assert meter.of("u-1") is None
    await meter.measure_all()  # but for who asks
    assert [each.name for each in meter.of("u-1") or ()] == ["scratch"]


async def test_all_volumes_can_be_measured_at_once(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """Somebody is to be judged by them: those whose turn is far off, and those that are new. By what drivers
    and servers say nobody is, and one that does not answer is not waited for.
    """

    async def others(pod: v1.Pod, took: Callable[[str, float], None]) -> list[VolumeUse]:
        await trio.sleep_forever()
        raise AssertionError

    pods = [pod("u-1")]
    for uid in ("u-1", "u-2"):
        scratch_of(tmp_path, uid).mkdir(parents=True)
    meter = VolumeMeter(lambda: pods, str(tmp_path), TrioClock(0), 60, others=others)
    async with trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        await trio.sleep(3)
        [before] = meter.of("u-1") or ()
        pods.append(pod("u-2"))
        (scratch_of(tmp_path) / "data").write_bytes(bytes(100_000))
        with trio.fail_after(1):
            await meter.measure_all()
        [after] = meter.of("u-1") or ()
        assert after.used >= before.used + 100_000
        assert after.at_ns > before.at_ns
        assert [each.name for each in meter.of("u-2") or ()] == ["scratch"]
        await trio.sleep(60)
        (scratch_of(tmp_path) / "data").unlink()
        await meter.measure_all()
        [last] = meter.of("u-1") or ()
        assert last.used < after.used
        nursery.cancel_scope.cancel()
    pods.append(pod("u-3"))
    await meter.measure_all()  # while it is not running
    assert meter.of("u-3") == ()


async def test_a_walk_goes_on_when_who_asked_for_it_waits_no_longer(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that takes longer than they wait would begin again and again, as long as the disk is full."""
    monkeypatch.setattr(volumes, "METER", SlowDisk(20))
    monkeypatch.setattr(volumes, "LARGE", 10)
    scratch_of(tmp_path).mkdir(parents=True)
    for number in range(20):
        scratch_of(tmp_path).joinpath(str(number)).touch()
    meter = VolumeMeter(lambda: [pod()], str(tmp_path), TrioClock(0), 60)
    async with trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        await trio.sleep(30.25)
        asked = trio.current_time()
        for _ in range(5):
            with trio.move_on_after(5):
                await meter.measure_all()
        [use] = meter.of("u-1") or ()
        assert use.at_ns / 1e9 > asked
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_one_pods_volumes_raise_the_others_are_measured(
    shape: str, autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async def others(pod: v1.Pod, took: Callable[[str, float], None]) -> list[VolumeUse]:
        if pod.metadata.uid == "bad":
            raise SHAPES[shape]()
        return [USE]

    pods = [pod(uid) for uid in ("bad", "good")]
    for uid in ("bad", "good"):
        scratch_of(tmp_path, uid).mkdir(parents=True)
    meter = VolumeMeter(lambda: pods, str(tmp_path), TrioClock(0), 60, others=others)
    async with trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        await trio.sleep(40)
        assert [len(meter.of(uid) or ()) for uid in ("bad", "good")] == [1, 2]
        nursery.cancel_scope.cancel()


async def test_drivers_are_asked_about_volumes_once_pods_have_started(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """Else the driver that is to mount the next pod's volumes would measure the last one's meanwhile."""
    asked: list[float] = []

    async def others(pod: v1.Pod, took: Callable[[str, float], None]) -> list[VolumeUse]:
        asked.append(trio.current_time())
        took("csi.example.com", 0.5)
        return []

    scratch_of(tmp_path).mkdir(parents=True)
    registry = CollectorRegistry()
    meter = VolumeMeter(lambda: [pod()], str(tmp_path), TrioClock(0), 60, registry, others)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        await trio.sleep(10)
        assert meter.of("u-1")
        assert not asked
        await trio.sleep(200)
        nursery.cancel_scope.cancel()
    assert 15 <= asked[0] - began <= 36
    assert all(60 <= later - earlier <= 126 for earlier, later in itertools.pairwise(asked))
    name = "kubelet_volume_metric_collection_duration_seconds_sum"
    assert registry.get_sample_value(name, {"metric_source": "csi.example.com"}) == len(asked) / 2


async def test_servers_that_do_not_answer_hold_up_no_others(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """Each is waited for, ten seconds, and then left alone for a while."""
    measured: dict[str, float] = {}

    async def others(pod: v1.Pod, took: Callable[[str, float], None]) -> list[VolumeUse]:
        if pod.metadata.uid.startswith("hung"):
            await trio.sleep(10)
            return []
        measured[pod.metadata.uid] = trio.current_time()
        return [USE]

    pods = [pod(f"{kind}-{number}") for number in range(30) for kind in ("hung", "fine")]
    meter = VolumeMeter(lambda: pods, str(tmp_path), TrioClock(0), 60, others=others)
    async with trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        await trio.sleep(120)
        for _ in range(5):
            assert len(measured) == 30
            assert min(measured.values()) > trio.current_time() - 200
            await trio.sleep(100)
        nursery.cancel_scope.cancel()


async def test_what_a_driver_says_of_a_claims_health_is_a_metric(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """One whose driver says nothing has none."""
    registry = CollectorRegistry()

    async def others(pod: v1.Pod, took: Callable[[str, float], None]) -> list[VolumeUse]:
        health = {"sick": True, "well": False, "silent": None}
        return [
            *(msgspec.structs.replace(USE, claim=key, abnormal=said) for key, said in health.items()),
            USE,  # of no claim
        ]

    meter = VolumeMeter(lambda: [pod()], str(tmp_path), TrioClock(0), 60.0, others=others)
    registry.register(ClaimStats(meter))
    async with trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        await trio.sleep(40)
        nursery.cancel_scope.cancel()
    found = {
        claim: registry.get_sample_value(
            "kubelet_volume_stats_health_status_abnormal",
            {"namespace": "ns", "persistentvolumeclaim": claim},
        )
        for claim in ("sick", "well", "silent")
    }
    assert found == {"sick": 1.0, "well": 0.0, "silent": None}
    assert meter.claims().keys() == {("ns", claim) for claim in found}

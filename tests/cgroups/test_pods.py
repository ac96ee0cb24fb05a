"""Pod cgroups: limits, names, and the real hierarchies of this machine under a root of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from prometheus_client import CollectorRegistry

from tests.cgroups.build import cgroupfs_cgroups
from trio_kubelet.api import v1
from trio_kubelet.cgroups.files import CgroupTree, find_hierarchies
from trio_kubelet.cgroups.limits import Limits, cpu_weight
from trio_kubelet.cgroups.metrics import CgroupMetrics
from trio_kubelet.cgroups.plan import CgroupSettings, cgroup_settings, pod_cgroup_limits
from trio_kubelet.cgroups.pods import PodCgroups
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.machine.facts import MachineFacts
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.errors import ConfigError
from trio_kubelet.podinfo.qos import QOSClass
from trio_kubelet.runtime.pod_amounts import UNLIMITED, PodAmounts, Steps, shrinks_memory, steps
from trio_kubelet.runtime.resize import ResourceName

_NODE = NodeContext(node_name="n")


def _pod(uid: str, *resources: dict[str, Any], **spec: Any) -> v1.Pod:
    containers = [{"name": f"c{i}", "resources": entry} for i, entry in enumerate(resources)]
    return msgspec.convert({"metadata": {"uid": uid}, "spec": {"containers": containers, **spec}}, v1.Pod)


def test_guaranteed_pod_is_limited_in_everything() -> None:
    resources = {"cpu": "500m", "memory": "64Mi"}
    pod = _pod("u", {"requests": resources, "limits": resources})
    assert pod_cgroup_limits(pod, _NODE, pids_limit=100) == Limits(
        cpu_shares=512, cpu_quota=50_000, cpu_period=100_000, memory=64 << 20, pids=100
    )


def test_burstable_pod_is_limited_where_all_its_containers_are() -> None:
    pod = _pod("u", {"limits": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"memory": "1Gi"}})
    limits = pod_cgroup_limits(pod, _NODE)
    assert (limits.cpu_quota, limits.memory) == (None, 2 << 30)


def test_pod_level_limits_count_without_any_of_the_containers() -> None:
    pod = _pod("u", {}, resources={"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}})
    limits = pod_cgroup_limits(pod, _NODE)
    assert (limits.cpu_shares, limits.cpu_quota, limits.memory) == (1024, 200_000, 1 << 30)


def test_best_effort_pod_has_the_least_shares_and_no_other_limit() -> None:
    assert pod_cgroup_limits(_pod("u", {}), _NODE) == Limits(cpu_shares=2)


def test_settings_leave_the_system_its_share() -> None:
    facts = MachineFacts(cpus=2, memory=4 << 30)
    reserved = KubeletConfiguration(system_reserved={"cpu": "500m"}, kube_reserved={"memory": "1Gi"})
    settings = cgroup_settings(reserved, facts)
    assert (settings.node_cpu, settings.node_memory) == (1500, 3 << 30)
    unenforced = msgspec.structs.replace(reserved, enforce_node_allocatable=["none"], pod_pids_limit=9)
    assert cgroup_settings(unenforced, facts) == CgroupSettings(
        pids_limit=9, node_cpu=2000, node_memory=4 << 30
    )


def test_quota_is_lifted_when_the_node_does_not_enforce_it() -> None:
    resources = {"cpu": "500m", "memory": "64Mi"}
    pod = _pod("u", {"requests": resources, "limits": resources})
    node = msgspec.structs.replace(_NODE, cpu_cfs_quota=False)
    assert pod_cgroup_limits(pod, node).cpu_quota == -1


@pytest.mark.parametrize(
    ("driver", "qos", "literal"),
    [
        ("cgroupfs", QOSClass.BURSTABLE, "/t/kubepods/burstable/pod1-2"),
        ("cgroupfs", QOSClass.GUARANTEED, "/t/kubepods/pod1-2"),
        (
            "systemd",
            QOSClass.BEST_EFFORT,
            "/t.slice/t-kubepods.slice/t-kubepods-besteffort.slice/t-kubepods-besteffort-pod1_2.slice",
        ),
    ],
)
def test_names_of_pod_cgroups(driver: str, qos: QOSClass, literal: str) -> None:
    names = CgroupNames("/t", driver)
    assert names.literal(names.pod("1-2", qos)) == literal
    assert names.pod_uid(literal.rpartition("/")[2]) == "1-2"


@pytest.mark.parametrize("name", ["burstable", "podpod", "pod", "besteffort", "system.slice"])
def test_other_cgroups_are_no_pods(name: str) -> None:
    assert CgroupNames().pod_uid(name) is None


@pytest.mark.parametrize(("shares", "weight"), [(2, 1), (1024, 39), (262_144, 10_000), (300_000, 10_000)])
def test_weight_of_shares(shares: int, weight: int) -> None:
    assert cpu_weight(shares) == weight


def test_version_2_limits(tmp_path: Path) -> None:
    cgroup = tmp_path / "kubepods" / "podu"
    cgroup.mkdir(parents=True)
    for name in ("cpu.weight", "cpu.max", "memory.max", "pids.max", "memory.high"):
        (cgroup / name).touch()
    limits = Limits(
        cpu_shares=1024, cpu_quota=-1, cpu_period=100_000, memory=5, pids=-1, unified={"memory.high": "4"}
    )
    CgroupTree({"": str(tmp_path)}).apply("/kubepods/podu", limits)
    texts = {path.name: path.read_text() for path in cgroup.iterdir()}
    assert texts == {
        "cpu.weight": "39",
        "cpu.max": "max 100000",
        "memory.max": "5",
        "pids.max": "max",
        "memory.high": "4",
    }


def test_version_2_limits_are_read_back(tmp_path: Path) -> None:
    cgroup = tmp_path / "kubepods" / "podu"
    cgroup.mkdir(parents=True)
    tree = CgroupTree({"": str(tmp_path)})
    for texts, limits in (
        (("39", "max 100000", "max"), Limits(cpu_shares=998, cpu_quota=-1, cpu_period=100_000, memory=-1)),
        (("1", "5000 50000", "4096"), Limits(cpu_shares=2, cpu_quota=5000, cpu_period=50_000, memory=4096)),
    ):
        for name, text in zip(("cpu.weight", "cpu.max", "memory.max"), texts, strict=True):
            (cgroup / name).write_text(f"{text}\n")
        assert tree.limits("/kubepods/podu") == limits
    (cgroup / "memory.current").write_text("8192\n")
    assert tree.memory_in_use("/kubepods/podu") == 8192


@pytest.fixture
def root() -> Iterator[str]:
    """A cgroup root of this test's own; what a failed test leaves in it is removed."""
    hierarchies = find_hierarchies()
    if os.geteuid() != 0 or "cpu" not in hierarchies:
        pytest.skip("needs root and cgroup v1")
    name = f"/tk-test-{secrets.token_hex(4)}"
    tree = CgroupTree(hierarchies)
    try:
        yield name
    finally:
        tree.kill(name)
        deadline = time.monotonic() + 5
        while not tree.remove(name) and time.monotonic() < deadline:
            time.sleep(0.05)


def _read(controller: str, cgroup: str, name: str) -> str:
    return Path(f"{find_hierarchies()[controller]}{cgroup}/{name}").read_text().strip()


@contextlib.contextmanager
def _sleeper_in(cgroup: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a new cgroup of one hierarchy, as a runtime makes them for containers."""
    inner = Path(f"{find_hierarchies()['pids']}{cgroup}")
    inner.mkdir()
    process = subprocess.Popen(["sleep", "1000"])
    try:
        (inner / "cgroup.procs").write_text(str(process.pid))
        yield process
    finally:
        process.kill()
        process.wait()


async def test_life_of_a_real_pod_cgroup(root: str) -> None:
    node = NodeContext(node_name="n", cgroup_root=root)
    cgroups = cgroupfs_cgroups(node, CgroupSettings(pids_limit=77))
    await cgroups.start()
    resources = {"requests": {"cpu": "250m"}, "limits": {"cpu": "500m", "memory": "64Mi"}}
    pod = _pod("11-22", resources)
    assert not cgroups.exists(pod)
    await cgroups.ensure(pod)
    await cgroups.ensure(pod)
    assert cgroups.exists(pod)
    assert await cgroups.pods() == {"11-22"}

    path = f"{root}/kubepods/burstable/pod11-22"
    assert _read("cpu", path, "cpu.shares") == "256"
    assert _read("cpu", path, "cpu.cfs_quota_us") == "50000"
    assert _read("memory", path, "memory.limit_in_bytes") == str(64 << 20)
    assert _read("pids", path, "pids.max") == "77"
    assert _read("cpu", f"{root}/kubepods/burstable", "cpu.shares") == "256"
    assert _read("cpu", f"{root}/kubepods/besteffort", "cpu.shares") == "2"

    more = _pod("11-22", {"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "128Mi"}})
    wanted = cgroups.wanted(more)
    assert wanted == PodAmounts(cpu_shares=512, cpu_quota=100_000, cpu_period=100_000, memory=128 << 20)
    await cgroups.apply(more, PodAmounts(memory=wanted.memory))
    assert _read("memory", path, "memory.limit_in_bytes") == str(128 << 20)
    assert _read("cpu", path, "cpu.cfs_quota_us") == "50000"
    await cgroups.apply(more, PodAmounts(cpu_quota=wanted.cpu_quota, cpu_period=wanted.cpu_period))
    assert (_read("cpu", path, "cpu.shares"), _read("cpu", path, "cpu.cfs_quota_us")) == ("256", "100000")
    await cgroups.apply(more, PodAmounts(cpu_shares=wanted.cpu_shares))
    assert await cgroups.current(more) == wanted
    await cgroups.apply(more, PodAmounts(cpu_quota=UNLIMITED, memory=UNLIMITED))
    lifted = await cgroups.current(more)
    assert lifted.cpu_quota == UNLIMITED
    assert (lifted.memory or 0) > 1 << 62
    assert steps(ResourceName.MEMORY, lifted, PodAmounts()) == Steps()
    assert shrinks_memory(lifted, wanted)
    nowhere = _pod("nowhere", {"requests": {"cpu": "250m"}})
    with pytest.raises(ConfigError, match="failed to set limits"):
        await cgroups.apply(nowhere, PodAmounts(memory=1 << 30))
    with pytest.raises(ConfigError, match="unable to get pod cgroup config"):
        await cgroups.current(nowhere)
    with pytest.raises(ConfigError, match="unable to read memory usage"):
        await cgroups.memory_in_use(nowhere)

    with _sleeper_in(f"{path}/container") as sleeper:
        assert (await cgroups.memory_in_use(more) or 0) >= 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, lambda: sleeper.wait())  # PID 1 would reap it
            await cgroups.remove("11-22")
        assert sleeper.returncode == -9
    assert await cgroups.pods() == set()
    assert _read("cpu", f"{root}/kubepods/burstable", "cpu.shares") == "2"
    await cgroups.remove("11-22")


async def test_the_burstable_class_gets_what_its_pods_request(root: str) -> None:
    node = NodeContext(node_name="n", cgroup_root=root)

    def shares() -> str:
        return _read("cpu", f"{root}/kubepods/burstable", "cpu.shares")

    def agent() -> PodCgroups:
        return cgroupfs_cgroups(node)

    small, large = (_pod(uid, {"requests": {"cpu": cpu}}) for uid, cpu in (("1-1", "250m"), ("2-2", "500m")))
    first = agent()
    await first.start()
    await first.ensure(small)
    assert shares() == "256"

    second = agent()  # the node's next agent
    await second.start()
    assert shares() == "256"
    assert second.exists(small)
    await second.ensure(small)
    await second.ensure(large)
    assert shares() == "768"
    await second.update_classes([large])  # the small one is over
    assert shares() == "512"
    await second.update_classes([small, large])
    assert shares() == "768"
    for uid in ("1-1", "2-2"):
        await second.remove(uid)
    assert shares() == "2"


class _Directories:
    """A driver for which cgroups are directories without files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def create(self, cgroup: str, limits: Limits) -> None:
        os.makedirs(f"{self._root}{cgroup}", exist_ok=True)

    async def update(self, cgroup: str, limits: Limits) -> None:
        pass

    async def remove(self, cgroup: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(f"{self._root}{cgroup}")
        return True


async def test_work_on_cgroups_is_measured(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    tree = CgroupTree({"": str(tmp_path)})
    cgroups = PodCgroups(
        tree=tree,
        driver=_Directories(tmp_path),
        node=lambda: _NODE,
        settings=CgroupSettings(),
        timed=CgroupMetrics(registry, v2=True).timed,
    )
    await cgroups.start()
    await cgroups.ensure(_pod("u", {"requests": {"cpu": "1"}}))
    await cgroups.remove("u")
    count = "kubelet_cgroup_manager_duration_seconds_count"
    counted = [
        registry.get_sample_value(count, {"operation_type": name}) for name in ("create", "update", "destroy")
    ]
    # Node, two classes and the pod; the class that gains and loses a pod; the pod in each of three classes.
    assert counted == [4, 2, 3]
    assert registry.get_sample_value("kubelet_cgroup_version") == 2

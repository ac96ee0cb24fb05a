"""Pod cgroups: limits, names, and the real hierarchies of this machine under a root of their own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from prometheus_client import CollectorRegistry

from tests.cgroups.machine import wait_for
from trio_kubelet.api import v1
from trio_kubelet.cgroups.files import CgroupTree
from trio_kubelet.cgroups.limits import Limits, cpu_weight
from trio_kubelet.cgroups.metrics import CgroupMetrics
from trio_kubelet.cgroups.plan import (
    CgroupSettings,
    PodRequests,
    cgroup_settings,
    class_limits,
    pod_cgroup_limits,
)
from trio_kubelet.cgroups.pods import PodCgroups
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.machine.facts import MachineFacts
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.context import Features, NodeContext
from trio_kubelet.podinfo.qos import QOSClass

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
        pids_limit=9, node_cpu=2000, node_memory=4 << 30, allocatable_memory=3 << 30
    )


def test_memory_that_better_classes_request_is_kept_from_the_others() -> None:
    facts = MachineFacts(cpus=2, memory=4 << 30)
    config = KubeletConfiguration(
        kube_reserved={"memory": "1Gi"}, enforce_node_allocatable=["none"], qos_reserved={"memory": "50%"}
    )
    asked = [
        PodRequests(QOSClass.GUARANTEED, 100, 1 << 30),
        PodRequests(QOSClass.BURSTABLE, 100, 512 << 20),
        PodRequests(QOSClass.BEST_EFFORT, 0, 0),
    ]
    found = class_limits(asked, _NODE, cgroup_settings(config, facts, qos_reserved=True))
    assert {qos: limits.memory for qos, limits in found.items()} == {
        QOSClass.GUARANTEED: None,
        QOSClass.BURSTABLE: 2560 << 20,
        QOSClass.BEST_EFFORT: 2304 << 20,
    }
    found = class_limits(asked, _NODE, cgroup_settings(config, facts))
    assert [limits.memory for limits in found.values()] == [None] * 3


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("cpu", "5%", 'cannot reserve "cpu" resource'),
        ("memory", "5", "percentage expected, got '5'"),
        ("memory", "x%", "invalid number in percentage 'x%'"),
        ("memory", "101%", "percentage must be between 0 and 100"),
    ],
)
def test_what_is_no_reservation_ends_the_start(name: str, value: str, why: str) -> None:
    config = KubeletConfiguration(qos_reserved={name: value})
    with pytest.raises(ConfigurationError, match=f"--qos-reserved value failed to parse: .*{re.escape(why)}"):
        cgroup_settings(config, MachineFacts(cpus=1, memory=1 << 30))


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
    count = "kubelet_cgroup_manager_duration_seconds_count"

    def counted() -> list[float]:
        names = ("create", "update", "destroy")
        return [registry.get_sample_value(count, {"operation_type": each}) or 0.0 for each in names]

    async def becomes(wanted: list[float]) -> None:
        await wait_for(lambda: counted() == wanted)
        assert counted() == wanted

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cgroups.run)
        await cgroups.start()
        await cgroups.ensure(_pod("u", {"requests": {"cpu": "1"}}))
        await becomes([4, 1, 0])  # node, two classes and the pod; the class that gains a pod
        await cgroups.remove("u")
        await becomes([4, 2, 3])  # the class that loses it; the pod in each of three classes
        nursery.cancel_scope.cancel()
    assert registry.get_sample_value("kubelet_cgroup_version") == 2


def _below(root: Path, tree: type[CgroupTree] = CgroupTree) -> PodCgroups:
    """An agent's cgroups, which are directories."""
    return PodCgroups(
        tree=tree({"": str(root)}),
        driver=_Directories(root),
        node=lambda: _NODE,
        settings=CgroupSettings(),
    )


async def test_the_cgroup_of_a_pod_that_runs_is_not_looked_for(tmp_path: Path) -> None:
    """One with processes cannot be removed; a part of the pod alone is no proof that it is there."""
    pod = _pod("u", {"requests": {"cpu": "1"}}, {})
    all_run = [container.name for container in pod.spec.containers or ()]
    cgroups = _below(tmp_path)
    await cgroups.start()
    assert not await cgroups.ensure(pod, running=all_run)  # nothing is known of it: they run outside
    assert await cgroups.ensure(pod)
    shutil.rmtree(tmp_path)
    assert await cgroups.ensure(pod, running=all_run)
    assert not await cgroups.ensure(pod, running=all_run[:1])
    assert await cgroups.ensure(pod)
    assert await cgroups.pods() == {"u"}


async def test_the_cgroup_of_a_new_pod_is_made_without_a_look(tmp_path: Path) -> None:
    """An agent before this one may have made it and died. Once it is known, it is looked for."""
    looks: list[str] = []

    class Tree(CgroupTree):
        def exists(self, cgroup: str) -> bool:
            looks.append(cgroup)
            return super().exists(cgroup)

    pod = _pod("u", {"requests": {"cpu": "1"}})
    for _ in range(2):
        cgroups = _below(tmp_path, Tree)
        await cgroups.start()
        looks.clear()
        assert await cgroups.ensure(pod, new=True)
        assert not looks
        assert await cgroups.pods() == {"u"}
    shutil.rmtree(tmp_path)
    assert await cgroups.ensure(pod, new=True)
    assert len(looks) == 1
    assert await cgroups.pods() == {"u"}


class Noted:
    """A driver that notes what each cgroup came to have of version 2's files."""

    def __init__(self) -> None:
        self.unified: dict[str, dict[str, str]] = {}

    async def create(self, cgroup: str, limits: Limits) -> None:
        await self.update(cgroup, limits)

    async def update(self, cgroup: str, limits: Limits) -> None:
        self.unified.setdefault(cgroup, {}).update(limits.unified)

    async def remove(self, cgroup: str) -> bool:
        raise AssertionError


async def test_memory_of_pods_that_are_not_known_yet_stays_protected(tmp_path: Path) -> None:
    """Those of the API server run on while that is away."""
    for cgroup, name, value in (("", "memory.min", 6 << 30), ("/burstable", "memory.low", 2 << 30)):
        (tmp_path / f"kubepods{cgroup}").mkdir()
        (tmp_path / f"kubepods{cgroup}" / name).write_text(f"{value}\n")
    (tmp_path / "kubepods/burstable/cpu.weight").write_text("50\n")
    (tmp_path / "kubepods/burstable/cpu.max").write_text("max 100000\n")
    for name in ("memory.max", "memory.current"):
        (tmp_path / "kubepods/burstable" / name).write_text("0\n")
    node = NodeContext(
        node_name="n",
        cgroup_driver="cgroupfs",
        cgroup_v2=True,
        features=Features(memory_qos=True),
        memory_reservation_policy="TieredReservation",
    )
    driver, tree = Noted(), CgroupTree({"": str(tmp_path)})
    cgroups = PodCgroups(tree=tree, driver=driver, node=lambda: node, settings=CgroupSettings())
    await cgroups.start()
    known = [_pod("u", {"requests": {"memory": "1Gi"}})]
    for all_known, protected in ((False, (6 << 30, 2 << 30)), (True, (1 << 30, 1 << 30))):
        await cgroups.update_classes(known, all_known=all_known)
        found = driver.unified["/kubepods"]["memory.min"], driver.unified["/kubepods/burstable"]["memory.low"]
        assert found == tuple(map(str, protected))

"""Pod cgroups: a tree of QoS classes with a cgroup for each pod, in which the runtime puts its containers.

The limits of a pod as a whole are set here; those of its containers by the runtime. Everything is below
`cgroupRoot`, for two agents with the same one would remove each other's pods. Removing a cgroup kills what
is left in it. Rules: `pkg/kubelet/cm` of the kubelet (`ResourceConfigForPod`, the QoS and the pod container
managers).

With the systemd driver the slices are systemd's, made when the runtime asks for them; then nothing is done
here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.lanes import CGROUPS
from trio_kubelet.common.log import get_logger
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.machine.cgroup_fs import CgroupTree, Limits
from trio_kubelet.machine.facts import MachineFacts, with_reserved_cpus
from trio_kubelet.podinfo.amounts import amount, milli, whole
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.errors import ConfigError
from trio_kubelet.podinfo.qos import QOSClass, pod_qos
from trio_kubelet.podinfo.totals import limit_steps, pod_limits, pod_requests
from trio_kubelet.pods.doors import CgroupError
from trio_kubelet.runtime.configs.resources import (
    MIN_SHARES,
    huge_page_limits,
    quota_of,
    shares_of,
)
from trio_kubelet.runtime.naming import pod_name
from trio_kubelet.runtime.pod_amounts import PodAmounts, sandbox_update

log = get_logger(__name__)
T = TypeVar("T")

_REMOVE_TRIES = 9
_FIRST_WAIT = 0.02
_UNBOUNDED_HUGE_PAGES = 2**62
_CLASSES = (QOSClass.GUARANTEED, QOSClass.BURSTABLE, QOSClass.BEST_EFFORT)


class CgroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says about pod cgroups.

    `pids_limit` for a pod, 0 or less for none; `node_cpu` (thousandths) and `node_memory` (bytes) are what
    all pods together may use, 0 for no limit.
    """

    pids_limit: int = -1
    node_cpu: int = 0
    node_memory: int = 0


def cgroup_settings(config: KubeletConfiguration, facts: MachineFacts) -> CgroupSettings:
    """Settings of a configuration: pods together may use the machine, less what is reserved for the system
    if that is enforced (`enforceNodeAllocatable: [pods]`).
    """
    config = with_reserved_cpus(config)
    cpu, memory = amount(str(facts.cpus)), amount(str(facts.memory))
    if "pods" in config.enforce_node_allocatable:
        for reserved in (config.system_reserved, config.kube_reserved):
            cpu -= amount(reserved.get("cpu", ""))
            memory -= amount(reserved.get("memory", ""))
    return CgroupSettings(
        pids_limit=config.pod_pids_limit, node_cpu=max(0, milli(cpu)), node_memory=max(0, whole(memory))
    )


def pod_cgroup_limits(pod: v1.Pod, node: NodeContext, pids_limit: int = -1) -> Limits:
    """Limits of a pod's cgroup. A burstable pod is limited only in what all its containers are."""
    pod_level = node.features.pod_level_resources
    qos = pod_qos(pod, pod_level)
    requests = pod_requests(pod, pod_level=pod_level)
    limits = pod_limits(pod, pod_level=pod_level)
    huge_pages = dict.fromkeys(node.huge_page_sizes, 0) | huge_page_limits(requests)
    pids = pids_limit if pids_limit > 0 else None
    if qos is QOSClass.BEST_EFFORT:
        return Limits(cpu_shares=MIN_SHARES, pids=pids, huge_pages=huge_pages)
    cpu_limited = qos is QOSClass.GUARANTEED or _all_limited(pod, "cpu", pod_level)
    memory_limited = qos is QOSClass.GUARANTEED or _all_limited(pod, "memory", pod_level)
    period = node.cpu_cfs_quota_period_us
    quota = quota_of(milli(limits.get("cpu", 0)), period) if node.cpu_cfs_quota else -1
    unified: dict[str, str] = {}
    memory_request = whole(requests.get("memory", 0))
    tiered = node.memory_reservation_policy == "TieredReservation"
    if node.features.memory_qos and node.cgroup_v2 and tiered and memory_request:
        unified["memory.min" if qos is QOSClass.GUARANTEED else "memory.low"] = str(memory_request)
    return Limits(
        cpu_shares=shares_of(milli(requests.get("cpu", 0))),
        cpu_quota=quota if cpu_limited else None,
        cpu_period=period if cpu_limited else None,
        memory=whole(limits.get("memory", 0)) if memory_limited else None,
        pids=pids,
        huge_pages=huge_pages,
        unified=unified,
    )


def _amounts(limits: Limits) -> PodAmounts:
    return PodAmounts(
        memory=limits.memory,
        cpu_shares=limits.cpu_shares,
        cpu_quota=limits.cpu_quota,
        cpu_period=limits.cpu_period,
    )


def _all_limited(pod: v1.Pod, resource: str, pod_level: bool) -> bool:
    """Whether the pod, or each of its containers, has a limit."""
    spec = pod.spec
    of_pod = (spec.resources.limits or {}) if pod_level and spec.resources is not None else {}
    return bool(amount(of_pod.get(resource, ""))) or all(step.get(resource) for step in limit_steps(spec))


class PodCgroups:
    """The cgroups of pods on this node (see `pods.doors.CgroupsDoor`)."""

    def __init__(
        self, tree: CgroupTree, node: Callable[[], NodeContext], settings: CgroupSettings | None = None
    ) -> None:
        context = node()
        self._tree = tree
        self._node = node
        self._settings = settings or CgroupSettings()
        self._names = CgroupNames(context.cgroup_root, context.cgroup_driver, context.cgroups_per_qos)
        self._acts = context.cgroups_per_qos and context.cgroup_driver != "systemd"
        self._cpu_requests: dict[str, int] = {}  # of burstable pods, by UID, in thousandths
        self._burstable_shares = 0

    async def start(self) -> None:
        """Makes the cgroups of the node and of the QoS classes. Raises CgroupError."""
        if self._acts:
            await self._in_thread(self._start)

    def exists(self, pod: v1.Pod) -> bool:
        """Whether the pod's cgroup is there. If so the pod counts for its class from now on: it may have been
        made by the agent before this one.
        """
        if not self._acts:
            return True
        if there := self._tree.exists(self._path(pod)):
            self._note(pod)
        return there

    async def ensure(self, pod: v1.Pod) -> None:
        """The pod's cgroup is there with its limits; one that is there is left alone. Raises CgroupError."""
        if not self._acts:
            return
        self._note(pod)
        await self._in_thread(lambda: self._ensure(pod))

    def wanted(self, pod: v1.Pod) -> PodAmounts:
        """What the pod's cgroup is limited to by the pod's spec (see `runtime.doors.PodLimits`)."""
        return _amounts(pod_cgroup_limits(pod, self._node(), self._settings.pids_limit))

    async def current(self, pod: v1.Pod) -> PodAmounts:
        """What the pod's cgroup is limited to; not known where it is not the agent's. Raises ConfigError."""
        if not self._acts:
            return PodAmounts()
        try:
            return _amounts(await self._in_thread(lambda: self._tree.limits(self._path(pod))))
        except CgroupError as error:
            text = f'unable to get pod cgroup config for pod "{pod_name(pod)}": {error}'
            raise ConfigError(text) from error

    async def memory_in_use(self, pod: v1.Pod) -> int | None:
        """Bytes the pod's processes use together. Raises ConfigError."""
        if not self._acts:
            return None
        try:
            return await self._in_thread(lambda: self._tree.memory_in_use(self._path(pod)))
        except CgroupError as error:
            text = f'unable to read memory usage for pod "{pod_name(pod)}": {error}'
            raise ConfigError(text) from error

    async def apply(self, pod: v1.Pod, amounts: PodAmounts) -> None:
        """Puts limits of the pod as a whole into force, others stay as they are. Raises ConfigError."""
        if not self._acts:
            return
        limits = Limits(**msgspec.structs.asdict(amounts))
        try:
            await self._in_thread(lambda: self._tree.apply(self._path(pod), limits))
        except CgroupError as error:
            raise ConfigError(f"failed to set limits of the pod's cgroup: {error}") from error
        self._note(pod)

    def sandbox_update(
        self, pod: v1.Pod, amounts: PodAmounts
    ) -> tuple[cri.LinuxContainerResources, cri.LinuxContainerResources]:
        """How the runtime is told of such limits."""
        return sandbox_update(pod, amounts, self._node())

    async def update_classes(self, pods: Iterable[v1.Pod]) -> None:
        """Gives the burstable class CPU by what the pods that are active now request. Raises CgroupError."""
        if not self._acts:
            return
        self._cpu_requests.clear()
        for pod in pods:
            self._note(pod)
        await self._in_thread(self._set_burstable_shares)

    async def remove(self, uid: str) -> None:
        """The pod's cgroup is gone, with every process in it, whatever its class. Raises CgroupError."""
        if not self._acts:
            return
        wait = _FIRST_WAIT
        for _ in range(_REMOVE_TRIES):
            if await self._in_thread(lambda: self._try_remove(uid)):
                self._cpu_requests.pop(uid, None)
                await self._in_thread(self._set_burstable_shares)
                return
            await trio.sleep(wait)
            wait *= 2
        raise CgroupError(f"cgroup of pod {uid} still has processes that do not end")

    async def pods(self) -> Collection[str]:
        """UIDs of all pods that have a cgroup, in any class and any hierarchy. Raises CgroupError."""
        return await self._in_thread(self._find_pods) if self._acts else ()

    def _path(self, pod: v1.Pod) -> str:
        qos = pod_qos(pod, self._node().features.pod_level_resources)
        return self._names.literal(self._names.pod(pod.metadata.uid, qos))

    def _class_path(self, qos: QOSClass) -> str:
        return self._names.literal(self._names.qos(qos))

    def _start(self) -> None:
        unbounded = dict.fromkeys(self._node().huge_page_sizes, _UNBOUNDED_HUGE_PAGES)
        node = self._class_path(QOSClass.GUARANTEED)
        settings = self._settings
        self._tree.create(node)
        self._tree.apply(
            node,
            Limits(
                cpu_shares=shares_of(settings.node_cpu) if settings.node_cpu else None,
                memory=settings.node_memory or None,
            ),
        )
        for qos in (QOSClass.BURSTABLE, QOSClass.BEST_EFFORT):
            path = self._class_path(qos)
            self._tree.create(path)
            shares = MIN_SHARES if qos is QOSClass.BEST_EFFORT else None
            self._tree.apply(path, Limits(cpu_shares=shares, huge_pages=unbounded))

    def _ensure(self, pod: v1.Pod) -> None:
        path = self._path(pod)
        if not self._tree.exists(path):
            self._tree.create(path)
            self._tree.apply(path, pod_cgroup_limits(pod, self._node(), self._settings.pids_limit))
        self._set_burstable_shares()

    def _note(self, pod: v1.Pod) -> None:
        pod_level = self._node().features.pod_level_resources
        if pod_qos(pod, pod_level) is QOSClass.BURSTABLE:
            requests = pod_requests(pod, pod_level=pod_level)
            self._cpu_requests[pod.metadata.uid] = milli(requests.get("cpu", 0))

    def _set_burstable_shares(self) -> None:
        shares = shares_of(sum(list(self._cpu_requests.values())))
        if shares != self._burstable_shares:
            self._tree.apply(self._class_path(QOSClass.BURSTABLE), Limits(cpu_shares=shares))
            self._burstable_shares = shares

    def _try_remove(self, uid: str) -> bool:
        gone = True
        for qos in _CLASSES:
            path = self._names.literal(self._names.pod(uid, qos))
            if not self._tree.remove(path):
                killed = self._tree.kill(path)
                log.v(3).info("Killed processes left in pod cgroup", podUID=uid, path=path, count=killed)
                gone = self._tree.remove(path) and gone
        return gone

    def _find_pods(self) -> set[str]:
        names = {name for qos in _CLASSES for name in self._tree.children(self._class_path(qos))}
        return {uid for uid in map(self._names.pod_uid, names) if uid is not None}

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await CGROUPS.run(work)
        except OSError as error:
            raise CgroupError(str(error)) from error

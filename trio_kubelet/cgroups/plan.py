"""Which cgroups a node has and what each is limited to, from its pods and its configuration. Pure.

Rules: `pkg/kubelet/cm` of the kubelet (`ResourceConfigForPod`, the node allocatable, QoS and pod container
managers), KEP-2570 for memory protection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.cgroups.limits import Limits
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.machine.facts import MachineFacts, with_reserved_cpus
from trio_kubelet.podinfo.amounts import amount, amounts, milli, whole
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.pinned import pod_is_pinned
from trio_kubelet.podinfo.qos import QOSClass, pod_qos
from trio_kubelet.podinfo.totals import is_limited, pod_limits, pod_requests
from trio_kubelet.runtime.configs.resources import (
    MIN_SHARES,
    UNLIMITED,
    huge_page_limits,
    quota_of,
    shares_of,
)

UNBOUNDED_HUGE_PAGES = 2**62
_TIERED = "TieredReservation"


class CgroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says about pod cgroups.

    `pids_limit` for a pod, 0 or less for none; `node_cpu` (thousandths), `node_memory` (bytes) and
    `node_pids` are what all pods together may use, 0 for no limit; `node_cpus` are the CPUs they run on, ""
    where a policy places them. `reserved` are cgroups of others that are limited too. Of the memory that pods
    of a better class request, `kept_percent` is kept from those of the classes below (None: nothing); all
    pods together have `allocatable_memory` (bytes).
    """

    pids_limit: int = -1
    node_cpu: int = 0
    node_memory: int = 0
    node_pids: int = 0
    node_cpus: str = ""
    reserved: tuple[Reserved, ...] = ()
    kept_percent: int | None = None
    allocatable_memory: int = 0


class Reserved(msgspec.Struct, frozen=True):
    """A cgroup of the system or of Kubernetes' daemons: whose it is (`system reserved`), its name as
    configured, and its limits.
    """

    whose: str
    name: str
    limits: Limits

    @property
    def title(self) -> str:
        """How the kubelet writes whose it is when it could not be limited."""
        return self.whose.title()


class PodRequests(msgspec.Struct, frozen=True):
    """What a pod asks for, as far as its class of service has to have it: CPU in thousandths, bytes."""

    qos: QOSClass
    cpu: int
    memory: int


def cgroup_settings(
    config: KubeletConfiguration,
    facts: MachineFacts,
    *,
    memory_qos: bool = False,
    qos_reserved: bool = False,
) -> CgroupSettings:
    """Settings of a configuration: pods together may use the machine, less what is reserved for the system
    if that is enforced (`enforceNodeAllocatable: [pods]`). `memory_qos` and `qos_reserved` are gates.

    Raises ConfigurationError for a `qosReserved` that is none.
    """
    config = with_reserved_cpus(config)
    kept = kept_percent(config.qos_reserved)
    cpu, memory, pids = amount(str(facts.cpus)), amount(str(facts.memory)), amount(str(facts.pids))
    if "pods" in config.enforce_node_allocatable:
        for reserved in (config.system_reserved, config.kube_reserved):
            cpu -= amount(reserved.get("cpu", ""))
            memory -= amount(reserved.get("memory", ""))
            pids -= amount(reserved.get("pid", ""))
    allocatable = amount(str(facts.memory))
    for reserved in (config.system_reserved, config.kube_reserved):
        allocatable -= amount(reserved.get("memory", ""))
    return CgroupSettings(
        pids_limit=config.pod_pids_limit,
        node_cpu=max(0, milli(cpu)),
        node_memory=max(0, whole(memory)),
        node_pids=max(0, whole(pids)),
        node_cpus="" if config.cpu_manager_policy == "static" else facts.cpu_list,
        reserved=_reserved(config, facts, memory_qos),
        kept_percent=kept if qos_reserved else None,
        allocatable_memory=max(0, whole(allocatable)),
    )


def kept_percent(qos_reserved: Mapping[str, str]) -> int | None:
    """The part of requested memory that `qosReserved` keeps. Raises ConfigurationError."""
    found, failed = None, "--qos-reserved value failed to parse"
    for name, value in qos_reserved.items():
        if name != "memory":
            raise ConfigurationError(f'{failed}: cannot reserve "{name}" resource')
        if not value.endswith("%"):
            why = f"percentage expected, got '{value}'"
        elif re.fullmatch(r"[+-]?[0-9]+", value.rstrip("%")) is None:
            why = f"invalid number in percentage '{value}'"
        elif not 0 <= (found := int(value.rstrip("%"))) <= 100:
            why = "percentage must be between 0 and 100"
        else:
            continue
        raise ConfigurationError(
            f'{failed}: failed to parse percentage "{value}" for "{name}" resource: {why}'
        )
    return found


def _reserved(config: KubeletConfiguration, facts: MachineFacts, memory_qos: bool) -> tuple[Reserved, ...]:
    """What `enforceNodeAllocatable` says besides `pods`, in the order the kubelet does it."""
    owners = (
        ("system reserved", "system-reserved", config.system_reserved_cgroup, config.system_reserved),
        ("kube reserved", "kube-reserved", config.kube_reserved_cgroup, config.kube_reserved),
    )
    found = []
    for suffix in ("", "-compressible"):
        for whose, key, cgroup, quantities in owners:
            if key + suffix in config.enforce_node_allocatable:
                limits = _limits_of_reserved(quantities, facts, bool(suffix), memory_qos)
                found.append(Reserved(whose + suffix.replace("-", " "), cgroup, limits))
    return tuple(found)


def _limits_of_reserved(
    quantities: Mapping[str, str], facts: MachineFacts, compressible: bool, memory_qos: bool
) -> Limits:
    """Limits of a reservation; `compressible`: of CPU alone. Huge pages that are not named are forbidden."""
    reserved = amounts(quantities)
    shares = shares_of(milli(reserved["cpu"])) if "cpu" in reserved else None
    sizes = dict.fromkeys(facts.huge_page_names, 0)
    if compressible:
        return Limits(cpu_shares=shares, huge_pages=sizes, cpuset=facts.cpu_list)
    memory = whole(reserved["memory"]) if "memory" in reserved else None
    return Limits(
        cpu_shares=shares,
        memory=memory,
        pids=whole(reserved["pid"]) if "pid" in reserved else None,
        huge_pages=sizes | huge_page_limits(reserved),
        cpuset=facts.cpu_list,
        unified={"memory.min": str(memory)} if memory_qos and facts.cgroup_v2 and memory is not None else {},
    )


def node_limits(settings: CgroupSettings, node: NodeContext) -> Limits:
    """Limits of all pods together. Huge pages are limited where they are asked for."""
    return Limits(
        cpu_shares=shares_of(settings.node_cpu) if settings.node_cpu else None,
        memory=settings.node_memory or None,
        pids=settings.node_pids or None,
        cpuset=settings.node_cpus,
        huge_pages=dict.fromkeys(node.huge_page_sizes, UNBOUNDED_HUGE_PAGES),
    )


def asked_by(pod: v1.Pod, node: NodeContext) -> PodRequests:
    """What a pod asks for."""
    pod_level = node.features.pod_level_resources
    requests = pod_requests(pod, pod_level=pod_level)
    return PodRequests(
        pod_qos(pod, pod_level), milli(requests.get("cpu", 0)), whole(requests.get("memory", 0))
    )


def protects_memory(node: NodeContext) -> bool:
    """Whether requested memory is kept from being reclaimed."""
    return node.features.memory_qos and node.cgroup_v2 and node.memory_reservation_policy == _TIERED


def class_limits(
    asked: Iterable[PodRequests], node: NodeContext, settings: CgroupSettings
) -> dict[QOSClass, Limits]:
    """What the classes of service are limited to; the guaranteed one's cgroup is that of all pods.

    With memory QoS each cgroup protects what the pods below it request together.
    """
    cpu = burstable = guaranteed = 0
    for pod in asked:
        if pod.qos is QOSClass.BURSTABLE:
            cpu += pod.cpu
            burstable += pod.memory
        elif pod.qos is QOSClass.GUARANTEED:
            guaranteed += pod.memory
    for_burstable, for_best_effort = _kept_memory(guaranteed, burstable, settings)
    if not protects_memory(node):
        burstable = guaranteed = 0
    qos = node.features.memory_qos and node.cgroup_v2
    pages = dict.fromkeys(node.huge_page_sizes, UNBOUNDED_HUGE_PAGES)
    return {
        QOSClass.GUARANTEED: Limits(
            huge_pages=pages, unified={"memory.min": str(guaranteed + burstable)} if qos else {}
        ),
        QOSClass.BURSTABLE: Limits(
            cpu_shares=shares_of(cpu),
            memory=for_burstable,
            huge_pages=pages,
            unified={"memory.low": str(burstable)} if qos else {},
        ),
        QOSClass.BEST_EFFORT: Limits(cpu_shares=MIN_SHARES, memory=for_best_effort, huge_pages=pages),
    }


def _kept_memory(guaranteed: int, burstable: int, settings: CgroupSettings) -> tuple[int | None, int | None]:
    """Most memory of the burstable and the best-effort class, given what pods request; None for no limit."""
    percent = settings.kept_percent
    if percent is None or not settings.allocatable_memory:
        return None, None
    for_burstable = settings.allocatable_memory - guaranteed * percent // 100
    for_best_effort = for_burstable - burstable * percent // 100
    return max(1, for_burstable), max(1, for_best_effort)


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
    cpu_limited = qos is QOSClass.GUARANTEED or is_limited(pod, "cpu", pod_level=pod_level)
    memory_limited = qos is QOSClass.GUARANTEED or is_limited(pod, "memory", pod_level=pod_level)
    period = node.cpu_cfs_quota_period_us
    metered = node.cpu_cfs_quota and not pod_is_pinned(pod, node.pinned)
    quota = quota_of(milli(limits.get("cpu", 0)), period) if metered else UNLIMITED
    unified: dict[str, str] = {}
    memory_request = whole(requests.get("memory", 0))
    if protects_memory(node) and memory_request:
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

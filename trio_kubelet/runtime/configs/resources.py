"""CRI resources of containers and sandboxes: CPU shares and quota, memory, huge pages, swap, OOM score.

Rules: `kuberuntime_container_linux.go`, `cm/helpers_linux.go` and `qos/policy.go` of the kubelet, KEP-2400
(swap), KEP-2570 (memory QoS).
"""

from __future__ import annotations

from math import floor

from trio_kubelet.api import v1
from trio_kubelet.api.containers import INIT_CONTAINERS, containers_by_name, is_sidecar, remembered
from trio_kubelet.api.defaults import HUGE_PAGES_PREFIX
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podinfo.amounts import Amounts, amount, amounts, huge_page_size_name, milli, whole
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.pinned import is_pinned, pod_is_pinned
from trio_kubelet.podinfo.qos import QOSClass, is_critical_pod, is_node_critical_pod, pod_qos
from trio_kubelet.podinfo.totals import (
    container_requests,
    has_pod_level_requests,
    has_pod_level_resources,
    pod_limits,
    pod_requests,
)

MIN_SHARES = 2
MAX_SHARES = 262_144
MIN_QUOTA_US = 1000
UNLIMITED = -1
MAX_INT64 = 2**63 - 1
GUARANTEED_OOM_SCORE_ADJ = -997
BEST_EFFORT_OOM_SCORE_ADJ = 1000


def shares_of(milli_cpu: int) -> int:
    """cpu.shares for a CPU request in thousandths, within what the kernel takes."""
    return max(MIN_SHARES, min(milli_cpu * 1024 // 1000, MAX_SHARES))


def quota_of(milli_cpu: int, period_us: int) -> int:
    """CFS quota in µs for a CPU limit in thousandths; 0 (unlimited) for no limit, at least 1 ms, at most what
    the runtime can be told.
    """
    return max(MIN_QUOTA_US, min(milli_cpu * period_us // 1000, MAX_INT64)) if milli_cpu else 0


def linux_resources(
    cpu_request: int | None, cpu_limit: int, memory_limit: int, ctx: NodeContext, *, pinned: bool = False
) -> cri.LinuxContainerResources:
    """CPU and memory of a container or sandbox, amounts in 10⁻⁹. Without a request the limit is it. What is
    `pinned` to CPUs of its own may use all of their time.
    """
    result = cri.LinuxContainerResources(
        cpu_shares=shares_of(milli(cpu_limit if cpu_request is None else cpu_request)),
        memory_limit_in_bytes=min(whole(memory_limit), MAX_INT64),
    )
    if ctx.cpu_cfs_quota:
        result.cpu_period = ctx.cpu_cfs_quota_period_us
        quota = quota_of(milli(cpu_limit), ctx.cpu_cfs_quota_period_us)
        result.cpu_quota = UNLIMITED if pinned else quota
    if ctx.cgroup_v2 and not ctx.single_process_oom_kill:
        result.unified["memory.oom.group"] = "1"
    return result


def sandbox_resources(pod: v1.Pod, ctx: NodeContext) -> cri.LinuxContainerResources:
    """Resources of the pod as a whole, without overhead."""
    pod_level = ctx.features.pod_level_resources
    requests = pod_requests(pod, overhead=False, pod_level=pod_level)
    limits = pod_limits(pod, overhead=False, pod_level=pod_level)
    cpu, memory = limits.get("cpu", 0), limits.get("memory", 0)
    return linux_resources(requests.get("cpu"), cpu, memory, ctx, pinned=pod_is_pinned(pod, ctx.pinned))


def overhead_resources(pod: v1.Pod, ctx: NodeContext) -> cri.LinuxContainerResources:
    """What the sandbox itself needs on top, as runtime class or pod say; empty without."""
    if pod.spec.overhead is None:
        return cri.LinuxContainerResources()
    overhead = amounts(pod.spec.overhead)
    cpu = overhead.get("cpu", 0)
    return linux_resources(cpu, cpu, overhead.get("memory", 0), ctx)


def container_resources(
    pod: v1.Pod, container: v1.Container, ctx: NodeContext
) -> cri.LinuxContainerResources:
    """Resources of one container."""
    requests = amounts(container.resources.requests)
    limits = amounts(container.resources.limits)
    pod_level = _pod_level_limits(pod, ctx)
    result = linux_resources(
        requests.get("cpu"),
        limits.get("cpu") or pod_level.get("cpu", 0),
        limits.get("memory") or pod_level.get("memory", 0),
        ctx,
        pinned=is_pinned(pod, container, ctx.pinned),
    )
    result.oom_score_adj = oom_score_adj(pod, container, ctx)
    huge_pages = {**huge_page_limits(pod_level), **huge_page_limits(limits)}
    result.hugepage_limits.extend(
        cri.HugepageLimit(page_size=size, limit=huge_pages.get(size, 0)) for size in ctx.huge_page_sizes
    )
    _set_swap(result, pod, container, ctx)
    if ctx.features.memory_qos and ctx.cgroup_v2:
        memory = whole(requests.get("memory", 0)), whole(limits.get("memory", 0))
        for key, value in _memory_qos(pod, *memory, ctx).items():
            result.unified[key] = value
    return result


def _pod_level_limits(pod: v1.Pod, ctx: NodeContext) -> Amounts:
    """Pod-level limits, which apply to containers that have none of their own."""
    if ctx.features.pod_level_resources and has_pod_level_resources(pod.spec) and pod.spec.resources:
        return amounts(pod.spec.resources.limits)
    return {}


def huge_page_limits(limits: Amounts) -> dict[str, int]:
    """Limits in bytes by page size in the cgroups' spelling; a size that is spelled in two ways (2Mi,
    2048Ki) has what both ask for.
    """
    found: Amounts = {}
    for name, number in limits.items():
        if name.startswith(HUGE_PAGES_PREFIX):
            size = huge_page_size_name(whole(amount(name.removeprefix(HUGE_PAGES_PREFIX))))
            found[size] = found.get(size, 0) + whole(number)
    return found


def may_swap(pod: v1.Pod, container: v1.Container, ctx: NodeContext) -> bool:
    """Whether the container gets a part of the swap: under LimitedSwap on cgroup v2, in a burstable pod that
    is not critical, when it asks for memory and may use more than that (KEP-2400).
    """
    if ctx.swap_behavior != "LimitedSwap" or not ctx.swap_controller or not ctx.cgroup_v2:
        return False
    if is_critical_pod(pod) or pod_qos(pod, ctx.features.pod_level_resources) is not QOSClass.BURSTABLE:
        return False
    requests, limits = container.resources.requests or {}, container.resources.limits or {}
    return amount(requests.get("memory", "0")) != amount(limits.get("memory", "0"))


def _set_swap(
    result: cri.LinuxContainerResources, pod: v1.Pod, container: v1.Container, ctx: NodeContext
) -> None:
    """Forbids swap, or under LimitedSwap gives burstable containers their part of it.

    The part is the container's share of the node's memory. On cgroup v1 the limit is of memory and swap
    together, so the memory limit as it is means none.
    """
    if not ctx.swap_controller:
        return
    if not ctx.cgroup_v2:
        result.memory_swap_limit_in_bytes = result.memory_limit_in_bytes
        return
    swap, request = 0, amount((container.resources.requests or {}).get("memory", "0"))
    if may_swap(pod, container, ctx) and 0 < ctx.memory_capacity >= whole(request):
        swap = int(whole(request) / ctx.memory_capacity * ctx.swap_capacity)
    result.unified["memory.swap.max"] = str(swap)


def _memory_qos(pod: v1.Pod, request: int, limit: int, ctx: NodeContext) -> dict[str, str]:
    """cgroup v2 protection by request and throttling below the limit; sizes in bytes."""
    unified: dict[str, str] = {}
    qos = pod_qos(pod, ctx.features.pod_level_resources)
    if request and ctx.memory_reservation_policy == "TieredReservation":
        unified["memory.min" if qos is QOSClass.GUARANTEED else "memory.low"] = str(request)
    else:
        unified["memory.min"] = unified["memory.low"] = "0"
    ceiling = limit or ctx.memory_for_pods
    if request != limit and ceiling:
        throttled = request + (ceiling - request) * ctx.memory_throttling_factor
        high = floor(floor(throttled) / ctx.page_size) * ctx.page_size
        if high > request:
            unified["memory.high"] = str(high)
    return unified


def oom_score_adj(pod: v1.Pod, container: v1.Container, ctx: NodeContext) -> int:
    """How willingly the kernel kills the container when memory runs out, from -997 to 1000.

    Burstable containers score by the part of the node's memory they did not request; a sidecar never
    scores above the containers it serves.
    """
    if is_node_critical_pod(pod):
        return GUARANTEED_OOM_SCORE_ADJ
    qos = pod_qos(pod, ctx.features.pod_level_resources)
    if qos is QOSClass.GUARANTEED:
        return GUARANTEED_OOM_SCORE_ADJ
    if qos is QOSClass.BEST_EFFORT or ctx.memory_capacity <= 0:
        return BEST_EFFORT_OOM_SCORE_ADJ
    extra = _unclaimed_memory_share(pod.spec) if ctx.features.pod_level_resources else 0
    score = 1000 - 1000 * (_memory_request(container) + extra) // ctx.memory_capacity
    found = containers_by_name(pod.spec).get(container.name)
    if found is not None and found.field == INIT_CONTAINERS and is_sidecar(container):
        least = _least_memory_request(pod.spec) + extra
        score = min(score, 1000 - 1000 * least // ctx.memory_capacity)
    return max(1000 + GUARANTEED_OOM_SCORE_ADJ, min(score, BEST_EFFORT_OOM_SCORE_ADJ - 1))


def _memory_request(container: v1.Container) -> int:
    return whole(amount((container.resources.requests or {}).get("memory", "")))


@remembered
def _least_memory_request(spec: v1.PodSpec) -> int:
    return min(map(_memory_request, spec.containers or ()))


@remembered
def _unclaimed_memory_share(spec: v1.PodSpec) -> int:
    """Each container's share of the pod-level memory request that no container claims, in bytes."""
    if not has_pod_level_requests(spec) or spec.resources is None:
        return 0
    request = whole(amount((spec.resources.requests or {}).get("memory", "")))
    if not request:
        return 0
    unclaimed = request - whole(container_requests(spec).get("memory", 0))
    return unclaimed // (len(spec.containers or ()) + len(spec.init_containers or ()))

"""Resources as a pod's status shows them: sums of requests and limits, and what the runtime has in force.

Sums keep the notation of the quantities (`200m`, `64Mi`), as the kubelet's do; for mere comparison see
`podinfo.totals`. Rules: `component-helpers/resource`, KEP-753 (sidecars), KEP-2837 (pod level).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.api.quantity import BINARY_SI, DECIMAL_SI, Quantity, parse
from trio_kubelet.api.v1 import Container, ContainerStatus, Pod, PodSpec, ResourceRequirements
from trio_kubelet.observed.types import ContainerResources, ContainerState
from trio_kubelet.observed.types import ContainerStatus as Observed
from trio_kubelet.podinfo.amounts import amount
from trio_kubelet.podinfo.totals import is_limited

ResourceList: TypeAlias = dict[str, str]
_Sums: TypeAlias = dict[str, Quantity]

_MIN_SHARES = 2
_SHARES_PER_CPU = 1024
_MIN_MILLI_CPU_LIMIT = 10  # what the shortest quota (1 ms of 100 ms) amounts to


def pod_requests(pod: Pod) -> ResourceList:
    """What the pod asks for in all, pod-level requests and overhead included."""
    return _texts(_pod_sum(pod, "requests"))


def pod_limits(pod: Pod) -> ResourceList:
    """The sum of the pod's limits; overhead counts only on top of a limit."""
    return _texts(_pod_sum(pod, "limits"))


def pod_level_status(pod: Pod, *, running: bool) -> ResourceRequirements:
    """`status.resources` of a pod: its requests and limits as they were granted, or of one that runs, as it
    has them.

    Of one that runs, only CPU and memory, which its cgroup may have, and what it asks for itself.
    """
    own = pod.spec.resources or ResourceRequirements()
    requests, limits = pod_requests(pod), pod_limits(pod)
    if running:
        requests = _of_cgroup(requests, own.requests, _MIN_SHARES)
        limits = _of_cgroup(limits, own.limits, _MIN_MILLI_CPU_LIMIT if is_limited(pod, "cpu") else 0)
    return ResourceRequirements(claims=own.claims, requests=requests or None, limits=limits or None)


def _of_cgroup(granted: ResourceList, own: Mapping[str, str] | None, least_cpu: int) -> ResourceList:
    """The CPU, the memory and the pod's `own` part of `granted`. So little CPU as a cgroup has anyway (in
    thousandths) is not shown, unless the pod itself asks for some.
    """
    shown = {name: text for name, text in granted.items() if name in ("cpu", "memory", *(own or ()))}
    if "cpu" in shown and "cpu" not in (own or {}) and parse(shown["cpu"]).milli_value() <= least_cpu:
        del shown["cpu"]
    return shown


def container_status_resources(
    container: Container, observed: Observed, container_id: str, old: ContainerStatus | None
) -> ResourceRequirements:
    """`resources` of a container's status: granted, and where the runtime tells, what is in force.

    A value the runtime does not tell is taken from the last status of the same running container; requests of
    memory, of which no runtime tells, until all else is in force as it was granted.
    """
    granted = container.resources
    if observed.state is not ContainerState.RUNNING:
        return granted
    in_force = observed.resources or ContainerResources()
    known = ResourceRequirements()
    if old is not None and old.state.running is not None and old.container_id == container_id:
        known = old.resources or known
    limits, requests = granted.limits, granted.requests
    if limits is not None:
        limits = dict(limits)
        cpu = _cpu_limit(in_force)
        _show_cpu(limits, cpu, known.limits, _MIN_MILLI_CPU_LIMIT)
        memory = in_force.memory_limit_in_bytes or 0
        if memory > 0:
            limits["memory"] = str(Quantity(memory, 0, BINARY_SI))
        elif "memory" in (known.limits or {}):
            limits["memory"] = (known.limits or {})["memory"]
    if requests is not None:
        requests = dict(requests)
        _show_cpu(requests, _cpu_request(in_force), known.requests, _MIN_SHARES)
        arrived = _same(limits, granted.limits) and _same(requests, granted.requests)
        if not arrived and "memory" in (known.requests or {}):
            requests["memory"] = (known.requests or {})["memory"]
    shown = ResourceRequirements(claims=granted.claims, requests=requests, limits=limits)
    return granted if shown == granted else shown


def _same(one: Mapping[str, str] | None, other: Mapping[str, str] | None) -> bool:
    return {k: amount(v) for k, v in (one or {}).items()} == {k: amount(v) for k, v in (other or {}).items()}


def _show_cpu(shown: ResourceList, milli: int, known: Mapping[str, str] | None, least: int) -> None:
    """Puts the CPU in force into `shown`; rounding at the lower end of the scale is not shown."""
    if milli <= 0:
        if "cpu" in (known or {}):
            shown["cpu"] = (known or {})["cpu"]
        return
    granted = parse(shown["cpu"]).milli_value() if "cpu" in shown else 0
    if milli > least or granted > least:
        shown["cpu"] = str(Quantity(milli, -3, DECIMAL_SI))


def _cpu_limit(in_force: ContainerResources) -> int:
    period, quota = in_force.cpu_period or 0, in_force.cpu_quota or 0
    return quota * 1000 // period if period > 0 and quota > 0 else 0


def _cpu_request(in_force: ContainerResources) -> int:
    shares = in_force.cpu_shares or 0
    return -(-shares * 1000 // _SHARES_PER_CPU) if shares >= _MIN_SHARES else 0


def _pod_sum(pod: Pod, kind: str) -> _Sums:
    total = _containers_sum(pod.spec, kind)
    pod_level: Mapping[str, str] = getattr(pod.spec.resources, kind, None) or {}
    for name, text in pod_level.items():
        if name in ("cpu", "memory") or name.startswith("hugepages-"):
            total[name] = parse(text)
    for name, text in (pod.spec.overhead or {}).items():
        if kind == "requests" or (name in total and total[name].sign() != 0):
            _add(total, {name: parse(text)})
    return total


def _containers_sum(spec: PodSpec, kind: str) -> _Sums:
    """Containers and sidecars together, or the hungriest step of initialising, whichever is more."""
    total: _Sums = {}
    for container in spec.containers or ():
        _add(total, _list(container, kind))
    sidecars: _Sums = {}
    most: _Sums = {}
    for container in spec.init_containers or ():
        wanted = _list(container, kind)
        if is_sidecar(container):
            _add(total, wanted)
            _add(sidecars, wanted)
            step = {name: sidecars[name] for name in wanted}
        else:
            beside = {name: sidecars[name] for name in wanted if name in sidecars}
            _add(wanted, beside)
            step = wanted
        _raise(most, step)  # of what it does not name the sidecars' sum is there already
    _raise(total, most)
    return total


def _list(container: Container, kind: str) -> _Sums:
    resources: Mapping[str, str] = getattr(container.resources, kind) or {}
    return {name: parse(text) for name, text in resources.items()}


def _add(total: _Sums, more: _Sums) -> None:
    for name, quantity in more.items():
        total[name] = total[name].add(quantity) if name in total else quantity


def _raise(total: _Sums, other: _Sums) -> None:
    for name, quantity in other.items():
        if name not in total or quantity.compare(total[name]) > 0:
            total[name] = quantity


def _texts(sums: _Sums) -> ResourceList:
    # Plain strings: serializers refuse subclasses.
    return {name: str(quantity) for name, quantity in sums.items()}

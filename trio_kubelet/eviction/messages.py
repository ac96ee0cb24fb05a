"""Why a pod was evicted, in the kubelet's words, and the annotations of that event. Pure."""

from __future__ import annotations

from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.quantity import BINARY_SI, DECIMAL_SI, Quantity, parse
from trio_kubelet.eviction.ranking import signed, working_set
from trio_kubelet.eviction.thresholds import INODES, PIDS, STORAGE, Signal, Threshold, resource_of, spelled
from trio_kubelet.podinfo.amounts import UNIT, amount
from trio_kubelet.stats.summary_types import ContainerStats, PodStats

REASON: Final = "Evicted"


def quantity(amount_used: int, resource: str) -> str:
    """An amount as texts show it: bytes in powers of 1024, inodes and PIDs in powers of 1000."""
    return str(Quantity(amount_used, 0, DECIMAL_SI if resource in (INODES, PIDS) else BINARY_SI))


def starved(
    pod: v1.Pod, stats: PodStats | None, threshold: Threshold, signal: Signal
) -> tuple[str, dict[str, str]]:
    """Message and annotations for a pod that goes because the signal is under its threshold."""
    resource = resource_of(threshold.signal)
    least, available = spelled(threshold.least, signal.capacity), quantity(signal.available, resource)
    message = f"The node was low on resource: {resource}. "
    message += f"Threshold quantity: {least}, available: {available}. "
    annotations: dict[str, str] = {}
    if stats is None:
        return message, annotations
    whole_pod = (pod.spec.resources.requests or {}) if pod.spec.resources is not None else {}
    if resource == "memory" and resource in whole_pod and stats.memory:
        used = quantity(working_set(stats.memory), resource)
        message += _larger("Pod", pod.metadata.name, used, whole_pod[resource], resource)
        annotations["offending_pod"] = pod.metadata.name
        annotations["offending_pod_usage"] = used
    names, uses = [], []
    asked = {
        container.name: (container.resources.requests or {}).get(resource, "0")
        for container in reversed((*(pod.spec.containers or ()), *(pod.spec.init_containers or ())))
    }
    for container in stats.containers:
        use = _use(container, resource)
        request = asked.get(container.name)
        if use is None or request is None or use * UNIT <= amount(request):
            continue
        used = quantity(use, resource)
        message += _larger("Container", container.name, used, request, resource)
        names.append(container.name)
        uses.append(used)
    annotations["offending_containers"] = ",".join(names)
    annotations["offending_containers_usage"] = ",".join(uses)
    annotations["starved_resource"] = resource
    return message, annotations


def _larger(kind: str, name: str, used: str, request: str, resource: str) -> str:
    asked = str(parse(request))
    return f"{kind} {name} was using {used}, request is {asked}, has larger consumption of {resource}. "


def _use(container: ContainerStats, resource: str) -> int | None:
    """What a container uses of the resource; None where that is not known, or nobody's in particular."""
    if resource == "memory":
        return working_set(container.memory)
    if resource != STORAGE:
        return None
    layer, logs = container.rootfs, container.logs
    if layer is None or logs is None or layer.used_bytes is None or logs.used_bytes is None:
        return None
    return signed(layer.used_bytes + logs.used_bytes)

"""The limits of a pod as a whole: in which steps they change, and how the runtime is told. Pure.

Rules: the kubelet's `doPodResizeAction` and KEP-1287. The runtime is told of each step before it is made, so
that it can refuse it.
"""

from __future__ import annotations

from math import inf
from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podinfo.amounts import amounts, milli, whole
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.runtime.configs.resources import UNLIMITED, overhead_resources, quota_of, shares_of
from trio_kubelet.runtime.resize import ResourceName

_NO_LIMIT: Final = 1 << 62
"""Version 1 of cgroups shows a memory limit that is none as the largest number of whole pages."""


class PodAmounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod may use, in bytes, µs and shares; None: not known, or to be left as it is."""

    memory: int | None = None
    cpu_shares: int | None = None
    cpu_quota: int | None = None
    cpu_period: int | None = None


class Steps(msgspec.Struct, frozen=True):
    """Changes of a pod's limits before and after those of its containers."""

    before: tuple[PodAmounts, ...] = ()
    after: tuple[PodAmounts, ...] = ()


def steps(resource: ResourceName, now: PodAmounts, wanted: PodAmounts) -> Steps:
    """How the pod's share of a resource becomes what is wanted.

    What grows does so before the containers, what shrinks after them, so that no container is ever promised
    more than its pod has; limits are never below requests meanwhile.
    """
    if resource is ResourceName.MEMORY:
        limit = PodAmounts(memory=UNLIMITED if wanted.memory is None else wanted.memory)
        change = _change(now.memory, limit.memory)
        return Steps((limit,) if change > 0 else (), (limit,) if change < 0 else ())
    quota = UNLIMITED if wanted.cpu_quota is None else wanted.cpu_quota
    parts = (
        (PodAmounts(cpu_quota=quota, cpu_period=wanted.cpu_period), _change(now.cpu_quota, quota)),
        (PodAmounts(cpu_shares=wanted.cpu_shares), (wanted.cpu_shares or 0) - (now.cpu_shares or 0)),
    )
    return Steps(
        tuple(part for part, change in parts if change > 0),
        tuple(part for part, change in reversed(parts) if change < 0),
    )


def _change(now: int | None, limit: int | None) -> float:
    """Whether a limit grows (more than 0) or shrinks; one that is not known grows, unless it is lifted."""
    new = _bound(limit)
    if now is None:
        return 0 if new == inf else 1
    old = _bound(now)
    return 0 if old == new else new - old


def _bound(limit: int | None) -> float:
    return inf if limit is None or not 0 <= limit < _NO_LIMIT else limit


def shrinks_memory(now: PodAmounts, wanted: PodAmounts) -> bool:
    """Whether the pod's memory limit would be lower than it is."""
    return wanted.memory is not None and _change(now.memory, wanted.memory) < 0


def merged(old: PodAmounts, new: PodAmounts) -> PodAmounts:
    """`old` with what `new` says."""
    said = {name: value for name, value in msgspec.structs.asdict(new).items() if value is not None}
    return msgspec.structs.replace(old, **said)


def sandbox_update(
    pod: v1.Pod, asked: PodAmounts, node: NodeContext
) -> tuple[cri.LinuxContainerResources, cri.LinuxContainerResources]:
    """What the runtime is told about a sandbox: its overhead, and what the pod may use without it."""
    overhead = amounts(pod.spec.overhead)
    if "cpu" in overhead:
        cpu = milli(overhead["cpu"])
        if asked.cpu_period is not None and asked.cpu_quota is not None:
            quota = asked.cpu_quota - quota_of(cpu, asked.cpu_period)
            asked = msgspec.structs.replace(asked, cpu_quota=quota)
        if asked.cpu_shares is not None:
            all_cpu = -(-asked.cpu_shares * 1000 // 1024)
            asked = msgspec.structs.replace(asked, cpu_shares=shares_of(all_cpu - cpu))
    if "memory" in overhead and asked.memory is not None:
        asked = msgspec.structs.replace(asked, memory=asked.memory - whole(overhead["memory"]))
    resources = cri.LinuxContainerResources(
        cpu_period=asked.cpu_period or 0,
        cpu_quota=asked.cpu_quota or 0,
        cpu_shares=asked.cpu_shares or 0,
        memory_limit_in_bytes=asked.memory or 0,
    )
    return overhead_resources(pod, node), resources

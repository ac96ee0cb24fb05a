"""`/metrics/resource`: CPU, memory and swap of node, pods and containers, for metrics-server. Pure.

Names, labels and moments as the kubelet's `resource_metrics` collector has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.machine.values import MAX, UNLIMITED, CgroupUse, ContainerSample, RuntimeUse, StatsSnapshot
from trio_kubelet.stats.exposition import COUNTER, GAUGE, family, label, sample, unique


class Amount(msgspec.Struct, frozen=True, gc=False):
    """A figure and when it was read."""

    value: int
    at_ns: int


class Figures(msgspec.Struct, frozen=True, gc=False):
    """What is shown of a container, a pod or the node; None is not shown."""

    cpu: Amount | None = None
    memory: Amount | None = None
    swap: Amount | None = None
    swap_limit: Amount | None = None


def of_cgroup(use: CgroupUse, swap_limit: int | None = None) -> Figures:
    """The figures of a cgroup."""
    limit = use.swap_limit if swap_limit is None else swap_limit
    at_ns = use.at_ns
    return Figures(
        cpu=Amount(use.cpu or 0, at_ns),
        memory=Amount(use.working_set, at_ns),
        swap=None if use.memory is None else Amount(use.swap, at_ns),
        swap_limit=None if use.memory is None or limit > UNLIMITED else Amount(max(limit, use.swap), at_ns),
    )


def of_runtime(use: RuntimeUse, now_ns: int) -> Figures:
    """The figures the runtime gives; what it does not give is 0 (kubelet: `zeroMissingValues`)."""

    def amount(value: int | None, at_ns: int | None) -> Amount:
        return Amount(value or 0, now_ns if at_ns is None else at_ns)

    limit = ((use.swap or 0) + (use.swap_available or 0)) & MAX
    return Figures(
        cpu=amount(use.cpu, use.cpu_at_ns),
        memory=amount(use.working_set, use.memory_at_ns),
        swap=amount(use.swap, use.swap_at_ns),
        swap_limit=amount(limit, use.swap_at_ns),
    )


def of_container(container: ContainerSample, now_ns: int) -> Figures | None:
    """A container by its cgroup, else by the runtime."""
    if container.use is not None:
        return of_cgroup(container.use)
    return None if container.runtime is None else of_runtime(container.runtime, now_ns)


def total(parts: list[Figures]) -> Figures:
    """A pod without a cgroup: the sum of its containers."""

    def add(amounts: list[Amount]) -> Amount | None:
        return Amount(sum(a.value for a in amounts) & MAX, amounts[-1].at_ns) if amounts else None

    return Figures(
        cpu=add([each.cpu for each in parts if each.cpu is not None]),
        memory=add([each.memory for each in parts if each.memory is not None]),
        swap=add([each.swap for each in parts if each.swap is not None]),
    )


class _Rows(NamedTuple):
    """Labels and figures, and when a container was made."""

    node: Figures
    pods: dict[str, Figures]
    containers: dict[str, Figures]
    starts: dict[str, int]


def _rows(snapshot: StatsSnapshot) -> _Rows:
    pods: dict[str, Figures] = {}
    containers: dict[str, Figures] = {}
    starts: dict[str, int] = {}
    for pod in snapshot.pods:
        of_pod = f"{label('namespace', pod.namespace)},{label('pod', pod.name)}"
        found = []
        for container in pod.containers:
            figures = of_container(container, snapshot.at_ns)
            if figures is None:
                continue
            labels = f"{label('container', container.name)},{of_pod}"
            found.append(figures)
            containers[labels] = figures
            starts[labels] = container.created_ns
        if found:
            pods[of_pod] = total(found) if pod.use is None else of_cgroup(pod.use)
    node = snapshot.node
    root = of_cgroup(node.root.use, node.swap_capacity) if node.root is not None else Figures()
    return _Rows(root, pods, containers, starts)


def _seconds(amount: Amount) -> int | float:
    whole, rest = divmod(amount.value, NANOSECONDS)
    return whole if not rest else amount.value / NANOSECONDS


_CPU: Final = ("cpu_usage_seconds_total", COUNTER, "[STABLE] CPU time used so far, in core-seconds:", "cpu")
_UNRECLAIMABLE = "[STABLE] Memory in use that cannot be reclaimed at once, in bytes:"
_MEMORY: Final = ("memory_working_set_bytes", GAUGE, _UNRECLAIMABLE, "memory")
_SWAP: Final = ("swap_usage_bytes", GAUGE, "[ALPHA] Swap in use, in bytes:", "swap")
_SWAP_LIMIT: Final = ("swap_limit_bytes", GAUGE, "[ALPHA] Swap that may be used, in bytes:", "swap_limit")
_OF_CONTAINERS: Final = (_CPU, _MEMORY, _SWAP_LIMIT, _SWAP)
_OF_ALL: Final = (_CPU, _MEMORY, _SWAP)
"""Families in their order: name, kind, meaning, and the field of `Figures`."""


def _family(name: str, kind: str, meaning: str, rows: Mapping[str, Figures], figure: str) -> bytes:
    seconds = name.endswith("_seconds_total")
    lines = (
        (labels, sample(name, labels, _seconds(amount) if seconds else amount.value, amount.at_ns))
        for labels, figures in rows.items()
        if (amount := getattr(figures, figure)) is not None
    )
    return family(name, kind, meaning, unique(lines))


def resource_families(snapshot: StatsSnapshot, *, hidden: bool = False) -> Iterator[bytes]:
    """The page, a family at a time; `hidden`: with what is there under its older name, too."""
    node, pods, containers, starts = _rows(snapshot)
    for name, kind, meaning, figure in _OF_CONTAINERS:
        yield _family(f"container_{name}", kind, f"{meaning} container.", containers, figure)
        if figure == "memory":
            name = "container_start_time_seconds"
            lines = unique((key, sample(name, key, at / NANOSECONDS)) for key, at in starts.items() if at > 0)
            yield family(
                name, GAUGE, "[STABLE] When the container was made, in seconds since the epoch.", lines
            )
    for whose, rows in (("node", {"": node}), ("pod", pods)):
        for name, kind, meaning, figure in _OF_ALL:
            yield _family(f"{whose}_{name}", kind, f"{meaning} {whose}.", rows, figure)
    errors = {"resource_scrape_error": "[STABLE]"}
    if hidden:
        errors["scrape_error"] = "[ALPHA] (Deprecated since 1.29.0)"
    for name, level in errors.items():
        failed = [sample(name, "", int(snapshot.failed))]
        yield family(name, GAUGE, f"{level} 1 if the runtime did not answer, 0 otherwise.", failed)

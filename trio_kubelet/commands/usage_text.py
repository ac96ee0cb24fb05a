"""What pods and the node use, from `/stats/summary`, as `kubectl top` prints it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from trio_kubelet.commands.render import aligned
from trio_kubelet.podinfo.amounts import amount, milli, whole

Json = Mapping[str, Any]

_MEBI = 1 << 20
_UNKNOWN = "<unknown>"


def pod_usage(
    summary: Json, wanted: Collection[tuple[str, str]], *, containers: bool, sort_by: str | None = None
) -> list[str]:
    """The lines of `kubectl top pods`, header first; `wanted`: namespaces and names.

    `sort_by` is "cpu" or "memory", the largest first; else the pods are in the order of their names.
    """
    of_container = ["NAME"] if containers else []
    rows = [["NAMESPACE", "POD" if containers else "NAME", *of_container, "CPU(cores)", "MEMORY(bytes)"]]
    for pod in _sorted(sorted(summary.get("pods") or (), key=_key), sort_by):
        if (key := _key(pod)) in wanted:
            rows += [[*key, *cells] for cells in _usages(pod, containers, sort_by)]
    return aligned(rows)


def _key(pod: Json) -> tuple[str, str]:
    return pod["podRef"]["namespace"], pod["podRef"]["name"]


def _sorted(usages: Sequence[Json], sort_by: str | None) -> Sequence[Json]:
    if sort_by is None:
        return usages
    used = _nano_cores if sort_by == "cpu" else _working_set
    return sorted(usages, key=lambda usage: -(used(usage) or 0))


def _usages(pod: Json, containers: bool, sort_by: str | None) -> Iterator[list[str]]:
    if not containers:
        yield [_cores(pod), _memory(pod)]
        return
    for container in _sorted(pod.get("containers") or (), sort_by):
        yield [container["name"], _cores(container), _memory(container)]


def node_usage(summary: Json, node: Json) -> list[str]:
    """The lines of `kubectl top node`, with the shares of what pods may have."""
    used, allocatable = summary["node"], node["status"].get("allocatable") or {}
    rows = [["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"]]
    cores = milli(amount(allocatable.get("cpu", "0")))
    memory = whole(amount(allocatable.get("memory", "0")))
    rows.append(
        [
            node["metadata"]["name"],
            _cores(used),
            _share(_nano_cores(used), cores * 1_000_000),
            _memory(used),
            _share(_working_set(used), memory),
        ]
    )
    return aligned(rows)


def _share(used: int | None, of: int) -> str:
    return _UNKNOWN if used is None or not of else f"{used * 100 // of}%"


def _cores(usage: Json) -> str:
    used = _nano_cores(usage)
    return _UNKNOWN if used is None else f"{-(-used // 1_000_000)}m"


def _memory(usage: Json) -> str:
    used = _working_set(usage)
    return _UNKNOWN if used is None else f"{used // _MEBI}Mi"


def _nano_cores(usage: Json) -> int | None:
    found = (usage.get("cpu") or {}).get("usageNanoCores")
    return None if found is None else int(found)


def _working_set(usage: Json) -> int | None:
    found = (usage.get("memory") or {}).get("workingSetBytes")
    return None if found is None else int(found)

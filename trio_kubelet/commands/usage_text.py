"""What pods and the node use, from `/stats/summary`, as `kubectl top` prints it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from trio_kubelet.commands.render import aligned
from trio_kubelet.podinfo.amounts import amount, milli, whole

Json = Mapping[str, Any]

_MEBI = 1 << 20
_UNKNOWN = "<unknown>"


def pod_usage(summary: Json, wanted: Collection[tuple[str, str]], *, containers: bool) -> list[str]:
    """The lines of `kubectl top pods`, header first; `wanted`: namespaces and names."""
    of_container = ["NAME"] if containers else []
    rows = [["NAMESPACE", "POD" if containers else "NAME", *of_container, "CPU(cores)", "MEMORY(bytes)"]]
    for pod in sorted(summary.get("pods") or (), key=_key):
        if (key := _key(pod)) in wanted:
            rows += [[*key, *cells] for cells in _usages(pod, containers)]
    return aligned(rows)


def _key(pod: Json) -> tuple[str, str]:
    return pod["podRef"]["namespace"], pod["podRef"]["name"]


def _usages(pod: Json, containers: bool) -> Iterator[list[str]]:
    if not containers:
        yield [_cores(pod), _memory(pod)]
        return
    for container in pod.get("containers") or ():
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

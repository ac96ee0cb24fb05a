"""What pods and the node use, from `/stats/summary`, as `kubectl top` prints it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trio_kubelet.commands.render import aligned
from trio_kubelet.podinfo.amounts import amount, milli, whole

Json = Mapping[str, Any]

_MEBI = 1 << 20
_UNKNOWN = "<unknown>"


def pod_usage(
    summary: Json,
    wanted: Collection[tuple[str, str]],
    *,
    containers: bool,
    swap: bool = False,
    sort_by: str = "",
    total: bool = False,
) -> list[str]:
    """The lines of `kubectl top pods`, header first; `wanted`: namespaces and names.

    `sort_by` is "cpu" or "memory", the largest first; else pods and containers are in the order of their
    names. With `total`, two lines at the end say what the others come to.
    """
    of_container = ["NAME"] if containers else []
    columns = [*of_container, "CPU(cores)", "MEMORY(bytes)", *(["SWAP(bytes)"] if swap else ())]
    rows = [["NAMESPACE", "POD" if containers else "NAME", *columns]]
    usages: list[Json] = []
    for pod in _sorted(sorted(summary.get("pods") or (), key=_key), sort_by):
        if (key := _key(pod)) not in wanted:
            continue
        named = sorted(pod.get("containers") or (), key=lambda part: str(part["name"]))
        parts = _sorted(named, sort_by) if containers else [pod]
        usages += parts
        rows += [
            [
                *key,
                *([part["name"]] if containers else ()),
                _cores(part),
                _memory(part),
                *([_in_mebi(_swapped(part))] if swap else ()),
            ]
            for part in parts
        ]
    if total and usages:
        measured = (_nano_cores, _working_set, *([_swapped] if swap else ()))
        cores, *sizes = (sum(used(part) or 0 for part in usages) for used in measured)
        blank = [""] * (len(rows[0]) - len(measured))
        rows.append([*blank, *["________"] * len(measured)])
        rows.append([*blank, f"{milli(cores)}m", *map(_in_mebi, sizes)])
    return aligned(rows)


def _key(pod: Json) -> tuple[str, str]:
    return pod["podRef"]["namespace"], pod["podRef"]["name"]


def _sorted(usages: Sequence[Json], sort_by: str) -> Sequence[Json]:
    if not sort_by:
        return usages
    used = _nano_cores if sort_by == "cpu" else _working_set
    return sorted(usages, key=lambda usage: -(used(usage) or 0))


def node_usage(summary: Json, node: Json, *, of_capacity: bool = False, swap: bool = False) -> list[str]:
    """The lines of `kubectl top node`, with the shares of what pods may have, or of all there is."""
    used, there = summary["node"], node["status"].get("capacity" if of_capacity else "allocatable") or {}
    rows = [["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"]]
    cores = milli(amount(there.get("cpu", "0")))
    memory = whole(amount(there.get("memory", "0")))
    rows.append(
        [
            node["metadata"]["name"],
            _cores(used),
            _share(_milli_cores(used), cores),
            _memory(used),
            _share(_working_set(used), memory),
        ]
    )
    if swap:
        there_is = ((node["status"].get("nodeInfo") or {}).get("swap") or {}).get("capacity")
        swapped = None if there_is is None else _swapped(used)
        rows[0] += ["SWAP(bytes)", "SWAP(%)"]
        rows[1] += [_in_mebi(swapped), _share(swapped, there_is or 1)]
    return aligned(rows)


def _share(used: int | None, of: int) -> str:
    """A part of a hundred, computed with fractions as by kubectl, which shows 28% of 29 in 100."""
    return _UNKNOWN if used is None or not of else f"{int(used / of * 100)}%"


def _cores(usage: Json) -> str:
    used = _milli_cores(usage)
    return _UNKNOWN if used is None else f"{used}m"


def _memory(usage: Json) -> str:
    return _in_mebi(_working_set(usage))


def _in_mebi(bytes_used: int | None) -> str:
    return _UNKNOWN if bytes_used is None else f"{bytes_used // _MEBI}Mi"


def _nano_cores(usage: Json) -> int | None:
    found = (usage.get("cpu") or {}).get("usageNanoCores")
    return None if found is None else int(found)


def _milli_cores(usage: Json) -> int | None:
    used = _nano_cores(usage)
    return None if used is None else milli(used)


def _working_set(usage: Json) -> int | None:
    found = (usage.get("memory") or {}).get("workingSetBytes")
    return None if found is None else int(found)


def _swapped(usage: Json) -> int | None:
    found = (usage.get("swap") or {}).get("swapUsageBytes")
    return None if found is None else int(found)

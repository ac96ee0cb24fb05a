"""Tables of pods, as kubectl prints them, and what tables and descriptions are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trio_kubelet.commands.output import escaped
from trio_kubelet.commands.table import human_duration, parse_time_ns, summary

Json = Mapping[str, Any]

_NONE = "<none>"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SECOND = 1_000_000_000
MAX_ANNOTATION: Final = 140
"""Characters of an annotation's line, as with kubectl."""


class SeveralPods(Exception):
    """Pods of one name in several namespaces; the text asks for one of them."""


def find_pod(pods: Iterable[Json], name: str) -> Json | None:
    """The pod of that name; of a static pod the node's name at the end may be left out.

    Raises SeveralPods.
    """
    found = pods_named(pods, name)
    namespaces = sorted({pod["metadata"].get("namespace", "") for pod in found})
    if len(namespaces) > 1:
        raise SeveralPods(f"pod {name!r} is in the namespaces {', '.join(namespaces)}: choose one with -n")
    return found[0] if found else None


def pods_named(pods: Iterable[Json], name: str) -> list[Json]:
    """The pods of that name, else the static pods that have it without the node's name at the end."""
    candidates = list(pods)
    found = [pod for pod in candidates if pod["metadata"]["name"] == name]
    return found or [pod for pod in candidates if pod["metadata"]["name"] == _static_name(pod, name)]


def _static_name(pod: Json, name: str) -> str:
    node = pod.get("spec", {}).get("nodeName", "")
    return f"{name}-{node}" if node else ""


def pod_rows(pods: Sequence[Json], now_ns: int, *, wide: bool = False) -> list[list[str]]:
    """The table of `kubectl get pods`, header first; the namespace is always shown."""
    header = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    if wide:
        header += ["IP", "NODE", "NOMINATED NODE", "READINESS GATES"]
    return [header, *(_row(pod, now_ns, wide) for pod in pods)]


def _row(pod: Json, now_ns: int, wide: bool) -> list[str]:
    metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    shown = summary(pod)
    restarts = str(shown.restarts)
    if shown.restarts and shown.last_restart_ns is not None:
        restarts += f" ({human_duration((now_ns - shown.last_restart_ns) / _SECOND)} ago)"
    cells = [
        metadata.get("namespace", ""),
        metadata["name"],
        f"{shown.ready}/{shown.total}",
        shown.state,
        restarts,
        age(metadata.get("creationTimestamp") or status.get("startTime"), now_ns),
    ]
    if wide:
        cells += [status.get("podIP") or _NONE, spec.get("nodeName") or _NONE]
        cells += [status.get("nominatedNodeName") or _NONE, _gates(spec, status)]
    return cells


def _gates(spec: Json, status: Json) -> str:
    gates = [gate["conditionType"] for gate in spec.get("readinessGates") or []]
    met = {c["type"] for c in status.get("conditions") or [] if c["status"] == "True"}
    return f"{sum(gate in met for gate in gates)}/{len(gates)}" if gates else _NONE


def age(moment: object, now_ns: int) -> str:
    """How long ago a timestamp is, as kubectl says it."""
    began = parse_time_ns(moment)
    return "<unknown>" if began is None else human_duration((now_ns - began) / _SECOND)


def aligned(rows: Sequence[Sequence[str]], gap: str = "   ") -> list[str]:
    """Rows of cells as lines whose columns begin below each other; what is not printable is escaped."""
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


@dataclass(frozen=True)
class Below:
    """Lines that stand below the name of their field, which is left out when there are none."""

    lines: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.lines)


def fields(named: Sequence[tuple[str, str | Sequence[str] | Below]]) -> list[str]:
    """The fields that have a value, the values below each other; one of several lines keeps to its column."""
    shown = [(name, value) for name, value in named if value]
    beside = [name for name, value in shown if not isinstance(value, Below)]
    width = max(map(len, beside), default=0) + 3
    lines = []
    for name, value in shown:
        if isinstance(value, Below):
            lines += [f"{name}:", *indented(value.lines)]
            continue
        texts = [value] if isinstance(value, str) else value
        first, *others = [line for text in texts for line in text.split("\n")]
        lines += [f"{name + ':':<{width}}{first}".rstrip(), *(f"{'':{width}}{each}" for each in others)]
    return lines


def indented(lines: Iterable[str]) -> list[str]:
    """The lines, two columns further in; those of a text with line breaks too."""
    return [f"  {each}" for line in lines for each in line.split("\n")]


def pairs(mapping: Mapping[str, str] | None) -> list[str]:
    """Labels as `key=value`, in order."""
    return [f"{key}={value}" for key, value in sorted((mapping or {}).items())] or [_NONE]


def annotation_lines(mapping: Mapping[str, str] | None) -> list[str]:
    """Annotations as `key: value`, in order; long ones and those of several lines below their keys, cut.

    Not what kubectl applied last, which is the whole object once more, with the values of its environment.
    """
    lines = []
    for key, value in sorted((mapping or {}).items()):
        if key == _LAST_APPLIED:
            continue
        value = value.removesuffix("\n")
        if len(key) + len(value) + 2 > MAX_ANNOTATION or "\n" in value:
            cut = MAX_ANNOTATION - 2
            below = [line if len(line) <= cut else f"{line[:cut]}..." for line in value.split("\n")]
            lines += [f"{key}:", *indented(below)]
        else:
            lines.append(f"{key}: {value}")
    return lines or [_NONE]

"""Pods as text, as kubectl prints them, and a pod's story. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.commands.table import human_duration, parse_time_ns, pod_state, summary

Json = Mapping[str, Any]

_NONE = "<none>"
_SECOND = 1_000_000_000


class SeveralPods(Exception):
    """Pods of one name in several namespaces; the text asks for one of them."""


def find_pod(pods: Iterable[Json], name: str) -> Json | None:
    """The pod of that name; of a static pod the node's name at the end may be left out.

    Raises SeveralPods.
    """
    candidates = list(pods)
    found = [pod for pod in candidates if pod["metadata"]["name"] == name]
    found = found or [pod for pod in candidates if pod["metadata"]["name"] == _static_name(pod, name)]
    namespaces = sorted({pod["metadata"].get("namespace", "") for pod in found})
    if len(namespaces) > 1:
        raise SeveralPods(f"pod {name!r} is in the namespaces {', '.join(namespaces)}: choose one with -n")
    return found[0] if found else None


def _static_name(pod: Json, name: str) -> str:
    node = pod.get("spec", {}).get("nodeName", "")
    return f"{name}-{node}" if node else ""


def pod_table(pods: Sequence[Json], now_ns: int, *, wide: bool = False) -> list[str]:
    """The lines of `kubectl get pods`, header first; the namespace is always shown."""
    header = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    if wide:
        header += ["IP", "NODE", "NOMINATED NODE", "READINESS GATES"]
    return aligned([header, *(_row(pod, now_ns, wide) for pod in pods)])


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
    """Rows of cells as lines whose columns begin below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def one_below_another(title: str, values: Sequence[str]) -> list[str]:
    """A field with several values, each on a line of its own."""
    first, *others = values or [_NONE]
    return [f"{title}:  {first}", *(f"{'':{len(title) + 3}}{other}" for other in others)]


def describe_pod(pod: Json, events: Sequence[str], story: Sequence[Json], now_ns: int) -> list[str]:
    """What `kubectl describe pod` would say, its events as lines, and the agent's own decisions."""
    metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    lines = fields(
        [
            ("Name", metadata["name"]),
            ("Namespace", metadata.get("namespace", "")),
            ("UID", metadata.get("uid", "")),
            ("Node", spec.get("nodeName") or _NONE),
            ("Start Time", status.get("startTime") or _NONE),
            ("Labels", ", ".join(pairs(metadata.get("labels"))) or _NONE),
            ("Annotations", ", ".join(pairs(metadata.get("annotations"))) or _NONE),
            ("Status", pod_state(pod)),
            ("Reason", status.get("reason", "")),
            ("Message", status.get("message", "")),
            ("IP", status.get("podIP") or _NONE),
            ("QoS Class", status.get("qosClass") or _NONE),
        ]
    )
    for title, specs, statuses in (
        ("Init Containers", "initContainers", "initContainerStatuses"),
        ("Containers", "containers", "containerStatuses"),
        ("Ephemeral Containers", "ephemeralContainers", "ephemeralContainerStatuses"),
    ):
        found = {c["name"]: c for c in status.get(statuses) or []}
        if spec.get(specs):
            lines.append(f"{title}:")
            for container in spec[specs]:
                lines += _container(container, found.get(container["name"], {}))
    if status.get("conditions"):
        lines.append("Conditions:")
        rows = [["Type", "Status", "Reason"]]
        rows += [[c["type"], c["status"], c.get("reason", "")] for c in status["conditions"]]
        lines += [f"  {line}" for line in aligned(rows)]
    if spec.get("volumes"):
        lines.append("Volumes:")
        for volume in spec["volumes"]:
            kind = next((key for key in volume if key != "name"), "emptyDir")
            lines.append(f"  {volume['name']}: {kind}")
    return [*lines, *events, *_story(story, now_ns)]


def _container(container: Json, status: Json) -> list[str]:
    lines = [f"  {container['name']}:"]
    found = [
        ("Container ID", status.get("containerID") or _NONE),
        ("Image", container.get("image", "")),
        ("Image ID", status.get("imageID") or _NONE),
        *_state("State", status.get("state") or {}),
        *(_state("Last State", status["lastState"]) if status.get("lastState") else []),
        ("Ready", str(bool(status.get("ready")))),
        ("Restart Count", str(status.get("restartCount", 0))),
    ]
    found += [
        (title, _probe(container[key]))
        for key, title in (
            ("livenessProbe", "Liveness"),
            ("readinessProbe", "Readiness"),
            ("startupProbe", "Startup"),
        )
        if container.get(key)
    ]
    return lines + [f"    {line}" for line in fields(found)]


def _state(title: str, state: Json) -> list[tuple[str, str]]:
    for kind in ("running", "terminated", "waiting"):
        if kind in state:
            details = state[kind]
            found = [(title, kind.capitalize())]
            for key, name in (
                ("reason", "  Reason"),
                ("message", "  Message"),
                ("exitCode", "  Exit Code"),
                ("startedAt", "  Started"),
                ("finishedAt", "  Finished"),
            ):
                if details.get(key) is not None:
                    found.append((name, str(details[key])))
            return found
    return [(title, "Waiting")]


def _probe(probe: Json) -> str:
    if "exec" in probe:
        what = f"exec {probe['exec'].get('command') or []}"
    elif "httpGet" in probe:
        get = probe["httpGet"]
        address = f"{get.get('host', '')}:{get['port']}{get.get('path', '')}"
        what = f"http-get {get.get('scheme', 'HTTP').lower()}://{address}"
    elif "tcpSocket" in probe:
        what = f"tcp-socket {probe['tcpSocket'].get('host', '')}:{probe['tcpSocket']['port']}"
    elif "grpc" in probe:
        what = f"grpc :{probe['grpc'].get('port', '')}"
    else:
        what = "unknown"
    return (
        f"{what} delay={probe.get('initialDelaySeconds', 0)}s timeout={probe.get('timeoutSeconds', 1)}s "
        f"period={probe.get('periodSeconds', 10)}s #success={probe.get('successThreshold', 1)} "
        f"#failure={probe.get('failureThreshold', 3)}"
    )


def _story(story: Sequence[Json], now_ns: int) -> list[str]:
    if not story:
        return ["Story: nothing is remembered of this pod."]
    rows = [["Time", "Age", "Cause", "What"]]
    for entry in story:
        times = f" (x{entry['count']} since {rfc3339(entry['first_ns'])})" if entry["count"] > 1 else ""
        ago = human_duration((now_ns - entry["at_ns"]) / _SECOND)
        rows.append([rfc3339(entry["at_ns"]), ago, entry["cause"], entry["text"] + times])
    return ["Story:", *(f"  {line}" for line in aligned(rows))]


def fields(named: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each field that has a value, the values below each other."""
    shown = [(name, value) for name, value in named if value]
    width = max((len(name) for name, _ in shown), default=0) + 1
    return [f"{name + ':':<{width}}  {value}" for name, value in shown]


def pairs(mapping: Mapping[str, str] | None) -> list[str]:
    """Labels or annotations as `key=value`, in order."""
    return [f"{key}={value}" for key, value in sorted((mapping or {}).items())]

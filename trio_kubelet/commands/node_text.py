"""This node as text, as kubectl prints nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from trio_kubelet.api import quantity
from trio_kubelet.api.v1 import Pod
from trio_kubelet.commands.event_text import described_events
from trio_kubelet.commands.render import age, aligned, annotation_lines, fields, pairs
from trio_kubelet.podinfo.amounts import UNIT, Amounts, add, amount
from trio_kubelet.podinfo.totals import pod_limits, pod_requests

Json = Mapping[str, Any]

_NONE = "<none>"
_ROLE = "node-role.kubernetes.io/"
_ENDED = ("Succeeded", "Failed")
_ALWAYS_SHOWN = ("cpu", "memory", "ephemeral-storage")


def node_rows(node: Json, now_ns: int, *, wide: bool = False) -> list[list[str]]:
    """The table of `kubectl get nodes`, header first."""
    status, info = node["status"], node["status"].get("nodeInfo") or {}
    header = ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    cells = [
        node["metadata"]["name"],
        _state(node),
        _roles(node),
        age(node["metadata"].get("creationTimestamp"), now_ns),
        info.get("kubeletVersion", ""),
    ]
    if wide:
        header += ["INTERNAL-IP", "EXTERNAL-IP", "OS-IMAGE", "KERNEL-VERSION", "CONTAINER-RUNTIME"]
        cells += [_address(status, "InternalIP"), _address(status, "ExternalIP")]
        system, kernel, runtime = (
            info.get(key) or "<unknown>" for key in ("osImage", "kernelVersion", "containerRuntimeVersion")
        )
        architecture = f" ({info['architecture']})" if info.get("architecture") else ""
        cells += [system, kernel + architecture, runtime]
    return [header, cells]


def _state(node: Json) -> str:
    conditions = {c["type"]: c["status"] for c in node["status"].get("conditions") or ()}
    state = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    return state + (",SchedulingDisabled" if (node.get("spec") or {}).get("unschedulable") else "")


def _roles(node: Json) -> str:
    labels = node["metadata"].get("labels") or {}
    found = {label.removeprefix(_ROLE) for label in labels if label.startswith(_ROLE)}
    if role := labels.get("kubernetes.io/role"):
        found.add(role)
    return ",".join(sorted(found - {""})) or _NONE


def _address(status: Json, kind: str) -> str:
    return next((a["address"] for a in status.get("addresses") or () if a["type"] == kind), _NONE)


def describe_node(node: Json, pods: Iterable[Json], events: Sequence[Json], now_ns: int) -> list[str]:
    """What `kubectl describe node` would say of it."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node["status"]
    taints = [
        f"{t['key']}{'=' + t['value'] if t.get('value') else ''}:{t['effect']}"
        for t in sorted(spec.get("taints") or (), key=lambda taint: (taint["effect"], taint["key"]))
    ]
    lines = [
        *fields(
            [
                ("Name", metadata["name"]),
                ("Roles", _roles(node)),
                ("Labels", pairs(metadata.get("labels"))),
                ("Annotations", annotation_lines(metadata.get("annotations"))),
                ("CreationTimestamp", metadata.get("creationTimestamp") or _NONE),
                ("Taints", taints or _NONE),
                ("Unschedulable", str(bool(spec.get("unschedulable"))).lower()),
            ]
        ),
    ]
    if status.get("conditions"):
        lines += ["Conditions:", *_conditions(status["conditions"])]
    lines += ["Addresses:", *(f"  {a['type']}:  {a['address']}" for a in status.get("addresses") or ())]
    for title in ("capacity", "allocatable"):
        lines += [f"{title.capitalize()}:", *_resources(status.get(title) or {})]
    lines += ["System Info:", *_system_info(status.get("nodeInfo") or {})]
    lines += fields(
        [
            ("PodCIDR", spec.get("podCIDR") or ""),
            ("PodCIDRs", ",".join(spec.get("podCIDRs") or ())),
            ("ProviderID", spec.get("providerID") or ""),
        ]
    )
    running = [pod for pod in pods if pod.get("status", {}).get("phase") not in _ENDED]
    lines += _pods(running, status.get("allocatable") or {}, now_ns)
    return lines + described_events(events, now_ns)


def _conditions(conditions: Sequence[Json]) -> list[str]:
    header = ["Type", "Status", "LastHeartbeatTime", "LastTransitionTime", "Reason", "Message"]
    rows = [header, ["-" * len(title) for title in header]]
    for c in conditions:
        moments = [c.get(key) or "" for key in ("lastHeartbeatTime", "lastTransitionTime")]
        rows.append([c["type"], c["status"], *moments, c.get("reason", ""), c.get("message", "")])
    return [f"  {line}" for line in aligned(rows)]


def _resources(resources: Mapping[str, str]) -> list[str]:
    rows = [[f"  {name}:", value] for name, value in sorted(resources.items())]
    return aligned(rows, "  ") if rows else []


def _system_info(info: Json) -> list[str]:
    shown = (
        ("Machine ID", "machineID"),
        ("System UUID", "systemUUID"),
        ("Boot ID", "bootID"),
        ("Kernel Version", "kernelVersion"),
        ("OS Image", "osImage"),
        ("Operating System", "operatingSystem"),
        ("Architecture", "architecture"),
        ("Container Runtime Version", "containerRuntimeVersion"),
        ("Kubelet Version", "kubeletVersion"),
    )
    return [f"  {line}" for line in fields([(title, str(info.get(key, ""))) for title, key in shown])]


def _pods(pods: Sequence[Json], allocatable: Mapping[str, str], now_ns: int) -> list[str]:
    """What each pod asks for, and all of them together."""
    header = ["Namespace", "Name", "CPU Requests", "CPU Limits", "Memory Requests", "Memory Limits", "Age"]
    rows = [header, ["-" * len(title) for title in header]]
    asked: Amounts = {}
    limited: Amounts = {}
    for item in sorted(pods, key=lambda pod: (pod["metadata"].get("namespace", ""), pod["metadata"]["name"])):
        pod = msgspec.convert(item, Pod, strict=False)
        requests, limits = pod_requests(pod), pod_limits(pod)
        add(asked, requests)
        add(limited, limits)
        rows.append(
            [
                pod.metadata.namespace,
                pod.metadata.name,
                *(
                    _share(name, of.get(name, 0), allocatable)
                    for name in ("cpu", "memory")
                    for of in (requests, limits)
                ),
                age(item["metadata"].get("creationTimestamp") or item["status"].get("startTime"), now_ns),
            ]
        )
    totals = [["Resource", "Requests", "Limits"], ["--------", "--------", "------"]]
    for name in dict.fromkeys([*_ALWAYS_SHOWN, *sorted({*asked, *limited})]):
        totals.append([name, *(_share(name, of.get(name, 0), allocatable) for of in (asked, limited))])
    return [
        f"Non-terminated Pods:  ({len(pods)} in total)",
        *(f"  {line}" for line in aligned(rows)),
        "Allocated resources:",
        "  (Total limits may be over 100 percent, i.e., overcommitted.)",
        *(f"  {line}" for line in aligned(totals)),
    ]


def _share(name: str, nanos: int, allocatable: Mapping[str, str]) -> str:
    whole = amount(allocatable.get(name, ""))
    shown = _quantity(name, nanos)
    return f"{shown} ({nanos * 100 // whole}%)" if whole else shown


def _quantity(name: str, nanos: int) -> str:
    if name == "cpu":
        return str(nanos // UNIT) if nanos % UNIT == 0 else f"{-(-nanos // 10**6)}m"
    notation = quantity.BINARY_SI if name != "pods" else quantity.DECIMAL_SI
    return str(quantity.Quantity(-(-nanos // UNIT), 0, notation))

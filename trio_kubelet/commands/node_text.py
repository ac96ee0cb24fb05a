"""This node as text, as kubectl prints nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from trio_kubelet.api import quantity
from trio_kubelet.api.defaults import HUGE_PAGES_PREFIX
from trio_kubelet.api.v1 import Pod
from trio_kubelet.commands.render import age, aligned, annotation_lines, fields, pairs
from trio_kubelet.podinfo.amounts import Amounts, add, amount, counted
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


def describe_node(node: Json, pods: Iterable[Json], events: Sequence[str], now_ns: int) -> list[str]:
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
        if status.get(title):
            lines += [f"{title.capitalize()}:", *_resources(status[title])]
    lines += ["System Info:", *_system_info(status.get("nodeInfo") or {})]
    lines += fields(
        [
            ("PodCIDR", spec.get("podCIDR") or ""),
            ("PodCIDRs", ",".join(spec.get("podCIDRs") or ())),
            ("ProviderID", spec.get("providerID") or ""),
        ]
    )
    running = [pod for pod in pods if pod.get("status", {}).get("phase") not in _ENDED]
    lines += _pods(running, status.get("allocatable") or status.get("capacity") or {}, now_ns)
    return [*lines, *events]


def _conditions(conditions: Sequence[Json]) -> list[str]:
    header = ["Type", "Status", "LastHeartbeatTime", "LastTransitionTime", "Reason", "Message"]
    rows = [header, ["-" * len(title) for title in header]]
    for c in conditions:
        moments = [c.get(key) or "" for key in ("lastHeartbeatTime", "lastTransitionTime")]
        rows.append([c["type"], c["status"], *moments, c.get("reason", ""), c.get("message", "")])
    return [f"  {line}" for line in aligned(rows)]


def _resources(resources: Mapping[str, str]) -> list[str]:
    return aligned([[f"  {name}:", value] for name, value in sorted(resources.items())], "  ")


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
    """What each pod asks for, and all of them together of what the node has."""
    header = ["Namespace", "Name", "CPU Requests", "CPU Limits", "Memory Requests", "Memory Limits", "Age"]
    rows = [header, ["-" * len(title) for title in header]]
    asked, limited = _Total(), _Total()
    for item in sorted(pods, key=lambda pod: (pod["metadata"].get("namespace", ""), pod["metadata"]["name"])):
        pod = msgspec.convert(item, Pod, strict=False)
        containers = [*(pod.spec.containers or ()), *(pod.spec.init_containers or ())]
        given = [each for each in (pod.spec.resources, *(c.resources for c in containers)) if each]
        written = _notations([*(each.requests for each in given), pod.spec.overhead])
        requests = _Total(pod_requests(pod), written)
        limits = _Total(pod_limits(pod), _notations(each.limits for each in given))
        asked.add(requests)
        limited.add(limits)
        shares = [of.share(name, allocatable) for name in ("cpu", "memory") for of in (requests, limits)]
        began = item["metadata"].get("creationTimestamp") or item["status"].get("startTime")
        rows.append([pod.metadata.namespace, pod.metadata.name, *shares, age(began, now_ns)])
    totals = [["Resource", "Requests", "Limits"], ["--------", "--------", "------"]]
    pages = sorted(name for name in allocatable if name.startswith(HUGE_PAGES_PREFIX))
    for name in (*_ALWAYS_SHOWN, *pages):
        totals.append([name, asked.share(name, allocatable), limited.share(name, allocatable)])
    for name in sorted({*allocatable}.difference(_ALWAYS_SHOWN, pages, ("pods",))):
        totals.append([name, asked.text(name), limited.text(name)])
    return [
        f"Non-terminated Pods:  ({len(pods)} in total)",
        *(f"  {line}" for line in aligned(rows)),
        "Allocated resources:",
        "  (Total limits may be over 100 percent, i.e., overcommitted.)",
        *(f"  {line}" for line in aligned(totals)),
    ]


def _notations(lists: Iterable[Mapping[str, str] | None]) -> dict[str, str]:
    """How amounts of these together are written: each as the first of its name that is not 0."""
    found: dict[str, str] = {}
    for name, text in (item for each in lists for item in (each or {}).items()):
        if amount(text):
            found.setdefault(name, quantity.parse(text).notation)
    return found


@dataclass
class _Total:
    """Amounts together, and how they are written."""

    amounts: Amounts = field(default_factory=dict)
    notations: dict[str, str] = field(default_factory=dict)

    def add(self, other: _Total) -> None:
        """Adds the other to this."""
        add(self.amounts, other.amounts)
        self.notations = {**other.notations, **self.notations}

    def text(self, name: str) -> str:
        """The amount of a resource."""
        nanos = self.amounts.get(name, 0)
        scale = quantity.MILLI if name == "cpu" else 0
        notation = self.notations.get(name, quantity.DECIMAL_SI)
        return str(quantity.Quantity(counted(name, nanos), scale, notation))

    def share(self, name: str, allocatable: Mapping[str, str]) -> str:
        """The amount, and its part of what there is. Computed with fractions as by kubectl, which shows 28%
        of 29 in 100.
        """
        there = counted(name, amount(allocatable.get(name, "")))
        part = counted(name, self.amounts.get(name, 0)) / there if there else 0
        return f"{self.text(name)} ({int(part * 100)}%)"

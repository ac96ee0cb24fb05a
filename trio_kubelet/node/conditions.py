"""The conditions of the Node object: Ready and the three kinds of pressure. Pure.

Words, order and the moments of transition are the kubelet's; the node controller and the taints it sets
follow from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.errors import aggregate_errors
from trio_kubelet.node.events import NodeEvent

MEMORY: Final = "MemoryPressure"
DISK: Final = "DiskPressure"
PID: Final = "PIDPressure"
READY: Final = "Ready"


class _Words(msgspec.Struct, frozen=True):
    """Reason and message of a condition's two states; events have the reason with `Node` for `Kubelet`."""

    bad: str
    bad_message: str
    good: str
    good_message: str


_PRESSURES: Final = {
    MEMORY: _Words(
        "KubeletHasInsufficientMemory",
        "kubelet has insufficient memory available",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    DISK: _Words(
        "KubeletHasDiskPressure",
        "kubelet has disk pressure",
        "KubeletHasNoDiskPressure",
        "kubelet has no disk pressure",
    ),
    PID: _Words(
        "KubeletHasInsufficientPID",
        "kubelet has insufficient PID available",
        "KubeletHasSufficientPID",
        "kubelet has sufficient PID available",
    ),
}


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What the conditions say: why the node is not ready, and which pressures it is under; `warning` comes
    behind the message of Ready, whether it is or not.
    """

    not_ready: Sequence[str] = ()
    warning: str = ""
    pressures: frozenset[str] = frozenset()


def with_conditions(
    conditions: Sequence[v1.NodeCondition], health: NodeHealth, name: str, now: str
) -> tuple[list[v1.NodeCondition], list[NodeEvent]]:
    """The conditions as they are now and the events of those that turned; `name` is the node's. Conditions of
    others stay; new ones are appended, Ready behind the pressures.
    """
    result = list(conditions)
    events: list[NodeEvent] = []
    for kind in _PRESSURES:
        old = find(result, kind)
        new = _pressure(old, kind, kind in health.pressures, now)
        _put(result, new)
        if old is None or old.status != new.status:
            events.append(_told(name, new.reason.replace("Kubelet", "Node", 1)))
    old = find(result, READY)
    new = _ready(old, health, now)
    _put(result, new)
    if old is not None and old.status != new.status:
        events.append(_told(name, "NodeReady" if new.status == "True" else "NodeNotReady"))
    return result, events


def find(conditions: Iterable[v1.NodeCondition] | None, kind: str) -> v1.NodeCondition | None:
    """The condition of that type."""
    return next((condition for condition in conditions or () if condition.type == kind), None)


def is_ready(node: v1.Node) -> bool:
    """Whether the Node object says the node is ready."""
    condition = find(node.status.conditions, READY)
    return condition is not None and condition.status == "True"


def missing_capacities(capacity: Mapping[str, str], local_storage: bool) -> list[str]:
    """Why a node that does not know its own size is not ready."""
    required = ["cpu", "memory", "pods", *(["ephemeral-storage"] if local_storage else [])]
    missing = [name for name in required if name not in capacity]
    return [f"missing node capacity for resources: {', '.join(missing)}"] if missing else []


def _pressure(old: v1.NodeCondition | None, kind: str, under: bool, now: str) -> v1.NodeCondition:
    words, status = _PRESSURES[kind], "True" if under else "False"
    if old is not None and old.status == status:
        return msgspec.structs.replace(old, last_heartbeat_time=now)
    return v1.NodeCondition(
        type=kind,
        status=status,
        reason=words.bad if under else words.good,
        message=words.bad_message if under else words.good_message,
        last_heartbeat_time=now,
        last_transition_time=now,
    )


def _ready(old: v1.NodeCondition | None, health: NodeHealth, now: str) -> v1.NodeCondition:
    not_ready = health.not_ready
    message = aggregate_errors(not_ready) if not_ready else "kubelet is posting ready status"
    status = "False" if not_ready else "True"
    since = old.last_transition_time if old is not None and old.status == status else now
    return v1.NodeCondition(
        type=READY,
        status=status,
        reason="KubeletNotReady" if not_ready else "KubeletReady",
        message=f"{message}. WARNING: {health.warning}" if health.warning else message,
        last_heartbeat_time=now,
        last_transition_time=since,
    )


def _put(conditions: list[v1.NodeCondition], new: v1.NodeCondition) -> None:
    for place, condition in enumerate(conditions):
        if condition.type == new.type:
            conditions[place] = new
            return
    conditions.append(new)


def _told(name: str, reason: str) -> NodeEvent:
    return NodeEvent("Normal", reason, f"Node {name} status is now: {reason}")

"""The Node object a node registers or shows, and what it changes of one that is there already.

Who finds its Node there takes it over as it is: labels, taints and annotations on it may be an operator's.
Only what the node itself must be right about is put right (kubelet: `tryRegisterWithAPIServer`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.config.load import NODE_LABELS
from trio_kubelet.node.events import NodeEvent
from trio_kubelet.node.profile import ATTACH_DETACH_ANNOTATION, NodeProfile
from trio_kubelet.node.status import NodeObservation, with_status
from trio_kubelet.pods.admission.fit import is_extended

_OWN_LABELS: Final = NODE_LABELS | {"node.kubernetes.io/windows-build"}
"""Labels that a node is right about, if it has them."""


def initial_node(profile: NodeProfile, seen: NodeObservation) -> tuple[v1.Node, list[NodeEvent]]:
    """The object to register, with the events of its first conditions."""
    node = v1.Node(
        api_version="v1",
        kind="Node",
        metadata=v1.ObjectMeta(
            name=profile.name,
            labels=dict(profile.labels),
            annotations=dict(profile.annotations) or None,
        ),
        spec=v1.NodeSpec(taints=list(profile.taints) or None, provider_id=profile.provider_id),
    )
    labels = node.metadata.labels
    node, events = with_status(node, profile, seen)
    # An operator's --node-labels win over the defaults, at registration.
    metadata = msgspec.structs.replace(node.metadata, labels=labels)
    return msgspec.structs.replace(node, metadata=metadata), events


def reconcile(existing: v1.Node, initial: v1.Node, *, reset_extended: bool) -> v1.Node:
    """The Node that is there, with what the registering node must put right.

    `reset_extended`: nothing is known of device plugins here. If the Node is that of another machine too,
    extended resources are zero until their plugins report. (The kubelet leaves a file behind on a machine
    where it has run; an agent that is started again must not take away what others advertise.)
    """
    metadata = msgspec.structs.replace(
        existing.metadata,
        labels=_labels(existing.metadata.labels or {}, initial.metadata.labels or {}),
        annotations=_annotations(existing.metadata.annotations or {}, initial.metadata.annotations or {}),
    )
    return msgspec.structs.replace(
        existing, metadata=metadata, status=_status(existing.status, initial.status, reset_extended)
    )


def _labels(existing: dict[str, str], initial: dict[str, str]) -> dict[str, str] | None:
    merged = dict(existing)
    for label in _OWN_LABELS:
        if initial.get(label):
            merged[label] = initial[label]
        elif label in initial:
            merged.pop(label, None)
    return merged or None


def _annotations(existing: dict[str, str], initial: dict[str, str]) -> dict[str, str] | None:
    others = dict(existing)
    others.pop(ATTACH_DETACH_ANNOTATION, None)
    if ATTACH_DETACH_ANNOTATION in initial:
        others[ATTACH_DETACH_ANNOTATION] = initial[ATTACH_DETACH_ANNOTATION]
    return others or None


def _status(existing: v1.NodeStatus, initial: v1.NodeStatus, reset_extended: bool) -> v1.NodeStatus:
    """Sizes of huge pages as the machine has them; extended resources zeroed if it is a new one."""
    capacity: dict[str, str] = dict(existing.capacity or initial.capacity or {})
    allocatable: dict[str, str] = dict(existing.allocatable or initial.allocatable or {})
    for own, merged in ((initial.capacity, capacity), (initial.allocatable, allocatable)):
        for name in [name for name in merged if name.startswith("hugepages-")]:
            del merged[name]
        for name, size in (own or {}).items():
            if name.startswith("hugepages-"):
                merged[name] = size
    if reset_extended and _machine(existing) != _machine(initial):
        for name in [name for name in capacity if is_extended(name)]:
            capacity[name] = allocatable[name] = "0"
    return msgspec.structs.replace(existing, capacity=capacity, allocatable=allocatable)


def _machine(status: v1.NodeStatus) -> tuple[str, str]:
    """Which machine the Node is: machines that were copied from one another differ in the second."""
    return status.node_info.machine_id, status.node_info.system_uuid


class NodeItself:
    """The Node object for who asks the node itself: as the API server has it, else what would be registered.

    `registered` gives the API server's object, None where there is none (yet); `look` sees the node.
    """

    def __init__(
        self,
        *,
        profile: NodeProfile,
        look: Callable[[], Awaitable[NodeObservation]],
        registered: Callable[[], v1.Node | None] = lambda: None,
    ) -> None:
        self._profile = profile
        self._look = look
        self._registered = registered
        self._last: v1.Node | None = None

    async def __call__(self) -> v1.Node:
        """The object; conditions of one that is not registered keep the moments of their turns."""
        registered = self._registered()
        if registered is not None:
            return registered
        seen = await self._look()
        if self._last is None:
            self._last, _ = initial_node(self._profile, seen)
        else:
            self._last, _ = with_status(self._last, self._profile, seen)
        return self._last

"""Whether a claim's volume is to be made larger on this node now, and what its status says of it. Pure.

KEP-556 and KEP-1790: a controller makes the volume larger and says so in the claim's status; then the node
makes filesystem or device use it, and writes the new capacity.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.podinfo.amounts import amount, whole
from trio_kubelet.storage.specs import READ_WRITE_MANY

STORAGE: Final = "storage"
PENDING: Final = "NodeResizePending"
IN_PROGRESS: Final = "NodeResizeInProgress"
INFEASIBLE: Final = "NodeResizeInfeasible"
NODE_ERROR: Final = "NodeResizeError"
NOT_REQUIRED: Final = "volume.kubernetes.io/node-expansion-not-required"
_RESIZE_CONDITIONS: Final = (
    "Resizing",
    "FileSystemResizePending",
    "ControllerResizeError",
    NODE_ERROR,
)

Patch = dict[str, Any]


class ResizeVerdict(enum.Enum):
    """What to do about a claim."""

    DONE = "done"  # nothing is left to do for this node
    NOT_YET = "not yet"  # the controller has not come so far, or it is not to be tried again
    EXPAND = "expand"


class Plan(msgspec.Struct, frozen=True):
    """`size` in bytes as `quantity` says. `told`: the claim already shows it, so its status is left alone;
    `legacy`: the controller knows no states of a resize.
    """

    verdict: ResizeVerdict
    size: int = 0
    quantity: str = ""
    told: bool = False
    legacy: bool = False


def plan(claim: v1.PersistentVolumeClaim, volume_quantity: str) -> Plan:
    """What to do; `volume_quantity` is the persistent volume's capacity (kubelet: `runPreCheck`)."""
    status = claim.status
    shown = bytes_of((status.capacity or {}).get(STORAGE, ""))
    state = (status.allocated_resource_statuses or {}).get(STORAGE, "")
    if not state and status.allocated_resources is None:
        size = bytes_of(volume_quantity)
        return Plan(ResizeVerdict.EXPAND, size, volume_quantity, told=shown >= size, legacy=True)
    quantity = (status.allocated_resources or {}).get(STORAGE, "")
    size = bytes_of(quantity)
    told = shown >= size and not state
    annotations = claim.metadata.annotations or {}
    everywhere = READ_WRITE_MANY in (claim.spec.access_modes or ()) and NOT_REQUIRED not in annotations
    if (told and everywhere) or state in (PENDING, IN_PROGRESS):
        return Plan(ResizeVerdict.EXPAND, size, quantity, told=told)
    return Plan(ResizeVerdict.DONE if told else ResizeVerdict.NOT_YET, size, quantity, told=told)


def bytes_of(quantity: str) -> int:
    """A quantity in bytes; "" is 0."""
    return whole(amount(quantity))


def changed_since(claim: v1.PersistentVolumeClaim, size: int) -> bool:
    """Whether somebody asks for another size than is being tried."""
    resources = claim.spec.resources
    requested = (resources.requests if resources is not None else None) or {}
    return bytes_of(requested.get(STORAGE, "")) != size


def in_progress(claim: v1.PersistentVolumeClaim) -> Patch:
    """The node is at it."""
    return _patch(claim, {"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}})


def finished(claim: v1.PersistentVolumeClaim, quantity: str) -> Patch:
    """The volume has its new size, and nothing is said of its resize any more."""
    status: Patch = {"capacity": {STORAGE: quantity}}
    if claim.status.allocated_resource_statuses:
        status["allocatedResourceStatuses"] = {STORAGE: None}
    gone = [c.type for c in claim.status.conditions or () if c.type in _RESIZE_CONDITIONS]
    if gone:
        status["conditions"] = [{"$patch": "delete", "type": kind} for kind in gone]
    return _patch(claim, status)


def failed(claim: v1.PersistentVolumeClaim, error: str, now: str, *, infeasible: bool) -> Patch:
    """It failed; `infeasible`: it is not tried again before somebody asks for another size. What was said of
    an earlier failure stays (kubelet: `MergeResizeConditionOnPVC`).
    """
    known = any(c.type == NODE_ERROR and c.status == "True" for c in claim.status.conditions or ())
    condition = {
        "type": NODE_ERROR,
        "status": "True",
        "lastTransitionTime": now,
        "message": f"failed to expand pvc with {error}",
    }
    status: Patch = {} if known else {"conditions": [condition]}
    if infeasible:
        status["allocatedResourceStatuses"] = {STORAGE: INFEASIBLE}
    return {"metadata": {"uid": claim.metadata.uid}, "status": status}


def _patch(claim: v1.PersistentVolumeClaim, status: Patch) -> Patch:
    meta = claim.metadata
    return {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}

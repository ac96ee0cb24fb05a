"""What is written to the API server of a pod's status: which status, and the patch that leads there. Pure.

The node writes its own conditions and fields; conditions of others and resource claims are never named in a
patch, so nothing of theirs is undone (kubelet: `mergePodStatus`). A patch has only what differs, in the form
of a strategic merge patch; metadata.uid makes sure that it never meets another pod of the same name.

What the server shows is not always known for certain: the watch lags behind our own writes, and a request
without an answer may have been carried out. So a patch is made against all that it may show, and says
whatever differs from any of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import fields, replace

from trio_kubelet.api import v1
from trio_kubelet.podinfo.updates import is_mirror, is_static
from trio_kubelet.pods.refs import SUCCEEDED, is_terminal_phase
from trio_kubelet.pods.status.conditions import (
    CONTAINERS_READY,
    DISRUPTION_TARGET,
    OWN,
    READY,
    condition,
    find,
    put,
)

Tree: TypeAlias = dict[str, Any]

_FOREIGN: Final = frozenset(
    {
        "resource_claim_statuses",
        "extended_resource_claim_status",
        "node_allocatable_resource_claim_statuses",
    }
)
_FIELDS: Final = tuple(
    (field.name, field.encode_name) for field in fields(v1.PodStatus) if field.name not in _FOREIGN
)
_MERGED: Final = {"conditions": "type", "host_ips": "ip", "pod_ips": "ip"}
"""Lists that the API server merges by a key; it replaces all others."""


def status_to_write(
    pod: v1.Pod, shown: v1.PodStatus, status: v1.PodStatus, *, may_run: bool, now: str
) -> v1.PodStatus:
    """What the server is to show, which now shows `shown`, when the node's own word is `status`.

    `may_run`: containers of the pod may still be running; a terminal phase is then held back, as it frees
    what only one pod may have. A terminal phase that was shown stays, but for a static pod: it is over when
    the node goes down, and starts again after the boot. `now` in RFC 3339.
    """
    was_over, is_over = is_terminal_phase(shown.phase), is_terminal_phase(status.phase)
    ends = is_over and not was_over and not may_run
    conditions = [c for c in shown.conditions or () if c.type not in OWN]
    conditions += [c for c in status.conditions or () if c.type in OWN]
    disruption = find(status.conditions, DISRUPTION_TARGET)
    if ends and disruption is not None:
        # Told together with the end of the pod, so it has happened only now.
        before = find(shown.conditions, DISRUPTION_TARGET)
        same = before is not None and before.status == disruption.status
        moment = before.last_transition_time if before is not None and same else now
        conditions = put(conditions, replace(disruption, last_transition_time=moment))
    written = replace(
        status,
        conditions=conditions or None,
        resource_claim_statuses=shown.resource_claim_statuses,
        extended_resource_claim_status=shown.extended_resource_claim_status,
        node_allocatable_resource_claim_statuses=shown.node_allocatable_resource_claim_statuses,
    )
    starts_again = not is_over and is_static(pod)
    if (is_over or was_over) and not ends and not starts_again and shown.phase != status.phase:
        written = replace(written, phase=shown.phase, reason=shown.reason, message=shown.message)
    return _unready(pod, written, now) if is_terminal_phase(written.phase) else written


def _unready(pod: v1.Pod, status: v1.PodStatus, now: str) -> v1.PodStatus:
    """A pod that is over is not ready, whatever was last seen of its containers."""
    found = {kind: find(status.conditions, kind) for kind in (CONTAINERS_READY, READY)}
    if all(c is None or c.status != "True" for c in found.values()):
        return status
    reason = "PodCompleted" if status.phase == SUCCEEDED else "PodFailed"
    conditions = status.conditions or []
    for kind, before in found.items():
        same = before is not None and before.status == "False"
        moment = before.last_transition_time if before is not None and same else now
        unready = replace(condition(pod, kind, False, reason), last_transition_time=moment)
        conditions = put(conditions, unready)
    return replace(status, conditions=conditions)


def may_be_deleted(pod: v1.Pod, shown: v1.PodStatus, finished: bool) -> bool:
    """Whether the node has to take the pod off the API server: it is to be deleted, over, and nothing of it
    is left here. Mirrors go with their static pod.
    """
    deleted = pod.metadata.deletion_timestamp is not None
    return deleted and finished and is_terminal_phase(shown.phase) and not is_mirror(pod)


def status_patch(uid: str, shown: Sequence[v1.PodStatus], wanted: v1.PodStatus) -> bytes | None:
    """The patch after which the server shows `wanted`, whichever of `shown` it shows now; None: none needed.

    The first of `shown` is the one that `wanted` was made from: conditions of others are as in there.
    """
    patch: Tree = {}
    for name, encoded in _FIELDS:
        value = getattr(wanted, name)
        olds = [getattr(status, name) for status in shown]
        if all(old == value for old in olds):
            continue
        key = _MERGED.get(name)
        if key is not None:
            patch |= _merged_list(encoded, key, [_items(old, key) for old in olds], _items(value, key))
        else:
            patch |= _tree_patch([_present(encoded, old) for old in olds], _present(encoded, value))
    if not patch:
        return None
    return msgspec.json.encode({"metadata": {"uid": uid}, "status": patch})


def _present(name: str, value: Any) -> Tree:
    """A field as the API has it; empty values are left out."""
    plain = msgspec.to_builtins(value)
    return {} if plain in (None, "", 0) or plain == [] else {name: plain}


def _items(values: Sequence[v1.Object] | None, key: str) -> dict[str, Tree]:
    plain = (msgspec.to_builtins(value) for value in values or ())
    return {item[key]: item for item in plain}


def _merged_list(name: str, key: str, olds: Sequence[Mapping[str, Tree]], new: Mapping[str, Tree]) -> Tree:
    """The changes of a list that is merged by a key, and its order. Foreign conditions are not touched."""
    changed: list[Tree] = []
    for value, item in new.items():
        known = [old.get(value) for old in olds]
        if name == "conditions" and value not in OWN and known[0] == item:
            continue
        if item_patch := _tree_patch([old or {} for old in known], item):
            changed.append({**item_patch, key: value})
    gone = {value: None for old in olds for value in old if value not in new}
    if name == "conditions":
        gone = {value: None for value in gone if value in OWN}
    changed += [{"$patch": "delete", key: value} for value in gone]
    order = {f"$setElementOrder/{name}": [{key: value} for value in new]}
    if changed:
        return {name: changed, **order}
    # The first address is the one that stands by itself, too; the order of conditions means nothing.
    return order if name != "conditions" and any(list(old) != list(new) for old in olds) else {}


def _tree_patch(olds: Sequence[Tree], new: Tree) -> Tree:
    """What turns each of `olds` into `new`; null removes a field."""
    patch: Tree = {key: None for old in olds for key in old if old[key] is not None and new.get(key) is None}
    for key, value in new.items():
        if value is None or all(key in old and old[key] == value for old in olds):
            continue
        if isinstance(value, dict):
            inner = [old[key] if isinstance(old.get(key), dict) else {} for old in olds]
            patch[key] = _tree_patch(inner, value)
        else:
            patch[key] = value
    return patch

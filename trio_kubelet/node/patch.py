"""What to write of a Node: a strategic merge patch with only what changed. Pure.

Lists of the Node are replaced whole, but for the conditions, which merge by type, and the addresses, which
the API merges by type although a node may have two of one: they carry the order to replace them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from trio_kubelet.api import v1

Tree: TypeAlias = dict[str, Any]

_ADDRESSES: Final = "addresses"
_CONDITIONS: Final = "conditions"


def node_patch(old: v1.Node, new: v1.Node) -> Tree:
    """What turns the metadata and the status of `old` into those of `new`; empty if nothing does. The spec
    is not the node's to write.
    """
    patch: Tree = {}
    for part in ("metadata", "status"):
        change = _map_patch(_tree(getattr(old, part)), _tree(getattr(new, part)))
        if change:
            patch[part] = change
    return patch


def _tree(thing: v1.Object) -> Tree:
    tree: Tree = msgspec.to_builtins(thing)
    return tree


def _map_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> Tree:
    patch: Tree = {key: None for key in old if key not in new and old[key] is not None}
    for key, value in new.items():
        before = old.get(key)
        if value == before:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            if change := _map_patch(before, value):
                patch[key] = change
        elif key == _CONDITIONS:
            patch |= _conditions_patch(before or [], value or [])
        elif key == _ADDRESSES:
            patch[key] = [*(value or []), {"$patch": "replace"}]
        else:
            patch[key] = value
    return patch


def _conditions_patch(old: list[Tree], new: list[Tree]) -> Tree:
    """Changed fields of changed conditions, those that are gone, and the order they should be in."""
    before = {condition["type"]: condition for condition in old}
    types = [condition["type"] for condition in new]
    changes = [
        {"type": condition["type"], **_map_patch(before.get(condition["type"], {}), condition)}
        for condition in new
        if condition != before.get(condition["type"])
    ]
    changes += [{"type": kind, "$patch": "delete"} for kind in before if kind not in types]
    return {f"$setElementOrder/{_CONDITIONS}": [{"type": kind} for kind in types], _CONDITIONS: changes}

"""Objects as the plain tree that JSON has of them, and such a tree as text. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from trio_kubelet.api.yaml_scalars import Number
from trio_kubelet.common import utf8


def tree_of(thing: object) -> Any:
    """Dictionaries, lists and plain values, what an object keeps undecoded among them (`managedFields` of a
    pod of the API server).
    """
    return msgspec.to_builtins(thing, enc_hook=_decoded)


def _decoded(kept: Any) -> Any:
    if isinstance(kept, msgspec.Raw):
        return msgspec.json.decode(kept)
    raise NotImplementedError(f"no tree of a {type(kept).__name__}")


def json_text(tree: Any, *, by_name: bool = False) -> str:
    """A tree as Go's encoding/json writes it, without spaces; members in their order, as of a struct, or
    `by_name`, as of a map.
    """
    if isinstance(tree, Number):
        return tree
    if isinstance(tree, str):
        return utf8.json_string(tree.encode("utf-8", "surrogateescape")).decode()
    if isinstance(tree, dict):
        names = sorted(tree) if by_name else tree
        members = [f"{json_text(name)}:{json_text(tree[name], by_name=by_name)}" for name in names]
        return "{" + ",".join(members) + "}"
    if isinstance(tree, list):
        return "[" + ",".join([json_text(item, by_name=by_name) for item in tree]) + "]"
    return json.dumps(tree)

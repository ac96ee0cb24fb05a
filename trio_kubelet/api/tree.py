"""Objects as the plain tree that JSON has of them. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


def tree_of(thing: object) -> Any:
    """Dictionaries, lists and plain values, what an object keeps undecoded among them (`managedFields` of a
    pod of the API server).
    """
    return msgspec.to_builtins(thing, enc_hook=_decoded)


def _decoded(kept: Any) -> Any:
    if isinstance(kept, msgspec.Raw):
        return msgspec.json.decode(kept)
    raise NotImplementedError(f"no tree of a {type(kept).__name__}")

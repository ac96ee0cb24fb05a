"""YAML and JSON bytes to a plain tree, read as the kubelet reads its files.

Kubernetes turns a file into JSON first: a body that starts with `{` is JSON already, anything else goes
through a YAML 1.1 reader with rules of its own (`yaml_reader`, imported with the first such body).

The tree holds `None`, `bool`, `int`, `str`, `list`, `dict` and, for a number that is no plain
integer, `Number`: its JSON text, because a quantity is read from the text and not from a float.
"""

from __future__ import annotations

from typing import Any

from trio_kubelet.api.errors import MAX_DEPTH, DecodeError, Document
from trio_kubelet.api.json_reader import is_json, load_json


def load(data: bytes) -> Any:
    """Decode the first document of a file; raises `DecodeError`. Duplicate keys: the last one wins."""
    return load_document(data).value


def load_document(data: bytes) -> Document:
    """Like `load`, and tells which keys stood twice (a strict reader makes that an error)."""
    try:
        if is_json(data):
            return load_json(data)
        from trio_kubelet.api.yaml_reader import load_yaml

        return load_yaml(data)
    except RecursionError:
        raise DecodeError(f"nested deeper than {MAX_DEPTH} levels") from None

"""YAML and JSON bytes to a plain tree, read as the kubelet reads its files.

Kubernetes turns a file into JSON first: a body that starts with `{` is JSON already, anything else goes
through a YAML 1.1 reader with rules of its own: `plain_yaml` for what tools write, and `yaml_reader`, which
is imported with the first body that is not as plain as that.

The tree holds `None`, `bool`, `int`, `str`, `list`, `dict` and, for a number that is no plain
integer, `Number`: its JSON text, because a quantity is read from the text and not from a float.
"""

from __future__ import annotations

from typing import Any

from trio_kubelet.api.errors import MAX_DEPTH, DecodeError, Document
from trio_kubelet.api.json_reader import is_json, load_json
from trio_kubelet.api.plain_yaml import load_plain


def load(data: bytes) -> Any:
    """Decode the first document of a file; raises `DecodeError`. Duplicate keys: the last one wins."""
    return load_document(data).value


def load_document(data: bytes) -> Document:
    """Like `load`, and tells which keys stood twice (a strict reader makes that an error)."""
    try:
        if is_json(data):
            return load_json(data)
        if (plain := load_plain(data)) is not None:
            return Document(plain, ())
        from trio_kubelet.api.yaml_reader import load_yaml

        return load_yaml(data)
    except RecursionError:
        raise DecodeError(f"nested deeper than {MAX_DEPTH} levels") from None

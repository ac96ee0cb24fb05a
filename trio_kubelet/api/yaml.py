"""YAML and JSON bytes to a plain tree, read as the kubelet reads its files.

Kubernetes turns a file into JSON first: a body that starts with `{` is JSON already, anything else goes
through a YAML 1.1 reader with rules of its own (`yaml_reader`, imported with the first such body).

The tree holds `None`, `bool`, `int`, `str`, `list`, `dict` and, for a number that is no plain
integer, `Number`: its JSON text, because a quantity is read from the text and not from a float.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from trio_kubelet.api.errors import MAX_DEPTH, DecodeError, Document, Duplicate
from trio_kubelet.api.yaml_scalars import Number
from trio_kubelet.common import utf8

_GO_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


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


def is_json(data: bytes) -> bool:
    """Whether Kubernetes takes the bytes for JSON: the first visible character is `{`."""
    head = data[:4096].decode("utf-8", "replace").lstrip(_GO_SPACE)
    return head.startswith("{") or (not head and data.decode("utf-8", "replace").lstrip(_GO_SPACE)[:1] == "{")


def load_json(data: bytes) -> Document:
    """Decodes a JSON body. Raises DecodeError, RecursionError."""
    text = utf8.decode(data)
    duplicates: list[Duplicate] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(items)
        return members if len(members) == len(items) else _with_duplicates(items, duplicates)

    try:
        value = json.loads(
            text.strip(_GO_SPACE),
            object_pairs_hook=pairs,
            parse_float=Number,
            parse_int=_json_integer,
            parse_constant=_no_constant,
        )
    except json.JSONDecodeError as exc:
        raise DecodeError(exc.msg, exc.lineno, exc.colno) from None
    if "\\u" in text:
        value = _without_surrogates(value)
    return Document(value, tuple(duplicates))


def _json_integer(text: str) -> int | Number:
    return int(text) if len(text) <= 20 and text != "-0" else Number(text)


def _no_constant(name: str) -> NoReturn:
    raise DecodeError(f"{name} is not a JSON value")


def _with_duplicates(items: list[tuple[str, Any]], duplicates: list[Duplicate]) -> dict[str, Any]:
    """Go decodes a repeated member into the object it already filled, so objects and lists merge."""
    members: dict[str, Any] = {}
    for key, value in items:
        if key in members:
            duplicates.append(Duplicate(key, 0))
            value = _merged(members[key], value)
        members[key] = value
    return members


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        return [_merged(old[i], value) if i < len(old) else value for i, value in enumerate(new)]
    return new


def _without_surrogates(value: Any) -> Any:
    """Half of a surrogate pair, written as an escape, becomes the replacement character."""
    if type(value) is str:
        return utf8.valid(value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return value

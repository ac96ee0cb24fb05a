"""A pod in the protobuf encoding of Kubernetes. Pure.

What JSON leaves out is left out here too; Go reads both as the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.api.tree import tree_of
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.podsapi.fields import EMBEDDED, Field, fields

_VARINT: Final = 0
_LENGTH: Final = 2
_MASK: Final = (1 << 64) - 1

Json: TypeAlias = Any
"""A part of an object as JSON has it."""


def encode_pod(pod: v1.Pod) -> bytes:
    """The message `k8s.io.api.core.v1.Pod`."""
    return _message("Pod", tree_of(pod))


def _message(name: str, values: Mapping[str, Json]) -> bytes:
    parts = []
    for field in fields(name):
        if field.name in EMBEDDED and field.name not in values:
            if inner := _message(field.kind, values):
                parts.append(_delimited(field.number, inner))
            continue
        value = values.get(field.name)
        if value is not None:
            parts.append(_field(field, value))
    return b"".join(parts)


def _field(field: Field, value: Json) -> bytes:
    if field.label == "*":
        return b"".join(_one(field.number, field.kind, each) for each in value)
    if field.label == "%":
        entries = (_one(1, "s", key) + _one(2, field.kind, each) for key, each in sorted(value.items()))
        return b"".join(_delimited(field.number, entry) for entry in entries)
    return _one(field.number, field.kind, value)


def _one(number: int, kind: str, value: Json) -> bytes:
    match kind:
        case "s":
            return _delimited(number, value.encode("utf-8", "surrogatepass"))
        case "i" | "b":
            return _varint(number << 3 | _VARINT) + _varint(int(value))
        case "T":
            seconds, nanos = divmod(parse_rfc3339(value), NANOSECONDS)
            return _delimited(number, _one(1, "i", seconds) + _one(2, "i", nanos))
        case "Q":
            return _delimited(number, _one(1, "s", value))
        case "J":
            return _delimited(number, _delimited(1, msgspec.json.encode(value)))
        case "P":
            is_text = isinstance(value, str)
            content = _one(3, "s", value) if is_text else _one(2, "i", value)
            return _delimited(number, _one(1, "i", is_text) + content)
    return _delimited(number, _message(kind, value))


def _delimited(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Negative numbers as Go writes them: ten bytes of two's complement."""
    number &= _MASK
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)

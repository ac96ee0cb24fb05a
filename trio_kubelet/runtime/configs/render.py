"""CRI messages as plain values for JSON and YAML: proto field names, numbers as numbers, empty fields left
out, as Go's JSON encoder shows the same messages.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def render(message: Message) -> dict[str, Any]:
    """The fields of a message that are set; bytes as text, enums as numbers, maps sorted by key."""
    result: dict[str, Any] = {}
    for field, value in message.ListFields():
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            scalar = kind.fields_by_name["value"]
            result[field.name] = {key: _plain(scalar, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            result[field.name] = [_plain(field, item) for item in value]
        else:
            result[field.name] = _plain(field, value)
    return result


def _plain(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return render(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

"""Reading a CRI list answer, in plain Python: the oracle of `csrc/wire.c` and `csrc/entry.c`.

Strict as the Go kubelet's protobuf library: a message that it refuses is refused here, at the first
fault met when reading from front to back. The rules that are easy to get wrong:

* A known field number with another wire type is an unknown field and is skipped (but checked).
* Of a repeated scalar, map key or entry the last counts; a repeated sub-message merges into the first.
* Enums and 32-bit numbers keep the low 32 bits of their varint; over-long but finite varints are fine.
* Only the text of known string fields must be UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trio_kubelet.observed.types import POD_UID, ContainerState

MAX_GROUP_DEPTH = 100
"""Nesting of groups beyond which a message is refused (the limit protobuf libraries share)."""

MAX_FIELD_NUMBER = (1 << 29) - 1

VARINT, FIXED64, LENGTH, START_GROUP, END_GROUP, FIXED32 = range(6)

TRUNCATED_VARINT = "varint runs past the end"
LONG_VARINT = "varint does not fit 64 bits"
BAD_FIELD_NUMBER = "field number out of range"
BAD_WIRE_TYPE = "reserved wire type"
TRUNCATED_FIXED = "fixed-width value runs past the end"
TRUNCATED_LENGTH = "length runs past the end"
UNMATCHED_END_GROUP = "end-group without its start"
OPEN_GROUP = "group without its end"
DEEP_GROUP = "groups nested too deep"
NOT_UTF8 = "string is not UTF-8"

POD_UID_LABEL = POD_UID.encode()
POD_NAME_LABEL = b"io.kubernetes.pod.name"
POD_NAMESPACE_LABEL = b"io.kubernetes.pod.namespace"
CONTAINER_HASH_ANNOTATION = b"io.kubernetes.container.hash"


class WireError(Exception):
    """Where and why reading stopped."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, reason)
        self.offset = offset
        self.reason = reason


@dataclass(slots=True)
class ListEntry:
    """A container or sandbox of a list, as far as a relist needs it."""

    is_container: bool
    id: bytes = b""
    uid: bytes = b""
    state: ContainerState = ContainerState.UNKNOWN
    created_at: int = 0
    attempt: int = 0
    has_metadata: bool = False
    has_image: bool = False
    pod_name: bytes = b""
    pod_namespace: bytes = b""
    name: bytes = b""
    sandbox_id: bytes = b""
    image: bytes = b""
    image_ref: bytes = b""
    image_id: bytes = b""
    hash: bytes = b""
    replaces_another: bool = False  # took the place of an entry with its id in the same relist

    @property
    def counts(self) -> bool:
        """Whether the kubelet takes it up: it needs metadata and an id, a container an image too."""
        return self.has_metadata and self.id != b"" and (self.has_image or not self.is_container)


_CONTAINER_STATES = (
    ContainerState.CREATED,
    ContainerState.RUNNING,
    ContainerState.EXITED,
    ContainerState.UNKNOWN,
)
_SANDBOX_STATES = (ContainerState.RUNNING, ContainerState.EXITED)


def read_varint(buf: bytes, pos: int, end: int) -> tuple[int, int]:
    """The varint at `pos` and the position behind it."""
    value = 0
    for i in range(10):
        if pos + i >= end:
            raise WireError(pos, TRUNCATED_VARINT)
        byte = buf[pos + i]
        if i == 9 and byte > 1:
            break
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, pos + i + 1
    raise WireError(pos, LONG_VARINT)


def read_tag(buf: bytes, pos: int, end: int) -> tuple[int, int, int]:
    """Field number, wire type and the position behind the tag."""
    value, after = read_varint(buf, pos, end)
    if not 1 <= value >> 3 <= MAX_FIELD_NUMBER:
        raise WireError(pos, BAD_FIELD_NUMBER)
    if value & 7 > FIXED32:
        raise WireError(pos, BAD_WIRE_TYPE)
    return value >> 3, value & 7, after


def read_length(buf: bytes, pos: int, end: int) -> tuple[int, int]:
    """Start and end of the length-delimited payload whose length stands at `pos`."""
    length, start = read_varint(buf, pos, end)
    if length > end - start:
        raise WireError(pos, TRUNCATED_LENGTH)
    return start, start + length


def _skip_plain(buf: bytes, wire_type: int, pos: int, end: int) -> int:
    """The position behind a value that is not a group."""
    if wire_type == VARINT:
        return read_varint(buf, pos, end)[1]
    if wire_type == LENGTH:
        return read_length(buf, pos, end)[1]
    width = 8 if wire_type == FIXED64 else 4
    if width > end - pos:
        raise WireError(pos, TRUNCATED_FIXED)
    return pos + width


def skip_value(buf: bytes, tag_pos: int, field: int, wire_type: int, pos: int, end: int) -> int:
    """The position behind the value at `pos`, whose tag stood at `tag_pos`."""
    if wire_type == END_GROUP:
        raise WireError(tag_pos, UNMATCHED_END_GROUP)
    if wire_type != START_GROUP:
        return _skip_plain(buf, wire_type, pos, end)
    opened = [field]
    while opened:
        if pos == end:
            raise WireError(tag_pos, OPEN_GROUP)
        here = pos
        field, wire_type, pos = read_tag(buf, pos, end)
        if wire_type == START_GROUP:
            if len(opened) == MAX_GROUP_DEPTH:
                raise WireError(here, DEEP_GROUP)
            opened.append(field)
        elif wire_type == END_GROUP:
            if opened.pop() != field:
                raise WireError(here, UNMATCHED_END_GROUP)
        else:
            pos = _skip_plain(buf, wire_type, pos, end)
    return pos


def fields(buf: bytes, pos: int, end: int, known: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    """The known fields (number → wire type) of a message: number, start and end of the value.

    The value of a varint field starts where the varint starts. Everything else is checked and skipped.
    """
    while pos < end:
        here = pos
        field, wire_type, pos = read_tag(buf, pos, end)
        if known.get(field) != wire_type:
            pos = skip_value(buf, here, field, wire_type, pos, end)
        elif wire_type == LENGTH:
            start, pos = read_length(buf, pos, end)
            yield field, start, pos
        else:
            start = pos
            pos = read_varint(buf, pos, end)[1]
            yield field, start, pos


def _text(buf: bytes, start: int, end: int) -> bytes:
    text = buf[start:end]
    try:
        text.decode()
    except UnicodeDecodeError:
        raise WireError(start, NOT_UTF8) from None
    return text


def _map_entry(buf: bytes, start: int, end: int) -> tuple[bytes, bytes]:
    key = value = b""
    for field, a, b in fields(buf, start, end, {1: LENGTH, 2: LENGTH}):
        if field == 1:
            key = _text(buf, a, b)
        else:
            value = _text(buf, a, b)
    return key, value


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _state(value: int, states: tuple[ContainerState, ...]) -> ContainerState:
    number = _signed(value, 32)
    return states[number] if 0 <= number < len(states) else ContainerState.UNKNOWN


_CONTAINER_FIELDS = {
    1: LENGTH,  # id
    2: LENGTH,  # pod_sandbox_id
    3: LENGTH,  # metadata
    4: LENGTH,  # image
    5: LENGTH,  # image_ref
    6: VARINT,  # state
    7: VARINT,  # created_at
    8: LENGTH,  # labels
    9: LENGTH,  # annotations
    10: LENGTH,  # image_id
}


def read_container(buf: bytes, start: int, end: int) -> ListEntry:
    """A `runtime.v1.Container`."""
    entry = ListEntry(is_container=True, state=_CONTAINER_STATES[0])
    for field, a, b in fields(buf, start, end, _CONTAINER_FIELDS):
        match field:
            case 1:
                entry.id = _text(buf, a, b)
            case 2:
                entry.sandbox_id = _text(buf, a, b)
            case 3:
                entry.has_metadata = True
                for _, c, d in fields(buf, a, b, {1: LENGTH}):
                    entry.name = _text(buf, c, d)
            case 4:
                entry.has_image = True
                _read_image(entry, buf, a, b)
            case 5:
                entry.image_ref = _text(buf, a, b)
            case 6:
                entry.state = _state(read_varint(buf, a, b)[0], _CONTAINER_STATES)
            case 7:
                entry.created_at = _signed(read_varint(buf, a, b)[0], 64)
            case 8:
                _take_label(entry, *_map_entry(buf, a, b))
            case 9:
                key, value = _map_entry(buf, a, b)
                if key == CONTAINER_HASH_ANNOTATION:
                    entry.hash = value
            case _:
                entry.image_id = _text(buf, a, b)
    return entry


def _read_image(entry: ListEntry, buf: bytes, start: int, end: int) -> None:
    """An `ImageSpec`: image, annotations, user_specified_image, runtime_handler, image_ref."""
    known = {1: LENGTH, 2: LENGTH, 18: LENGTH, 19: LENGTH, 20: LENGTH}
    for field, a, b in fields(buf, start, end, known):
        if field == 2:
            _map_entry(buf, a, b)
        elif field == 1:
            entry.image = _text(buf, a, b)
        else:
            _text(buf, a, b)


def _take_label(entry: ListEntry, key: bytes, value: bytes) -> None:
    if key == POD_UID_LABEL:
        entry.uid = value
    elif key == POD_NAME_LABEL:
        entry.pod_name = value
    elif key == POD_NAMESPACE_LABEL:
        entry.pod_namespace = value


_SANDBOX_FIELDS = {
    1: LENGTH,  # id
    2: LENGTH,  # metadata
    3: VARINT,  # state
    4: VARINT,  # created_at
    5: LENGTH,  # labels
    6: LENGTH,  # annotations
    7: LENGTH,  # runtime_handler
}


def read_sandbox(buf: bytes, start: int, end: int) -> ListEntry:
    """A `runtime.v1.PodSandbox`."""
    entry = ListEntry(is_container=False, state=_SANDBOX_STATES[0])
    for field, a, b in fields(buf, start, end, _SANDBOX_FIELDS):
        match field:
            case 1:
                entry.id = _text(buf, a, b)
            case 2:
                entry.has_metadata = True
                _read_sandbox_metadata(entry, buf, a, b)
            case 3:
                entry.state = _state(read_varint(buf, a, b)[0], _SANDBOX_STATES)
            case 4:
                entry.created_at = _signed(read_varint(buf, a, b)[0], 64)
            case 7:
                _text(buf, a, b)
            case _:
                _map_entry(buf, a, b)
    return entry


def _read_sandbox_metadata(entry: ListEntry, buf: bytes, start: int, end: int) -> None:
    """A `PodSandboxMetadata`: name, uid, namespace, attempt."""
    for field, a, b in fields(buf, start, end, {1: LENGTH, 2: LENGTH, 3: LENGTH, 4: VARINT}):
        if field == 1:
            entry.pod_name = _text(buf, a, b)
        elif field == 2:
            entry.uid = _text(buf, a, b)
        elif field == 3:
            entry.pod_namespace = _text(buf, a, b)
        else:
            entry.attempt = read_varint(buf, a, b)[0] & 0xFFFFFFFF


def read_list(buf: bytes, *, containers: bool) -> Iterator[ListEntry]:
    """The entries of a list message that count, in order; raises WireError when it comes to a fault.

    Field 1 holds the entries in the unary and in the streamed message alike.
    """
    read = read_container if containers else read_sandbox
    for _, start, end in fields(buf, 0, len(buf), {1: LENGTH}):
        entry = read(buf, start, end)
        if entry.counts:
            yield entry

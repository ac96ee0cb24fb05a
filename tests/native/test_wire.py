"""The exact reader against protobuf itself: same lists accepted, same entries read."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.native import wire_strategies as ws
from tests.native.wire_strategies import length_field, varint
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.native import pure_wire as wire
from trio_kubelet.observed.types import ContainerState

# Python's protobuf library takes some messages the kubelet's (Go) refuses, and the other way round:
# it limits tags to five bytes and lets a tenth varint byte overflow.
BEYOND_PROTOBUF = {wire.LONG_VARINT, wire.BAD_FIELD_NUMBER}
STATES = {0: ContainerState.CREATED, 1: ContainerState.RUNNING, 2: ContainerState.EXITED}
SANDBOX_STATES = {0: ContainerState.RUNNING, 1: ContainerState.EXITED}


def read(data: bytes, *, containers: bool) -> list[wire.ListEntry] | str:
    """The entries, or the reason why there are none."""
    try:
        return list(wire.read_list(data, containers=containers))
    except wire.WireError as err:
        return err.reason


def has_odd_map(entry: cri.Container) -> bool:
    """Whether a map entry holds a field that maps do not have.

    Python's protobuf library then sets the whole entry aside as an unknown field; Go's, and so the
    kubelet, passes over that field only.
    """
    return any(f.field_number in (8, 9) and f.wire_type == wire.LENGTH for f in UnknownFieldSet(entry))  # type: ignore[attr-defined]


@given(st.one_of(ws.damaged_container_lists, st.binary(max_size=40)))
@example(
    length_field(
        1, length_field(8, varint(1 << 3 | 2) + b"\x01a") + length_field(3, b"") + b"\x22\x00\x0a\x01i"
    )
)
def test_containers_read_as_protobuf_reads_them(data: bytes) -> None:
    found = read(data, containers=True)
    try:
        parsed = cri.ListContainersResponse.FromString(data)
    except DecodeError:
        # A five-byte limit for tags is the Python library's own.
        assert isinstance(found, str) or any(
            data[i : i + 5] and min(data[i : i + 5]) > 127 for i in range(len(data))
        )
        return
    if isinstance(found, str):
        assert found in BEYOND_PROTOBUF, found
        return
    assume(not any(has_odd_map(c) for c in parsed.containers))
    expected = [
        (
            c.id,
            c.labels.get("io.kubernetes.pod.uid", ""),
            STATES.get(c.state, ContainerState.UNKNOWN),
            c.created_at,
            c.metadata.name,
            c.image.image,
            c.image_ref,
            c.image_id,
            c.pod_sandbox_id,
            c.labels.get("io.kubernetes.pod.name", ""),
            c.annotations.get("io.kubernetes.container.hash", ""),
        )
        for c in parsed.containers
        if c.HasField("metadata") and c.HasField("image") and c.id
    ]
    assert expected == [
        (
            e.id.decode(),
            e.uid.decode(),
            e.state,
            e.created_at,
            e.name.decode(),
            e.image.decode(),
            e.image_ref.decode(),
            e.image_id.decode(),
            e.sandbox_id.decode(),
            e.pod_name.decode(),
            e.hash.decode(),
        )
        for e in found
    ]


@given(st.one_of(ws.damaged_sandbox_lists, st.binary(max_size=40)))
def test_sandboxes_read_as_protobuf_reads_them(data: bytes) -> None:
    found = read(data, containers=False)
    try:
        parsed = cri.ListPodSandboxResponse.FromString(data)
    except DecodeError:
        assert isinstance(found, str) or any(
            data[i : i + 5] and min(data[i : i + 5]) > 127 for i in range(len(data))
        )
        return
    if isinstance(found, str):
        assert found in BEYOND_PROTOBUF, found
        return
    expected = [
        (
            s.id,
            s.metadata.uid,
            SANDBOX_STATES.get(s.state, ContainerState.UNKNOWN),
            s.created_at,
            s.metadata.attempt,
            s.metadata.name,
            s.metadata.namespace,
        )
        for s in parsed.items
        if s.HasField("metadata") and s.id
    ]
    assert expected == [
        (
            e.id.decode(),
            e.uid.decode(),
            e.state,
            e.created_at,
            e.attempt,
            e.pod_name.decode(),
            e.pod_namespace.decode(),
        )
        for e in found
    ]


FAULTS = {
    "varint ends early": (b"\x80", 0, wire.TRUNCATED_VARINT),
    "field 0": (b"\x00\x00", 0, wire.BAD_FIELD_NUMBER),
    "field beyond 2^29-1": (varint(1 << 32) + b"\x00", 0, wire.BAD_FIELD_NUMBER),
    "wire type 6": (b"\x0e", 0, wire.BAD_WIRE_TYPE),
    "eleven-byte varint": (b"\x10" + b"\x80" * 10 + b"\x00", 1, wire.LONG_VARINT),
    "varint of 65 bits": (b"\x10" + b"\xff" * 9 + b"\x02", 1, wire.LONG_VARINT),
    "end without group": (b"\x14", 0, wire.UNMATCHED_END_GROUP),
    "end of another group": (b"\x13\x1c", 1, wire.UNMATCHED_END_GROUP),
    "group left open": (b"\x10\x01\x13\x08\x01", 2, wire.OPEN_GROUP),
    "groups too deep": (b"\x13" * 101, 100, wire.DEEP_GROUP),
    "fixed64 ends early": (b"\x11" + b"\0" * 7, 1, wire.TRUNCATED_FIXED),
    "fixed32 ends early": (b"\x15" + b"\0" * 3, 1, wire.TRUNCATED_FIXED),
    "length past the end": (b"\x0a\x05\x0a\x01x", 1, wire.TRUNCATED_LENGTH),
    "inner length past its message": (b"\x0a\x03\x0a\x05x" + b"\0" * 9, 3, wire.TRUNCATED_LENGTH),
    "id not UTF-8": (b"\x0a\x04\x0a\x02\xc3\x28", 4, wire.NOT_UTF8),
    "surrogate": (b"\x0a\x05\x0a\x03\xed\xa0\x80", 4, wire.NOT_UTF8),
    "overlong form": (b"\x0a\x04\x0a\x02\xc0\x80", 4, wire.NOT_UTF8),
    "map key not UTF-8": (length_field(1, length_field(5, b"\x0a\x01\xff")), 6, wire.NOT_UTF8),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_names_offset_and_reason(name: str) -> None:
    data, offset, reason = FAULTS[name]
    with pytest.raises(wire.WireError) as caught:
        list(wire.read_list(data, containers=False))
    assert (caught.value.offset, caught.value.reason) == (offset, reason)

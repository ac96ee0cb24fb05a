"""Pods in protobuf, against what Go's own encoding of them says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from trio_kubelet.api import v1
from trio_kubelet.podsapi.encoding import encode_pod
from trio_kubelet.podsapi.fields import EMBEDDED, fields
from trio_kubelet.sources.apiserver import WatchedPod

PODS = json.loads((Path(__file__).parents[1] / "golden" / "pods-protobuf.json").read_text())
"""Pods as JSON, and in hexadecimal what Kubernetes v1.36.2 makes of them."""

Read: TypeAlias = Any


def varint(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def entries(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        assert tag & 7 in (0, 2)
        size, at = varint(data, at)
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            yield tag >> 3, size


def read(kind: str, data: int | memoryview) -> Read:
    """A value as a tree, without what is empty: Go writes plain values even then, and reads them alike."""
    if isinstance(data, int):
        return data
    if kind == "s":
        return data.tobytes().decode()
    if kind == "J":
        return dict(entries(data))[1].tobytes().decode()  # type: ignore[union-attr]
    if kind in "TQP":
        return {
            number: value if isinstance(value, int) else value.tobytes().decode()
            for number, value in entries(data)
            if value
        }
    return message(kind, data)


def message(kind: str, data: memoryview) -> dict[str, Read]:
    known = {field.number: field for field in fields(kind)}
    found: dict[str, Read] = {}
    for number, value in entries(data):
        field = known[number]
        if field.label == "*":
            found.setdefault(field.name, []).append(read(field.kind, value))
        elif field.label == "%":
            assert isinstance(value, memoryview)
            entry = {at: read("s" if at == 1 else field.kind, part) for at, part in entries(value)}
            found.setdefault(field.name, {})[entry.get(1, "")] = entry.get(2, "")
        else:
            found[field.name] = read(field.kind, value)
    return {name: value for name, value in found.items() if value not in ({}, "")}


def test_the_pods_have_every_field() -> None:
    trees = [message("Pod", memoryview(bytes.fromhex(theirs))) for _, theirs in PODS]
    for part, kind in (("metadata", "ObjectMeta"), ("spec", "PodSpec"), ("status", "PodStatus")):
        seen = {name for tree in trees for name in tree.get(part, {})}
        assert {field.name for field in fields(kind)} - seen <= {"schedulingGroup", "managedFields"}


def test_every_field_of_a_pod_has_a_number() -> None:
    """One without would be left out without a word."""
    forgotten = {}
    for kind in _kinds("Pod", set()):
        known = _names(kind)
        api_type = getattr(v1, kind, None)  # none for what only protobuf has
        there = {field.encode_name for field in msgspec.structs.fields(api_type)} if api_type else set()
        if there - known:
            forgotten[kind] = there - known
    assert forgotten == {"Pod": {"apiVersion", "kind"}}


def _kinds(kind: str, found: set[str]) -> set[str]:
    """The messages of which a message is made, itself among them; kinds of values have one letter."""
    if kind not in found and len(kind) > 1:
        found.add(kind)
        for field in fields(kind):
            _kinds(field.kind, found)
    return found


def _names(kind: str) -> set[str]:
    """The fields of a message as JSON has them."""
    found: set[str] = set()
    for field in fields(kind):
        found |= _names(field.kind) if field.name in EMBEDDED else {field.name}
    return found


def test_the_managed_fields_of_a_pod_of_the_api_server_are_told() -> None:
    """Kept undecoded, for nobody here reads them; which fields are managed stays JSON in protobuf too."""
    owned = '{"f:status":{"f:conditions":{".":{},"k:{\\"type\\":\\"Ready\\"}":{"f:status":{}}}}}'
    entry = f'{{"manager":"m","operation":"Update","time":"1970-01-01T00:00:07Z","fieldsV1":{owned}}}'
    metadata = f'{{"name":"a","namespace":"d","uid":"u","managedFields":[{entry}]}}'
    pod = f'{{"metadata":{metadata},"spec":{{"containers":[]}}}}'
    ours = encode_pod(msgspec.json.decode(pod, type=WatchedPod))
    told = message("Pod", memoryview(ours))["metadata"]["managedFields"]
    assert told == [{"manager": "m", "operation": "Update", "time": {1: 7}, "fieldsV1": owned}]


@pytest.mark.parametrize("number", range(len(PODS)))
def test_a_pod_is_what_go_makes_of_it(number: int) -> None:
    text, theirs = PODS[number]
    ours = encode_pod(msgspec.json.decode(text, type=v1.Pod))
    wanted = message("Pod", memoryview(bytes.fromhex(theirs)))
    assert _plain(message("Pod", memoryview(ours))) == _plain(wanted)


def _plain(tree: Read) -> Read:
    """Without zeros, which Go writes where it keeps values and leaves out where it keeps pointers to none."""
    if isinstance(tree, dict):
        return {
            name: inner for name, value in tree.items() if (inner := _plain(value)) not in (0, {}, "", [])
        }
    return [_plain(each) for each in tree] if isinstance(tree, list) else tree


def test_what_is_zero_and_told_is_written() -> None:
    zero = v1.Pod(spec=v1.PodSpec(termination_grace_period_seconds=0))
    spec = message("Pod", memoryview(encode_pod(zero)))["spec"]
    assert spec == {"terminationGracePeriodSeconds": 0}

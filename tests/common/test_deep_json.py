"""JSON of more levels than a decoder takes."""

from __future__ import annotations

import json

import msgspec
import pytest

from trio_kubelet.common.deep_json import MOST_LEVELS, decode_deep, decode_flat, without_depths


def nested(levels: int, kind: str = "[]") -> bytes:
    opens, closes = ("[", "]") if kind == "[]" else ('{"a":', "}")
    return (opens * levels + ("" if kind == "[]" else "1") + closes * levels).encode()


@pytest.mark.parametrize("kind", ["[]", "{}"])
def test_what_is_too_deep_is_null_and_the_rest_is_there(kind: str) -> None:
    data = b'{"before":[1,"]"],"deep":' + nested(200_000, kind) + b',"after":{"x":"\\"[{"}}'
    found = decode_deep(msgspec.json.decode, data)
    assert (found["before"], found["after"]) == ([1, "]"], {"x": '"[{'})
    levels, value = 0, found["deep"]
    while value is not None:
        levels, value = levels + 1, value[0] if kind == "[]" else value["a"]
    assert levels == MOST_LEVELS - 1


def test_what_is_not_too_deep_stays_as_it_is() -> None:
    for data in (nested(MOST_LEVELS), b'{"a": "[[[", "b": [{}, []]}', b"7", b""):
        assert without_depths(data) == data


def test_several_depths_are_left_out_each_for_itself() -> None:
    deep = nested(MOST_LEVELS + 5)
    found = json.loads(without_depths(b"[" + deep + b"," + deep + b",1]"))
    assert len(found) == 3
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b'{"a":' * 200_000 + b'"',
        b"[" * 200_000 + b"]" * 199_999,
        b"[" * 2_000 + b'"' + b'\\"' * 400_000,  # each quote within might begin a text
        b"[" * 2_000 + b'"' + b'\\"' * 400_000 + b"\\",
    ],
    ids=["lists", "objects", "one end too few", "text without an end", "text that ends within an escape"],
)
def test_what_is_no_json_is_an_error_all_the_same(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_deep(msgspec.json.decode, data)


def test_what_is_no_text_is_no_json() -> None:
    for data in (b'{"a": "\xff"}', b'{"\xff": ' + nested(200_000) + b"}"):
        with pytest.raises(msgspec.DecodeError):
            decode_deep(msgspec.json.decode, data)
        with pytest.raises(msgspec.DecodeError):
            decode_flat(data, dict[str, str])

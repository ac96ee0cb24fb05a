"""YAML and JSON as Kubernetes reads them; every expectation was recorded from its reader."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api.errors import MAX_DEPTH, DecodeError
from trio_kubelet.api.yaml import is_json, load, load_document
from trio_kubelet.api.yaml_scalars import Number

WORDS = [
    ("22:22", "22:22"), ("1:30:00", "1:30:00"), ("1e3", 1000), ("1E3", 1000), ("0o7", 7), ("07", 7),
    ("0777", 511), ("08", 8), ("0x1F", 31), ("0b11", 3), ("-0b11", -3), ("1_000", 1000), ("+5", 5),
    ("1.", 1), (".5", Number("0.5")), ("1.5", Number("1.5")), ("1e21", Number("1e+21")),
    ("1e20", 10**20), ("1e-7", Number("1e-7")), ("0.000001", Number("0.000001")), ("1e400", "1e400"),
    ("18446744073709551615", 2**64 - 1), ("-9223372036854775808", -(2**63)), ("-0.0", Number("-0")),
    ("yes", True), ("No", False), ("on", True), ("OFF", False), ("y", True), ("N", False), ("true", True),
    ("yEs", "yEs"), ("~", None), ("null", None), ("Null", None), ("nULL", "nULL"), ("", None), ("<<", "<<"),
    ("2001-01-01", "2001-01-01"), ("2001-01-01T00:00:00Z", "2001-01-01T00:00:00Z"),
    ("2001-01-01 1:2:3.5", "2001-01-01 1:2:3.5"), ('"5"', "5"), ("'yes'", "yes"), ("100Mi", "100Mi"),
    ("!!str 5", "5"), ('!!int "5"', 5), ("!!float 5", 5), ("!!bool yes", True),
    ("!!binary aGVsbG8=", "hello"),
    ("! 5", "5"), ("!foo 5", "5"), (".5_5", Number("0.55")), ("0x1p3", "0x1p3"), ("1e", "1e"),
]  # fmt: skip

DOCUMENTS: list[tuple[str, Any]] = [
    ("", None),
    ("# only a comment", None),
    ("a: 1\n---\nb: 2", {"a": 1}),
    ("---\n---\na", None),
    ("a: 1\na: 2", {"a": 2}),
    ("1: a\ntrue: b\n1.5: c\n~x: d", {"1": "a", "true": "b", "1.5": "c", "~x": "d"}),
    ("1e6: e\n0x10: f", {"1e+06": "e", "16": "f"}),
    ("base: &b {x: 1, z: 2}\nc: {<<: *b, z: 3}", {"base": {"x": 1, "z": 2}, "c": {"x": 1, "z": 3}}),
    ("b: &b {x: 1}\nc:\n  x: 5\n  <<: *b", {"b": {"x": 1}, "c": {"x": 1}}),
    (
        "b: &b {x: 1}\nd: &d {x: 2, z: 3}\nc: {<<: [*b, *d]}",
        {"b": {"x": 1}, "d": {"x": 2, "z": 3}, "c": {"x": 1, "z": 3}},
    ),
    ('c: {"<<": 5}', {"c": {"<<": 5}}),
    ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
    ("\ufeffa: b", {"a": "b"}),
    ("a:\r\n  b: c\r\n", {"a": {"b": "c"}}),
    ('{"a": 1.0, "b": -0, "c": 1e5}', {"a": Number("1.0"), "b": Number("-0"), "c": Number("1e5")}),
    ('{"a": {"x": 1}, "a": {"y": 2}}', {"a": {"x": 1, "y": 2}}),
    ('{"a": "\\ud83d\\ude00\\ud800"}', {"a": "\U0001f600\ufffd"}),
]  # fmt: skip

BAD = [
    "a: *x", "a: &a [*a]", "c: {<<: 5}", "c: {<<: [5]}", "? [a]\n: b", "~: 1", "18446744073709551615: a",
    "a: \x00", "a: \x07", "\ta: b", "a: b: c", "a: [1, 2", 'a: "x', "a: .inf", "a: .NaN",
    "!!int x", "!!float yes",
    "!!binary a", '"\\ud800"', '"a\\/b"', "%YAML 1.2\n---\na", "{a: b}", '{"a": 1} x', '{"a": NaN}', "a: @x",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), WORDS)
def test_words(text: str, value: Any) -> None:
    got = load(f"k: {text}\n".encode())["k"]
    assert (type(got), got) == (type(value), value)


@pytest.mark.parametrize(("text", "value"), DOCUMENTS)
def test_documents(text: str, value: Any) -> None:
    assert load(text.encode()) == value


@pytest.mark.parametrize("text", BAD)
def test_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        load(text.encode())


NO_TEXT = [b"a: \xff", b"a: \xc3", b"a: \xed\xa0\x80", b"\xff\xfea"]


@pytest.mark.parametrize("data", NO_TEXT)
def test_bytes_that_are_no_text(data: bytes) -> None:
    with pytest.raises(DecodeError):
        load(data)


def test_a_pyyaml_without_libyaml_reads_and_refuses_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml.cyaml", None)
    spec = importlib.util.find_spec("trio_kubelet.api.yaml_reader")
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    monkeypatch.setitem(sys.modules, "trio_kubelet.api.yaml_reader", plain)
    for text, value in DOCUMENTS:
        assert load(text.encode()) == value
    for data in [text.encode() for text in BAD] + NO_TEXT:
        with pytest.raises(DecodeError):
            load(data)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a: 1\nb: [\nc: 2\n", 4, 1),
        ("a: 1\n\tb: 2\n", 2, 1),
        ("a: 1\nb: *x\n", 2, 4),
        ('{"a": 1,\n "b" 2}', 2, 6),
    ],
)
def test_errors_name_the_place(text: str, line: int, column: int) -> None:
    with pytest.raises(DecodeError) as caught:
        load(text.encode())
    assert (caught.value.line, caught.value.column) == (line, column)


def test_duplicate_keys_are_told() -> None:
    duplicates = load_document(b"a: 1\nb: {c: 1, c: 2}\na: 3\n").duplicates
    assert [(d.key, d.line) for d in duplicates] == [("c", 2), ("a", 3)]
    assert [d.key for d in load_document(b'{"a": 1, "a": 2}').duplicates] == ["a"]
    assert not load_document(b"b: &b {x: 1}\nc: {x: 2, <<: *b}\nd: {<<: *b, x: 3}\n").duplicates


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_directives_without_end_are_refused(encoding: str) -> None:
    """libyaml holds every other thread up while it compares each with all before it."""
    directives = "".join(f"%TAG !t{number}! tag:example.com,2000:\n" for number in range(60_000))
    with pytest.raises(DecodeError, match="more than 1000 %TAG directives"):
        load(f"{directives}--- a\n".encode(encoding))


def test_an_alias_bomb_costs_little() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{name}: &{name} [{', '.join(['*' + last] * 9)}]"
        for last, name in zip("abcdefg", "bcdefgh", strict=True)
    ]
    with pytest.raises(DecodeError, match="aliasing"):
        load("\n".join(lines).encode())


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "- " * 5_000 + "x", "[" * 400 + "]" * 400]
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        load(text.encode())


def test_moderate_nesting_is_read() -> None:
    depth = MAX_DEPTH - 1
    value = load(b"[" * depth + b"]" * depth)
    for _ in range(depth - 1):
        (value,) = value
    assert value == []


@pytest.mark.parametrize(
    ("data", "expected"), [(b' \n{"a"', True), (b"a: {", False), (b"", False), (b"\xef\xbb\xbf{", False)]
)
def test_what_counts_as_json(data: bytes, expected: bool) -> None:
    assert is_json(data) is expected


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), plain, max_size=4))
def test_json_is_read_as_it_is(value: dict[str, Any]) -> None:
    assert load(json.dumps(value).encode()) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_keep_their_value(number: float) -> None:
    got = load(f"x: {number!r}".encode())["x"]
    assert math.isclose(float(got), number, rel_tol=1e-15)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_tree_or_an_error(data: bytes) -> None:
    try:
        value = load(data)
    except DecodeError:
        return
    assert json.loads(json.dumps(value)) == value

"""The hashes against recorded kubelet behaviour, published vectors and their plain-Python twins."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.common import utf8
from trio_kubelet.native import hashes as c_hashes
from trio_kubelet.native import pure_hashes

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((GOLDEN / name).read_text())["vectors"]
    return found


@pytest.mark.parametrize("vector", vectors("container-hash.json"), ids=lambda v: str(v["image"]))
def test_container_hash_as_recorded(vector: dict[str, str]) -> None:
    assert c_hashes.container_hash(vector["name"], vector["image"]) == vector["hash"]
    numbers = vector["hashedText"].removeprefix("([]uint8)[").removesuffix("]").split()
    text = bytes(map(int, numbers))
    assert pure_hashes.container_json(vector["name"].encode(), vector["image"].encode()) == text
    assert f"{c_hashes.fnv1a32(vector['hashedText'].encode()):x}" == vector["hash"]


def test_static_pod_uids_as_recorded() -> None:
    computed = [v for v in vectors("static-pods.json") if v["accepted"] and '"uid"' not in v["manifest"]]
    assert len(computed) > 15
    for vector in computed:
        text = vector["uidHashInput"] + "host:node-a" + "file:" + vector["file"]
        assert c_hashes.static_pod_uid(text.encode()) == vector["pod"]["metadata"]["uid"], vector["file"]


@pytest.mark.parametrize(
    ("data", "short", "long"),
    [
        (b"", 0x811C9DC5, "6c62272e07bb014262b821756295c58d"),
        (b"a", 0xE40C292C, "d228cb696f1a8caf78912b704e4a8964"),
        (b"foobar", 0xBF9CF968, "343e1662793c64bf6f0d3597ba446f18"),
    ],
)
def test_fnv_as_published(data: bytes, short: int, long: str) -> None:
    for module in (c_hashes, pure_hashes):
        assert module.fnv1a32(data) == short
        assert module.fnv1a128(data).hex() == long


@given(st.binary(max_size=300))
def test_fnv_is_the_same_in_c(data: bytes) -> None:
    assert c_hashes.fnv1a32(data) == pure_hashes.fnv1a32(data)
    assert c_hashes.fnv1a128(data) == pure_hashes.fnv1a128(data)


TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(alphabet='"\\<>&\x00\x08\x0c\n\r\t\x1f\x7f\u2028\u2029\u2030\ufffd\U0001f600aé', max_size=20),
    st.binary(max_size=12).map(lambda data: data.decode("utf-8", "surrogateescape")),
)


@given(TEXTS, TEXTS)
def test_container_hash_is_the_same_in_c(name: str, image: str) -> None:
    raw_name, raw_image = (text.encode("utf-8", "surrogateescape") for text in (name, image))
    expected = pure_hashes.container_hash_number(raw_name, raw_image)
    assert c_hashes.container_hash(name, image) == f"{expected:x}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", b'""'),
        (b'a"b\\c', b'"a\\"b\\\\c"'),
        (b"<&>", b'"\\u003c\\u0026\\u003e"'),
        (b"\x00\x08\x0c\n\r\t\x1f\x7f", b'"\\u0000\\b\\f\\n\\r\\t\\u001f\x7f"'),
        ("\u2028\u2029".encode(), b'"\\u2028\\u2029"'),
        (b"\xff\xe2\x80x\xed\xa0\x80", b'"\\ufffd\\ufffd\\ufffdx\\ufffd\\ufffd\\ufffd"'),
        ("\ufffdé😀".encode(), '"\ufffdé😀"'.encode()),
    ],
)
def test_json_text_as_go_writes_it(text: bytes, expected: bytes) -> None:
    assert utf8.json_string(text) == expected


def test_container_hash_has_no_leading_zeros() -> None:
    hashes = {c_hashes.container_hash("c", f"image-{i}") for i in range(200)}
    assert {len(found) for found in hashes} >= {7, 8}
    assert all(not found.startswith("0") for found in hashes)


@pytest.mark.parametrize("digest", [c_hashes.payload_digest])
def test_payload_digest_tells_payloads_apart(digest: Callable[[bytes], bytes]) -> None:
    assert digest(b"a") == digest(b"a")
    assert digest(b"a") != digest(b"b")
    assert len(digest(b"")) == 16

"""Bytes to lines to events: however they are cut, and whatever a server may send."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api import v1
from trio_kubelet.kube.answer_bodies import LineSplitter, LineTooLong
from trio_kubelet.kube.errors import LONGEST_RETRY_AFTER, APIError, APIUnavailable, error_from
from trio_kubelet.kube.watch_events import Bookmark, ObjectDecoder, Removal, Unreadable, Upsert

PODS = ObjectDecoder(v1.Pod)


def event(type_: str, thing: Any) -> bytes:
    return json.dumps({"type": type_, "object": thing}).encode()


def compact(type_: str, thing: Any) -> bytes:
    return json.dumps({"type": type_, "object": thing}, separators=(",", ":")).encode()


@given(st.lists(st.binary(min_size=1).filter(lambda b: b"\n" not in b and b.strip())), st.data())
def test_lines_do_not_depend_on_how_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    splitter, found = LineSplitter(), list[bytes]()
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += splitter.feed(whole[begin:end])
    assert found == lines
    assert not splitter.incomplete


def test_only_newlines_end_a_line() -> None:
    odd = "a\u0085b\u2028c\x0bd\re".encode()
    assert LineSplitter().feed(odd + b"\n\n\r\n") == [odd]


def test_a_line_beyond_the_limit_is_refused() -> None:
    splitter = LineSplitter(limit=10)
    assert splitter.feed(b"0123456789\n") == [b"0123456789"]
    with pytest.raises(LineTooLong):
        splitter.feed(b"0123456789x")


def test_a_line_in_small_pieces_takes_no_more_memory_than_it_is_long() -> None:
    """There may be millions of them in one event."""
    splitter, pieces = LineSplitter(), (bytes((65 + number % 26,)) * 2 for number in range(50_000))
    tracemalloc.start()
    try:
        for piece in pieces:
            assert splitter.feed(piece) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(splitter.feed(b"\n")[0]) == 100_000
    assert peak < 400_000


@pytest.mark.parametrize("encode", [event, compact])
def test_objects(encode: Any) -> None:
    meta = {"name": "a", "namespace": "d", "resourceVersion": "7", "managedFields": [{"manager": "x"}]}
    found = PODS.event(encode("MODIFIED", {"metadata": meta, "spec": {"containers": [{"name": "c"}]}}))
    assert isinstance(found, Upsert)
    assert (found.key, found.resource_version, found.object.spec.containers[0].name) == ("d/a", "7", "c")
    assert "managed_fields" not in v1.ObjectMeta.__struct_fields__
    assert PODS.event(encode("DELETED", {"metadata": meta, "spec": 7})) == Removal("d/a", "7")


def test_bookmarks_carry_objects_that_are_none() -> None:
    thing: dict[str, Any] = {
        "metadata": {"resourceVersion": "9", "creationTimestamp": None}, "spec": {"containers": None},
    }  # fmt: skip
    assert PODS.event(event("BOOKMARK", thing)) == Bookmark("9", False)
    thing["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
    assert PODS.event(event("BOOKMARK", thing)) == Bookmark("9", True)


def test_an_error_event_is_the_error() -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    found = PODS.event(event("ERROR", status))
    assert isinstance(found, APIError)
    assert (found.gone, found.reason, str(found)) == (True, "Expired", "too old")


@pytest.mark.parametrize("encode", [event, compact])
def test_an_object_that_cannot_be_read_is_named(encode: Any) -> None:
    meta = {"name": "a", "namespace": "d", "resourceVersion": "7"}
    found = PODS.event(encode("ADDED", {"metadata": meta, "spec": {"containers": 7}}))
    assert isinstance(found, Unreadable)
    assert (found.key, found.resource_version) == ("d/a", "7")
    assert "spec.containers" in found.reason


@pytest.mark.parametrize("data", [b"", b"{", b"7", b"{}", b'{"type":"ODD","object":{}}', b'{"type":"ADDED"}'])
def test_what_is_no_event(data: bytes) -> None:
    with pytest.raises(APIUnavailable, match="not a watch event"):
        PODS.event(data)


def test_a_list_with_an_unreadable_item_keeps_the_others() -> None:
    items = [
        {"metadata": {"name": "a"}, "spec": {"containers": None}},
        {"metadata": {"name": "b"}, "spec": 7},
    ]
    data = json.dumps({"metadata": {"resourceVersion": "3", "continue": "x"}, "items": items}).encode()
    page = PODS.page(data)
    assert (page.resource_version, page.continue_) == ("3", "x")
    assert [item.key for item in page.items] == ["a"]
    assert [item.key for item in page.unreadable] == ["b"]
    with pytest.raises(APIUnavailable, match="not a list"):
        PODS.page(b"<html>")
    assert PODS.page(b'{"items":null}').items == []


POD = "/api/v1/namespaces/n/pods/p"


@pytest.mark.parametrize(
    ("code", "body", "method", "path", "reason", "said"),
    [
        (
            502, b"<html>\nbad gateway</html>\n", "GET", POD, "InternalError",
            r'an error on the server ("<html>\nbad gateway</html>") has prevented the request from succeeding'
            " (get pods p)",
        ),
        (
            429, b"Too many requests, please try again later.", "PATCH", f"{POD}/status", "TooManyRequests",
            "the server has received too many requests and has asked us to try again later (patch pods p)",
        ),
        (
            404, b"404 page not found", "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node", "NotFound",
            "the server could not find the requested resource (put leases.coordination.k8s.io node)",
        ),
        (
            503, b"", "POST", "/apis/authentication.k8s.io/v1/tokenreviews", "ServiceUnavailable",
            "the server is currently unable to handle the request (post tokenreviews.authentication.k8s.io)",
        ),
        (409, b"", "POST", "/api/v1/nodes", "AlreadyExists", "the server reported a conflict (post nodes)"),
        (409, b"", "PUT", "/api/v1/nodes/n", "Conflict", "the server reported a conflict (put nodes n)"),
        (403, b"not you", "GET", "/api/v1/namespaces/n", "Forbidden", "not you (get namespaces n)"),
        (
            302, b"", "GET", "/api/v1/nodes/n", "Unknown",
            "the server responded with the status code 302 but did not return more information (get nodes n)",
        ),
        (401, b"", "", "", "Unauthorized", "the server has asked for the client to provide credentials"),
    ],
)  # fmt: skip
def test_errors_without_a_status_are_told_as_by_client_go(
    code: int, body: bytes, method: str, path: str, reason: str, said: str
) -> None:
    error = error_from(code, body, None, method, path)
    assert (error.code, error.reason, str(error)) == (code, reason, said)


def test_a_status_may_say_how_long_to_wait() -> None:
    busy = error_from(429, b'{"details":{"retryAfterSeconds":3},"message":"slow"}')
    assert busy.retry_after == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"data": {"k": "canary!!"}},
        {"data": {"k": 5551212}},
        {"data": "canary"},
        {"data": ["canary"]},
        {"data": {}, "stringData": "canary"},
        {"data": {}, "stringData": {"k": 5551212}},
        {"data": {"k": "Y2FuYXJ5"}, "type": ["canary"]},
    ],
)
def test_an_unreadable_secret_is_not_quoted(fields: dict[str, Any]) -> None:
    thing = {"metadata": {"name": "s", "namespace": "n"}, **fields}
    found = ObjectDecoder(v1.Secret).event(event("ADDED", thing))
    assert isinstance(found, Unreadable)
    assert found.key == "n/s"
    for word in ("canary", "5551212", "Y2Fu"):
        assert word not in found.reason


def test_nulls_in_a_secret_are_empty() -> None:
    thing = {"metadata": {"name": "s", "namespace": "n"}, "data": {"k": "Y2FuYXJ5", "empty": None}}
    found = ObjectDecoder(v1.Secret).event(event("ADDED", thing))
    assert isinstance(found, Upsert)
    assert found.object.data == {"k": b"canary", "empty": b""}


@pytest.mark.parametrize(("asked", "wait"), [(2_000_000_000, LONGEST_RETRY_AFTER), (-5, 0)])
def test_a_server_may_not_ask_us_to_wait_for_years(asked: int, wait: float) -> None:
    assert error_from(429, b'{"details":{"retryAfterSeconds":%d}}' % asked).retry_after == wait
    assert error_from(429, b"", float(asked)).retry_after == wait


def test_an_error_of_endless_depth_is_an_error_like_others() -> None:
    error = error_from(500, b'{"message":"oh","details":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    assert error.code == 500

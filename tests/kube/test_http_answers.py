"""Answers of HTTP/1.1 from their bytes."""

from __future__ import annotations

import contextlib

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.kube.http_answers import (
    MAX_HEAD,
    EndedEarly,
    HTTPAnswerReader,
    MalformedAnswer,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(data: bytes, size: int = 1 << 20, closed: bool = False) -> tuple[HTTPAnswerReader, bytes]:
    """The reader at the end of what came in pieces of that size, and the body."""
    reader, body = HTTPAnswerReader(), b""
    for start in range(0, len(data), size):
        body += reader.feed(data[start : start + size])
    if closed:
        body += reader.feed(b"")
    return reader, body


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("data", "status", "body", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", True),
        (b"HTTP/1.1 200\r\ncontent-length:0\r\n\r\n", 200, b"", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", 304, b"", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", 200, b"ok", True),
        (b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
        (b"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
        (CHUNKED + b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n", 200, b"abc0123456789", True),
        (CHUNKED + b"0\r\nTrailer: x\r\nOther: y\r\n\r\n", 200, b"", True),
    ],
)
def test_answers(data: bytes, status: int, body: bytes, reusable: bool, size: int) -> None:
    reader, found = read(data, size)
    assert (reader.status, found, reader.ended, reader.reusable) == (status, body, True, reusable)


def test_a_body_may_end_with_its_connection() -> None:
    reader, body = read(b"HTTP/1.1 200 OK\r\n\r\nhello", 3)
    assert not reader.ended
    reader, body = read(b"HTTP/1.1 200 OK\r\n\r\nhello", 3, closed=True)
    assert (body, reader.ended, reader.reusable) == (b"hello", True, False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
        CHUNKED + b"3\r\nab",
        CHUNKED + b"3\r\nabc\r\n",
        CHUNKED + b"0\r\n",
    ],
)
def test_answers_that_end_too_early(data: bytes) -> None:
    with pytest.raises(EndedEarly) as caught:
        read(data, closed=True)
    assert bool(str(caught.value)) is bool(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"SSH-2.0-x\r\n\r\n", "malformed HTTP response"),
        (b"HTTP/2 200 OK\r\n\r\n", "malformed HTTP response"),
        (b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", "malformed header"),
        (b"HTTP/1.1 200 OK\r\na: b\r\n folded\r\n\r\n", "malformed header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\n", "malformed header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n", "bad Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", "bad Content-Length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer encoding"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "another protocol"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * MAX_HEAD, "longer than"),
        (CHUNKED + b"x\r\n", "chunk length"),
        (CHUNKED + b"-1\r\n", "chunk length"),
        (CHUNKED + b"2\r\nabc\r\n", "longer than its size"),
        (CHUNKED + b"1" * 2000, "does not end"),
        (CHUNKED + b"0\r\n" + b"x" * MAX_HEAD + b"yy", "does not end"),
    ],
)
def test_what_is_no_answer(data: bytes, words: str) -> None:
    with pytest.raises(MalformedAnswer, match=words):
        read(data)


def test_what_comes_behind_an_answer_makes_its_connection_useless() -> None:
    for data in (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokX", CHUNKED + b"0\r\n\r\nX"):
        reader, _ = read(data)
        assert reader.ended
        assert not reader.reusable


@given(
    st.lists(st.binary(min_size=1, max_size=300), max_size=6),
    st.booleans(),
    st.integers(min_value=1, max_value=50),
)
def test_what_a_server_sends_is_read_in_any_pieces(pieces: list[bytes], chunked: bool, size: int) -> None:
    server = h11.Connection(h11.SERVER)
    server.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    server.next_event()
    length = sum(map(len, pieces))
    how = ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(length))
    sent = server.send(h11.Response(status_code=200, headers=[how, ("A", "1"), ("a", "2")])) or b""
    for piece in pieces:
        sent += server.send(h11.Data(data=piece)) or b""
    sent += server.send(h11.EndOfMessage()) or b""
    reader, body = read(sent, size)
    assert (body, reader.ended, reader.reusable) == (b"".join(pieces), True, True)
    assert reader.headers["a"] == "1, 2"


@given(st.binary(max_size=400), st.integers(min_value=1, max_value=50))
def test_garbage_is_refused_or_read(data: bytes, size: int) -> None:
    for begin in (b"", b"HTTP/1.1 200 OK\r\n", CHUNKED):
        with contextlib.suppress(MalformedAnswer, EndedEarly):
            read(begin + data, size, closed=True)

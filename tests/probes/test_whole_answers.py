"""Answers to HTTP probes that come whole are read as h11 reads them, without it."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.slowness import within_cpu
from trio_kubelet.net.http import (
    MAX_BODY,
    HTTPResponse,
    whole_answer,
)

GO_SAYS = (
    b"HTTP/1.1 200 OK\r\nX-Content-Type-Options: nosniff\r\nDate: Fri, 27 Nov 2026 10:00:00 GMT\r\n"
    b"Content-Length: 2\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\nok"
)


def by_h11(said: bytes) -> HTTPResponse | None:
    """What h11 makes of an answer that has come so far; None if it is not over, or none."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "a"), ("Connection", "close")]))
    http.send(h11.EndOfMessage())
    http.receive_data(said)
    body = bytearray()
    try:
        head = http.next_event()
        if not isinstance(head, h11.Response):
            return None
        while isinstance(event := http.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return None
    if not isinstance(event, h11.EndOfMessage):
        return None
    return HTTPResponse(head.status_code, "", body[:MAX_BODY].decode("utf-8", "replace"))


LINES = st.sampled_from(
    [
        *(
            b"Server: x",
            b"A:",
            b"B:\t b \xe4 ",
            b"X-Content-Length: 3",
            b"Connection: close",
            b"Location: /b",
        ),
        *(b"Transfer-Encoding: chunked", b"transfer-encoding: identity", b"Content-Length: 2"),
        *(b"content-length:0", b"Content-Length: +2", b"Content-Length: 99999", b"Content-Length : 2"),
        *(b" folded", b"no colon", b"\x00: a", b"A: \x00", b"A: \x7f", b"", b"Content-Length: 2, 2"),
    ]
)
ANSWERS = st.builds(
    lambda status, lines, end, body: status + b"".join(line + end for line in (b"", *lines, b"")) + body,
    st.sampled_from(
        [
            *(b"HTTP/1.1 200 OK", b"HTTP/1.0 299", b"HTTP/1.1 204 None", b"HTTP/1.1 302 Found"),
            *(b"HTTP/1.1 200 ", b"HTTP/1.1 100 Go on", b"HTTP/1.1 500 No", b"HTTP/1.1 2000 OK"),
            *(b"HTTP/2.0 200 OK", b"http/1.1 200 OK"),
        ]
    ),
    st.lists(LINES, max_size=4),
    st.sampled_from([b"\r\n", b"\r\n", b"\n"]),
    st.sampled_from([b"", b"o", b"ok", b"okay", b"\xff\xfe", b"2\r\nok\r\n0\r\n\r\n"]),
)


@given(ANSWERS | st.binary(max_size=60).map(lambda more: GO_SAYS[:-2] + more))
def test_an_answer_in_one_piece_is_what_h11_makes_of_it(said: bytes) -> None:
    found = whole_answer(said)
    assert found is None or found == by_h11(said)


@pytest.mark.parametrize(
    ("said", "body"),
    [
        (GO_SAYS, "ok"),
        (GO_SAYS + b" and more", "ok"),
        (b"HTTP/1.0 299\r\ncontent-length:0\r\n\r\n", ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 12000\r\n\r\n" + b"x" * 12000, "x" * MAX_BODY),
        (GO_SAYS[:-1], None),
        (GO_SAYS.replace(b"200 OK", b"204 No Content"), None),
        (GO_SAYS.replace(b"200 OK", b"302 Found"), None),
        (GO_SAYS.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length"), None),
        (GO_SAYS.replace(b"Connection", b"Content-Length: 2\r\nConnection"), None),
        (b"", None),
    ],
)
def test_which_answers_are_taken_in_one_piece(said: bytes, body: str | None) -> None:
    found = whole_answer(said)
    assert (found.body if found is not None else None) == body
    assert found is None or found == by_h11(said)


def test_a_head_without_an_end_takes_no_longer_than_others() -> None:
    for _ in within_cpu(2):
        for line in (b"A: b\r\n", b"Content-Length: 1\r\n", b"A" * 7 + b":"):
            assert whole_answer(b"HTTP/1.1 200 OK\r\n" + line * (2**20 // len(line))) is None

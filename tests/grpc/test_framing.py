"""gRPC's own part of a call, beside grpclib's: the same bytes out, the same messages in."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from grpclib.metadata import decode_grpc_message, encode_grpc_message
from grpclib.stream import recv_message, send_message
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.grpc.connection import MessageCodec
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.framing import MessageReader, Splitter, announced, frame, status_headers, told_message

T = TypeVar("T")
MESSAGES = st.lists(st.binary(max_size=50), max_size=6)
CUTS = st.lists(st.integers(1, 40), min_size=1)
LARGEST = 50


class Bytes:
    """A stream of grpclib's that is all there."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = content

    async def send_data(self, data: bytes, *, end_stream: bool) -> None:
        self.content += data

    async def recv_data(self, size: int) -> bytes:
        taken, self.content = self.content[:size], self.content[size:]
        return taken


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not wait."""
    with pytest.raises(StopIteration) as ended:
        work.send(None)
    result: T = ended.value.value
    return result


def sent(message: bytes) -> bytes:
    stream: Any = Bytes()
    at_once(send_message(stream, MessageCodec(), message, bytes))
    content: bytes = stream.content
    return content


def received(content: bytes) -> list[bytes]:
    stream: Any = Bytes(content)
    found = []
    while (message := at_once(recv_message(stream, MessageCodec(), bytes))) is not None:
        found.append(message)
    return found


def pieces(content: bytes, cuts: list[int]) -> Iterator[bytes]:
    at, turn = 0, 0
    while at < len(content):
        step = cuts[turn % len(cuts)]
        yield content[at : at + step]
        at, turn = at + step, turn + 1


@given(st.binary(max_size=300))
def test_a_message_is_sent_as_grpclib_sends_it(message: bytes) -> None:
    assert frame(message) == sent(message)


@given(MESSAGES, CUTS)
def test_messages_are_those_grpclib_reads_in_whatever_pieces_they_come(
    messages: list[bytes], cuts: list[int]
) -> None:
    content = b"".join(map(sent, messages))
    reader = MessageReader(LARGEST)
    for piece in pieces(content, cuts):
        reader.feed(memoryview(piece))
        assert reader.messages == messages[: len(reader.messages)]
    assert reader.messages == received(content) == messages
    assert reader.is_complete


@given(MESSAGES, st.integers(0, 400))
def test_a_stream_may_end_only_between_messages(messages: list[bytes], cut: int) -> None:
    content = b"".join(map(frame, messages))[:cut]
    reader = MessageReader(LARGEST)
    reader.feed(memoryview(content))
    ends = {len(b"".join(map(frame, messages[:count]))) for count in range(len(messages) + 1)}
    assert reader.is_complete == (len(content) in ends)


@given(MESSAGES, CUTS)
def test_lengths_are_seen_however_the_bytes_come(messages: list[bytes], cuts: list[int]) -> None:
    splitter = Splitter()
    found = [announced(splitter, piece) for piece in pieces(b"".join(map(frame, messages)), cuts)]
    assert max(found, default=0) == max(map(len, messages), default=0)


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"\1\0\0\0\1x", Code.INTERNAL), (b"\0\0\0\0\x33", Code.RESOURCE_EXHAUSTED)],
)
def test_a_message_that_is_not_taken_is_refused_before_it_is_there(content: bytes, code: Code) -> None:
    with pytest.raises(GrpcError) as refused:
        MessageReader(LARGEST).feed(memoryview(content))
    assert refused.value.code is code


@given(st.text(max_size=1024))
def test_texts_of_errors_travel_as_grpclibs_do(text: str) -> None:
    told = status_headers(GrpcError(Code.NOT_FOUND, text))
    assert told == {"grpc-status": "5", "grpc-message": encode_grpc_message(text)}
    assert told_message(told) == decode_grpc_message(told["grpc-message"]) == text

"""Reading answers out of bytes: the same in whatever pieces they come, and what the peer is owed for them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cri.test_grpc import (
    ADD_NOT_FOUND,
    ADD_OK,
    ADD_TYPE,
    HEADERS,
    NEWEST,
    SECOND,
    SETTINGS,
    TRAILERS,
    frame,
    message,
)
from trio_kubelet.cri.answers import PONG_PAUSE, ROOM, AnswerReader
from trio_kubelet.cri.errors import Unavailable
from trio_kubelet.grpc.errors import GrpcError

PING = frame(6, 0, 0, b"12345678")
PONG = frame(6, 1, 0, b"12345678")
FOUND = {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def answer(stream: int, *messages: bytes) -> bytes:
    data = b"".join(frame(0, 0, stream, message(each)) for each in messages)
    return frame(1, 4, stream, HEADERS) + data + frame(1, 5, stream, TRAILERS)


def read(reader: AnswerReader, stream: int, pieces: list[bytes]) -> tuple[list[bytes], dict[str, str]]:
    """Feeds pieces until the answer has ended; the rest of them is dropped."""
    reader.begin(stream)
    assert any(reader.feed(piece) for piece in pieces)
    return reader.take()


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted({cut % len(data) for cut in cuts} - {0}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


noise = st.sampled_from(
    [SETTINGS, PING, frame(4, 1, 0), frame(8, 0, 0, bytes(4)), frame(99, 0, 0, b"?"), b""]
)


@given(st.lists(st.binary(max_size=40), max_size=4), st.lists(noise, max_size=4), st.data())
def test_in_whatever_pieces_an_answer_comes(
    messages: list[bytes], between: list[bytes], data: st.DataObject
) -> None:
    """Headers in pieces, padded data, and other frames between them."""
    headers = frame(1, 0, 1, HEADERS[:9]) + frame(9, 4, 1, HEADERS[9:])
    frames = [headers]
    for each in messages:
        whole = message(each)
        cut = data.draw(st.integers(0, len(whole)))
        padding = data.draw(st.integers(0, 5))
        frames.append(frame(0, 0, 1, whole[:cut]))
        frames.append(frame(0, 8, 1, bytes([padding]) + whole[cut:] + bytes(padding)))
        frames += between
    sent = b"".join([*between, *frames, frame(1, 5, 1, TRAILERS)])
    cuts = data.draw(st.lists(st.integers(0, len(sent) - 1), max_size=20))
    assert read(AnswerReader(Clock()), 1, pieces(sent, cuts)) == (messages, FOUND)


@given(st.binary(max_size=200), st.lists(st.integers(0, 199), max_size=5))
def test_any_bytes_are_read_or_refused(data: bytes, cuts: list[int]) -> None:
    reader = AnswerReader(Clock())
    reader.begin(1)
    for piece in pieces(data, cuts) if data else []:
        try:
            if reader.feed(piece):
                break
        except GrpcError:
            break


def test_what_stands_behind_an_answer_belongs_to_the_next() -> None:
    reader = AnswerReader(Clock())
    both = answer(1, b"one") + answer(3, b"two")
    assert read(reader, 1, [both[:-5]]) == ([b"one"], FOUND)
    assert read(reader, 3, [both[-5:]]) == ([b"two"], FOUND)


def test_an_answer_with_known_headers_is_as_the_first() -> None:
    reader = AnswerReader(Clock())
    for stream, headers, trailers in ((1, ADD_TYPE, ADD_OK), (3, SECOND, NEWEST), (5, SECOND, NEWEST)):
        sent = (
            frame(1, 4, stream, headers) + frame(0, 0, stream, message(b"m")) + frame(1, 5, stream, trailers)
        )
        assert read(reader, stream, [sent]) == ([b"m"], FOUND)


def test_pings_are_answered_with_a_later_request_settings_with_the_next() -> None:
    """A ping that is answered at once is followed by another with each call, which wakes the agent twice."""
    clock = Clock()
    reader = AnswerReader(clock)
    read(reader, 1, [SETTINGS + PING + answer(1)])
    assert reader.owed() == frame(4, 1, 0)
    clock.now += PONG_PAUSE / 2
    read(reader, 3, [PING + answer(3)])
    assert reader.owed() == b""
    clock.now += PONG_PAUSE / 2
    assert reader.owed() == PONG + PONG
    assert reader.owed() == b""


def test_a_peer_that_wants_answers_without_end_is_left() -> None:
    reader = AnswerReader(Clock())
    reader.begin(1)
    with pytest.raises(Unavailable, match="too many answers"):
        reader.feed(PING * 1000)


@given(st.lists(st.tuples(st.binary(max_size=12), st.booleans()), max_size=12), st.integers(0, 1 << 20))
def test_answers_one_after_the_other_are_told_apart(answers: list[tuple[bytes, bool]], first: int) -> None:
    """However alike: most are the one before, byte for byte, but for the number of their stream."""
    reader = AnswerReader(Clock())
    good = frame(1, 4, 1, ADD_TYPE) + frame(0, 0, 1, message(b"")) + frame(1, 5, 1, ADD_OK)
    read(reader, 1, [good])
    for stream, (body, is_whole) in zip(itertools.count(2 * first + 3, 2), answers, strict=False):
        for data in (body, stream.to_bytes(4) + body, stream.to_bytes(4) + body):
            sent = (
                frame(1, 4, stream, SECOND) + frame(0, 0, stream, message(data)) + frame(1, 5, stream, NEWEST)
            )
            sent = sent if is_whole else PING + sent
            assert read(reader, stream, [sent]) == ([data], FOUND)


def test_the_same_bytes_say_something_else_when_the_table_of_headers_is_another() -> None:
    reader = AnswerReader(Clock())
    for stream, headers, trailers in ((1, ADD_TYPE, ADD_OK), (3, SECOND, NEWEST), (5, SECOND, NEWEST)):
        sent = (
            frame(1, 4, stream, headers) + frame(0, 0, stream, message(b"m")) + frame(1, 5, stream, trailers)
        )
        assert read(reader, stream, [sent]) == ([b"m"], FOUND)
    for stream, trailers in ((7, ADD_NOT_FOUND), (9, NEWEST), (11, NEWEST)):
        sent = (
            frame(1, 4, stream, SECOND) + frame(0, 0, stream, message(b"m")) + frame(1, 5, stream, trailers)
        )
        assert read(reader, stream, [sent])[1]["grpc-status"] == "5"


def test_the_room_of_an_answer_that_is_the_one_before_is_given_back_too() -> None:
    reader = AnswerReader(Clock())
    said = message(400 * b"m")
    owed, answers = b"", 0
    while not owed:
        headers, trailers = (SECOND, NEWEST) if answers else (ADD_TYPE, ADD_OK)
        stream = 2 * answers + 1
        sent = frame(1, 4, stream, headers) + frame(0, 0, stream, said) + frame(1, 5, stream, trailers)
        read(reader, stream, [sent])
        owed, answers = reader.owed(), answers + 1
        assert answers <= -(-ROOM // len(said))
    assert owed == frame(8, 0, 0, (answers * len(said)).to_bytes(4))

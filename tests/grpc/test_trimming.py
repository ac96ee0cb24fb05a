"""Messages that are kept small while they come, against protobuf's own reading of the whole."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.errors import GrpcError
from trio_kubelet.grpc.framing import MessageReader, frame
from trio_kubelet.grpc.trimming import Trimmer

CUTS = st.lists(st.integers(1, 400), min_size=1, max_size=5)
LARGE = 15_000_000


def pieces(content: bytes, cuts: list[int]) -> Iterator[memoryview]:
    at, turn = 0, 0
    while at < len(content):
        step = cuts[turn % len(cuts)]
        yield memoryview(content)[at : at + step]
        at, turn = at + step, turn + 1


def trimmed(content: bytes, cuts: list[int], most: int) -> bytes:
    trimmer = Trimmer(most)
    for piece in pieces(content, cuts):
        trimmer.feed(piece)
    return trimmer.end()


@given(
    st.binary(max_size=500),
    st.binary(max_size=500),
    st.integers(-(2**31), 2**31 - 1),
    CUTS,
    st.integers(0, 300),
)
def test_of_each_field_the_beginning_stays(
    stdout: bytes, stderr: bytes, exit_code: int, cuts: list[int], most: int
) -> None:
    whole = cri.ExecSyncResponse(stdout=stdout, stderr=stderr, exit_code=exit_code).SerializeToString()
    found = cri.ExecSyncResponse.FromString(trimmed(whole, cuts, most))
    assert (found.stdout, found.stderr, found.exit_code) == (stdout[:most], stderr[:most], exit_code)


@given(st.floats(allow_nan=False), st.floats(width=32, allow_nan=False), st.integers(0, 2**64 - 1), CUTS)
def test_numbers_of_all_kinds_stay(double: float, single: float, number: int, cuts: list[int]) -> None:
    """A message whose only values are numbers, of fields that the reader may not know, is not changed."""
    key = bytes
    content = key([0x21]) + struct.pack("<d", double) + key([0x2D]) + struct.pack("<f", single) + key([0x30])
    while number >= 0x80:
        content += key([number & 0x7F | 0x80])
        number >>= 7
    content += key([number])
    assert trimmed(content, cuts, 0) == content


def parsed(content: bytes) -> cri.ExecSyncResponse | None:
    try:
        return cri.ExecSyncResponse.FromString(content)
    except DecodeError:
        return None


@given(st.binary(max_size=200), CUTS, st.integers(0, 200))
def test_what_is_no_message_is_refused_here_or_by_who_reads_it(
    content: bytes, cuts: list[int], most: int
) -> None:
    try:
        found = trimmed(content, cuts, most)
    except GrpcError:
        assert parsed(content) is None
        return
    assert len(found) <= len(content)
    if most >= len(content):
        assert parsed(found) == parsed(content)


def test_an_answer_of_many_megabytes_takes_next_to_nothing() -> None:
    whole = cri.ExecSyncResponse(stdout=bytes(LARGE), stderr=b"e", exit_code=3).SerializeToString()
    content = frame(whole)
    reader = MessageReader(1 << 30)
    reader.enough = 1000
    tracemalloc.start()
    try:
        for piece in pieces(content, [1 << 18]):
            reader.feed(memoryview(bytes(piece)))
        [message] = reader.take()
        found = cri.ExecSyncResponse.FromString(message)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.stdout, found.stderr, found.exit_code) == (bytes(1000), b"e", 3)
    assert peak < 1 << 20

"""Exec probes that pass, without a runtime: a second of 50 of them in C and in plain Python, and their bytes.

Requests are put together and answers read as for containerd; sockets and the other side are not in it.
"""

from __future__ import annotations

import itertools

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from trio_kubelet.grpc import framing
from trio_kubelet.native.pure_repeats import frame
from trio_kubelet.native.pure_serving import PureRepeats
from trio_kubelet.native.repeats import Repeats

PROBES = 500
PERIOD = 10.0
MOMENTS = 4
"""In each second."""

HEAD = b"\x88\x5f\x8b\x1d\x75\xd0\x62\x0d\x26\x3d\x4c\x4d\x65\x64"  # :status 200, content-type
TAIL = b"\x00\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x01\x30"  # grpc-status 0
EMPTY = framing.frame(b"")


def answers(first: int, count: int) -> bytes:
    """To so many calls, whose streams follow one another."""
    whole = bytearray()
    for stream in range(first, first + 2 * count, 2):
        whole += frame(1, 4, stream, HEAD) + frame(0, 0, stream, EMPTY) + frame(1, 5, stream, TAIL)
    return bytes(whole)


class Second:
    """A second of the probes of a node at rest."""

    def __init__(self, cls: type[PureRepeats]) -> None:
        self.repeats = cls(100 * b"h")
        self.repeats.connected()
        self.repeats.learn(HEAD, TAIL)
        for number in range(PROBES):
            self.repeats.add(100 * b"b", number * PERIOD / PROBES, PERIOD, 100.0)
        self._moments = itertools.count(1)
        self._stream = 1
        self.made = 0

    def run(self) -> None:
        for moment in itertools.islice(self._moments, MOMENTS):
            now = moment / MOMENTS
            ended = self.repeats.turn(now, PROBES)
            count = self.repeats.under_way
            self.repeats.sent(len(self.repeats.out()))
            ended += self.repeats.received(answers(self._stream, count), now)
            # What a peer says now and then, or its window would be full.
            ended += self.repeats.received(frame(8, 0, 0, (100 * max(count, 1)).to_bytes(4)), now)
            assert not ended
            self._stream += 2 * count
            self.made += count
        self.repeats.take_passed()


@pytest.mark.parametrize("cls", [Repeats, PureRepeats], ids=["c", "python"])
def test_a_second(benchmark: BenchmarkFixture, cls: type[PureRepeats]) -> None:
    benchmark.group = "repeats: a second of 50 probes"
    second = Second(cls)
    benchmark.pedantic(second.run, rounds=200, warmup_rounds=20)  # type: ignore[no-untyped-call]
    assert second.made >= 200 * PROBES / PERIOD


def test_bytes(benchmark: BenchmarkFixture) -> None:
    """The floor: the same answers made and copied, and nothing read in them."""
    benchmark.group = "repeats: a second of 50 probes"

    def copy() -> None:
        for _ in range(MOMENTS):
            bytearray(answers(1, round(PROBES / PERIOD / MOMENTS)))

    benchmark.pedantic(copy, rounds=200, warmup_rounds=20)  # type: ignore[no-untyped-call]

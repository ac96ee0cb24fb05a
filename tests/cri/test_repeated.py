"""Commands that are repeated, against a real gRPC server and against peers that misbehave."""

from __future__ import annotations

import math
import pathlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from tests.cri.test_grpc import (
    HEADERS,
    TRAILERS,
    answering,
    closing,
    connected,
    frame,
    message,
    peer,
    served,
    until,
)
from trio_kubelet.cri.doors import ExecResult, Repeat
from trio_kubelet.cri.errors import CRIError, DeadlineExceeded, Internal, NotFound, Unavailable
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.grpc.errors import Code
from trio_kubelet.sim.behaviour import ExecOutcome
from trio_kubelet.sim.faults import Fault, Kind
from trio_kubelet.sim.populate import Population
from trio_kubelet.sim.service import SimService

SILENT = ExecResult(b"", b"", 0)


@pytest.fixture
def socket(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "cri.sock"


class Heard:
    """What is told of one command."""

    def __init__(self, runtime: RuntimeService, container: str, command: tuple[str, ...] = ("true",)) -> None:
        self.passed: list[float] = []
        self.ended: list[ExecResult | CRIError | None] = []
        self.began: list[float] = []
        self._runtime, self._container, self._command = runtime, container, command

    def repeat(self, after: float = 0.0, period: float = 0.25, timeout: float = 5) -> Repeat | None:
        def end(found: ExecResult | CRIError | None, began: float) -> None:
            self.ended.append(found)
            self.began.append(began)

        due = trio.current_time() + after
        return self._runtime.repeat_exec(
            self._container, self._command, timeout, due, period, self.passed.append, end
        )


@asynccontextmanager
async def running(
    socket: pathlib.Path, *faults: Fault, **options: Any
) -> AsyncIterator[tuple[SimService, RuntimeService, str]]:
    """A runtime with one container, and how it says that a call succeeded has been learnt: that is told of
    the first two calls. In the first answer of all it also says that it uses no table of headers.
    """
    script = options.pop("exec_script", None)
    async with (
        served(socket, exec_script=script) as service,
        connected(socket, direct=True, **options) as (runtime, _),
    ):
        Population(service.runtime).add_pods(1, 1, 1)
        (container,) = service.runtime.containers
        heard = Heard(runtime, container)
        for number in (1, 2):
            assert heard.repeat() is not None
            await until(lambda: len(heard.ended) == number)  # noqa: B023
        assert [result.exit_code for result in heard.ended if isinstance(result, ExecResult)] == [0, 0]
        assert heard.passed == []
        service.faults.add(*faults)
        yield service, runtime, container


async def test_a_command_is_repeated_until_it_fails(socket: pathlib.Path) -> None:
    calls: list[tuple[str, Code]] = []
    codes: dict[str, int] = {}

    def run(container: object, command: object) -> ExecOutcome:
        return ExecOutcome(codes.get("exit", 0), b"said\n")

    def hook(method: str, seconds: float, code: Code) -> None:
        if method == "ExecSync":
            calls.append((method, code))

    async with running(socket, exec_script=run, on_call=hook) as (service, runtime, container):
        heard = Heard(runtime, container)
        began = trio.current_time() + 0.1
        assert heard.repeat(after=0.1) is not None
        await until(lambda: service.calls["ExecSync"] >= 6)
        assert heard.ended == []
        codes["exit"] = 3
        await until(lambda: bool(heard.ended))
        assert heard.ended == [ExecResult(b"said\n", b"", 3)]
        periods = (heard.began[0] - began) / 0.25  # the phase stays
        assert abs(periods - round(periods)) < 0.5
        made = service.calls["ExecSync"]
        assert len(heard.passed) == made - 3
        assert all(0 < seconds < 5 for seconds in heard.passed)
        assert calls == [("ExecSync", Code.OK)] * made
        await trio.sleep(0.4)
        assert service.calls["ExecSync"] == made  # no more


async def test_what_passed_is_counted_while_it_goes_on(socket: pathlib.Path) -> None:
    async with running(socket) as (_, runtime, container):
        heard = Heard(runtime, container)
        assert heard.repeat() is not None
        await until(lambda: len(heard.passed) >= 2)
        assert heard.ended == []


async def test_more_are_due_together_than_are_begun_at_one_moment(socket: pathlib.Path) -> None:
    async with running(socket) as (service, runtime, container):
        all_heard = [Heard(runtime, container) for _ in range(30)]
        for heard in all_heard:
            assert heard.repeat(after=0.1, period=100) is not None
        await until(lambda: all(heard.passed for heard in all_heard))
        assert all(len(heard.passed) == 1 and not heard.ended for heard in all_heard)
        assert service.calls["ExecSync"] == 32


async def test_who_hears_of_one_has_it_repeated_again(socket: pathlib.Path) -> None:
    """Of several that end at the same moment, each its own."""
    codes = {"exit": 0}

    def run(container: object, command: object) -> ExecOutcome:
        return ExecOutcome(codes["exit"])

    async with running(socket, exec_script=run) as (_, runtime, container):
        passed, ended = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)

        def repeat(name: str, due: float) -> None:
            def has_passed(seconds: float) -> None:
                passed[name] += 1

            def has_ended(found: object, began: float) -> None:
                ended[name] += 1
                codes["exit"] = 0
                repeat(name, began + 0.25)

            command = ["true"]
            found = runtime.repeat_exec(container, command, 5, due, 0.25, has_passed, has_ended)
            assert found is not None

        due = math.ceil(trio.current_time() + 0.1)
        for name in passed:
            repeat(name, due)
        codes["exit"] = 1
        await until(lambda: ended == {"a": 1, "b": 1, "c": 1})
        await until(lambda: all(count >= 2 for count in passed.values()))
        assert ended == {"a": 1, "b": 1, "c": 1}


async def test_what_has_gone_or_hangs_is_told(socket: pathlib.Path) -> None:
    hang = Fault(Kind.HANG, "ExecSync", count=1)
    async with running(socket, request_timeout=2) as (service, runtime, container):
        gone = Heard(runtime, "none")
        gone.repeat()
        await until(lambda: bool(gone.ended))
        assert isinstance(gone.ended[0], NotFound)
        assert gone.ended[0].method == "ExecSync"
        made = service.calls["ExecSync"]
        service.faults.add(hang)
        slow, quick = Heard(runtime, container), Heard(runtime, container)
        slow.repeat(timeout=1)
        await until(lambda: service.calls["ExecSync"] > made)
        quick.repeat()  # does not wait for the other
        await until(lambda: bool(quick.passed))
        assert slow.ended == []
        await until(lambda: bool(slow.ended))
        assert isinstance(slow.ended[0], DeadlineExceeded)
        assert trio.current_time() - slow.began[0] >= 3
        assert quick.ended == []


async def test_a_runtime_that_goes_away_and_comes_back(socket: pathlib.Path) -> None:
    async with connected(socket, direct=True) as (runtime, _):
        heard = Heard(runtime, "c")
        assert heard.repeat() is not None
        await until(lambda: heard.ended == [None])  # it has to be tried in another way
        async with served(socket, Fault(Kind.HANG, "ExecSync", count=1)) as service:
            assert heard.repeat() is not None
            await until(lambda: service.calls.get("ExecSync") == 1)
        await until(lambda: len(heard.ended) == 2)
        assert isinstance(heard.ended[1], Unavailable)
        async with served(socket) as service:
            Population(service.runtime).add_pods(1, 1, 1)
            (container,) = service.runtime.containers
            again = Heard(runtime, container)
            assert again.repeat() is not None
            await until(lambda: again.ended == [SILENT])


async def test_one_that_is_stopped(socket: pathlib.Path) -> None:
    async with running(socket, Fault(Kind.SLOW, "ExecSync", seconds=0.3)) as (service, runtime, container):
        heard = Heard(runtime, container)
        due = trio.current_time() + 5
        repeat = heard.repeat(after=5)
        assert repeat is not None
        found = repeat.stop()
        assert found is not None
        assert due <= found <= due + 1
        repeat = heard.repeat()
        assert repeat is not None
        await until(lambda: service.calls["ExecSync"] == 3)
        assert repeat.stop() is None
        await until(lambda: heard.ended == [SILENT])
        assert repeat.stop() is None
        await trio.sleep(0.5)
        assert service.calls["ExecSync"] == 3
        assert heard.passed == []


async def test_what_is_not_repeated(socket: pathlib.Path) -> None:
    """Large requests, and anything where calls are traced or go through grpclib."""

    class Span:
        metadata: Mapping[str, str] = {}

        def end(self, code: Code) -> None: ...

    async with connected(socket, direct=True) as (runtime, _):
        assert Heard(runtime, "c", ("x" * 5000,)).repeat() is None
    async with connected(socket, direct=False) as (runtime, _):
        assert Heard(runtime, "c").repeat() is None
    async with connected(socket, direct=True, begin_span=lambda method, socket: Span()) as (runtime, _):
        assert Heard(runtime, "c").repeat() is None


GOOD = [frame(1, 4, 1, HEADERS), frame(0, 0, 1, message(b"")), frame(1, 5, 1, TRAILERS)]
EXIT_3 = cri.ExecSyncResponse(stdout=b"o", exit_code=3).SerializeToString()
LARGE = cri.ExecSyncResponse(stdout=3000 * b"x").SerializeToString()


@pytest.mark.parametrize(
    ("frames", "found", "goes_on"),
    [
        (GOOD, SILENT, True),
        ([GOOD[0], frame(0, 0, 1, message(EXIT_3)), GOOD[2]], ExecResult(b"o", b"", 3), True),
        ([GOOD[0], frame(0, 0, 1, message(LARGE)), GOOD[2]], None, True),
        ([frame(3, 0, 1, (7).to_bytes(4))], Unavailable, True),
        ([frame(3, 0, 1, (2).to_bytes(4))], Internal, True),
        ([GOOD[0], GOOD[2]], Internal, True),  # no message
        ([GOOD[0], frame(0, 0, 1, b"\0\0\0\0\7x"), GOOD[2]], Internal, True),
        ([GOOD[0], frame(0, 0, 1, message(b"\x18")), GOOD[2]], Internal, True),  # not protobuf
        ([frame(5, 4, 1, bytes(4))], Unavailable, False),
        ([frame(0, 0, 1, message(b""))], Unavailable, False),  # data before headers
        ([frame(1, 4, 1, b"\xbe"), *GOOD[1:]], Unavailable, False),  # a table that it was told not to use
        ([b"\xff" * 100], Unavailable, False),
    ],
)
async def test_what_a_peer_may_answer(
    socket: pathlib.Path,
    frames: list[bytes],
    found: ExecResult | type[CRIError] | None,
    goes_on: bool,
) -> None:
    """Each end is told once. With one that breaks the rules nothing is repeated for a while."""
    async with peer(socket, answering(*frames), direct=True) as runtime:
        heard, other = Heard(runtime, "c"), Heard(runtime, "c")
        assert heard.repeat(timeout=1000) is not None
        assert other.repeat(after=3) is not None  # when the other has ended, on a busy machine too
        await until(lambda: bool(heard.ended))
        (ended,) = heard.ended
        if isinstance(found, type):
            assert isinstance(ended, found)
        else:
            assert ended == found
        assert (heard.repeat(after=1000) is not None) == goes_on
        if not goes_on:
            await until(lambda: other.ended == [None])


async def test_a_peer_that_closes(socket: pathlib.Path) -> None:
    async with peer(socket, closing, direct=True) as runtime:
        heard = Heard(runtime, "c")
        for number in range(3):
            assert heard.repeat() is not None
            await until(lambda: len(heard.ended) == number + 1)  # noqa: B023
            assert isinstance(heard.ended[-1], Unavailable)


async def test_the_end_of_the_agent_waits_for_nothing(socket: pathlib.Path) -> None:
    hang = Fault(Kind.HANG, "ExecSync", count=1)
    async with served(socket, hang) as service:
        with trio.fail_after(20):
            async with connected(socket, direct=True) as (runtime, _):
                heard = Heard(runtime, "c")
                assert heard.repeat(timeout=1000) is not None
                await until(lambda: service.calls.get("ExecSync") == 1)
        assert heard.ended == []

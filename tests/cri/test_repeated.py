"""Commands that are repeated, against a real gRPC server and against peers that misbehave."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import pytest
import trio
import trio.testing

from tests.cri.test_grpc import (
    HEADERS,
    TRAILERS,
    answering,
    closing,
    come,
    connected,
    frame,
    message,
    peer,
    served,
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

Clock = trio.testing.MockClock
SILENT = ExecResult(b"", b"", 0)


@pytest.fixture
def socket(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "cri.sock"


class Ended(NamedTuple):
    found: ExecResult | CRIError | None
    began: float


class Heard:
    """What is told of one command."""

    def __init__(self, runtime: RuntimeService, container: str, command: tuple[str, ...] = ("true",)) -> None:
        self.passed: list[float] = []
        self.ended: list[Ended] = []
        self._runtime, self._container, self._command = runtime, container, command

    def repeat(self, due: float, period: float = 10, timeout: float = 5) -> Repeat | None:
        def end(found: ExecResult | CRIError | None, began: float) -> None:
            self.ended.append(Ended(found, began))

        return self._runtime.repeat_exec(
            self._container, self._command, timeout, due, period, self.passed.append, end
        )


async def go(clock: Clock, seconds: float) -> None:
    await trio.testing.wait_all_tasks_blocked()
    clock.jump(seconds)
    await trio.testing.wait_all_tasks_blocked()


async def look(clock: Clock, service: SimService, calls: int) -> None:
    """Until so many commands have been run in all, and their answers were looked for."""
    await come(lambda: service.calls.get("ExecSync", 0) == calls)
    for _ in range(50):  # the answers' way through the socket
        await trio.testing.wait_all_tasks_blocked()
    await go(clock, 1 / 8)


async def first_answers(clock: Clock, service: SimService, runtime: RuntimeService, container: str) -> None:
    """How this runtime says that a call succeeded is learnt from what it says first, which is told. In the
    first answer of all it also says that it uses no table of headers.
    """
    heard = Heard(runtime, container)
    for number in (1, 2):
        assert heard.repeat(trio.current_time()) is not None
        await go(clock, 1 / 8)
        await look(clock, service, number)
    assert [ended.found for ended in heard.ended] == [SILENT] * 2
    assert heard.passed == []


async def test_a_command_is_repeated_until_it_fails(socket: pathlib.Path, still_clock: Clock) -> None:
    calls: list[tuple[str, Code]] = []
    codes: dict[str, int] = {}
    said = False

    def run(container: object, command: object) -> ExecOutcome:
        return ExecOutcome(codes.get("exit", 0), b"said\n" if said else b"")

    def hook(method: str, seconds: float, code: Code) -> None:
        if method == "ExecSync":
            calls.append((method, code))

    async with (
        served(socket, exec_script=run) as service,
        connected(socket, direct=True, on_call=hook) as (runtime, _),
    ):
        Population(service.runtime).add_pods(1, 1, 1)
        (container,) = service.runtime.containers
        await first_answers(still_clock, service, runtime, container)
        heard = Heard(runtime, container)
        began, said = trio.current_time() + 1, True
        assert heard.repeat(began) is not None
        await go(still_clock, 1)
        for number in range(5):
            await look(still_clock, service, 3 + number)
            assert heard.ended == []
            await go(still_clock, 10 - 1 / 8)  # the phase stays
        await look(still_clock, service, 8)
        codes["exit"] = 3
        await go(still_clock, 10 - 1 / 8)
        await look(still_clock, service, 9)
        assert [ended.found for ended in heard.ended] == [ExecResult(b"said\n", b"", 3)]
        assert heard.ended[0].began == pytest.approx(began + 60)
        assert heard.passed == pytest.approx([1 / 8] * 6)
        await go(still_clock, 20)
        assert service.calls["ExecSync"] == 9  # no more
        assert calls == [("ExecSync", Code.OK)] * 9
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline > 10  # nothing is looked for


async def test_those_that_are_due_together_are_run_a_few_at_a_time(
    socket: pathlib.Path, still_clock: Clock
) -> None:
    async with served(socket) as service, connected(socket, direct=True) as (runtime, _):
        Population(service.runtime).add_pods(1, 1, 1)
        (container,) = service.runtime.containers
        await first_answers(still_clock, service, runtime, container)
        all_heard = [Heard(runtime, container) for _ in range(30)]
        for heard in all_heard:
            assert heard.repeat(trio.current_time() + 1) is not None
        await go(still_clock, 1)
        await look(still_clock, service, 16)
        await look(still_clock, service, 30)
        await look(still_clock, service, 32)
        await go(still_clock, 2)
        assert all(len(heard.passed) == 1 and not heard.ended for heard in all_heard)


async def test_who_hears_of_one_has_it_repeated_again(socket: pathlib.Path, still_clock: Clock) -> None:
    """Of several that end at the same moment, each its own."""
    async with served(socket) as service, connected(socket, direct=True) as (runtime, _):
        Population(service.runtime).add_pods(1, 1, 1)
        (container,) = service.runtime.containers
        passed = dict.fromkeys("abc", 0)
        ended: list[str] = []

        def repeat(name: str, due: float) -> None:
            def has_passed(seconds: float) -> None:
                passed[name] += 1

            def has_ended(found: object, began: float) -> None:
                ended.append(name)
                repeat(name, began + 1)

            assert runtime.repeat_exec(container, ["true"], 5, due, 1, has_passed, has_ended) is not None

        for name in passed:
            repeat(name, 1)
        await go(still_clock, 1 / 8)
        for number in range(1, 6):
            await go(still_clock, 7 / 8)
            await look(still_clock, service, 3 * number)
        await go(still_clock, 7 / 8)
        assert sorted(ended) == ["a", "b", "c"]  # which told what success is
        assert passed == {"a": 4, "b": 4, "c": 4}


async def test_what_has_gone_or_hangs_is_told(socket: pathlib.Path, still_clock: Clock) -> None:
    hang = Fault(Kind.HANG, "ExecSync", count=1)
    options = {"direct": True, "request_timeout": 10}
    async with served(socket) as service, connected(socket, **options) as (runtime, _):
        Population(service.runtime).add_pods(1, 1, 1)
        (container,) = service.runtime.containers
        await first_answers(still_clock, service, runtime, container)
        gone = Heard(runtime, "none")
        gone.repeat(trio.current_time())
        await go(still_clock, 1 / 8)
        await look(still_clock, service, 3)
        assert isinstance(gone.ended[0].found, NotFound)
        assert gone.ended[0].found.method == "ExecSync"
        service.faults.add(hang)
        slow, quick = Heard(runtime, container), Heard(runtime, container)
        slow.repeat(trio.current_time(), timeout=5)
        await go(still_clock, 1 / 8)
        await come(lambda: service.calls.get("ExecSync") == 4)
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline <= 1 / 8
        await go(still_clock, 1 / 8)
        assert 1 / 8 < trio.lowlevel.current_statistics().seconds_to_next_deadline <= 1 / 4
        quick.repeat(trio.current_time())  # does not wait for the other
        await go(still_clock, 1 / 8)
        await look(still_clock, service, 5)
        await go(still_clock, 2)
        assert quick.passed
        assert slow.ended == []
        await go(still_clock, 20)
        assert isinstance(slow.ended[0].found, DeadlineExceeded)


async def test_a_runtime_that_goes_away_and_comes_back(socket: pathlib.Path, still_clock: Clock) -> None:
    async with connected(socket, direct=True) as (runtime, _):
        heard = Heard(runtime, "c")
        assert heard.repeat(trio.current_time()) is not None
        await go(still_clock, 1 / 8)
        assert heard.ended == [Ended(None, trio.current_time())]  # it has to be tried in another way
        async with served(socket, Fault(Kind.HANG, "ExecSync", count=1)) as service:
            assert heard.repeat(trio.current_time()) is not None
            await go(still_clock, 1 / 8)
            await come(lambda: service.calls.get("ExecSync") == 1)
        await go(still_clock, 1 / 8)
        assert isinstance(heard.ended[1].found, Unavailable)
        async with served(socket) as service:
            Population(service.runtime).add_pods(1, 1, 1)
            (container,) = service.runtime.containers
            await first_answers(still_clock, service, runtime, container)


async def test_one_that_is_stopped(socket: pathlib.Path, still_clock: Clock) -> None:
    async with served(socket) as service, connected(socket, direct=True) as (runtime, _):
        Population(service.runtime).add_pods(1, 1, 1)
        (container,) = service.runtime.containers
        await first_answers(still_clock, service, runtime, container)
        heard = Heard(runtime, container)
        due = trio.current_time() + 3
        repeat = heard.repeat(due)
        assert repeat is not None
        assert repeat.stop() == due
        await go(still_clock, 20)
        assert service.calls["ExecSync"] == 2
        repeat = heard.repeat(trio.current_time())
        await trio.testing.wait_all_tasks_blocked()
        assert repeat is not None
        assert repeat.stop() is None
        await look(still_clock, service, 3)
        assert [ended.found for ended in heard.ended] == [SILENT]
        await go(still_clock, 20)
        assert service.calls["ExecSync"] == 3
        assert heard.passed == []


async def test_what_is_not_repeated(socket: pathlib.Path, still_clock: Clock) -> None:
    """Large requests, and anything where calls are traced or go through grpclib."""

    class Span:
        metadata: Mapping[str, str] = {}

        def end(self, code: Code) -> None: ...

    async with connected(socket, direct=True) as (runtime, _):
        assert Heard(runtime, "c", ("x" * 5000,)).repeat(0) is None
    async with connected(socket, direct=False) as (runtime, _):
        assert Heard(runtime, "c").repeat(0) is None
    async with connected(socket, direct=True, begin_span=lambda method: Span()) as (runtime, _):
        assert Heard(runtime, "c").repeat(0) is None


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
    still_clock: Clock,
    frames: list[bytes],
    found: ExecResult | type[CRIError] | None,
    goes_on: bool,
) -> None:
    """Each end is told once. With one that breaks the rules nothing is repeated for a minute."""
    async with peer(socket, answering(*frames), direct=True) as runtime:
        heard = Heard(runtime, "c")
        assert heard.repeat(trio.current_time(), timeout=1000) is not None
        await go(still_clock, 1 / 8)
        for _ in range(20):
            await go(still_clock, 1 / 8)
            if heard.ended:
                break
        (ended,) = heard.ended
        if isinstance(found, type):
            assert isinstance(ended.found, found)
        else:
            assert ended.found == found
        repeat = heard.repeat(trio.current_time() + 1000)
        assert (repeat is not None) == goes_on
        if not goes_on:
            await go(still_clock, 61)
            assert heard.repeat(trio.current_time() + 1000) is not None


async def test_a_peer_that_closes(socket: pathlib.Path, still_clock: Clock) -> None:
    async with peer(socket, closing, direct=True) as runtime:
        heard = Heard(runtime, "c")
        for number in range(3):
            assert heard.repeat(trio.current_time()) is not None
            for _ in range(20):
                await go(still_clock, 1 / 8)
            assert len(heard.ended) == number + 1
            assert isinstance(heard.ended[-1].found, Unavailable)

"""The CRI client against a real gRPC server on a unix socket, and against peers that misbehave."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from google.protobuf.message import Message

from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.connect import CRIServices, open_cri
from trio_kubelet.cri.doors import EVERYTHING_DIRTY, ContainerEvent, ExecResult
from trio_kubelet.cri.errors import (
    CRIError,
    DeadlineExceeded,
    Internal,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from trio_kubelet.cri.event_queue import EventQueue
from trio_kubelet.cri.grpc import GrpcCaller
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.grpc.errors import Code
from trio_kubelet.grpc.loop import open_asyncio_loop
from trio_kubelet.sim.door import SimCaller
from trio_kubelet.sim.faults import Fault, Faults, Kind
from trio_kubelet.sim.populate import Population, sandbox_config
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.server import serve
from trio_kubelet.sim.service import SimService


@contextlib.asynccontextmanager
async def served(path: pathlib.Path, *faults: Fault, **options: Any) -> AsyncIterator[SimService]:
    service = SimService(SimRuntime(), SystemClock(), faults=Faults(list(faults)), **options)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            async with serve(service, str(path)):
                yield service
            nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def connected(path: pathlib.Path, **options: Any) -> AsyncIterator[CRIServices]:
    with trio.fail_after(120):
        async with open_cri(f"unix://{path}", **options) as services:
            yield services


@pytest.fixture
def socket(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "cri.sock"


@pytest.fixture(params=[False, True], ids=["grpclib", "direct"])
def direct(request: pytest.FixtureRequest) -> bool:
    """Both ways for calls."""
    return bool(request.param)


async def test_calls_errors_and_the_latency_hook(socket: pathlib.Path, direct: bool) -> None:
    calls: list[tuple[str, Code]] = []

    def hook(method: str, seconds: float, code: Code) -> None:
        assert 0 < seconds < 5
        calls.append((method, code))

    async with served(socket), connected(socket, on_call=hook, direct=direct) as (runtime, images):
        version = await runtime.version()
        assert version.runtime_api_version == "v1"
        sandbox_id = await runtime.run_pod_sandbox(sandbox_config(1, "u1"))
        status = (await runtime.pod_sandbox_status(sandbox_id)).status
        assert status.labels["io.kubernetes.pod.uid"] == "u1"
        with pytest.raises(NotFound, match="code = NotFound desc = an error occurred") as caught:
            await runtime.container_status("nope")
        assert caught.value.method == "ContainerStatus"
        assert len(await images.list_images()) == 1
        assert await runtime.list_pod_sandboxes() != []
    assert calls == [
        ("Version", Code.OK),
        ("RunPodSandbox", Code.OK),
        ("PodSandboxStatus", Code.OK),
        ("ContainerStatus", Code.NOT_FOUND),
        ("StreamImages", Code.OK),
        ("StreamPodSandboxes", Code.OK),
    ]


async def test_a_bare_path_is_an_endpoint_too(socket: pathlib.Path) -> None:
    async with served(socket), open_cri(str(socket)) as (runtime, _):
        assert (await runtime.version()).version


async def test_a_runtime_that_is_not_there(socket: pathlib.Path, direct: bool) -> None:
    async with connected(socket, direct=direct) as (runtime, images):
        for call in (runtime.version, runtime.list_containers_raw, images.list_images):
            with pytest.raises(
                Unavailable, match=r"dial unix .*/cri.sock: connect: no such file or directory"
            ):
                await call()
        with pytest.raises(Unavailable, match="no such file"):
            async with runtime.container_events():
                pytest.fail("there is no runtime to open a stream to")


async def test_a_hung_call_ends_at_its_deadline_and_leaves_no_stream(
    socket: pathlib.Path, direct: bool
) -> None:
    hang = Fault(Kind.HANG, "Version", count=2)
    async with served(socket, hang) as service, open_asyncio_loop() as loop:
        caller = GrpcCaller(loop, str(socket), direct=direct)
        await RuntimeService(caller).status()  # there is a connection: the call gets through in its time
        runtime = RuntimeService(caller, request_timeout=1)
        with pytest.raises(DeadlineExceeded, match="context deadline exceeded"):
            await runtime.version()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(RuntimeService(caller).version)
            await until(lambda: service.calls.get("Version") == 2)
            nursery.cancel_scope.cancel()
        await RuntimeService(caller).version()
        assert caller.open_streams() == 0
        caller.close()


async def test_the_client_connects_again_by_itself(socket: pathlib.Path, direct: bool) -> None:
    async with connected(socket, direct=direct) as (runtime, _):
        async with served(socket):
            await runtime.version()
            first = await runtime.list_containers_raw()
        with pytest.raises(Unavailable):
            await runtime.version()
        async with served(socket, unimplemented=frozenset({"StreamContainers"})):
            await runtime.version()
            assert await runtime.list_containers_raw() == [b""]
        assert first == []


async def test_a_runtime_that_restarts_drops_its_connections(socket: pathlib.Path, direct: bool) -> None:
    async with (
        served(socket) as service,
        connected(socket, direct=direct) as (runtime, _),
        trio.open_nursery() as nursery,
    ):
        Population(service.runtime).add_pods(1, 1, 1)
        service.faults.add(Fault(Kind.HANG, "Status"))

        async def interrupted() -> None:
            with pytest.raises(Unavailable):
                await runtime.status()

        nursery.start_soon(interrupted)
        await until(lambda: "Status" in service.calls)
        await service.restart(0.05)
        with trio.fail_after(60):
            while True:
                try:
                    found = await runtime.list_containers()
                    break
                except Unavailable:
                    await trio.sleep(0.02)
        assert len(found) == 1


@pytest.mark.parametrize("streaming", [True, False])
async def test_twenty_mebibytes(socket: pathlib.Path, streaming: bool, direct: bool) -> None:
    """KEP-5825: lists of a large node are beyond the 16 MiB at which clients give up; each way reads them."""
    options = {"use_streaming": streaming, "direct": direct}
    async with served(socket) as service, connected(socket, **options) as (runtime, _):
        pod = sandbox_config(1, "u")
        pod.annotations["big"] = "x" * (1 << 20)
        for number in range(20):
            pod.metadata.name = f"pod-{number}"
            service.runtime.run_sandbox(pod, "", 1)
        raw = b"".join(await runtime.list_pod_sandboxes_raw())
        assert len(raw) > 20 << 20
        assert raw == service.runtime.listed_sandboxes(cri.PodSandboxFilter())
        service.faults.add(Fault(Kind.HUGE, "ListContainers", size=20 << 20))
        assert await runtime.list_containers() == []


async def test_a_list_that_hangs_keeps_none_of_the_others_from_being_read(
    socket: pathlib.Path, direct: bool
) -> None:
    """As figures of containers do when one of them hangs, and the PLEG is not to wait for these."""
    hung = Fault(Kind.HANG, "ListContainerStats")
    async with served(socket, hung) as service, connected(socket, direct=direct) as (runtime, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.list_container_stats)
            await until(lambda: "ListContainerStats" in service.calls)
            for _ in range(3):
                with trio.fail_after(30):  # the figures are waited for for two minutes
                    assert await runtime.list_pod_sandboxes() == []
            nursery.cancel_scope.cancel()
        assert await runtime.list_containers() == []


class ShortMessages(SimCaller):
    """A runtime that sends no long messages, as containerd sends none above 16 MiB."""

    async def raw(self, method: str, request: Message, timeout: float) -> Sequence[bytes]:
        messages = await super().raw(method, request, timeout)
        if method == "ListContainers" and len(messages[0]) > 20_000:
            raise ResourceExhausted("grpc: trying to send message larger than max", method)
        return messages


async def test_a_list_of_containers_that_is_too_long_is_asked_for_by_sandbox() -> None:
    service = SimService(SimRuntime(), SystemClock())
    Population(service.runtime).add_pods(20, 10, 1)
    runtime = RuntimeService(ShortMessages(service), use_streaming=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        assert len({each.id for each in await runtime.list_containers()}) == 200
        state = cri.ContainerStateValue(state=cri.CONTAINER_EXITED)
        ended = await runtime.list_containers(cri.ContainerFilter(state=state))
        assert all(each.state == cri.CONTAINER_EXITED for each in ended)
        Population(service.runtime, seed=1).add_pods(1, 200, 1)  # a sandbox whose own list is too long
        with pytest.raises(ResourceExhausted):
            await runtime.list_containers()
        nursery.cancel_scope.cancel()


async def test_streaming_lists_come_in_batches(socket: pathlib.Path, direct: bool) -> None:
    async with served(socket) as service, connected(socket, direct=direct) as (runtime, _):
        Population(service.runtime).add_pods(21, 100, 1)
        messages = await runtime.list_containers_raw()
        assert [len(cri.ListContainersResponse.FromString(m).containers) for m in messages] == [
            1000,
            1000,
            100,
        ]
        service.unimplemented = frozenset({"StreamPodSandboxes"})
        for _ in range(2):
            assert len(await runtime.list_pod_sandboxes()) == 21


async def test_events_arrive_and_the_stream_can_be_left(socket: pathlib.Path, direct: bool) -> None:
    async with served(socket) as service, connected(socket, direct=direct) as (runtime, _):
        async with runtime.container_events() as events:
            await subscribed(service, 1)
            await runtime.run_pod_sandbox(sandbox_config(1, "u1"))
            found = [await anext(events), await anext(events)]
            assert [e.container_event_type for e in found if e is not EVERYTHING_DIRTY] == [0, 1]
            await runtime.version()
        await subscribed(service, 0)


async def until(holds: Callable[[], bool]) -> None:
    """Waits for something that a real socket brings about."""
    with trio.fail_after(60):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.005)


async def subscribed(service: SimService, streams: int) -> None:
    await until(lambda: service.events.subscribers == streams)


async def test_how_an_event_stream_ends(socket: pathlib.Path, direct: bool) -> None:
    async with served(socket) as service, connected(socket, direct=direct) as (runtime, _):
        async with runtime.container_events() as events:
            await subscribed(service, 1)
            service.events.end(None)
            assert [event async for event in events] == []
        async with runtime.container_events() as events:
            await subscribed(service, 1)
            service.events.end(Internal("broken"))
            with pytest.raises(Internal, match="broken"):
                await anext(events)
        async with runtime.container_events() as events:
            await subscribed(service, 1)
            await service.restart(0)
            with pytest.raises(Unavailable):
                await anext(events)
    async with (
        served(socket, unimplemented=frozenset({"GetContainerEvents"})),
        connected(socket, direct=direct) as (runtime, _),
        runtime.container_events() as events,
    ):
        with pytest.raises(Unimplemented):
            await anext(events)


async def test_a_slow_reader_of_events_gets_the_mark(socket: pathlib.Path, direct: bool) -> None:
    async with (
        served(socket) as service,
        connected(socket, direct=direct) as (runtime, _),
        runtime.container_events(capacity=3) as events,
    ):
        await subscribed(service, 1)
        assert isinstance(events, EventQueue)
        for number in range(5):
            service.runtime.run_sandbox(sandbox_config(number, f"u{number}"), "", 1)
        await until(lambda: events._lost)
        assert await anext(events) is EVERYTHING_DIRTY


async def test_many_calls_at_once(socket: pathlib.Path, direct: bool) -> None:
    async with (
        served(socket) as service,
        connected(socket, direct=direct) as (runtime, _),
        trio.open_nursery() as nursery,
    ):
        Population(service.runtime).add_pods(1, 300, 1)
        found = []

        async def look(container_id: str) -> None:
            found.append((await runtime.container_status(container_id)).status.id)

        for container_id in service.runtime.containers:
            nursery.start_soon(look, container_id)
        await until(lambda: len(found) == 300)
        assert sorted(found) == sorted(service.runtime.containers)


async def test_hung_calls_keep_no_other_from_being_made(socket: pathlib.Path) -> None:
    hang = Fault(Kind.HANG, "Version", count=300)
    async with served(socket, hang) as service, open_asyncio_loop() as loop:
        caller = GrpcCaller(loop, str(socket), direct=True)
        runtime = RuntimeService(caller)
        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(runtime.version)
            await until(lambda: service.calls.get("Version") == 300)
            assert caller.open_streams() == 300  # most of them on connections of their own
            with trio.fail_after(60):
                await runtime.status()
            nursery.cancel_scope.cancel()
        assert caller.open_streams() == 0
        caller.close()


async def test_each_call_has_its_own_deadline(socket: pathlib.Path, direct: bool) -> None:
    """One that is to end sooner than those before it does; the others go on."""
    hang = Fault(Kind.HANG, "Version", count=3)
    async with served(socket, hang) as service, open_asyncio_loop() as loop:
        caller = GrpcCaller(loop, str(socket), direct=direct)
        ended: list[float] = []

        async def version(timeout: float) -> None:
            with contextlib.suppress(DeadlineExceeded):
                await caller.unary("Version", cri.VersionRequest(), cri.VersionResponse, timeout)
            ended.append(timeout)

        async with trio.open_nursery() as nursery:
            for timeout in (90.0, 60.0):
                nursery.start_soon(version, timeout)
            await until(lambda: service.calls.get("Version") == 2)
            nursery.start_soon(version, SOON)
            await until(lambda: len(ended) > 0)
            assert ended == [SOON]
            assert caller.open_streams() == 2
            await RuntimeService(caller).status()
            nursery.cancel_scope.cancel()
        caller.close()


async def come(holds: Callable[[], bool]) -> None:
    """Waits for something that comes without the clock."""
    for _ in range(10**6):
        if holds():
            return
        await trio.lowlevel.checkpoint()
    pytest.fail("it does not come")


async def test_a_runtime_that_is_slow_to_accept_connections(socket: pathlib.Path) -> None:
    """While no more may wait for it nobody is refused: who waits for an answer waits for his turn, too."""
    answer = one_after_the_other(*20 * [(HEADERS, TRAILERS)])
    found = list[str]()

    async def ask(runtime: RuntimeService) -> None:
        found.append((await runtime.version()).runtime_name)

    async with peer(socket, answer, direct=True, accepting=(accept := trio.Event())) as runtime:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask, runtime)
            await trio.testing.wait_all_tasks_blocked()
            assert found == []
            accept.set()
        assert found == 20 * ["n"]


async def test_no_more_of_a_large_answer_than_will_do(socket: pathlib.Path) -> None:
    output = message(cri.ExecSyncResponse(stdout=5_000_000 * b"x", exit_code=3).SerializeToString())
    pieces = [output[at : at + 500_000] for at in range(0, len(output), 500_000)]
    async with peer(socket, one_by_one(pieces), direct=True) as runtime:
        found = await runtime.exec_sync("c", ["flood"], 5, enough=100)
    assert found == ExecResult(100 * b"x", b"", 3)


async def test_large_requests(socket: pathlib.Path, direct: bool) -> None:
    async with served(socket) as service, connected(socket, direct=direct) as (runtime, _):
        for size in (10_000, 16_000, 20_000, 300_000):
            config = sandbox_config(size, f"u{size}")
            config.annotations["large"] = size * "x"
            sandbox_id = await runtime.run_pod_sandbox(config)
            assert service.runtime.sandboxes[sandbox_id].config.annotations["large"] == size * "x"


async def test_a_runtime_reads_as_much_as_it_is_sent(socket: pathlib.Path) -> None:
    """More than a peer's window in all, over one connection."""
    async with served(socket), open_asyncio_loop() as loop:
        caller = GrpcCaller(loop, str(socket), direct=True)
        for number in range(20):
            config = sandbox_config(number, f"u{number}")
            config.annotations["large"] = 12_000 * "x"
            await RuntimeService(caller).run_pod_sandbox(config)
        caller.close()


# Peers that break the rules

Script = Callable[[trio.SocketStream], Awaitable[None]]


@contextlib.asynccontextmanager
async def peer(
    path: pathlib.Path,
    script: Script,
    direct: bool = False,
    deadline: float = 60.0,
    accepting: trio.Event | None = None,
) -> AsyncIterator[RuntimeService]:
    """A client with a deadline for each call, connected to a peer that follows a script, once it accepts."""
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listener.bind(str(path))
    listener.listen(5)

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError):
                await script(stream)

    async def accept() -> None:
        if accepting is not None:
            await accepting.wait()
        await trio.serve_listeners(answer, [trio.SocketListener(listener)])

    async with trio.open_nursery() as nursery, open_asyncio_loop() as loop:
        nursery.start_soon(accept)
        caller = GrpcCaller(loop, str(path), direct=direct)
        try:
            yield RuntimeService(caller, request_timeout=deadline, use_streaming=False)
        finally:
            caller.close()
            nursery.cancel_scope.cancel()


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


SOON = 0.25
"""A deadline that is waited for."""

SETTINGS = frame(4, 0, 0)
# HPACK without indexing: the headers of an answer, its status, and one of a status that is no number.
HEADERS = b"\x88\x00\x0ccontent-type\x10application/grpc"
TRAILERS = b"\x00\x0bgrpc-status\x010"
ODD_TRAILERS = b"\x00\x0bgrpc-status\x03odd"


def message(data: bytes, flag: int = 0, claimed: int | None = None) -> bytes:
    return bytes([flag]) + (len(data) if claimed is None else claimed).to_bytes(4) + data


VERSION = cri.VersionResponse(
    version="1", runtime_name="n", runtime_version="1", runtime_api_version="v1"
).SerializeToString()


def has_request(said: bytes) -> bool:
    """Whether one of a client's frames, behind its 24 bytes of preface, ends a request."""
    at = 24
    while at + 9 <= len(said):
        end = at + 9 + int.from_bytes(said[at : at + 3])
        if said[at + 3] in (0, 1) and said[at + 4] & 1 and end <= len(said):
            return True
        at = end
    return False


def answering(*frames: bytes) -> Script:
    """Reads a request to its end, sends frames, and then reads on without a word."""

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SETTINGS)
        said = b""
        while not has_request(said):
            data = await stream.receive_some(65536)
            if not data:
                return
            said += data
        await stream.send_all(b"".join(frames))
        while await stream.receive_some(65536):
            pass

    return script


async def closing(stream: trio.SocketStream) -> None:
    await stream.receive_some(65536)


async def silent(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def test_the_frames_of_these_tests_make_a_good_answer(socket: pathlib.Path, direct: bool) -> None:
    good = answering(frame(1, 4, 1, HEADERS), frame(0, 0, 1, message(VERSION)), frame(1, 5, 1, TRAILERS))
    async with peer(socket, good, direct) as runtime:
        assert (await runtime.version()).runtime_name == "n"


def one_after_the_other(*blocks: tuple[bytes, bytes]) -> Script:
    """Answers as many requests of one connection, each with such headers and trailers."""

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SETTINGS)
        said, at, asked = b"", 24, 0
        while asked < len(blocks):
            data = await stream.receive_some(65536)
            if not data:
                return
            said += data
            while at + 9 <= len(said) and (end := at + 9 + int.from_bytes(said[at : at + 3])) <= len(said):
                if said[at + 3] == 0 and said[at + 4] & 1:
                    number = int.from_bytes(said[at + 5 : at + 9])
                    headers, trailers = blocks[asked]
                    told = frame(0, 0, number, message(VERSION)) + frame(1, 5, number, trailers)
                    await stream.send_all(frame(1, 4, number, headers) + told)
                    asked += 1
                at = end
        await trio.sleep_forever()

    return script


# HPACK with a table: fields that are added to it, the newest being number 62, and what is found there.
ADD_TYPE = b"\x88\x40\x0ccontent-type\x10application/grpc"
ADD_OK, ADD_NOT_FOUND, NEWEST = b"\x40\x0bgrpc-status\x010", b"\x40\x0bgrpc-status\x015", b"\xbe"
SECOND, THIRD = b"\x88\xbf", b"\x88\xc0"


async def test_a_known_block_of_headers_is_read_by_the_table_of_the_moment(
    socket: pathlib.Path, direct: bool
) -> None:
    script = one_after_the_other(
        *((ADD_TYPE, ADD_OK), (SECOND, NEWEST), (SECOND, NEWEST)),
        *((SECOND, ADD_NOT_FOUND), (THIRD, NEWEST), (THIRD, NEWEST)),
    )
    async with peer(socket, script, direct) as runtime:
        for found in (True, True, True, False, False, False):
            if found:
                assert (await runtime.version()).runtime_name == "n"
            else:
                with pytest.raises(NotFound):
                    await runtime.version()


# A message that is no protobuf message; a raw list does not look into it.
undecodable = answering(
    frame(1, 4, 1, HEADERS), frame(0, 0, 1, message(b"\xff\xff")), frame(1, 5, 1, TRAILERS)
)

HOSTILE: list[tuple[Script, type[CRIError]]] = [
    (silent, DeadlineExceeded),
    (closing, Unavailable),
    (answering(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9), CRIError),
    (answering(frame(1, 4, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff")), Unavailable),
    (answering(frame(7, 0, 0, bytes(8))), Unavailable),
    (answering(frame(3, 0, 1, (8).to_bytes(4))), Internal),
    (answering(frame(3, 0, 1, (7).to_bytes(4))), Unavailable),
    (answering(frame(0, 0, 1, message(VERSION))), Unavailable),
    (answering(frame(1, 4, 1, b"\x88"), frame(1, 5, 1, TRAILERS)), CRIError),
    (answering(frame(1, 4, 1, HEADERS), frame(1, 5, 1, TRAILERS)), Internal),
    (answering(frame(1, 4, 1, HEADERS), frame(1, 5, 1, ODD_TRAILERS)), CRIError),
    (answering(frame(1, 4, 1, HEADERS), frame(0, 1, 1, message(VERSION)[:-3])), CRIError),
    (answering(frame(1, 4, 1, HEADERS), frame(0, 0, 1, message(VERSION, flag=1))), Internal),
    (undecodable, Internal),
    (answering(frame(1, 4, 1, HEADERS), frame(0, 0, 1, message(b"", claimed=1 << 31))), CRIError),
    (answering(frame(5, 4, 1, bytes(4) + HEADERS)), Unavailable),
    (answering(frame(99, 0, 0, b"what")), DeadlineExceeded),
]


@pytest.mark.parametrize(("script", "error"), HOSTILE)
async def test_hostile_peers_end_in_an_error_by_the_deadline(
    socket: pathlib.Path, script: Script, error: type[CRIError], direct: bool
) -> None:
    # Some peers let a call run into its deadline; an error of another kind comes before that.
    deadline = SOON if error in (DeadlineExceeded, CRIError) else 60.0
    async with peer(socket, script, direct, deadline) as runtime:
        with trio.fail_after(90), pytest.raises(error):
            await runtime.version()


@pytest.mark.parametrize("script", [script for script, _ in HOSTILE if script is not undecodable])
async def test_lists_from_hostile_peers_do_so_too(socket: pathlib.Path, script: Script, direct: bool) -> None:
    async with peer(socket, script, direct, SOON) as runtime:
        for _ in range(2):
            with trio.fail_after(60), pytest.raises(CRIError):
                await runtime.list_containers_raw()


async def test_a_list_in_awkward_frames(socket: pathlib.Path, direct: bool) -> None:
    """Padding, single bytes, headers in pieces, pings and settings in between."""
    data = message(b"\x0a\x03abc" * 50)
    awkward = [frame(1, 0, 1, HEADERS[:7]), frame(9, 4, 1, HEADERS[7:]), frame(6, 0, 0, bytes(8))]
    awkward += [frame(0, 0, 1, data[i : i + 1]) for i in range(7)]
    awkward += [frame(0, 8, 1, b"\x04" + data[7:20] + bytes(4)), SETTINGS]
    awkward += [frame(0, 0, 1)] if direct else []  # grpclib takes an empty frame for the end
    awkward += [frame(0, 0, 1, data[20:]), frame(99, 0, 0, b"?"), frame(1, 5, 1, TRAILERS)]
    async with peer(socket, answering(*awkward), direct) as runtime:
        assert await runtime.list_containers_raw() == [b"\x0a\x03abc" * 50]


def one_by_one(*answers: list[bytes], said: list[bytes] | None = None) -> Script:
    """Answers one request after the other with these pieces, and keeps in `said` what came before each."""

    async def script(stream: trio.SocketStream) -> None:
        for number, pieces in enumerate(answers):
            heard = bytes(24 if number else 0)  # where the first has the preface
            while not has_request(heard):
                heard += await stream.receive_some(65536)
            if said is not None:
                said.append(heard)
            stream_id = 2 * number + 1
            data = [frame(0, 0, stream_id, piece) for piece in pieces]
            answer = [SETTINGS, frame(1, 4, stream_id, HEADERS), *data, frame(1, 5, stream_id, TRAILERS)]
            await stream.send_all(b"".join(answer))
        while await stream.receive_some(65536):
            pass

    return script


async def test_the_room_that_answers_took_is_given_back_by_the_mebibyte(socket: pathlib.Path) -> None:
    large = cri.VersionResponse.FromString(VERSION)
    large.runtime_name = 1_100_000 * "n"
    data = message(large.SerializeToString())
    half, said = len(data) // 2, list[bytes]()
    answers = [message(VERSION)], [data[:half], data[half:]], [message(VERSION)]
    async with peer(socket, one_by_one(*answers, said=said), direct=True) as runtime:
        for _ in answers:
            await runtime.version()
    owed = frame(8, 0, 0, (len(message(VERSION)) + len(data)).to_bytes(4))
    assert [owed in each for each in said] == [False, False, True]
    assert [kind for kind, *_ in frames_of(said[1])].count(8) == 0


async def test_what_the_runtime_says_of_an_error(socket: pathlib.Path, direct: bool) -> None:
    said = b"\x00\x0bgrpc-status\x015\x00\x0cgrpc-message\x0cno%20such%3F"
    async with peer(socket, answering(frame(1, 5, 1, HEADERS + said)), direct) as runtime:
        with pytest.raises(NotFound, match=r"desc = no such\?"):
            await runtime.list_containers_raw()


# An event stream, which goes on

EVENT = cri.ContainerEventResponse(container_id="c1").SerializeToString()
PADDED_EVENT = cri.ContainerEventResponse(container_id=1_000_000 * "x").SerializeToString()


def frames_of(said: bytes) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of a client's frames, behind its preface."""
    found, at = [], 24
    while at + 9 <= len(said) and (end := at + 9 + int.from_bytes(said[at : at + 3])) <= len(said):
        found.append((said[at + 3], said[at + 4], int.from_bytes(said[at + 5 : at + 9]), said[at + 9 : end]))
        at = end
    return found


async def test_while_events_go_on_the_runtime_is_answered(socket: pathlib.Path) -> None:
    """It asks whether somebody is there, and waits for room after so many bytes."""
    said = bytearray()

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SETTINGS)
        while not has_request(bytes(said)):
            said.extend(await stream.receive_some(65536))
        await stream.send_all(frame(1, 4, 1, HEADERS) + frame(6, 0, 0, b"anybody?"))
        for event in (EVENT, PADDED_EVENT, PADDED_EVENT, EVENT):
            told = message(event)
            for at in range(0, len(told), 16000):
                await stream.send_all(frame(0, 0, 1, told[at : at + 16000]))
        async for data in stream:
            said.extend(data)

    async with peer(socket, script, direct=True) as runtime, runtime.container_events() as events:
        sizes = [len(event.container_id) async for event in _first(events, 4)]
        assert sizes == [2, 1_000_000, 1_000_000, 2]
        await until(
            lambda: sum(kind == 8 and stream == 1 for kind, _, stream, _ in frames_of(bytes(said))) > 0
        )
    frames = frames_of(bytes(said))
    assert (6, 1, 0, b"anybody?") in frames
    assert (4, 1, 0, b"") in frames
    whole = [int.from_bytes(payload) for kind, _, stream, payload in frames if kind == 8 and stream == 0]
    own = [int.from_bytes(payload) for kind, _, stream, payload in frames if kind == 8 and stream == 1]
    assert whole[1:] == own
    assert all(1 << 20 <= size < 3 << 20 for size in own)


async def _first(
    events: AsyncIterator[ContainerEvent], count: int
) -> AsyncIterator[cri.ContainerEventResponse]:
    for _ in range(count):
        event = await anext(events)
        assert event is not EVERYTHING_DIRTY
        yield event


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (undecodable, Internal),
        (
            answering(
                frame(1, 4, 1, HEADERS), frame(0, 0, 1, message(EVENT)), frame(3, 0, 1, (8).to_bytes(4))
            ),
            Internal,
        ),
        (answering(frame(1, 4, 1, HEADERS), frame(7, 0, 0, bytes(8))), Unavailable),
        (closing, Unavailable),
        (answering(frame(1, 4, 1, HEADERS), frame(0, 0, 1, message(EVENT, 1))), Internal),
    ],
    ids=["undecodable", "reset", "going away", "closed", "compressed"],
)
async def test_whatever_a_runtime_sends_as_events_ends_the_stream(
    socket: pathlib.Path, script: Script, error: type[CRIError]
) -> None:
    async with peer(socket, script, direct=True) as runtime:
        with pytest.raises(ExceptionGroup) as caught:
            await _hear(runtime)
        assert caught.group_contains(error)


async def _hear(runtime: RuntimeService) -> None:
    async with runtime.container_events() as events:
        async for _ in events:
            pass

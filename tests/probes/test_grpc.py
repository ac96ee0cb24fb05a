"""gRPC probes, against a server of another implementation."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.server import Server
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.observed.probes import Outcome, Verdict
from trio_kubelet.probes.grpc import encode_request, probe_grpc

LONG = "long-" * 40  # its length takes two bytes


class Health:
    """Answers by the service's name, and keeps what it was asked."""

    def __init__(self) -> None:
        self.agents: list[object] = []

    async def check(self, stream: Any) -> None:
        request = await stream.recv_message()
        self.agents.append(stream.user_agent)
        match request.service:
            case service if service in ("", "well", LONG):
                await stream.send_message(HealthCheckResponse(status=HealthCheckResponse.SERVING))
            case "unwell":
                await stream.send_message(HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING))
            case "silent":
                await asyncio.sleep(60)
            case "missing":
                raise GRPCError(Status.UNIMPLEMENTED, "no such thing")
            case _:
                raise GRPCError(Status.NOT_FOUND, "unknown service")

    def __mapping__(self) -> dict[str, Handler]:
        handler = Handler(self.check, Cardinality.UNARY_UNARY, HealthCheckRequest, HealthCheckResponse)
        return {"/grpc.health.v1.Health/Check": handler}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, Health]]:
    """A port where the service answers, and the service."""
    # Plainly asyncio's own loop: trio-asyncio, once imported, has `new_event_loop` make another kind.
    health, loop, listener = Health(), asyncio.SelectorEventLoop(), socket.create_server(("127.0.0.1", 0))

    async def start() -> Server:
        started = Server([health])
        await started.start(sock=listener)
        return started

    async def stop() -> None:
        running.close()
        await running.wait_closed()

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        running = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        yield listener.getsockname()[1], health
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ("", Outcome(Verdict.SUCCESS, "service healthy")),
        ("well", Outcome(Verdict.SUCCESS, "service healthy")),
        (LONG, Outcome(Verdict.SUCCESS, "service healthy")),
        ("unwell", Outcome(Verdict.FAILURE, 'service unhealthy (responded with "NOT_SERVING")')),
        (
            "other",
            Outcome(
                Verdict.FAILURE,
                "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
            ),
        ),
    ],
)
async def test_what_the_service_says(server: tuple[int, Health], service: str, expected: Outcome) -> None:
    port, health = server
    assert await probe_grpc("127.0.0.1", port, service, 10) == expected
    assert health.agents[-1] == "kube-probe/1.36"


async def test_a_server_without_the_health_service(server: tuple[int, Health]) -> None:
    outcome = await probe_grpc("127.0.0.1", server[0], "missing", 10)
    assert outcome.verdict is Verdict.FAILURE
    assert outcome.output.startswith("error: this server does not implement the grpc health protocol")


async def test_a_service_that_does_not_answer(server: tuple[int, Health]) -> None:
    outcome = await probe_grpc("127.0.0.1", server[0], "silent", 1.5)
    assert outcome == Outcome(Verdict.FAILURE, "timeout: health rpc did not complete within 1.5s")


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    outcome = await probe_grpc("127.0.0.1", port, "", 1)
    assert outcome.verdict is Verdict.FAILURE
    assert outcome.output.startswith(f'timeout: failed to connect service "127.0.0.1:{port}" within 1s')


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 40])
async def test_a_server_of_something_else(answer: bytes) -> None:
    async def talk(stream: trio.SocketStream) -> None:
        await stream.receive_some(1000)
        if answer:
            await stream.send_all(answer)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, talk, 0, host="127.0.0.1"))
        outcome = await probe_grpc("127.0.0.1", listener.socket.getsockname()[1], "", 5)
        nursery.cancel_scope.cancel()
    assert outcome.verdict is Verdict.FAILURE
    assert outcome.output.startswith('timeout: failed to connect service "127.0.0.1:')
    assert outcome.output.endswith(" within 5s: context deadline exceeded")


@given(st.text(max_size=300))
def test_requests_are_what_protobuf_makes_of_them(service: str) -> None:
    message = HealthCheckRequest(service=service).SerializeToString()
    assert encode_request(service) == b"\0" + len(message).to_bytes(4, "big") + message


def _http2(kind: int, stream: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


SETTINGS = _http2(4)


async def _asked(*fields: tuple[str, str]) -> Outcome:
    """What a probe finds whose server answers with these headers and nothing else."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(SETTINGS + _http2(1, 1, Encoder().encode(fields), 5))
        await stream.receive_some(1000)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        outcome = await probe_grpc("127.0.0.1", listener.socket.getsockname()[1], "", 60)
        nursery.cancel_scope.cancel()
    return outcome


INFORMATION = _http2(1, 1, b"\x08\x03100", 4)  # HEADERS that say `:status: 100`


@pytest.mark.parametrize(
    ("status", "phrase"), [("404", "Not Found"), ("499", ""), ("x", ""), ("9" * 5000, "")], ids=str
)
async def test_an_answer_that_is_no_grpc_fails_the_probe(status: str, phrase: str) -> None:
    outcome = await _asked((":status", status), ("content-type", "text/html"))
    assert outcome.verdict is Verdict.FAILURE
    assert f"unexpected HTTP status code received from server: {status} ({phrase})" in outcome.output


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ("5", "code = NotFound desc = "),
        ("99", "code = Code(99) desc = "),
        ("-1", "code = Code(4294967295) desc = "),
        ("²", 'strconv.ParseInt: parsing "²": invalid syntax'),
        ("x", 'strconv.ParseInt: parsing "x": invalid syntax'),
        ("2147483648", 'strconv.ParseInt: parsing "2147483648": value out of range'),
        ("9" * 5000, f'strconv.ParseInt: parsing "{"9" * 5000}": value out of range'),
    ],
)
async def test_a_status_that_is_none_fails_the_probe_in_gos_words(status: str, why: str) -> None:
    outcome = await _asked((":status", "200"), ("content-type", "application/grpc"), ("grpc-status", status))
    if not why.startswith("code"):
        why = f"code = Unknown desc = transport: malformed grpc-status: {why}"
    assert outcome == Outcome(Verdict.FAILURE, f"error: health rpc probe failed: rpc error: {why}")


@pytest.mark.parametrize(
    "more",
    [
        SETTINGS,
        INFORMATION,
        _http2(6, payload=b"12345678"),
        _http2(50),
        _http2(50, payload=bytes(16_000)),
    ],
    ids=["SETTINGS", "an informational answer", "PING", "an unknown frame", "a large unknown frame"],
)
async def test_a_server_that_does_not_stop_is_left(more: bytes) -> None:
    """Long before the time is up, which the node would else spend on reading."""
    sent = 0

    async def flood(stream: trio.SocketStream) -> None:
        nonlocal sent
        try:
            await stream.send_all(SETTINGS)
            while sent < 20_000_000:
                await stream.send_all(more * (1 + 4096 // len(more)))
                sent += 4096
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, flood, [listener])
        outcome = await probe_grpc("127.0.0.1", listener.socket.getsockname()[1], "", 60)
        nursery.cancel_scope.cancel()
    why = "rpc error: code = ResourceExhausted desc = answer too large"
    assert outcome == Outcome(Verdict.FAILURE, f"error: health rpc probe failed: {why}")

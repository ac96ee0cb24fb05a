"""The service over its socket: an unrelated gRPC client, and peers that mean harm."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import h2.connection
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.podresources.test_service import pod, service
from tests.shapes import SHAPES
from tests.slowness import within_cpu
from trio_kubelet.podresources.exchange import MAX_REQUEST, Broken, Exchange
from trio_kubelet.podresources.proto import api_pb2 as resources
from trio_kubelet.podresources.server import BURST, PodResourcesServer, socket_path

LIST, GET = "/v1.PodResourcesLister/List", "/v1.PodResourcesLister/Get"


@asynccontextmanager
async def serving(root: Path, pods: int = 1) -> AsyncIterator[str]:
    answers, _ = service(*(pod(f"web-{number}", "main") for number in range(pods)))
    path = socket_path(str(root))
    assert path == str(root / "pod-resources" / "kubelet.sock")
    async with trio.open_nursery() as nursery:
        await nursery.start(PodResourcesServer(answers, path).run)
        yield path
        nursery.cancel_scope.cancel()


def ask(path: str, method: str, request: bytes = b"") -> bytes:
    """One call on a connection of its own: channels to one path share theirs otherwise, also one that the
    server has just closed. Raises grpc.RpcError. Blocking.
    """
    with grpc.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        return bytes(channel.unary_unary(method)(request, timeout=60))


def refusal(path: str, method: str, request: bytes = b"") -> tuple[grpc.StatusCode, str]:
    try:
        answer = ask(path, method, request)
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError(f"answered: {answer!r}")


async def test_a_client_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as path:
        answer = await trio.to_thread.run_sync(ask, path, LIST)
    assert resources.ListPodResourcesResponse.FromString(answer).pod_resources[0].name == "web-0"


async def test_the_socket_replaces_what_a_dead_agent_left(tmp_path: Path) -> None:
    path = socket_path(str(tmp_path))
    os.makedirs(os.path.dirname(path))
    os.mknod(path)
    async with serving(tmp_path) as path:
        status = os.stat(path)
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o755
        assert await trio.to_thread.run_sync(ask, path, LIST)
    assert os.listdir(os.path.dirname(path)) == ["kubelet.sock"]


async def test_a_long_answer_waits_for_the_clients_windows(tmp_path: Path) -> None:
    async with serving(tmp_path, pods=5000) as path:
        answer = await trio.to_thread.run_sync(ask, path, LIST)
    assert len(answer) > 100_000
    assert len(resources.ListPodResourcesResponse.FromString(answer).pod_resources) == 5000


async def test_errors_reach_the_client(tmp_path: Path) -> None:
    request = resources.GetPodResourcesRequest(pod_name="f%ö", pod_namespace="default").SerializeToString()
    async with serving(tmp_path) as path:
        unknown = await trio.to_thread.run_sync(refusal, path, GET, request)
        missing = await trio.to_thread.run_sync(refusal, path, "/v1.PodResourcesLister/Watch")
        too_long = await trio.to_thread.run_sync(refusal, path, GET, bytes(MAX_REQUEST + 1))
    assert unknown == (grpc.StatusCode.UNKNOWN, "pod f%ö in namespace default not found")
    assert missing[0] == grpc.StatusCode.UNIMPLEMENTED
    assert too_long[0] == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_error_with_a_long_name_in_it_costs_next_to_nothing(tmp_path: Path) -> None:
    """The text travels in a header; of this one the agent would do nothing else for several seconds."""
    name = "ö" * 30_000
    request = resources.GetPodResourcesRequest(pod_name=name, pod_namespace="default").SerializeToString()
    async with serving(tmp_path) as path:
        for _ in within_cpu(0.5):
            unknown = await trio.to_thread.run_sync(refusal, path, GET, request)
    assert unknown[0] is grpc.StatusCode.UNKNOWN
    assert unknown[1].startswith("pod ööö")
    assert len(unknown[1]) == 1024


async def test_too_many_calls_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_kubelet.podresources.server.QPS", 5)  # however slowly the calls come

    def burst(path: str) -> list[object]:
        found: list[object] = []
        with grpc.insecure_channel(f"unix:{path}") as channel:
            calls = [channel.unary_unary(LIST).future(b"", timeout=60) for _ in range(200)]
            for call in calls:
                found.append(call.code() if call.exception() else None)
        return found

    async with serving(tmp_path) as path:
        found = await trio.to_thread.run_sync(burst, path)
        await trio.sleep(0.3)
        assert await trio.to_thread.run_sync(ask, path, LIST)
    assert found.count(None) >= BURST
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in found
    assert set(found) == {None, grpc.StatusCode.RESOURCE_EXHAUSTED}


async def test_peers_that_talk_nonsense_harm_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path) as path:
        for nonsense in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0" * 10_000,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 80_000,
        ):
            async with await trio.open_unix_socket(path) as stream:
                await stream.send_all(nonsense)
                with trio.fail_after(60), contextlib.suppress(trio.BrokenResourceError):
                    while await stream.receive_some(4096):
                        pass
        silent = [await trio.open_unix_socket(path) for _ in range(20)]
        assert await trio.to_thread.run_sync(ask, path, LIST)
        for stream in silent:
            await trio.aclose_forcefully(stream)


def preface() -> bytes:
    client = h2.connection.H2Connection()
    client.initiate_connection()
    client.send_headers(
        1,
        [
            (":method", "POST"),
            (":path", LIST),
            (":scheme", "http"),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
        ],
    )
    client.send_data(1, b"\0\0\0\0\0", end_stream=True)
    return client.data_to_send()


@settings(max_examples=200)
@given(st.integers(0, 200), st.binary(max_size=60), st.integers(1, 40))
def test_whatever_comes_the_exchange_answers_or_gives_up(at: int, noise: bytes, piece: int) -> None:
    exchange = Exchange(service(pod("web", "main"))[0].call)
    data = preface()
    data = data[:at] + noise + data[at:] + noise
    sent = exchange.begin()
    try:
        for start in range(0, len(data), piece):
            sent += exchange.received(data[start : start + piece])
    except Broken as broken:
        sent += broken.args[0]
    assert len(sent) < 100_000


def test_a_whole_exchange_byte_by_byte() -> None:
    exchange = Exchange(service(pod("web", "main"))[0].call)
    sent = exchange.begin() + b"".join(exchange.received(bytes([byte])) for byte in preface())
    assert b"web" in sent
    assert exchange.idle()


async def test_whatever_an_answer_raises_ends_its_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PodResourcesServer._call

    def call(self: PodResourcesServer, path: str, request: bytes) -> bytes:
        if path == GET:
            raise SHAPES[request.decode()]()
        return real(self, path, request)

    monkeypatch.setattr(PodResourcesServer, "_call", call)
    async with serving(tmp_path) as path:
        for shape in SHAPES:
            code, _ = await trio.to_thread.run_sync(refusal, path, GET, shape.encode())
            assert code == grpc.StatusCode.UNAVAILABLE
            assert await trio.to_thread.run_sync(ask, path, LIST)

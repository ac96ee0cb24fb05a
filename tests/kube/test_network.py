"""The network door over real sockets: both ways to watch, proxies, connections that fail."""

from __future__ import annotations

import gzip
import random
import socket
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import trio

from tests.kube.apiserver import APIServer, request_of, serving
from tests.kube.store import Refused
from tests.kube.test_reflector import NODE, a_pod, eventually
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.kube import network, websocket
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIError, APIUnavailable, WebSocketRefused
from trio_kubelet.kube.kubeconfig import ClientConfig
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.kube.reflector_core import Timings
from trio_kubelet.server.access.reviews import ReviewError, Reviews
from trio_kubelet.server.http.messages import Hijack, Request, Response
from trio_kubelet.server.http.serve import serve

QUICK = Timings(first_pause=0.05, initial_silence=0.5, silence=0.4, suspicious_silence=0.2)


@asynccontextmanager
async def following(
    config: ClientConfig, params: dict[str, str] = NODE
) -> AsyncIterator[tuple[Reflector[v1.Pod], network.NetworkDoor]]:
    async with network.connect(config, SystemClock(), {}) as door, trio.open_nursery() as nursery:
        pods: Reflector[v1.Pod] = Reflector(
            door, "/api/v1/pods", v1.Pod, params=params, rng=random.Random(1), timings=QUICK
        )
        nursery.start_soon(pods.run)
        yield pods, door
        nursery.cancel_scope.cancel()


async def create_event(client: KubeClient) -> Any:
    return await client.create(
        "/api/v1/namespaces/d/configmaps",
        v1.ConfigMap(metadata=v1.ObjectMeta(generate_name="x")),
        v1.ConfigMap,
    )


def server_that(upgrades: bool, monkeypatch: pytest.MonkeyPatch) -> APIServer:
    """A server with WebSockets or without; the client waits for a refusal to the end of its time."""
    server = APIServer()
    server.websocket = upgrades
    monkeypatch.setattr(websocket, "HANDSHAKE_TIMEOUT", 30.0 if upgrades else 0.2)
    return server


def used_websocket(server: APIServer) -> bool:
    return any(r.header("upgrade") for r in server.requests)


@pytest.mark.parametrize("upgrades", [True, False])
async def test_follows_over_websocket_and_over_plain_http(
    upgrades: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_that(upgrades, monkeypatch)
    server.store.create("pods", "d", a_pod("a"))
    async with serving(server) as url, following(ClientConfig(server=url)) as (pods, _):
        await eventually(lambda: set(pods.objects) == {"d/a"}, 30)
        odd = {"odd": "one\u0085two\u2028three\nfour"}
        server.store.create("pods", "d", a_pod("b") | {"metadata": {"name": "b", "annotations": odd}})
        server.store.delete("pods", "d", "a", {"gracePeriodSeconds": 0})
        await eventually(lambda: set(pods.objects) == {"d/b"}, 30)
        assert pods.objects["d/b"].metadata.annotations == odd
        plain = [r for r in server.requests if "watch=1" in r.target and not r.header("upgrade")]
        assert bool(plain) is not upgrades
        assert used_websocket(server)


async def test_a_refused_websocket_is_not_tried_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "HANDSHAKE_TIMEOUT", 0.2)
    server = APIServer()
    server.websocket = False
    async with serving(server) as url, following(ClientConfig(server=url)) as (pods, _):
        await pods.synced.wait()
        for _ in range(3):
            server.break_watches()
            await trio.sleep(0.3)
        assert sum(1 for r in server.requests if r.header("upgrade")) == 1


async def test_a_refusal_over_websocket_still_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "HANDSHAKE_TIMEOUT", 0.2)
    server = APIServer()
    server.refuse = lambda request: Refused(403, "Forbidden", "nobody may watch")
    async with serving(server) as url, network.connect(ClientConfig(server=url), SystemClock(), {}) as door:
        with pytest.raises(APIError, match="nobody may watch") as caught:
            async with door.watch("/api/v1/pods", {}, 15):
                pass
        assert caught.value.code == 403
        assert door._no_websocket_until < trio.current_time()


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"x" * 70_000,
        b"HTTP/1.1 101 S\r\nSec-WebSocket-Extensions: \xff\r\n\r\n",
        b"",
    ],
    ids=["another protocol", "an endless head", "letters that are none", "nothing"],
)
async def test_what_is_no_handshake_is_a_refusal(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "HANDSHAKE_TIMEOUT", 0.5)

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(65536)
        await stream.send_all(said)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
        opened = websocket.open_events(url, {}, None, "", 15.0)
        with trio.fail_after(20), pytest.raises(WebSocketRefused, match=r"127\.0\.0\.1:"):
            await opened.__aenter__()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("upgrades", [True, False])
async def test_events_of_megabytes_arrive(upgrades: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = server_that(upgrades, monkeypatch)
    async with serving(server) as url, following(ClientConfig(server=url)) as (pods, _):
        await pods.synced.wait()
        server.store.create("pods", "d", a_pod("big", args=["x" * 3_000_000]))
        await eventually(lambda: "d/big" in pods.objects, 30)


@pytest.mark.parametrize("upgrades", [True, False])
async def test_a_restarted_server_is_followed_again(upgrades: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = server_that(upgrades, monkeypatch)
    with held_port() as port:
        async with trio.open_nursery() as nursery:
            first = await nursery.start(serve_task, server, port)
            async with following(ClientConfig(server=first.url)) as (pods, _):
                await pods.synced.wait()
                first.stop.cancel()
                await first.ended.wait()
                server.store.create("pods", "d", a_pod("meanwhile"))
                await trio.sleep(0.2)
                second = await nursery.start(serve_task, server, port)
                await eventually(lambda: "d/meanwhile" in pods.objects, 60)
            second.stop.cancel()


@contextmanager
def held_port() -> Iterator[int]:
    """A port that nobody else is given, also while no server listens there."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


class Running(NamedTuple):
    url: str
    stop: trio.CancelScope
    ended: trio.Event


async def serve_task(server: APIServer, port: int, task_status: trio.TaskStatus[Running]) -> None:
    ended = trio.Event()
    with trio.CancelScope() as scope:
        async with serving(server, port=port) as url:
            task_status.started(Running(url, scope, ended))
            await trio.sleep_forever()
    ended.set()


async def test_a_silent_websocket_is_noticed_by_its_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PONG_TIMEOUT", 0.2)
    server = APIServer()
    async with (
        serving(server) as url,
        network.connect(ClientConfig(server=url), SystemClock(), {}) as door,
        door.watch("/api/v1/pods", {"resourceVersion": "1000"}, 0.1) as events,
    ):
        await trio.sleep(0.5)  # a live server answers the pings meanwhile
        server.silent = True
        with pytest.raises(APIUnavailable, match="no pong"), trio.fail_after(60):
            await events.next_event()


@pytest.mark.parametrize("upgrades", [True, False])
@pytest.mark.parametrize("orderly", [True, False])
async def test_an_ended_watch_and_a_broken_one_are_told_apart(
    upgrades: bool, orderly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_that(upgrades, monkeypatch)
    async with (
        serving(server) as url,
        network.connect(ClientConfig(server=url), SystemClock(), {}) as door,
        door.watch("/api/v1/pods", {"resourceVersion": "1000"}, 15) as events,
    ):
        server.store.create("pods", "d", a_pod("a"))
        assert b'"ADDED"' in (await events.next_event() or b"")
        if orderly:
            server.end_watches()
            assert await events.next_event() is None
        else:
            server.break_watches()
            with pytest.raises(APIUnavailable):
                await events.next_event()


async def test_a_proxy_gets_requests_and_plain_watches() -> None:
    server = APIServer()
    seen: list[str] = []

    async def forward(request: Request) -> Response | Hijack:
        seen.append(request.target)
        path, _, query = request.target.removeprefix("http://api.test").partition("?")
        return await server.handle(request_of(request.method, path, query, request.body))

    async with trio.open_nursery() as nursery:
        listeners: list[Any] = list(await trio.open_tcp_listeners(0, host="127.0.0.1"))
        await nursery.start(serve, listeners, forward)
        proxy = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        environment = {"HTTP_PROXY": proxy}
        async with network.connect(
            ClientConfig(server="http://api.test"), SystemClock(), environment
        ) as door:
            assert await create_event(KubeClient(door))
            async with door.watch("/api/v1/pods", {}, 15):
                pass
        nursery.cancel_scope.cancel()
    assert [target.startswith("http://api.test/api/v1/") for target in seen] == [True, True]


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        ("http://u:pa/ss@p:1", "the proxy's address is no URL"),
        ("http://[::1", "the proxy's address is no URL"),
        ("ftp://p:1", "the proxy's address is no URL"),
    ],
)
async def test_a_proxy_that_is_none_makes_the_server_unavailable(proxy: str, said: str) -> None:
    environment = {"HTTP_PROXY": proxy}
    async with network.connect(ClientConfig(server="http://api.test"), SystemClock(), environment) as door:
        with pytest.raises(APIUnavailable, match=rf'^Post "http://api.test/[^"]*": {said}$'):
            await create_event(KubeClient(door))
        with pytest.raises(APIUnavailable, match=rf'^Get "http://api.test/[^"]*": {said}$'):
            async with door.watch("/api/v1/pods", {}, 15):
                pass


@pytest.mark.parametrize("server", ["http://a..b", "http://\u00ad", "https://a..b"])
@pytest.mark.parametrize("period", [15, network.QUIET_PING_PERIOD])
async def test_a_host_that_is_no_name_makes_the_server_unavailable(server: str, period: float) -> None:
    async with network.connect(ClientConfig(server=server), SystemClock(), {}) as door:
        with pytest.raises(APIUnavailable):
            await create_event(KubeClient(door))
        with pytest.raises(APIUnavailable):
            async with door.watch("/api/v1/pods", {}, period):
                pass


async def test_a_broken_plain_watch_and_an_unfinished_event_are_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "HANDSHAKE_TIMEOUT", 0.2)

    async def liar(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b'{"type":"ADDED","obj')
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, liar, 0)
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with network.connect(ClientConfig(server=url), SystemClock(), {}) as door:
            with pytest.raises(APIUnavailable, match="within an event"):
                async with door.watch("/api/v1/pods", {}, 15) as events:
                    await events.next_event()
        nursery.cancel_scope.cancel()


async def test_no_answer_is_unavailable_and_names_the_request() -> None:
    async with network.connect(ClientConfig(server="http://127.0.0.1:1"), SystemClock(), {}) as door:
        with pytest.raises(APIUnavailable, match=r'/n": dial tcp 127.0.0.1:1: connect: connection refused$'):
            await KubeClient(door).get("/api/v1/nodes/n", v1.Node)
        with pytest.raises(APIUnavailable):
            async with door.watch("/api/v1/pods", {}, 15):
                pass
    server = APIServer()
    server.latency = 10
    async with serving(server) as url, network.connect(ClientConfig(server=url), SystemClock(), {}) as door:
        with pytest.raises(APIUnavailable, match=r"/nodes/n\": context deadline exceeded$"):
            await KubeClient(door, timeout=0.1).get("/api/v1/nodes/n", v1.Node)


@asynccontextmanager
async def api(answer: Callable[[Request], Response]) -> AsyncIterator[tuple[KubeClient, list[Request]]]:
    """A client of a server that answers anything."""
    asked: list[Request] = []

    async def handle(request: Request) -> Response | Hijack:
        asked.append(request)
        return answer(request)

    async with trio.open_nursery() as nursery:
        listeners: list[Any] = list(await trio.open_tcp_listeners(0, host="127.0.0.1"))
        await nursery.start(serve, listeners, handle)
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with network.connect(ClientConfig(server=url), SystemClock(), {}) as door:
            yield KubeClient(door), asked
        nursery.cancel_scope.cancel()


GZIP = (("Content-Encoding", "gzip"),)


async def zeros(pieces: int) -> AsyncGenerator[bytes, None]:
    for _ in range(pieces):
        yield bytes(1 << 16)


@pytest.mark.parametrize("packed", [False, True])
async def test_a_review_of_64_megabytes_is_not_taken_in(packed: bool) -> None:
    """Nor one that becomes so large when it is unpacked."""

    def answer(request: Request) -> Response:
        if not packed:
            return Response(status=201, body=zeros(1024))
        return Response(status=201, headers=GZIP, body=bomb)

    bomb = gzip.compress(bytes(64 << 20))

    async with api(answer) as (client, _):
        tracemalloc.start()
        try:
            with pytest.raises(ReviewError, match=f"longer than {network.LONGEST_OBJECT} bytes"):
                await Reviews(client).token("t")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 4 * network.LONGEST_OBJECT


async def test_lists_have_a_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LONGEST_LIST", 1 << 20)
    async with api(lambda request: Response(body=zeros(64))) as (client, _):
        with pytest.raises(APIUnavailable, match=f"longer than {1 << 20} bytes"):
            await client.get("/api/v1/pods", v1.PodList)


async def test_what_an_api_server_warns_of_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    headers = (
        ("Warning", r'299 - "unknown field \"spec.a\"", 299 api "a \\ b" "Sat, 25 Aug 2012 23:34:45 GMT"'),
        ("Warning", '199 - "of another kind", 299 - "", 299 - "the third"'),
        ("Warning", '299 "no agent", 299 - "not read any more"'),
    )
    async with api(lambda request: Response(headers=headers, body=b"{}")) as (client, _):
        await client.get("/api/v1/nodes/n", v1.Node)
    lines = [line for line in capfd.readouterr().err.splitlines() if "Warning: " in line]
    assert [line.partition("] ")[2] for line in lines] == [
        r'"Warning: unknown field \"spec.a\""',
        r'"Warning: a \\ b"',
        '"Warning: the third"',
    ]


async def test_many_warnings_of_one_answer_are_few_lines_of_the_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    texts = [*["again"] * 1000, *map(str, range(1000))]
    headers = [("Warning", ", ".join(f'299 - "{text}"' for text in texts))]
    async with api(lambda request: Response(headers=headers, body=b"{}")) as (client, _):
        await client.get("/api/v1/nodes/n", v1.Node)
    lines = [line for line in capfd.readouterr().err.splitlines() if "Warning: " in line]
    assert [line.rpartition("Warning: ")[2] for line in lines] == ['again"', *(f'{n}"' for n in range(15))]


async def test_cookies_and_redirects_of_an_api_server_are_ignored() -> None:
    def answer(request: Request) -> Response:
        headers = (("Set-Cookie", "session=1; Path=/"), ("Location", "/elsewhere"))
        return Response(status=302, headers=headers)

    async with api(answer) as (client, asked):
        for _ in range(2):
            with pytest.raises(APIError, match="302"):
                await client.get("/api/v1/nodes/n", v1.Node)
    assert [request.path for request in asked] == ["/api/v1/nodes/n"] * 2
    assert not any(request.header("cookie") for request in asked)


@pytest.mark.parametrize("body", [b"no gzip at all", gzip.compress(bytes(1000), mtime=0)[:-10]])
async def test_a_body_that_is_not_what_it_says(body: bytes) -> None:
    async with api(lambda request: Response(headers=GZIP, body=body)) as (
        client,
        _,
    ):
        with pytest.raises(APIUnavailable, match=r"unpacked|before its end"):
            await client.get("/api/v1/nodes/n", v1.Node)

"""`/page/` on the main port and on the local socket: who gets it, and who may open its WebSocket."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, TextMessage

from tests.nodepage.nodes import FakeNode
from tests.server.node import Node, read_all
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.nodepage.charts import Charts
from trio_kubelet.nodepage.feed import Feed
from trio_kubelet.nodepage.shown import ShownPods
from trio_kubelet.server.http.messages import Hijack, Request, Response
from trio_kubelet.server.http.router import Router
from trio_kubelet.server.http.serve import serve
from trio_kubelet.server.pages import node_page
from trio_kubelet.server.pages.forward import GateAnswer, TokenGate, page_port
from trio_kubelet.server.pages.node_page import NodePage, same_place


def feed() -> Feed:
    return Feed(
        node=FakeNode(2),
        shown=ShownPods({"name": "n"}),
        charts=Charts(CollectorRegistry()),
        clock=SystemClock(),
    )


class PageNode(Node):
    """A node whose main port has the page."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.page = NodePage(feed())
        self.handlers["page"] = self.page.answer

    def pages(self) -> Any:
        pages = super().pages()
        node = {name: getattr(pages.node, name) for name in pages.node.__struct_fields__}
        return type(pages)(
            read_only=pages.read_only,
            checks=pages.checks,
            node=type(pages.node)(**{**node, "page": self.page.answer}),
        )


def upgrade(path: str = "/page/live", host: str = "127.0.0.1", **headers: str) -> bytes:
    """A request for the WebSocket."""
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {base64.b64encode(b'x' * 16).decode()}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def head(stream: trio.abc.Stream) -> tuple[bytes, bytes]:
    """The head of an answer, and what came with it."""
    said = b""
    with trio.fail_after(60):
        while b"\r\n\r\n" not in said:
            said += await stream.receive_some()
    start, _, rest = said.partition(b"\r\n\r\n")
    return start, rest


async def test_nobody_gets_it_without_credentials_or_rights(tmp_path: Path) -> None:
    node = PageNode(tmp_path)
    async with node.serving():
        for path in ("/page/", "/page/page.js", "/page/word", "/page/live"):
            async with node.client() as client:
                assert (await client.get(path)).status_code == 401
            async with node.client("poor") as client:
                answer = await client.get(path)
                assert answer.status_code == 403
                assert "subresource(s)=[proxy]" in answer.text
        stream = await node.stream()
        await stream.send_all(upgrade())
        assert (await head(stream))[0].startswith(b"HTTP/1.1 401 ")
        await trio.aclose_forcefully(stream)


async def test_who_may_proxy_to_the_node_gets_the_page_with_a_strict_policy(tmp_path: Path) -> None:
    node = PageNode(tmp_path)
    async with node.serving():
        async with node.client("good") as client:
            for path, kind in (("", "text/html"), ("page.js", "text/javascript"), ("page.css", "text/css")):
                answer = await client.get(f"/page/{path}")
                assert answer.status_code == 200
                assert answer.headers["content-type"].startswith(kind)
                policy = answer.headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["x-content-type-options"] == "nosniff"
            assert (await client.get("/page/../../etc/passwd")).status_code == 404
            assert (await client.get("/page/other")).status_code == 404
            assert (await client.post("/page/")).status_code == 405
            assert (await client.get("/page/live")).status_code == 426
        stream = await node.stream()
        await stream.send_all(upgrade(Authorization="Bearer good"))
        assert (await head(stream))[0].startswith(b"HTTP/1.1 101 ")
        await trio.aclose_forcefully(stream)


def test_the_page_has_no_script_or_style_of_its_own_and_asks_nobody_else() -> None:
    html = node_page._files()[""][0].decode()
    assert "<style" not in html
    assert " style=" not in html
    assert re.search(r"\son\w+=", html) is None
    assert "http" not in html
    script = node_page._files()["page.js"][0].decode()
    assert "innerHTML" not in script
    assert "://" not in script.replace("http://www.w3.org/2000/svg", "")


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.serving(), node.client("good") as client:
        assert (await client.get("/page/")).status_code == 404


def asking(word: str = "", **headers: str) -> Request:
    names = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "x",
    }
    path = f"/page/live/{word}" if word else "/page/live"
    return Request(
        method="GET",
        path=path,
        target=path,
        query={},
        headers=tuple({**names, **headers}.items()),
    )


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"host": "n:10250"}, True),  # no browser
        ({"host": "n:10250", "origin": "https://n:10250"}, True),
        ({"host": "n:10250", "origin": "https://evil.example"}, False),
        ({"host": "n:10250", "origin": "https://n:10251"}, False),
        ({"host": "n:10250", "origin": "null"}, False),
        ({"origin": "https://"}, False),
        ({"host": "[::1]:1", "origin": "https://[bad"}, False),
    ],
)
async def test_a_websocket_of_a_foreign_page_is_refused(headers: dict[str, str], passes: bool) -> None:
    page = NodePage(feed())
    answer = await page.answer(asking(**headers))
    assert isinstance(answer, Hijack) == passes
    assert passes or (isinstance(answer, Response) and answer.status == 403)


async def test_behind_a_proxy_the_page_shows_the_word_it_was_given() -> None:
    """`kubectl proxy` changes the Host, so that the Origin is no longer that of the host asked."""
    page = NodePage(feed())
    word = await page.answer(
        Request(method="GET", path="/page/word", target="/page/word", query={}, headers=())
    )
    assert isinstance(word, Response)
    assert isinstance(word.body, bytes)
    behind = {"host": "10.0.0.7:10250", "origin": "http://127.0.0.1:8001"}
    assert isinstance(await page.answer(asking(word.body.decode(), **behind)), Hijack)
    assert isinstance(await page.answer(asking("guessed", **behind)), Response)
    assert ("Access-Control-Allow-Origin", "*") not in word.headers


def test_same_place() -> None:
    assert same_place("http://localhost:80", "LOCALHOST:80")
    assert not same_place("file://localhost:80", "localhost:80")


async def test_readers_are_bounded() -> None:
    page = NodePage(feed())
    async with trio.open_nursery() as nursery:
        for _ in range(node_page.READERS):
            answer = await page.answer(asking())
            assert isinstance(answer, Hijack)
            _, server = trio.testing.memory_stream_pair()
            nursery.start_soon(answer.take, server, b"")
        await trio.testing.wait_all_tasks_blocked()
        refused = await page.answer(asking())
        assert isinstance(refused, Response)
        assert refused.status == 503
        nursery.cancel_scope.cancel()


# The loopback port in front of the agent's socket.


@pytest.mark.parametrize(
    ("target", "host", "wanted"),
    [
        ("/secret/", "127.0.0.1:8", "/page/"),
        ("/secret/", "localhost:8", "/page/"),
        ("/secret/page.js?a=b", "127.0.0.1:8", "/page/page.js?a=b"),
        ("/secret/live/word", "LOCALHOST:8", "/page/live/word"),
        ("/secret", "127.0.0.1:8", "302 Found"),
        ("/secret/", "127.0.0.1:9", "403 Forbidden"),
        ("/secret/", "rebound.example:8", "403 Forbidden"),
        ("/", "127.0.0.1:8", "403 Forbidden"),
        ("/page/", "127.0.0.1:8", "403 Forbidden"),
        ("/secreT/", "127.0.0.1:8", "403 Forbidden"),
        ("//secret/", "127.0.0.1:8", "403 Forbidden"),
        ("/page/?token=secret", "127.0.0.1:8", "403 Forbidden"),
        ("/exec/default/web/main?command=id", "127.0.0.1:8", "403 Forbidden"),
        ("/secret/exec/default/web/main", "127.0.0.1:8", "/page/exec/default/web/main"),
        ("http://127.0.0.1:8/pods", "127.0.0.1:8", "403 Forbidden"),
        ("/s\u00e9cret/", "127.0.0.1:8", "403 Forbidden"),
    ],
)
def test_who_passes_the_gate(target: str, host: str, wanted: str) -> None:
    judged = TokenGate(8, "secret").judge(target, host)
    assert (judged.status if isinstance(judged, GateAnswer) else judged) == wanted


@asynccontextmanager
async def agent_socket(path: Path) -> AsyncIterator[list[bytes]]:
    """A socket that keeps the first words of each connection, and answers."""
    heard: list[bytes] = []

    async def one(stream: trio.SocketStream) -> None:
        heard.append(bytes(await stream.receive_some()))
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")

    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(str(path))
    listening.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, one, [trio.SocketListener(listening)])
        yield heard
        nursery.cancel_scope.cancel()


async def ask(address: str, target: str, *more: str) -> bytes:
    host, _, port = address.split("/")[2].partition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    lines = [f"GET {target} HTTP/1.1", f"Host: {host}:{port}", *more, "", ""]
    await stream.send_all("\r\n".join(lines).encode())
    return await read_all(stream)


def path_of(address: str) -> str:
    return address[address.index("/", 8) :]


async def test_the_port_lets_in_who_has_the_address(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with agent_socket(path) as heard, page_port(str(path)) as address:
        inside = path_of(address)
        assert (await ask(address, "/page/")).startswith(b"HTTP/1.1 403 ")
        assert f"Location: {inside}\r\n".encode() in await ask(address, inside.rstrip("/"))
        assert heard == []
        assert (await ask(address, inside, "Accept: */*")).endswith(b"hi")
        upgrade = ("Connection: Upgrade", "Upgrade: websocket")
        assert (await ask(address, f"{inside}live/word", *upgrade)).endswith(b"hi")
        first, second = heard
        assert first.startswith(b"GET /page/ HTTP/1.1\r\n")
        assert second.startswith(b"GET /page/live/word HTTP/1.1\r\n")
        assert second.endswith(b"Upgrade: websocket\r\n\r\n")
        assert inside.strip("/").encode() not in first + second


async def test_only_the_page_is_behind_the_port(tmp_path: Path) -> None:
    path = tmp_path / "s"
    page, asked = NodePage(feed()), []

    async def exec_(request: Request) -> Response:
        asked.append(request.target)
        return Response(body=b"done")

    router = Router()
    router.handle("/page/", page.answer)
    router.handle("/exec/", exec_)
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(str(path))
    listening.listen()
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, [trio.SocketListener(listening)], router)
        async with page_port(str(path)) as address:
            inside = path_of(address)
            for target in ("exec/default/web/main", "../exec/default/web/main", "/exec/default/web/main"):
                assert b"done" not in await ask(address, inside + target)
            host, _, port = address.split("/")[2].partition(":")
            stream = await trio.open_tcp_stream(host, int(port))
            for target in (inside, "/exec/default/web/main"):
                await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            assert (await read_all(stream)).endswith(b"</html>\n")
        nursery.cancel_scope.cancel()
    assert asked == []


async def test_nothing_of_the_page_is_a_cookie(tmp_path: Path) -> None:
    """A browser sends cookies to all ports of a host, such as one that is forwarded to a pod."""
    path = tmp_path / "s"
    async with agent_socket(path), page_port(str(path)) as address:
        for target in (path_of(address), path_of(address).rstrip("/"), "/"):
            assert b"set-cookie" not in (await ask(address, target)).lower()


async def test_the_port_says_that_the_agent_is_away(tmp_path: Path) -> None:
    async with page_port(str(tmp_path / "nobody")) as address:
        assert (await ask(address, path_of(address))).startswith(b"HTTP/1.1 502 ")


async def test_nonsense_on_the_port_ends_its_connection_alone(tmp_path: Path) -> None:
    async with page_port(str(tmp_path / "nobody")) as address:
        host, _, port = address.split("/")[2].partition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        await stream.send_all(b"\x16\x03\x01\x00\x00\r\n\r\n")
        assert await read_all(stream) == b""
        assert (await ask(address, "/")).startswith(b"HTTP/1.1 403 ")


async def test_connections_that_say_nothing_do_not_shut_the_port(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with agent_socket(path), page_port(str(path)) as address, AsyncExitStack() as silent:
        host, _, port = address.split("/")[2].partition(":")
        for _ in range(200):
            await silent.enter_async_context(await trio.open_tcp_stream(host, int(port)))
        assert (await ask(address, path_of(address))).endswith(b"hi")


async def test_a_page_over_its_websocket(tmp_path: Path) -> None:
    page, own = NodePage(feed()), {"host": "h", "origin": "http://h"}
    answer = await page.answer(asking(**own))
    assert isinstance(answer, Hijack)
    client, server = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer.take, server, b"")
        start, rest = await head(client)
        assert b"Sec-WebSocket-Accept" in start
        wire = Connection(ConnectionType.CLIENT)
        await client.send_all(wire.send(TextMessage(data='{"from": -1}')))
        wire.receive_data(rest)
        message = b""
        while b"}}" not in message or not message.endswith(b"}"):
            wire.receive_data(bytes(await client.receive_some()))
            message += b"".join(bytes(e.data) for e in wire.events() if isinstance(e, BytesMessage))
        assert sorted(json.loads(message)["pods"]) == ["uid-pod-000", "uid-pod-001"]
        await client.send_all(wire.send(TextMessage(data="x" * (node_page.LONGEST_MESSAGE + 1))))
        with trio.fail_after(60):
            while await client.receive_some():
                pass
    assert page._readers == 0

"""The network door over real sockets: both ways to watch, TLS, who we are, connections that fail."""

from __future__ import annotations

import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from tests.kube.apiserver import APIServer, User, request_of, serving
from tests.kube.certs import CA
from tests.kube.store import Refused
from tests.kube.test_reflector import NODE, a_pod, eventually
from trio_kubelet.api import v1
from trio_kubelet.clock import SystemClock
from trio_kubelet.kube import network, websocket
from trio_kubelet.kube.client import APIError, APIUnavailable, KubeClient
from trio_kubelet.kube.credentials import Credentials
from trio_kubelet.kube.kubeconfig import ClientConfig, Source
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.kube.reflector_core import Timings
from trio_kubelet.server.http import Hijack, Request, Response, serve

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


def used_websocket(server: APIServer) -> bool:
    return any(r.header("upgrade") for r in server.requests)


@pytest.mark.parametrize("upgrades", [True, False])
async def test_follows_over_websocket_and_over_plain_http(
    upgrades: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "HANDSHAKE_TIMEOUT", 0.3)
    server = APIServer()
    server.websocket = upgrades
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


@pytest.mark.parametrize("upgrades", [True, False])
async def test_events_of_megabytes_arrive(upgrades: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "HANDSHAKE_TIMEOUT", 0.2)
    server = APIServer()
    server.websocket = upgrades
    async with serving(server) as url, following(ClientConfig(server=url)) as (pods, _):
        await pods.synced.wait()
        server.store.create("pods", "d", a_pod("big", args=["x" * 3_000_000]))
        await eventually(lambda: "d/big" in pods.objects, 30)


@pytest.mark.parametrize("upgrades", [True, False])
async def test_a_restarted_server_is_followed_again(upgrades: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "HANDSHAKE_TIMEOUT", 0.2)
    server = APIServer()
    server.websocket = upgrades
    async with trio.open_nursery() as nursery:
        first = await nursery.start(serve_task, server, 0)
        async with following(ClientConfig(server=first.url)) as (pods, _):
            await pods.synced.wait()
            first.stop.cancel()
            server.store.create("pods", "d", a_pod("meanwhile"))
            await trio.sleep(0.2)
            second = await nursery.start(serve_task, server, int(first.url.rpartition(":")[2]))
            await eventually(lambda: "d/meanwhile" in pods.objects, 60)
        second.stop.cancel()


class Running(NamedTuple):
    url: str
    stop: trio.CancelScope


async def serve_task(server: APIServer, port: int, task_status: trio.TaskStatus[Running]) -> None:
    with trio.CancelScope() as scope:
        async with serving(server, port=port) as url:
            task_status.started(Running(url, scope))
            await trio.sleep_forever()


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
        with pytest.raises(APIUnavailable, match="no pong"), trio.fail_after(5):
            await events.next_event()


@pytest.mark.parametrize("upgrades", [True, False])
@pytest.mark.parametrize("orderly", [True, False])
async def test_an_ended_watch_and_a_broken_one_are_told_apart(
    upgrades: bool, orderly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "HANDSHAKE_TIMEOUT", 0.2)
    server = APIServer()
    server.websocket = upgrades
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
        with pytest.raises(APIUnavailable, match="GET /api/v1/nodes/n"):
            await KubeClient(door).get("/api/v1/nodes/n", v1.Node)
        with pytest.raises(APIUnavailable):
            async with door.watch("/api/v1/pods", {}, 15):
                pass
    server = APIServer()
    server.latency = 10
    async with serving(server) as url, network.connect(ClientConfig(server=url), SystemClock(), {}) as door:
        with pytest.raises(APIUnavailable, match=r"no answer within 0\.1s"):
            await KubeClient(door, timeout=0.1).get("/api/v1/nodes/n", v1.Node)


# --- who we are ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ca() -> CA:
    return CA()


def files(directory: Path, pair: tuple[bytes, bytes]) -> tuple[Source, Source]:
    certificate, key = directory / "client.crt", directory / "client.key"
    certificate.write_bytes(pair[0])
    key.write_bytes(pair[1])
    return Source(file=str(certificate)), Source(file=str(key))


@asynccontextmanager
async def secured(ca: CA, directory: Path) -> AsyncIterator[tuple[APIServer, str]]:
    server = APIServer()
    server.authenticate = True
    async with serving(server, ca.server_context(directory, ("127.0.0.1", "api.test"))) as url:
        yield server, url


async def create_event(client: KubeClient) -> Any:
    return await client.create(
        "/api/v1/namespaces/d/configmaps",
        v1.ConfigMap(metadata=v1.ObjectMeta(generate_name="x")),
        v1.ConfigMap,
    )


@pytest.mark.parametrize("inline", [True, False])
async def test_client_certificates(ca: CA, tmp_path: Path, inline: bool) -> None:
    pair = ca.pair("system:node:n", ("system:nodes",))
    certificate, key = (Source(data=pair[0]), Source(data=pair[1])) if inline else files(tmp_path, pair)
    async with secured(ca, tmp_path) as (server, url):
        users: list[User] = []
        server.allow = lambda user, verb, route: users.append(user) or True  # type: ignore[func-returns-value]
        config = ClientConfig(
            server=url, ca=Source(data=ca.pem), client_certificate=certificate, client_key=key
        )
        async with following(config) as (pods, door):
            await eventually(lambda: pods.synced.is_set(), 30)
            await create_event(KubeClient(door))
        assert {(u.name, u.groups[0]) for u in users} == {("system:node:n", "system:nodes")}
        assert used_websocket(server)


async def test_an_unknown_authority_and_a_wrong_name_are_refused(ca: CA, tmp_path: Path) -> None:
    async with secured(ca, tmp_path) as (_, url):
        wrong_name = url.replace("127.0.0.1", "localhost")
        for config in (
            ClientConfig(server=url, ca=Source(data=CA().pem)),
            ClientConfig(server=wrong_name, ca=Source(data=ca.pem)),
        ):
            async with network.connect(config, SystemClock(), {}) as door:
                with pytest.raises(APIUnavailable, match=r"(?i)certificate"):
                    await KubeClient(door).get("/api/v1/nodes/n", v1.Node)
                with pytest.raises(APIUnavailable, match=r"(?i)certificate"):
                    async with door.watch("/api/v1/pods", {}, 15):
                        pass


@pytest.mark.parametrize("change", [{"tls_server_name": "api.test"}, {"insecure": True}])
async def test_another_server_name_and_no_verification(
    ca: CA, tmp_path: Path, change: dict[str, Any]
) -> None:
    async with secured(ca, tmp_path) as (server, url):
        server.tokens["t"] = User("n")
        authority = Source() if change.get("insecure") else Source(data=ca.pem)
        wrong_name = url.replace("127.0.0.1", "localhost")
        config = ClientConfig(server=wrong_name, ca=authority, token="t", **change)
        async with following(config) as (pods, _):
            await eventually(lambda: pods.synced.is_set(), 30)
        assert used_websocket(server)


async def test_a_rotated_token_file_is_read_again_when_the_old_one_is_refused(ca: CA, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    async with secured(ca, tmp_path) as (server, url):
        server.tokens["one"] = User("n")
        config = ClientConfig(server=url, ca=Source(data=ca.pem), token_file=str(token))
        async with network.connect(config, SystemClock(), {}) as door:
            client = KubeClient(door)
            await create_event(client)
            server.tokens = {"two": User("n")}
            token.write_text("two")
            with pytest.raises(APIError) as caught:
                await create_event(client)
            assert caught.value.code == 401
            await create_event(client)
            token.unlink()
            door._credentials.changed()
            await create_event(client)  # an unreadable file leaves the last token in force


async def test_rotated_certificates_leave_running_requests_alone(ca: CA, tmp_path: Path) -> None:
    certificate, key = files(tmp_path, ca.pair("old"))
    async with secured(ca, tmp_path) as (server, url):
        users: list[str] = []
        server.allow = lambda user, verb, route: users.append(user.name) or True  # type: ignore[func-returns-value]
        config = ClientConfig(
            server=url, ca=Source(data=ca.pem), client_certificate=certificate, client_key=key
        )
        async with network.connect(config, SystemClock(), {}) as door:
            client = KubeClient(door)
            await create_event(client)
            server.latency = 0.5
            outcomes: list[str] = []

            async def slow() -> None:
                await create_event(client)
                outcomes.append("done")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(slow)
                await trio.sleep(0.1)
                files(tmp_path, ca.pair("new"))
                door._credentials.changed()
                await create_event(client)
            assert outcomes == ["done"]
            assert users == ["old", "old", "new"]
            (tmp_path / "client.crt").write_bytes(b"half writ")
            door._credentials.changed()
            await create_event(client)  # what cannot be loaded leaves the last identity in force
            assert users[-1] == "new"


def script(directory: Path, body: str) -> str:
    path = directory / "plugin"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


async def with_plugin(
    ca: CA, directory: Path, body: str, use: Callable[[APIServer, KubeClient], Awaitable[None]]
) -> None:
    from trio_kubelet.kube.kubeconfig import ExecPlugin

    plugin = ExecPlugin(command=script(directory, body), install_hint="install it", provide_cluster_info=True)
    async with secured(ca, directory) as (server, url):
        config = ClientConfig(server=url, ca=Source(data=ca.pem), exec_plugin=plugin)
        async with network.connect(config, SystemClock(), {}) as door:
            await use(server, KubeClient(door))


ANSWER = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{%s}}'


async def test_an_exec_plugin_gives_a_token_and_is_asked_again_when_it_is_refused(
    ca: CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.kube.credentials.PLUGIN_REST", 0)
    runs = tmp_path / "runs"
    body = f'echo "$KUBERNETES_EXEC_INFO" >> {runs}; n=$(wc -l < {runs})\n' + (
        "echo '" + ANSWER.replace("%s", '"token":"t\'$n\'"') + "'"
    )

    async def use(server: APIServer, client: KubeClient) -> None:
        server.tokens["t1"] = User("n")
        await create_event(client)
        await create_event(client)
        assert len(runs.read_text().splitlines()) == 1
        assert '"certificate-authority-data"' in runs.read_text()
        server.tokens = {"t2": User("n")}
        with pytest.raises(APIError):
            await create_event(client)
        await create_event(client)

    await with_plugin(ca, tmp_path, body, use)


async def test_an_exec_credential_is_replaced_before_it_expires(ca: CA, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    soon = '"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"'
    body = f"echo x >> {runs}; echo '{ANSWER % soon}'"

    async def use(server: APIServer, client: KubeClient) -> None:
        server.tokens["t"] = User("n")
        for _ in range(3):
            await create_event(client)
        assert len(runs.read_text().splitlines()) == 1  # not at once again, whatever it says

    await with_plugin(ca, tmp_path, body, use)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo no such profile >&2; exit 3", "exit code 3: no such profile"),
        ("echo '{}'", "no ExecCredential"),
        ("echo '" + ANSWER % "" + "'", "no token and no certificate"),
        ("echo '" + ANSWER % '"clientCertificateData":"secret"' + "'", "come together"),
    ],
)
async def test_a_failing_exec_plugin_says_so_and_keeps_secrets(
    ca: CA, tmp_path: Path, body: str, said: str
) -> None:
    async def use(server: APIServer, client: KubeClient) -> None:
        with pytest.raises(APIUnavailable, match=said) as caught:
            await create_event(client)
        assert "install it" in str(caught.value)
        assert "secret" not in str(caught.value)

    await with_plugin(ca, tmp_path, body, use)


def test_an_encrypted_key_is_an_error_not_a_question(ca: CA, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    from tests.kube.certs import new_key
    from trio_kubelet.kube.tls import make_tls

    certificate, _ = ca.pair("n")
    key = new_key().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"pw"),
    )
    config = ClientConfig(
        server="https://x", client_certificate=Source(data=certificate), client_key=Source(data=key)
    )
    with pytest.raises(OSError, match="encrypted"):
        make_tls(config)


async def test_a_plugin_of_an_unknown_version_is_refused() -> None:
    from trio_kubelet.kube.kubeconfig import ExecPlugin

    with pytest.raises(OSError, match="v9"):
        Credentials(ClientConfig(server="x", exec_plugin=ExecPlugin("p", api_version="v9")), SystemClock())


def test_tls_contexts_speak_http_1_only() -> None:
    from trio_kubelet.kube.tls import client_context

    assert isinstance(client_context(Source()), ssl.SSLContext)

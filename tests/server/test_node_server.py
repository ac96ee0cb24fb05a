"""The node's server over real TLS: who gets what, and in which words."""

from __future__ import annotations

import base64
import io
import re
import ssl
from pathlib import Path

import httpx
import msgspec
import pytest
import trio

from tests.kube.certs import CA
from tests.server.node import NODE, Node, read_all
from trio_kubelet.common import log as logging
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.config.types import (
    Authentication,
    Authorization,
    WebhookAuthentication,
)
from trio_kubelet.server import node_server
from trio_kubelet.server.access.authentication import Authenticator
from trio_kubelet.server.access.authorization import authorizer
from trio_kubelet.server.access.reviews import NoServer, Reviews
from trio_kubelet.server.http.messages import Handler, Hijack, Request, Response, text

ENDPOINTS = [
    ("GET", "/healthz", ["healthz", "proxy"]),
    ("GET", "/healthz/ping", ["healthz", "proxy"]),
    ("GET", "/healthz/syncloop", ["healthz", "proxy"]),
    ("GET", "/pods", ["pods", "proxy"]),
    ("GET", "/runningpods/", ["pods", "proxy"]),
    ("GET", "/configz", ["configz", "proxy"]),
    ("GET", "/statusz", ["statusz"]),
    ("GET", "/flagz", ["configz"]),
    ("GET", "/metrics", ["metrics"]),
    ("GET", "/metrics/probes", ["metrics"]),
    ("GET", "/metrics/resource", ["metrics"]),
    ("GET", "/metrics/cadvisor", ["metrics"]),
    ("GET", "/metrics/slis", ["metrics"]),
    ("GET", "/stats/summary", ["stats"]),
    ("POST", "/stats/summary", ["stats"]),
    ("GET", "/logs/", ["log"]),
    ("GET", "/containerLogs/ns/pod/c", ["proxy"]),
    ("POST", "/run/ns/pod/c", ["proxy"]),
    ("GET", "/exec/ns/pod/c", ["proxy"]),
    ("POST", "/exec/ns/pod/uid/c", ["proxy"]),
    ("POST", "/attach/ns/pod/c", ["proxy"]),
    ("GET", "/portForward/ns/pod", ["proxy"]),
    ("POST", "/checkpoint/ns/pod/c", ["checkpoint"]),
    ("GET", "/debug/pprof/cmdline", ["proxy"]),
    ("PUT", "/debug/flags/v", ["proxy"]),
]
DEBUG_PATHS = [
    *("/run/a/b/c", "/exec/a", "/attach/", "/portForward/x", "/containerLogs/a/b/c"),
    *("/runningpods/", "/debug/pprof/heap", "/logs/x"),
]
VERBS = {"GET": "get", "POST": "create", "PUT": "update"}


async def ask(client: httpx.AsyncClient, method: str, path: str) -> httpx.Response:
    return await client.request(method, path, content=b"3" if method == "PUT" else None)


async def test_every_endpoint_asks_who_one_is_and_what_one_may(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with (
        node.serving(),
        node.client() as nobody,
        node.client("wrong") as wrong,
        node.client("poor") as poor,
        node.client("good") as good,
    ):
        for method, path, subresources in ENDPOINTS:
            for client in (nobody, wrong):
                answer = await ask(client, method, path)
                assert (answer.status_code, answer.text) == (401, "Unauthorized"), path
            answer = await ask(poor, method, path)
            about = f"verb={VERBS[method]}, resource=nodes, subresource(s)=[{' '.join(subresources)}]"
            assert (answer.status_code, answer.text) == (403, f"Forbidden (user=bob, {about})\n"), path
            answer = await ask(good, method, path)
            assert answer.status_code == 200, (path, answer.text)


async def test_what_the_api_server_is_asked(tmp_path: Path) -> None:
    node = Node(tmp_path)
    asked: list[dict[str, object]] = []

    def review(spec: dict[str, object]) -> bool:
        asked.append(spec)
        return False

    node.api.review = review
    async with node.serving(), node.client(context=node.context("carol", ("devs", "ops"))) as client:
        assert (await client.get("/pods")).status_code == 403
    assert [spec["resourceAttributes"] for spec in asked] == [
        {"verb": "get", "version": "v1", "resource": "nodes", "subresource": name, "name": NODE}
        for name in ("pods", "proxy")
    ]
    assert asked[0]["user"] == "carol"
    assert asked[0]["groups"] == ["devs", "ops", "system:authenticated"]
    [[fingerprint]] = asked[0]["extra"].values()  # type: ignore[attr-defined]
    assert fingerprint.startswith("X509SHA256=")


async def test_verdicts_and_tokens_are_kept(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.serving(), node.client("good") as good, node.client("poor") as poor:
        for _ in range(3):
            assert (await good.get("/configz")).status_code == 200
            assert (await poor.get("/metrics")).status_code == 403
    paths = [request.path.rpartition("/")[2] for request in node.api.requests]
    assert sorted(paths) == ["subjectaccessreviews"] * 2 + ["tokenreviews"] * 2


async def test_an_api_server_that_is_away(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.api.down = True
    async with (
        node.serving(),
        node.client("good") as token,
        node.client(context=node.context("carol")) as x509,
    ):
        answer = await token.get("/metrics")
        assert (answer.status_code, answer.text) == (401, "Unauthorized")
        answer = await x509.get("/metrics")
        assert answer.status_code == 500
        assert answer.text == (
            "Authorization error (user=carol, verb=get, resource=nodes, subresource=metrics)"
        )


async def test_anonymous_only_where_allowed_and_never_with_a_wrong_token(tmp_path: Path) -> None:
    node = Node(tmp_path, anonymous=True)
    node.api.review = lambda spec: (
        spec["user"] == "system:anonymous" and spec["groups"] == ["system:unauthenticated"]
    )
    async with node.serving(), node.client() as nobody, node.client("wrong") as wrong:
        assert (await nobody.get("/healthz")).status_code == 200
        assert (await wrong.get("/healthz")).status_code == 401


async def test_always_allow_lets_in_whoever_is_known(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.config = msgspec.structs.replace(node.config, authorization=Authorization(mode="AlwaysAllow"))
    async with node.serving(), node.client("poor") as known, node.client() as nobody:
        assert (await known.get("/configz")).status_code == 200
        assert (await nobody.get("/configz")).status_code == 401


async def test_a_certificate_of_another_authority_ends_the_handshake(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.serving(), node.client(context=node.context("eve", ca=CA("other"))) as client:
        with pytest.raises(httpx.TransportError):
            await client.get("/healthz")


async def test_a_client_authority_that_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_server, "LOOK_PERIOD", 0.02)
    node = Node(tmp_path)
    async with node.serving() as certificate, node.client(context=node.context("carol")) as old:
        assert (await old.get("/healthz")).status_code == 200
        successor = CA("successor")
        node.ca_file.write_bytes(successor.pem)
        await certificate.use(certificate._files)  # type: ignore[arg-type]  # what its own task does

        async def until_refused() -> None:
            while True:
                await old.get("/healthz")
                await trio.sleep(0.02)

        with pytest.raises(httpx.TransportError), trio.fail_after(30):  # not even on the connection it had
            await until_refused()
        async with node.client(context=node.context("dave", ca=successor)) as new:
            assert (await new.get("/healthz")).status_code == 200


async def test_tokens_do_not_reach_the_handlers(tmp_path: Path) -> None:
    node = Node(tmp_path)
    seen: list[Request] = []

    async def handler(request: Request) -> Response | Hijack:
        seen.append(request)
        return text(200, "")

    node.handlers["exec"] = handler
    hidden = base64.urlsafe_b64encode(b"good").decode().rstrip("=")
    protocols = f"v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.{hidden}"
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Protocol": protocols}
    async with node.serving(), node.client("good") as bearer, node.client() as browser:
        assert (await bearer.get("/exec/ns/pod/c")).status_code == 200
        assert (await browser.get("/exec/ns/pod/c", headers=upgrade)).status_code == 200
        assert (await browser.get("/exec/ns/pod/c")).status_code == 401
    assert seen[0].header("authorization") is None
    assert seen[1].header("sec-websocket-protocol") == "v4.channel.k8s.io"
    assert seen[1].params == {"podNamespace": "ns", "podID": "pod", "containerName": "c"}


@pytest.mark.parametrize(
    ("switch", "paths", "said"),
    [
        (
            "enable_debugging_handlers",
            DEBUG_PATHS,
            "Debug endpoints are disabled.\n",
        ),
        ("enable_system_log_handler", ["/logs/", "/logs/x"], "logs endpoint is disabled.\n"),
        (
            "enable_profiling_handler",
            ["/debug/pprof/", "/debug/pprof/x"],
            "profiling endpoint is disabled.\n",
        ),
        ("enable_debug_flags_handler", ["/debug/flags/v"], "flags endpoint is disabled.\n"),
    ],
)
async def test_switched_off_endpoints(tmp_path: Path, switch: str, paths: list[str], said: str) -> None:
    node = Node(tmp_path)
    node.config = msgspec.structs.replace(node.config, **{switch: False})
    async with node.serving(), node.client("good") as good, node.client() as nobody:
        for path in paths:
            answer = await good.get(path)
            assert (answer.status_code, answer.text) == (405, said), path
            assert (await nobody.get(path)).status_code == 401
        if switch == "enable_debugging_handlers":
            for path in ("/configz", "/checkpoint/a/b/c", "/debug/flags/v", "/flagz", "/statusz"):
                assert (await good.get(path)).status_code == 404


async def test_verbosity_is_set_by_a_number(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.serving(), node.client("good") as client:
        answer = await client.put("/debug/flags/v", content=b"4")
        assert answer.text == "successfully set klog.logging.verbosity to 4\n"
        for wrong, reason in (
            (b"x", "invalid syntax"),
            (b"-1", "invalid syntax"),
            (b"9" * 11, "value out of range"),
        ):
            answer = await client.put("/debug/flags/v", content=wrong)
            assert answer.status_code == 400
            assert answer.text == f'strconv.ParseUint: parsing "{wrong.decode()}": {reason}\n'
        answer = await client.put("/debug/flags/v", content=b"2147483648")
        assert (answer.status_code, answer.text) == (
            400,
            "failed set klog.logging.verbosity 2147483648: "
            'strconv.ParseInt: parsing "2147483648": value out of range\n',
        )
        assert (await client.get("/debug/flags/v")).status_code == 406
    assert node.verbosity == [4]


async def test_requests_are_counted_under_known_names_only(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.serving(), node.client("good") as client:
        await client.get("/pods")
        await client.get("/metrics/resource")
        await client.post("/exec/a/b/c")
        for number in range(5):
            await client.request(f"ODD{number}", f"/strange-{number}")
        shown = (await client.get("/metrics")).text
    counted = {line for line in shown.splitlines() if line.startswith("kubelet_http_requests_total")}
    labels = 'long_running="{}",method="{}",path="{}",server_type="readwrite"'
    assert counted == {
        f"kubelet_http_requests_total{{{labels.format(*values)}}} {count}"
        for *values, count in (
            ("false", "GET", "pods", 1),
            ("false", "GET", "metrics/resource", 1),
            ("true", "POST", "exec", 1),
            ("false", "other", "other", 5),
            ("false", "GET", "metrics", 1),
        )
    }
    inflight = {line for line in shown.splitlines() if line.startswith("kubelet_http_inflight_requests{")}
    assert {line.rpartition(" ")[2] for line in inflight if 'path="metrics"' not in line} == {"0"}


async def test_plain_http_on_the_tls_port_is_told_so(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.serving():
        stream = await trio.open_tcp_stream("127.0.0.1", node.port)
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n")
        answer = await read_all(stream)
    assert answer.endswith(b"Client sent an HTTP request to an HTTPS server.\n")


async def test_silent_clients_make_room_for_others(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.limits = msgspec.structs.replace(node.limits, connections=8, connections_per_peer=8)
    async with node.serving():
        silent = [await node.stream() for _ in range(8)]
        for stream in silent[:4]:
            await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost:")  # and never the rest
        handshakes = [await trio.open_tcp_stream("127.0.0.1", node.port) for _ in range(3)]
        async with node.client("good") as client:
            assert (await client.get("/healthz")).status_code == 200
        opened: list[trio.abc.Stream] = [*silent, *handshakes]
        for connection in opened:
            await trio.aclose_forcefully(connection)


async def test_no_certificate_yet_closes_connections(tmp_path: Path) -> None:
    class Nothing:
        def ssl_context(self) -> ssl.SSLContext:
            raise OSError("no serving certificate available")

    async def handler(request: Request) -> Response | Hijack:
        raise AssertionError("must not be reached")

    server = node_server.NodeServer(handler=handler, provider=Nothing(), host="127.0.0.1", port=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        stream = await trio.open_tcp_stream("127.0.0.1", server.ports[0])
        assert await read_all(stream) == b""
        nursery.cancel_scope.cancel()


def test_settings_that_let_nobody_in_are_refused() -> None:
    nothing = Authentication(webhook=WebhookAuthentication(enabled=False))
    with pytest.raises(ValueError, match="no authentication method configured"):
        Authenticator(nothing, SystemClock(), Reviews(NoServer()))


def test_unknown_authorization_modes_are_refused() -> None:
    with pytest.raises(ValueError, match="no authorization mode configured"):
        authorizer(Authorization(mode=""), Reviews(NoServer()))


async def test_head_has_no_body_and_ends(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.serving(), node.client("good") as client:
        for path, status in (("/metrics", 200), ("/healthz", 200), ("/pods", 405), ("/none", 404)):
            answer = await client.head(path)
            assert (answer.status_code, answer.content) == (status, b""), path
        shown = (await client.get("/metrics")).text
    inflight = [line for line in shown.splitlines() if line.startswith("kubelet_http_inflight_requests{")]
    assert {line.rpartition(" ")[2] for line in inflight if 'method="HEAD"' in line} == {"0"}


@pytest.mark.parametrize("verbosity", [2, 3])
async def test_requests_are_in_the_log_from_verbosity_3_on(tmp_path: Path, verbosity: int) -> None:
    """As the kubelet's, whose operators look there for who asks for what."""
    node, said = Node(tmp_path), io.StringIO()
    logging.configure(stream=said, verbosity=verbosity)
    try:
        async with node.serving(), node.client("good") as client:
            await client.get("/pods?x=1")
            await client.get("/none")
        logging.flush()
    finally:
        logging.configure()
    lines = [line.partition("] ")[2] for line in said.getvalue().splitlines() if '"HTTP"' in line]
    assert len(lines) == (2 if verbosity == 3 else 0)
    for line, (uri, status) in zip(lines, (("/pods?x=1", 200), ("/none", 404)), strict=False):
        shown = (
            f'"HTTP" verb="GET" URI="{re.escape(uri)}" latency="[0-9.]+[mµ]?s" userAgent="python-httpx/.+"'
        )
        assert re.fullmatch(rf'{shown} srcIP="127\.0\.0\.1:\d+" resp={status}', line), line


async def test_the_read_only_port_shows_its_part_to_everybody(tmp_path: Path) -> None:
    node = Node(tmp_path)
    pages = node.pages()
    handler = node_server.read_only_handler(pages.read_only, pages.checks, node.metrics)
    statuses = {}
    for path in ("/healthz", "/pods", "/metrics", "/metrics/cadvisor", "/stats/summary", "/configz"):
        statuses[path] = await _status(handler, path)
    for path in DEBUG_PATHS:
        statuses[path] = await _status(handler, path)
    assert {path for path, status in statuses.items() if status == 200} == {
        *("/healthz", "/pods", "/metrics", "/metrics/cadvisor", "/stats/summary"),
    }
    assert statuses["/configz"] == 404
    assert {statuses[path] for path in DEBUG_PATHS} == {405}


async def _status(handler: Handler, path: str) -> int:
    answer = await handler(Request(method="GET", path=path, target=path, query={}, headers=()))
    assert isinstance(answer, Response)
    return answer.status

"""The HTTP probe's request, and its judgement of real answers on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from trio_kubelet.api import v1
from trio_kubelet.probes.http import USER_AGENT, build_request, probe_http
from trio_kubelet.probes.runners import probe_tcp, run_probe
from trio_kubelet.probes.types import Outcome, Verdict
from trio_kubelet.server.http import Hijack, Request, Response, serve, text

CONTAINER = v1.Container(name="c", ports=[v1.ContainerPort(name="web", container_port=8080)])
Handler = Callable[[Request], Awaitable[Response | Hijack]]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[int]:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, listeners, handler)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def ask(handler: Handler, path: str = "/", timeout: float = 5) -> Outcome:
    async with server(handler) as port:
        action = v1.HTTPGetAction(port=port, host="127.0.0.1", path=path)
        return await probe_http(build_request(action, CONTAINER, "10.0.0.1"), timeout)


def test_the_request_goes_to_the_pods_ip_and_a_named_port() -> None:
    request = build_request(v1.HTTPGetAction(port="web", path="/a b?x=1#f"), CONTAINER, "10.0.0.1")
    assert request.url == "http://10.0.0.1:8080/a%20b?x=1"
    assert request.host_header == "10.0.0.1:8080"
    assert request.headers == (("User-Agent", USER_AGENT), ("Accept", "*/*"))


def test_headers_replace_the_usual_ones() -> None:
    headers = [
        v1.HTTPHeader(name="host", value="example"),
        v1.HTTPHeader(name="user-agent", value="me"),
        v1.HTTPHeader(name="accept", value=""),
        v1.HTTPHeader(name="x-a", value="1"),
        v1.HTTPHeader(name="X-A", value="2"),
    ]
    action = v1.HTTPGetAction(port=443, scheme="HTTPS", http_headers=headers)
    request = build_request(action, CONTAINER, "fd00::1")
    assert request.url == "https://[fd00::1]:443/"
    assert request.host_header == "example"
    assert request.headers == (("User-Agent", "me"), ("X-A", "1"), ("X-A", "2"))


@pytest.mark.parametrize("port", ["nope", 0, 65536])
def test_a_port_that_does_not_exist_is_an_error(port: int | str) -> None:
    with pytest.raises(ValueError):
        build_request(v1.HTTPGetAction(port=port), CONTAINER, "10.0.0.1")


@pytest.mark.parametrize(
    ("status", "verdict", "output"),
    [
        (200, Verdict.SUCCESS, "body"),
        (204, Verdict.SUCCESS, ""),
        (304, Verdict.WARNING, "Probe terminated redirects, Response body: "),
        (404, Verdict.FAILURE, "HTTP probe failed with statuscode: 404"),
        (500, Verdict.FAILURE, "HTTP probe failed with statuscode: 500"),
    ],
)
async def test_status_codes(status: int, verdict: Verdict, output: str) -> None:
    async def handler(request: Request) -> Response:
        return text(status, "" if status in (204, 304) else "body")

    assert await ask(handler) == Outcome(verdict, output)


async def test_redirects_on_the_same_host_are_followed() -> None:
    async def handler(request: Request) -> Response:
        if request.path == "/":
            return Response(status=302, headers=[("Location", "/there?x=1")])
        return text(200, request.target)

    assert await ask(handler) == Outcome(Verdict.SUCCESS, "/there?x=1")


async def test_a_redirect_to_another_host_is_a_warning() -> None:
    async def handler(request: Request) -> Response:
        return Response(status=302, headers=[("Location", "http://elsewhere.invalid/")], body=b"go")

    outcome = await ask(handler)
    assert outcome == Outcome(Verdict.WARNING, "Probe terminated redirects, Response body: go")


async def test_endless_redirects_fail() -> None:
    async def handler(request: Request) -> Response:
        return Response(status=302, headers=[("Location", "/")])

    outcome = await ask(handler)
    assert outcome.verdict is Verdict.FAILURE
    assert "stopped after 10 redirects" in outcome.output


async def test_a_large_body_is_cut_and_a_slow_answer_fails() -> None:
    async def large(request: Request) -> Response:
        return text(200, "x" * 100_000)

    assert len((await ask(large)).output) == 10 * 1024

    async def never(request: Request) -> Response:
        await trio.sleep_forever()
        raise AssertionError

    outcome = await ask(never, timeout=0.05)
    assert outcome.verdict is Verdict.FAILURE
    assert "context deadline exceeded" in outcome.output


async def test_a_closed_port_fails_with_gos_words() -> None:
    async def unused(request: Request) -> Response:
        raise AssertionError

    async with server(unused) as port:
        assert (await probe_tcp("127.0.0.1", port, 1)).verdict is Verdict.SUCCESS
    refused = f"dial tcp 127.0.0.1:{port}: connect: connection refused"
    assert await probe_tcp("127.0.0.1", port, 1) == Outcome(Verdict.FAILURE, refused)
    action = v1.HTTPGetAction(port=port, host="127.0.0.1")
    outcome = await probe_http(build_request(action, CONTAINER, ""), 1)
    assert outcome == Outcome(Verdict.FAILURE, f'Get "http://127.0.0.1:{port}/": {refused}')


async def test_a_probe_that_cannot_be_run_is_an_error_after_three_attempts() -> None:
    probe = v1.Probe(http_get=v1.HTTPGetAction(port="nope"), timeout_seconds=1)

    async def no_exec(*args: object) -> None:
        raise AssertionError

    outcome = await run_probe(probe, CONTAINER, "id", "10.0.0.1", no_exec)  # type: ignore[arg-type]
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.error

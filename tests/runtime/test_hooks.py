"""Hooks: requests, ports, fall-backs, messages."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.runtime.pods import container, pod
from tests.runtime.world import World, world
from trio_kubelet.api import v1
from trio_kubelet.net.http import build_request
from trio_kubelet.runtime.doors import HookHTTPError
from trio_kubelet.runtime.hooks import (
    USER_AGENT,
    ExitError,
    HookClient,
    HookError,
    HookRunner,
    run_in_container,
)

PORTS = [v1.ContainerPort(name="admin", container_port=8080)]


async def refused(here: World, handler: v1.LifecycleHandler) -> str:
    with pytest.raises(HookError) as caught:
        await run(here, handler)
    return str(caught.value)


async def run(here: World, handler: v1.LifecycleHandler) -> None:
    a_pod = pod()
    if not here.containers:
        await here.sync_ok(a_pod)

    async def ips(pod: v1.Pod) -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        return (await here.status(pod)).ips

    runner = HookRunner(
        runtime=here.cri, http=here.http, recorder=here.events, pod_ips=ips, metrics=here.metrics
    )
    await runner.run(here.container("web").id, a_pod, container("web", ports=PORTS), handler)


def get(path: str, **fields: object) -> v1.LifecycleHandler:
    return v1.LifecycleHandler(http_get=v1.HTTPGetAction(path=path, port=80, **fields))  # type: ignore[arg-type]


async def test_https_falls_back_to_http_without_credentials(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        here.http.failures["https://h:80/x"] = HookHTTPError("server gave HTTP response", plain_http=True)
        secret = [v1.HTTPHeader(name="Authorization", value="Bearer x")]
        await run(here, get("/x", host="h", scheme="HTTPS", http_headers=secret))
        assert [request.url for request in here.http.requests] == ["https://h:80/x", "http://h:80/x"]
        assert "Authorization" not in dict(here.http.requests[1].headers)
        assert here.events.of("LifecycleHTTPFallback")[0].message == (
            "request to HTTPS lifecycle hook h:80 got HTTP response, retry with HTTP succeeded"
        )


async def test_the_first_failure_is_told_when_plain_http_does_no_better(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        here.http.failures["https://h:80/x"] = HookHTTPError("server gave HTTP response", plain_http=True)
        here.http.failures["http://h:80/x"] = HookHTTPError("connection refused")
        text = await refused(here, get("/x", host="h", scheme="HTTPS"))
        assert text.endswith(" failed - error: server gave HTTP response")
        assert not here.events.of("LifecycleHTTPFallback")


async def test_an_http_hook_without_an_answer(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        here.http.failures["http://h:80/x"] = HookHTTPError("connection refused")
        with pytest.raises(HookError) as caught:
            await run(here, get("/x", host="h"))
        assert str(caught.value) == (
            'HTTP lifecycle hook (/x) for Container "web" in Pod "web_default(uid-1)" failed'
            " - error: connection refused"
        )


async def test_a_pod_that_cannot_be_looked_at_or_has_no_address(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod())
        here.fail("ListPodSandbox", message="gone")
        with pytest.raises(HookError, match="unable to get pod status"):
            await run(here, get("/x"))
        here.service.runtime.sandbox_dies(here.sandboxes[0], here.service.now_ns())
        with pytest.raises(HookError, match="no address"):
            await run(here, get("/x"))


async def test_a_handler_with_nothing_in_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        said = "Cannot run handler: invalid handler: "
        said += "&LifecycleHandler{Exec:nil,HTTPGet:nil,TCPSocket:%s,Sleep:nil,}"
        assert await refused(here, v1.LifecycleHandler()) == said % "nil"
        for socket, shown in (
            (v1.TCPSocketAction(port=80), "&TCPSocketAction{Port:{0 80 },Host:,}"),
            (v1.TCPSocketAction(port="web", host="h"), "&TCPSocketAction{Port:{1 0 web},Host:h,}"),
        ):
            assert await refused(here, v1.LifecycleHandler(tcp_socket=socket)) == said % shown


async def test_commands_in_containers(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod())
        web = here.container("web").id
        assert await run_in_container(here.cri, web, ["sh", "-c", "echo hi"], 5) == b"hi\n"
        with pytest.raises(ExitError, match="command 'sh -c exit 3' exited with 3"):
            await run_in_container(here.cri, web, ["sh", "-c", "exit 3"], 5)


async def test_a_command_that_the_runtime_does_not_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod())
        here.fail("ExecSync", message="no such program")
        said = await refused(here, v1.LifecycleHandler(exec=v1.ExecAction(command=["true"])))
        assert said.startswith('Exec lifecycle hook ([true]) for Container "web" in Pod "')
        assert said.endswith('no such program, message: ""')


async def test_a_port_that_makes_no_sense(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        handler = v1.LifecycleHandler(http_get=v1.HTTPGetAction(path="/", port="nobody", host="h"))
        assert "invalid syntax" in await refused(here, handler)


# --- the real client
# -----------------------------------------------------------------------------------------------


async def answering(answer: bytes, scheme: str, seen: list[bytes]) -> HookHTTPError | None:
    """Sends one request to a server that answers every connection with these bytes; the error, if any."""
    error = None

    async def serve(stream: trio.SocketStream) -> None:
        seen.append(bytes(await stream.receive_some()))
        await stream.send_all(answer)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        action = v1.HTTPGetAction(path="/bye", port=port, host="127.0.0.1", scheme=scheme)
        try:
            await HookClient().get(build_request(action, container("web"), "", USER_AGENT))
        except HookHTTPError as found:
            error = found
        nursery.cancel_scope.cancel()
    return error


@pytest.mark.parametrize(
    "status", ["200 OK", "500 Oh No", "302 Found\r\nLocation: http://elsewhere.invalid/"]
)
async def test_any_answer_will_do(status: str) -> None:
    seen: list[bytes] = []
    assert not await answering(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode(), "HTTP", seen)
    assert seen[0].startswith(b"GET /bye HTTP/1.1\r\n")
    assert b"User-Agent: kube-lifecycle/1.36" in seen[0]


async def test_a_plain_server_where_tls_was_expected() -> None:
    error = await answering(b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTPS", [])
    assert error is not None
    assert error.plain_http
    assert str(error).endswith("http: server gave HTTP response to HTTPS client")


async def test_nobody_there() -> None:
    action = v1.HTTPGetAction(path="/", port=1, host="127.0.0.1")
    with pytest.raises(HookHTTPError, match="connection refused") as caught:
        await HookClient().get(build_request(action, container("web"), ""))
    assert not caught.value.plain_http


@pytest.mark.parametrize("host", ["a..b", "x" * 64, ".example", "a\0b", "\ud800"])
async def test_a_host_that_is_no_name_fails_its_hook_and_nothing_else(
    tmp_path: Path, autojump_clock: MockClock, host: str
) -> None:
    """Such a preStop hook kept its pod from ever ending."""
    async with world(tmp_path) as here:
        a_pod = pod()
        await here.sync_ok(a_pod)
        runner = HookRunner(
            runtime=here.cri,
            http=HookClient(),
            recorder=here.events,
            pod_ips=_no_ips,
            metrics=here.metrics,
        )
        handler = get("/", host=host)
        with pytest.raises(HookError):
            await runner.run(here.container("web").id, a_pod, container("web", ports=PORTS), handler)


async def _no_ips(pod: v1.Pod) -> tuple[str, ...]:
    return ()

"""Hooks: requests, ports, fall-backs, messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.runtime.pods import container, pod
from tests.runtime.world import World, world
from trio_kubelet.api import v1
from trio_kubelet.runtime.hooks import (
    ExitError,
    HookError,
    HookRunner,
    hook_request,
    resolve_port,
    run_in_container,
)
from trio_kubelet.runtime.ports import HookHTTPError

PORTS = [v1.ContainerPort(name="admin", container_port=8080)]


@pytest.mark.parametrize(
    ("get", "url"),
    [
        (v1.HTTPGetAction(path="/a", port=80), "http://10.0.0.2:80/a"),
        (v1.HTTPGetAction(path="a b", port="admin"), "http://10.0.0.2:8080/a%20b"),
        (
            v1.HTTPGetAction(path="/a?b=c&d=%20", port="443", scheme="HTTPS"),
            "https://10.0.0.2:443/a?b=c&d=%20",
        ),
        (v1.HTTPGetAction(path="", port=80), "http://10.0.0.2:80"),
    ],
)
def test_urls(get: v1.HTTPGetAction, url: str) -> None:
    assert hook_request(get, container("web", ports=PORTS), "10.0.0.2").url == url


def test_an_ipv6_address_is_bracketed() -> None:
    assert (
        hook_request(v1.HTTPGetAction(path="/", port=80), container("web"), "fd00::2").url
        == "http://[fd00::2]:80/"
    )


def test_headers_of_the_pod_win() -> None:
    headers = [v1.HTTPHeader(name="user-agent", value="me"), v1.HTTPHeader(name="Accept", value="")]
    get = v1.HTTPGetAction(path="/", port=80, http_headers=headers)
    assert hook_request(get, container("web"), "h").headers == (("user-agent", "me"),)


@pytest.mark.parametrize("port", [0, 65536, "nobody", "", "0"])
def test_ports_that_make_no_sense(port: int | str) -> None:
    with pytest.raises(ValueError):
        resolve_port(port, container("web", ports=PORTS))


async def run(here: World, handler: v1.LifecycleHandler) -> None:
    a_pod = pod()
    if not here.containers:
        await here.sync_ok(a_pod)

    async def ips(pod: v1.Pod) -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        return (await here.status(pod)).ips

    runner = HookRunner(here.cri, here.http, here.events, ips, here.metrics)
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
        assert [url for url, _ in here.http.requests] == ["https://h:80/x", "http://h:80/x"]
        assert "Authorization" not in dict(here.http.requests[1][1])
        assert here.events.of("LifecycleHTTPFallback")[0].message == (
            "request to HTTPS lifecycle hook h:80 got HTTP response, retry with HTTP succeeded"
        )


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
        with pytest.raises(HookError, match="invalid handler"):
            await run(here, v1.LifecycleHandler())


async def test_commands_in_containers(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod())
        web = here.container("web").id
        assert await run_in_container(here.cri, web, ["sh", "-c", "echo hi"], 5) == b"hi\n"
        with pytest.raises(ExitError, match="command 'sh -c exit 3' exited with 3"):
            await here.runtime.exec_in_container(web, ["sh", "-c", "exit 3"], 5)

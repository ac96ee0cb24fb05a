"""Health answers agree with the recorded ones."""

from __future__ import annotations

import socket
from functools import partial

import httpx
import pytest
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.server.health_port import health_port
from trio_kubelet.server.http.messages import Request, Response, parse_target
from trio_kubelet.server.http.metrics import HealthCounts, HTTPMetrics
from trio_kubelet.server.pages.health import answer_health


def told(reason: str | None) -> str | None:
    return reason


def ask(target: str, **checks: str | None) -> Response:
    path, query = parse_target(target)
    request = Request(method="GET", path=path, target=target, query=query, headers=())
    wanted = {name: partial(told, reason) for name, reason in checks.items()}
    return answer_health(request, wanted, HealthCounts())


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/healthz", b"ok"),
        ("/healthz?verbose=1", b"[+]ping ok\nhealthz check passed\n"),
        ("/healthz?verbose", b"[+]ping ok\nhealthz check passed\n"),
        ("/healthz/ping", b"ok"),
        ("/healthz?verbose&exclude=ping", b"[+]ping excluded: ok\nhealthz check passed\n"),
    ],
)
def test_a_healthy_agent(target: str, body: bytes) -> None:
    answer = ask(target, ping=None)
    assert (answer.status, answer.body) == (200, body)


def test_the_reason_of_a_failure_is_not_told_to_everyone() -> None:
    answer = ask("/healthz", ping=None, syncloop="secret")
    assert answer.status == 500
    assert answer.body == b"[+]ping ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n"
    assert ask("/healthz?exclude=syncloop", ping=None, syncloop="secret").status == 200


def test_an_unknown_check_is_not_found() -> None:
    assert ask("/healthz/nope", ping=None).status == 404


async def test_what_the_port_for_health_is_asked_counts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    metrics = HTTPMetrics(CollectorRegistry())
    config = KubeletConfiguration(healthz_port=port)
    async with trio.open_nursery() as nursery, httpx.AsyncClient(trust_env=False) as client:
        await health_port(nursery, config, metrics)
        url = f"http://127.0.0.1:{port}/healthz"
        answers = [
            (await client.get(url + more)).status_code for more in ("", "?verbose", "/ping", "/", "/x")
        ]
        unclean = await client.get(f"http://127.0.0.1:{port}//healthz")
        nursery.cancel_scope.cancel()
    assert answers == [200, 200, 200, 404, 404]
    assert (unclean.status_code, unclean.headers["location"]) == (307, "/healthz"), "as on the other ports"
    assert metrics.health.totals == {("ping", True): 2}


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
async def test_the_address_that_stands_for_all_is_of_both_families(everywhere: str) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as free:
        port = free.getsockname()[1]
    config = KubeletConfiguration(healthz_port=port, healthz_bind_address=everywhere)
    async with trio.open_nursery() as nursery, httpx.AsyncClient(trust_env=False) as client:
        await health_port(nursery, config, HTTPMetrics(CollectorRegistry()))
        for host in ("127.0.0.1", "[::1]"):
            assert (await client.get(f"http://{host}:{port}/healthz")).text == "ok", host
        nursery.cancel_scope.cancel()

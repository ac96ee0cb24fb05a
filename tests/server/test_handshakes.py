"""The pace of TLS handshakes: floods wait, others do not wait for them."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.kube.certs import CA, trusting
from trio_kubelet.server.http.handshakes import HandshakePace, Pacemaker
from trio_kubelet.server.http.messages import Hijack, Request, Response, text
from trio_kubelet.server.http.serve import ServerLimits, serve
from trio_kubelet.server.node_server import TLSListener

PACE = HandshakePace(per_peer=10.0, burst=5, total=40.0, longest_wait=2.0)
Arrivals = list[tuple[float, str]]
ARRIVALS = st.lists(st.tuples(st.floats(0, 10), st.sampled_from("abc")), max_size=200).map(sorted)


def begun(arrivals: Arrivals) -> list[tuple[float, str]]:
    """When whose handshakes begin."""
    pacemaker = Pacemaker(PACE)
    waits = [(now, peer, pacemaker.wait(peer, now)) for now, peer in arrivals]
    return sorted((now + wait, peer) for now, peer, wait in waits if wait is not None)


@given(ARRIVALS)
def test_a_peer_never_begins_more_than_its_burst_and_its_rate(arrivals: Arrivals) -> None:
    for peer in "abc":
        moments = [then for then, who in begun(arrivals) if who == peer]
        for first, start in enumerate(moments):
            for last in range(first, len(moments)):
                window = moments[last] - start
                assert last - first + 1 <= PACE.burst + 1 + window * PACE.per_peer + 1e-6


@given(ARRIVALS)
def test_nobody_waits_longer_than_the_longest_wait(arrivals: Arrivals) -> None:
    pacemaker = Pacemaker(PACE)
    for now, peer in arrivals:
        wait = pacemaker.wait(peer, now)
        assert wait is None or 0 <= wait <= PACE.longest_wait


@given(st.integers(1, 500))
def test_a_flood_of_one_peer_hardly_holds_up_another(flood: int) -> None:
    pacemaker = Pacemaker(PACE)
    for _ in range(flood):
        pacemaker.wait("hostile", 1.0)
    accepted = PACE.burst + 1 + PACE.longest_wait * PACE.per_peer
    wait = pacemaker.wait("good", 1.0)
    assert wait is not None
    assert wait <= accepted / PACE.total


def test_peers_that_come_slowly_do_not_wait_and_are_forgotten() -> None:
    pacemaker = Pacemaker(PACE)
    waits = [pacemaker.wait(f"peer-{n}", n / 20) for n in range(5000)]
    assert set(waits) == {0.0}
    assert len(pacemaker) <= 1024


@asynccontextmanager
async def server(base: Path, pace: HandshakePace) -> AsyncIterator[tuple[int, CA]]:
    ca = CA()

    context = ca.server_context(base, ("127.0.0.1",))

    class Provider:
        def ssl_context(self) -> ssl.SSLContext:
            return context

    async def answer(request: Request) -> Response | Hijack:
        return text(200, "ok")

    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    limits = ServerLimits(handshakes=pace, header_seconds=4.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, [TLSListener(listener, Provider())], answer, limits)
        yield listener.socket.getsockname()[1], ca
        nursery.cancel_scope.cancel()


async def ask(port: int, ca: CA, source: str) -> float | None:
    """How long an answer takes; None if the connection ends without one."""
    began = time.monotonic()
    context = trusting(ca.pem)
    try:
        tcp = await trio.open_tcp_stream("127.0.0.1", port, local_address=source)
        async with trio.SSLStream(tcp, context, server_hostname="127.0.0.1", https_compatible=True) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")
            return time.monotonic() - began if await stream.receive_some(1000) else None
    except trio.BrokenResourceError:
        return None


SLOW = HandshakePace(per_peer=1.0, burst=5, total=40.0, longest_wait=20.0)
"""A pace at which the speed of the machine does not matter: who waits with a flood waits for long."""


async def test_a_client_gets_through_while_another_floods(tmp_path: Path) -> None:
    flood: list[float | None] = []
    async with server(tmp_path, SLOW) as (port, ca), trio.open_nursery() as nursery:
        began = time.monotonic()

        async def hostile() -> None:
            flood.append(await ask(port, ca, "127.0.0.2"))

        for _ in range(60):
            nursery.start_soon(hostile)
        with trio.fail_after(60):
            while flood.count(None) < 20 or len(flood) == flood.count(None):  # noqa: ASYNC110
                await trio.sleep(0.01)
        good = await ask(port, ca, "127.0.0.3")
        assert good is not None
        assert good < SLOW.longest_wait / 2
        answered = len(flood) - flood.count(None)
        assert answered <= SLOW.burst + 1 + (time.monotonic() - began) * SLOW.per_peer
        nursery.cancel_scope.cancel()


async def test_silent_clients_take_no_turn_and_are_cut_off(tmp_path: Path) -> None:
    async with server(tmp_path, SLOW) as (port, ca):
        silent = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(30)]
        took = await ask(port, ca, "127.0.0.1")
        assert took is not None  # one of more than SLOW lets in at once
        with trio.fail_after(60):
            for stream in silent:
                async with stream:
                    assert await stream.receive_some(10) == b""

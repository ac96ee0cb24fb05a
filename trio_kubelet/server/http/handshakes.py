"""TLS handshakes, begun at a pace that leaves the agent its time however many ask for one.

A handshake is half a millisecond to several of computing on the event loop, depending on the key, and whoever
reaches the port may ask for one. So they begin one by one, and each peer has a rate of its own: a burst for
the API server, which opens many logs at once, then so many a second. Those too early wait; who waits goes
first when connections become too many (`connections`).

Each limit is one moment, when the next one may begin: nothing to refill, no queue, and peers that come slowly
are forgotten.
"""

from __future__ import annotations

import ssl
from typing import Final

import msgspec
import trio

from trio_kubelet.server.http.connections import Place

PLAIN_HTTP: Final = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
_REMEMBERED: Final = 1024


class HandshakePace(msgspec.Struct, frozen=True, kw_only=True):
    """Handshakes per second: of one peer after its burst, and of all, evenly spaced."""

    per_peer: float = 50.0
    burst: int = 200
    total: float = 400.0
    longest_wait: float = 5.0  # seconds; whoever would wait longer is turned away


class Pacemaker:
    """When the next handshake may begin; time comes in as an argument, in seconds."""

    def __init__(self, pace: HandshakePace) -> None:
        self._pace = pace
        self._next = 0.0
        self._peers: dict[str, float] = {}

    def __len__(self) -> int:
        """How many peers are remembered."""
        return len(self._peers)

    def wait(self, peer: str, now: float) -> float | None:
        """How long a handshake of `peer` that wants to begin now has to wait; None: it is one too many."""
        pace = self._pace
        own = max(now, self._peers.get(peer, 0.0))
        begins = max(now, own - pace.burst / pace.per_peer, self._next)
        if begins - now > pace.longest_wait:
            return None
        if len(self._peers) >= _REMEMBERED:
            self._peers = {name: then for name, then in self._peers.items() if then > now}
        self._peers[peer] = own + 1 / pace.per_peer
        # Those that wait for their own rate do not hold up the others.
        self._next = max(now, self._next) + 1 / pace.total
        return begins - now


async def shake_hands(stream: trio.abc.Stream, place: Place, pacemaker: Pacemaker, seconds: float) -> bool:
    """The handshake, if this is TLS; whether there is a connection now.

    A client that is silent takes no turn. Raises trio.BrokenResourceError when the peers do not understand
    each other.
    """
    if not isinstance(stream, trio.SSLStream):
        return True
    with place.waiting(), trio.move_on_after(seconds) as scope:
        if isinstance(stream.transport_stream, trio.SocketStream):
            await trio.lowlevel.wait_readable(stream.transport_stream.socket)
        wait = pacemaker.wait(place.peer, trio.current_time())
        if wait is None:
            return False
        if wait > 0:
            await trio.sleep(wait)
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError as exc:
            if isinstance(exc.__cause__, ssl.SSLError) and exc.__cause__.reason == "HTTP_REQUEST":
                await stream.transport_stream.send_all(PLAIN_HTTP)
            raise
    return not scope.cancelled_caught

"""How many connections a server has, in all and from one peer, and which of them wait for their client.

A connection that waits (for a handshake, a request, the rest of its headers) can be ended to make room for a
new one, the longest waiting first. So clients that open connections and say nothing displace each other and
nobody else, while the ones being served are left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Place:
    """One connection's place; cancelling `scope` ends the connection."""

    def __init__(self, crowd: Crowd, peer: str) -> None:
        self._crowd = crowd
        self.peer = peer
        self.scope = trio.CancelScope()
        self.retired = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the connection waits for its client."""
        self._crowd.begin_waiting(self)
        try:
            yield
        finally:
            self._crowd.end_waiting(self)


class Crowd:
    """The connections of one server; `total` and `per_peer` bound them."""

    def __init__(self, total: int, per_peer: int) -> None:
        self._total = total
        self._per_peer = per_peer
        self._places: set[Place] = set()
        self._peers: Counter[str] = Counter()
        self._waiting: dict[Place, None] = {}  # in the order in which they began
        self._ending: set[Place] = set()  # told to end, still there
        self._lot = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._places)

    async def enter(self, peer: str) -> Place | None:
        """A place for a new connection, waiting for one if need be; None when this peer has too many."""
        if self._peers[peer] >= self._per_peer and not self._end_one(peer):
            return None
        while len(self._places) >= self._total:
            if len(self._places) - len(self._ending) >= self._total:
                self._end_one()
            await self._lot.park()
        place = Place(self, peer)
        self._places.add(place)
        self._peers[peer] += 1
        return place

    def leave(self, place: Place) -> None:
        """The connection has ended."""
        self._places.discard(place)
        self._ending.discard(place)
        self._peers[place.peer] -= 1
        if not self._peers[place.peer]:
            del self._peers[place.peer]
        self._lot.unpark()

    def retire(self) -> None:
        """None of them serves another request: those that wait end now, others after their answer."""
        for place in self._places:
            place.retired = True
        for place in list(self._waiting):
            place.scope.cancel()

    def begin_waiting(self, place: Place) -> None:
        self._waiting[place] = None
        self._lot.unpark()  # who waits for room may end this one

    def end_waiting(self, place: Place) -> None:
        self._waiting.pop(place, None)

    def _end_one(self, peer: str | None = None) -> bool:
        """Ends the connection (of a peer) that has waited longest; whether there was one."""
        for place in self._waiting:
            if peer is None or place.peer == peer:
                del self._waiting[place]
                self._ending.add(place)
                place.scope.cancel()
                return True
        return False

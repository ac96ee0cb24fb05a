"""Snapshots and what became different since, numbered, for any number of readers. Plain state, no I/O.

A reader knows the number it has. What it gets next is decided when it can take more: the differences it
lacks, or, when those are too many or no longer kept, a snapshot of now. So nothing is ever kept for one
reader.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from trio_kubelet.nodepage.rows import PodRow

KEPT_FRAMES: Final = 512
KEPT_BYTES: Final = 1 << 20
LAG_FRAMES: Final = 64
LAG_BYTES: Final = 256 << 10
EVENTS: Final = 300
POINTS: Final = 300

_SAME: Final = ("uid", "container", "type", "reason", "message")
"""What an event that comes again has in common with the one before."""

_encode = msgspec.json.Encoder().encode


class ShownPods:
    """What is shown now, and the last differences that led to it."""

    def __init__(self, node: Mapping[str, Any]) -> None:
        self._node = node
        self.life = secrets.token_hex(8)  # numbers of another agent's life mean nothing
        self.number = 0
        self.rows: dict[str, PodRow] = {}
        self._use: dict[str, Any] = {}
        self._events: deque[Any] = deque(maxlen=EVENTS)
        self._points: deque[Any] = deque(maxlen=POINTS)
        self._frames: deque[bytes] = deque()  # the last one has `number`
        self._bytes = 0
        self._snapshot: tuple[int, bytes] = (-1, b"")

    def put(
        self,
        rows: Mapping[str, PodRow | None],
        *,
        events: Iterable[Any] = (),
        points: Iterable[Any] = (),
        use: Mapping[str, Any] | None = None,
    ) -> bool:
        """Takes rows that may be different (None: gone) and what else is new; whether anything was."""
        changed = {uid: row for uid, row in rows.items() if row is not None and self.rows.get(uid) != row}
        gone = [uid for uid, row in rows.items() if row is None and uid in self.rows]
        new_events, new_points = list(events), list(points)
        self.rows.update(changed)
        for uid in gone:
            del self.rows[uid]
            self._use.pop(uid, None)
        for event in new_events:
            self._hear(event)
        self._points.extend(new_points)
        moved = {uid: of for uid, of in (use or {}).items() if uid in self.rows and self._use.get(uid) != of}
        self._use.update(moved)
        said = {"pods": changed, "gone": gone, "events": new_events, "points": new_points, "use": moved}
        said = {name: value for name, value in said.items() if value}
        if not said:
            return False
        self.number += 1
        self._keep(_encode({"n": self.number, **said}))
        return True

    def _hear(self, event: Any) -> None:
        """One that comes again is one entry: else a few that do so often would be all that is remembered."""
        if event.get("count", 1) > 1:
            before = [old for old in self._events if all(old.get(of) == event.get(of) for of in _SAME)]
            for old in before:
                self._events.remove(old)
        self._events.append(event)

    def note(self, *, points: Iterable[Any] = (), events: Iterable[Any] = ()) -> None:
        """Takes what is new while nobody reads: it is in the next snapshot; no difference tells it."""
        self._points.extend(points)
        for event in events:
            self._hear(event)
        self.forget()

    def forget(self) -> None:
        """No reader can go on from its number any more."""
        self.number += 1
        self._frames.clear()
        self._bytes = 0

    def since(self, life: str, number: int) -> list[bytes]:
        """The messages that bring a reader to `number` of now: none, differences, or one snapshot."""
        lacks = self.number - number
        if life == self.life and lacks == 0:
            return []
        if life == self.life and 0 < lacks <= min(len(self._frames), LAG_FRAMES):
            frames = list(self._frames)[-lacks:]
            if sum(map(len, frames)) <= LAG_BYTES:
                return frames
        return [self.snapshot()]

    def snapshot(self) -> bytes:
        """Everything as it is now."""
        if self._snapshot[0] != self.number:
            said = {
                "n": self.number,
                "life": self.life,
                "node": self._node,
                "pods": self.rows,
                **({"use": self._use} if self._use else {}),
                "events": list(self._events),
                "points": list(self._points),
            }
            self._snapshot = (self.number, _encode(said))
        return self._snapshot[1]

    def _keep(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._bytes += len(frame)
        while len(self._frames) > KEPT_FRAMES or (self._bytes > KEPT_BYTES and len(self._frames) > 1):
            self._bytes -= len(self._frames.popleft())

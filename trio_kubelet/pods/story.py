"""The story of each pod: what the agent decided about it, when and why, in a bounded ring.

This is what `describe` ends with, the answer to "why was this restarted?". Memory is bounded twice: so
many entries per pod, so many pods; the pods longest without news are forgotten first. Equal entries in a
row are one entry with a count, so that an hourly resync does not push out what happened last night.
"""

from __future__ import annotations

from sys import intern

import msgspec


class StoryEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One decision; `at_ns` is when it was last taken, `count` how often in a row."""

    at_ns: int
    cause: str  # config, pleg, probe, timer, housekeeping, worker, admission, eviction
    text: str
    first_ns: int = 0
    count: int = 1


class Story:
    """Entries by pod UID."""

    def __init__(self, *, entries_per_pod: int = 64, pods: int = 1000) -> None:
        self._entries_per_pod = entries_per_pod
        self._pods = pods
        self._rings: dict[str, list[StoryEntry]] = {}

    def note(self, uid: str, at_ns: int, cause: str, text: str) -> None:
        """Adds an entry, or counts up the last one if it says the same."""
        ring = self._rings.pop(uid, None)
        if ring is None:
            ring = []
        self._rings[uid] = ring  # the newest at the end of the dictionary
        if ring and (ring[-1].cause, ring[-1].text) == (cause, text):
            last = ring[-1]
            ring[-1] = msgspec.structs.replace(last, at_ns=at_ns, count=last.count + 1)
        else:
            # Most pods have most of their story in common.
            ring.append(StoryEntry(at_ns=at_ns, first_ns=at_ns, cause=intern(cause), text=intern(text)))
            del ring[: -self._entries_per_pod]
        while len(self._rings) > self._pods:
            del self._rings[next(iter(self._rings))]

    def entries(self, uid: str) -> tuple[StoryEntry, ...]:
        """The pod's entries, oldest first."""
        return tuple(self._rings.get(uid, ()))

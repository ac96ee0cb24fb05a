"""The story of each pod: what the agent decided about it, when and why, in a bounded ring.

This is what `describe` ends with, the answer to "why was this restarted?". Memory is bounded: so
many characters per entry, so many entries per pod, so many pods; the pods longest without news are forgotten
first. Equal entries in a row are one entry with a count, so that an hourly resync does not push out what
happened last night.
"""

from __future__ import annotations

from array import array

import msgspec

from trio_kubelet.common.interning import shared
from trio_kubelet.common.log import shortened

LONGEST_TEXT = 512
"""Characters; errors may quote megabytes, and a node has tens of thousands of entries."""


class StoryEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One decision; `at_ns` is when it was last taken, `count` how often in a row."""

    at_ns: int
    cause: str  # config, pleg, probe, timer, housekeeping, worker, admission, eviction
    text: str
    first_ns: int
    count: int


class _Ring:
    """A pod's entries, packed, as a node has tens of thousands of them."""

    __slots__ = ("counts", "moments", "said")

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []  # cause and text
        self.moments = array("q")  # of each entry the first and the last
        self.counts = array("I")

    def note(self, at_ns: int, said: tuple[str, str], limit: int) -> None:
        if self.said and self.said[-1] == said:
            self.moments[-1] = at_ns
            self.counts[-1] += 1
            return
        self.said.append(shared(said))  # most pods have most of their story in common
        self.moments.extend((at_ns, at_ns))
        self.counts.append(1)
        if (surplus := len(self.said) - limit) > 0:
            del self.said[:surplus], self.counts[:surplus], self.moments[: 2 * surplus]

    def entries(self) -> tuple[StoryEntry, ...]:
        moments = zip(self.moments[::2], self.moments[1::2], strict=True)
        return tuple(
            StoryEntry(at_ns=last, first_ns=first, count=count, cause=cause, text=text)
            for (cause, text), (first, last), count in zip(self.said, moments, self.counts, strict=True)
        )


class Story:
    """Entries by pod UID."""

    def __init__(self, *, entries_per_pod: int = 64, pods: int = 1000) -> None:
        self._entries_per_pod = entries_per_pod
        self._pods = pods
        self._rings: dict[str, _Ring] = {}

    def note(self, uid: str, at_ns: int, cause: str, text: str) -> None:
        """Adds an entry, or counts up the last one if it says the same."""
        ring = self._rings.pop(uid, None) or _Ring()
        self._rings[uid] = ring  # the newest at the end of the dictionary
        ring.note(at_ns, (cause, shortened(text, LONGEST_TEXT)), self._entries_per_pod)
        while len(self._rings) > self._pods:
            del self._rings[next(iter(self._rings))]

    def entries(self, uid: str) -> tuple[StoryEntry, ...]:
        """The pod's entries, oldest first."""
        ring = self._rings.get(uid)
        return ring.entries() if ring is not None else ()

"""Looks at the agent once for all readers and tells them what became different.

The agent says which pods may be different. What it does not say is where in its round a pod is: of those
that are in one that is looked up each second. A pass over cheap stamps of all pods, every ten seconds, is for
what nobody told.
While nobody reads, nothing is looked at but the few numbers of the charts, so that they are not empty for
the first reader.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import trio

from trio_kubelet.common.clock import Clock
from trio_kubelet.nodepage.charts import Charts
from trio_kubelet.nodepage.doors import NodeDoor, Use
from trio_kubelet.nodepage.rows import PodRow, pod_row
from trio_kubelet.nodepage.shown import ShownPods

SLICE: Final = 25
"""Rows that are made before others have their turn."""
SEEN: Final = 80
"""Pods in view of one reader whose use is measured."""
MEASURED: Final = 160
"""Pods whose use is measured in each beat; of more, all in one of several."""
EVENTS: Final = 400
"""Events that wait to be told."""

GAP: Final = 0.05
"""Seconds between two messages."""
GLANCE: Final = 1.0
LOOK: Final = 10.0
"""Seconds between two looks at rounds under way, and at all pods."""
BEAT: Final = 2.5
IDLE_BEAT: Final = 10.0
PATIENCE: Final = 1.0
"""Seconds that a point waits for what pods use: it tells readers, too, that the node is there."""
LINGER: Final = 60.0
"""Seconds for which it goes on when the last reader has left."""


class Reader:
    """Somebody who looks at the page: the pods in view, whose use is measured, or that of all."""

    def __init__(self) -> None:
        self.sees: tuple[str, ...] = ()
        self.compares = False  # what all pods use


class Feed:
    """What all readers are shown, and the task that keeps it true."""

    def __init__(self, *, node: NodeDoor, shown: ShownPods, charts: Charts, clock: Clock) -> None:
        self.node = node
        self.shown = shown
        self._charts = charts
        self._clock = clock
        self._readers: set[Reader] = set()
        self._stamps: dict[str, object] = {}
        self._rounds: Mapping[str, object] = {}
        self._dirty: set[str] = set()
        self._events: list[Any] = []
        self._wake = trio.Event()
        self._news = trio.Event()
        self._left = -math.inf  # when the last reader did
        self._fresh = False  # the rows are kept true
        self._begun = trio.Event()  # set while they are
        self._joining = trio.Lock()
        self._rest = 0  # beats until use is measured
        self._used: dict[str, dict[str, Use]] = {}  # and not told yet
        self._measured = trio.Event()  # set while nothing is being measured
        self._measured.set()
        node.on_change(self._changed)

    def event(self, event: Any) -> None:
        """Takes an event, a plain value, for the page's list."""
        if not self._fresh:
            self.shown.note(events=[event])
            return
        self._events.append(event)
        if len(self._events) > EVENTS:
            del self._events[0]
        self._wake.set()

    async def join(self, reader: Reader) -> None:
        """The reader looks from now on; the rows are true when this returns."""
        self._readers.add(reader)
        async with self._joining:  # one look for all who come together
            if not self._fresh:
                await self._look_at(self.node.uids())
                self._fresh = True
                self._begun.set()
        self._wake.set()

    def leave(self, reader: Reader) -> None:
        """The reader has left."""
        self._readers.discard(reader)
        self._left = trio.current_time()

    async def news(self) -> None:
        """Returns at the next message."""
        await self._news.wait()

    async def run(self) -> None:
        """Looks until it is cancelled."""
        trio.lowlevel.add_instrument(self._charts.turns)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._beat)
                await self._watch()
        finally:
            trio.lowlevel.remove_instrument(self._charts.turns)

    def _changed(self, uid: str) -> None:
        if self._fresh or self._joining.locked():
            self._dirty.add(uid)
            self._wake.set()

    def _is_read(self) -> bool:
        return bool(self._readers) or trio.current_time() < self._left + LINGER

    async def _watch(self) -> None:
        look_at = -math.inf
        while True:
            with trio.move_on_after(GLANCE if self._fresh else math.inf):
                await self._wake.wait()
            self._wake = trio.Event()
            if not self._fresh:
                continue
            if not self._is_read():
                self._sleep()
                continue
            self._find_rounds()
            if trio.current_time() >= look_at:
                look_at = trio.current_time() + LOOK
                self._find_changed()
            if self._dirty or self._events:
                await self._look_at(self._dirty)
            await trio.sleep(GAP)

    def _sleep(self) -> None:
        """Nobody reads: the rows are not kept true any more, and nobody can go on from their number."""
        self._fresh = False
        self._begun = trio.Event()
        self._dirty.clear()
        events, self._events = self._events, []
        self.shown.note(events=events)

    def _find_rounds(self) -> None:
        """Marks the pods whose round is at another step now, or over."""
        rounds = self.node.rounds()
        if rounds or self._rounds:
            self._dirty.update(
                uid for uid in rounds.keys() | self._rounds.keys() if rounds.get(uid) != self._rounds.get(uid)
            )
            self._rounds = rounds

    def _find_changed(self) -> None:
        """Marks the pods that are new, gone, or different in a way that nobody told of."""
        uids = self.node.uids()
        stamps = {uid: self.node.stamp(uid) for uid in uids}
        for uid, stamp in stamps.items():
            if uid not in self._stamps or self._stamps[uid] != stamp:
                self._dirty.add(uid)
        self._dirty |= self.shown.rows.keys() - stamps.keys()
        self._stamps = stamps

    async def _look_at(self, uids: Iterable[str]) -> None:
        """Makes the rows of these pods anew, tells them and the events."""
        wanted = [*dict.fromkeys([*uids, *(self.shown.rows if not self._fresh else ())])]
        self._dirty = set()
        rows: dict[str, PodRow | None] = {}
        for number, uid in enumerate(wanted, 1):
            facts = self.node.facts(uid)
            rows[uid] = None if facts is None else pod_row(facts)
            if number % SLICE == 0:
                await trio.lowlevel.checkpoint()
        events, self._events = self._events, []
        self._tell(rows=rows, events=events)

    def _tell(self, **what: Any) -> None:
        if self.shown.put(what.pop("rows", {}), **what):
            self._news.set()
            self._news = trio.Event()

    async def _beat(self) -> None:
        """A point of each chart and what the pods in view use, in one message: each wakes every reader."""
        async with trio.open_nursery() as nursery:
            while True:
                if self._measured.is_set():
                    self._measured = trio.Event()
                    nursery.start_soon(self._measure)
                with trio.move_on_after(PATIENCE):
                    await self._measured.wait()
                use, self._used = self._used, {}
                point = self._charts.point(self._clock.now_ns())
                points = [] if point is None else [point]
                if self._fresh:
                    self._tell(points=points, use=use)
                elif points:
                    self.shown.note(points=points)
                await self._pause()

    async def _measure(self) -> None:
        try:
            self._used = await self._use()
        finally:  # the feed may be started anew, and measures then
            self._measured.set()

    async def _pause(self) -> None:
        """Until the next point is due: sooner when somebody reads, or begins to."""
        await trio.sleep(BEAT)
        with trio.move_on_after(IDLE_BEAT - BEAT):
            await self._begun.wait()

    async def _use(self) -> dict[str, dict[str, Use]]:
        """All pods in view at once, for a rate is that since the last time; but then it costs no more than a
        few readers do, however many look at different pods.
        """
        self._rest -= 1
        if self._rest > 0:
            return {}
        seen = dict.fromkeys(uid for reader in self._readers for uid in self._wants(reader))
        self._rest = math.ceil(len(seen) / MEASURED)
        return await self.node.use(list(seen)) if seen else {}

    def _wants(self, reader: Reader) -> Iterable[str]:
        return self.shown.rows if reader.compares else reader.sees[:SEEN]

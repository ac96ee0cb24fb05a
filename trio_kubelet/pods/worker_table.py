"""All workers of an agent and what others ask about them.

Garbage collection, probes, volumes and statuses go by these answers. An unknown pod counts as gone only when
all sources have reported, or its worker has finished and was forgotten; before, nothing of it may be touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import trio

from trio_kubelet.common.agenda import Agenda
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.finishing import Finishing
from trio_kubelet.pods.refs import split_full_name
from trio_kubelet.pods.worker_state import Stage, Worker

_STOPPED = (Stage.TERMINATED, Stage.FINISHED)


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as the debug endpoint shows it; times in seconds."""

    uid: str
    pod: str
    stage: str
    since: float  # in this stage
    busy: float | None  # with the attempt under way, None when idle
    pending: bool
    failures: int
    grace: int | None
    deleted: bool
    evicted: bool
    cause: str
    last_error: str
    next_in: float | None
    waits_for: str  # UID that holds the static name


class Outlook(NamedTuple):
    """What is to be expected of a worker."""

    stage: Stage
    last_error: str
    due: float | None  # Trio time of its next round
    holder: str  # UID of the pod that holds its static name, "" for none


class Slot:
    """What belongs to a worker's task."""

    __slots__ = (
        "begun",
        "finishing",
        "last_error",
        "last_sync",
        "scope",
        "stopped",
        "wake",
        "warned",
    )

    def __init__(self) -> None:
        self.wake = trio.Event()
        self.scope: trio.CancelScope | None = None  # of the attempt under way
        self.finishing = Finishing()  # hears before that scope is cancelled
        self.begun: float | None = None  # when that began
        self.last_sync = float("-inf")  # Trio time at which the last attempt that did something ended
        self.stopped: list[trio.Event] = []  # set when the containers are stopped
        self.last_error = ""
        self.warned = False

    def interrupt(self) -> None:
        """Ends the attempt under way, if there is one."""
        if self.scope is not None:
            self.finishing.hurry()
            self.scope.cancel()


class WorkerTable:
    """The workers by UID, read only. Implements the runtime room's `PodStates`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._workers: dict[str, Worker] = {}
        self._slots: dict[str, Slot] = {}
        self._rounds = Agenda[str]()  # by UID
        self._names = StaticNames()
        self._synced = False
        self._gone: set[str] = set()  # forgotten while some sources had not reported
        self._comes: Callable[[str], bool] = lambda _: False

    def expect(self, comes: Callable[[str], bool]) -> None:
        """Who knows, by UID, which pods have no worker only because their admission waits for something."""
        self._comes = comes

    def get(self, uid: str) -> Worker | None:
        """The worker of that pod."""
        return self._workers.get(uid)

    def known(self) -> dict[str, Worker]:
        """All workers by UID."""
        return dict(self._workers)

    def name_holders(self) -> dict[str, str]:
        """Static full names that are taken, with the UID that holds each."""
        return self._names.holders()

    def take_due(self) -> list[str]:
        """UIDs whose time to come round has come; each time is told once."""
        now, uids = trio.current_time(), []
        while (uid := self._rounds.pop(now)) is not None:
            uids.append(uid)
        return uids

    def next_due(self) -> float:
        """Trio time at which the next one is due, infinity if none is."""
        return self._rounds.first()

    def is_termination_requested(self, uid: str) -> bool:
        """Whether the pod is to end or has ended; false for a pod without a worker."""
        worker = self._workers.get(uid)
        return worker is not None and worker.ending

    def is_known_terminated(self, uid: str) -> bool:
        """Whether nothing of the pod runs any more and its worker still knows it."""
        worker = self._workers.get(uid)
        return worker is not None and worker.stage in _STOPPED

    def could_have_running_containers(self, uid: str) -> bool:
        """Whether containers of the pod may run; true for an unknown pod until all sources reported."""
        worker = self._workers.get(uid)
        if worker is None:
            return not self._is_gone(uid)
        return worker.stage not in _STOPPED

    def should_runtime_be_removed(self, uid: str) -> bool:
        """Whether the pod's containers and mounts may go: none of them runs any more."""
        worker = self._workers.get(uid)
        if worker is None:
            return self._is_gone(uid)
        return worker.stage in _STOPPED

    def should_content_be_removed(self, uid: str) -> bool:
        """Whether everything of the pod may go: it was evicted or removed, and has stopped.

        Of an evicted one, too, only then: how its containers ended has to be read before they go.
        """
        worker = self._workers.get(uid)
        if worker is None:
            return self._is_gone(uid)
        return (worker.evicted or worker.deleted) and worker.stage in _STOPPED

    def _is_gone(self, uid: str) -> bool:
        """Whether a pod without a worker is known to be over. One whose admission waits is not: what a life
        before a restart has left of it says why that ended, and how often.
        """
        return (self._synced or uid in self._gone) and not self._comes(uid)

    def is_name_ending(self, full_name: str) -> bool:
        """Whether the static pod of that name is stopping (its mirror must not be deleted yet)."""
        worker = self._workers.get(self._names.holder(full_name) or "")
        return worker is not None and worker.stage is Stage.TERMINATING

    def outlook(self, uid: str) -> Outlook | None:
        """What is to be expected of one worker."""
        worker = self._workers.get(uid)
        if worker is None:
            return None
        slot = self._slots[uid]
        return Outlook(worker.stage, slot.last_error, self._rounds.due(uid), self._holder(worker))

    def _holder(self, worker: Worker) -> str:
        return (self._names.holder(worker.full_name) or "") if worker.stage is Stage.WAITING else ""

    def report(self) -> list[WorkerReport]:
        """All workers as the debug endpoint shows them, the longest busy first."""
        now, now_ns = trio.current_time(), self._clock.now_ns()
        reports = []
        for uid, worker in self._workers.items():
            slot, due = self._slots[uid], self._rounds.due(uid)
            name, namespace = split_full_name(worker.full_name)
            report = WorkerReport(
                uid=uid,
                pod=f"{namespace}/{name}",
                stage=worker.stage.value,
                since=(now_ns - worker.since_ns) / 1e9,
                busy=None if slot.begun is None else now - slot.begun,
                pending=worker.pending,
                failures=worker.failures,
                grace=worker.grace,
                deleted=worker.deleted,
                evicted=worker.evicted,
                cause=worker.cause,
                last_error=slot.last_error,
                next_in=None if due is None else max(due - now, 0.0),
                waits_for=self._holder(worker),
            )
            reports.append(report)
        return sorted(reports, key=lambda report: -(report.busy or 0))


class StaticNames:
    """Who may run under a static pod's full name: lines of UIDs, who stands first holds the name.

    Two versions of a static pod must never run side by side: they would share host ports, host paths and the
    mirror pod. A pod that its source drops while it waits simply leaves the line, so of three quick edits
    only the last one runs. An orphan from before a restart holds the name as well, until it is gone.
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def claim(self, full_name: str, uid: str) -> bool:
        """Joins the line unless it stands there already; whether the name is held by `uid` now."""
        line = self._lines.setdefault(full_name, [])
        if uid not in line:
            line.append(uid)
        return line[0] == uid

    def release(self, full_name: str, uid: str) -> str | None:
        """Leaves the line; the UID whose turn has come by that, if any."""
        line = self._lines.get(full_name)
        if line is None or uid not in line:
            return None
        held = line[0] == uid
        line.remove(uid)
        if not line:
            del self._lines[full_name]
            return None
        return line[0] if held else None

    def holder(self, full_name: str) -> str | None:
        """The UID that holds the name."""
        line = self._lines.get(full_name)
        return line[0] if line else None

    def holders(self) -> dict[str, str]:
        """All names that are held, with their holders."""
        return {name: line[0] for name, line in self._lines.items()}

"""Worker threads in named lanes: blocking work (files, mostly) away from the event loop.

Nothing can end a thread that hangs in the kernel, at a dead NFS server say. So each kind of work has a lane
of its own with so many threads at once and a deadline, after which the work is left behind. Work done for
somebody (`owner`: the UID of a pod, a path, a peer) that is left behind gives its thread back to the lane and
counts against its owner alone, who gets no further one until it ends; the same holds already for work that is
still waited for when others wait for its thread. The agent's own work keeps its thread.
So there are never more threads than the lanes have together, plus those of owners whose work hangs.

In a simulation work runs inline: a virtual clock that jumps when every task waits does not know that a thread
is still at work, so time would run on by chance and the simulation would not be the same twice.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Generic, TypeVar

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.common.threads import THREADS

T = TypeVar("T")

log = get_logger(__name__)

PATIENCE: Final = 5.0
"""Seconds an owner waits for a place that its own earlier work holds, while none of that ends."""

SLOW: Final = 2.0
"""Seconds after which work done for an owner does not count among the lane's threads any more."""


class WorkHangs(TimeoutError):
    """Blocking work did not end in time, or could not begin because earlier work still has not."""


class _Line:
    """Who waits for a place of one owner."""

    def __init__(self) -> None:
        self.lot = trio.lowlevel.ParkingLot()
        self.moved = trio.current_time()  # when a place became free, or the first began to wait


class Lane:
    """Threads for one kind of work: at most `threads` at once, `per_owner` of them for one owner.

    `deadline` in seconds is for waiting for a thread and the work together. Work that has begun is waited for
    until then although the caller is cancelled; in an `interruptible` lane it is left behind at once.
    """

    def __init__(
        self, name: str, *, threads: int, deadline: float, per_owner: int = 1, interruptible: bool = False
    ) -> None:
        self.name = name
        self.threads = threads
        self.deadline = deadline
        self._per_owner = per_owner
        self._shield = not interruptible
        # What follows is changed under the lock: work that was left behind ends in its own thread, after the
        # end of the event loop even.
        self.lock = threading.Lock()
        self.busy = 0
        self.left_behind = 0  # threads at work that nobody waits for any more
        self.left_behind_ever = 0
        self._places: dict[str, int] = {}  # held by work that runs or hangs, by owner
        self.counted: dict[
            _Work[Any], float
        ] = {}  # work for owners among `busy`, and since when, oldest first
        self._queue = trio.lowlevel.ParkingLot()
        self._owners: dict[str, _Line] = {}

    async def run(
        self,
        function: Callable[..., T],
        *args: object,
        owner: str = "",
        discard: Callable[[T], object] | None = None,
    ) -> T:
        """Calls `function(*args)` in a thread of the lane and returns or raises what it does.

        Raises WorkHangs (an OSError) at the deadline, or when earlier work of the owner still hangs. When
        nobody waits for the result any more (a descriptor, say), `discard` gets it, in either thread.
        """
        if hasattr(trio.lowlevel.current_clock(), "autojump_threshold"):
            await trio.lowlevel.checkpoint()
            return function(*args)
        await trio.lowlevel.checkpoint_if_cancelled()
        deadline = trio.current_time() + self.deadline
        if owner:
            await self._take_place(owner, deadline)
        if self.busy >= self.threads or self._queue:
            await self._wait_for_thread(deadline, owner)
        work = _Work(self, owner, partial(function, *args), discard)
        with self.lock:
            self.busy += 1
            if owner:
                self.counted[work] = deadline - self.deadline
        try:
            with trio.CancelScope(deadline=deadline, shield=self._shield):
                return await work.done()
        finally:
            work.leave()
            self.wake(owner)
        log.warning("Blocking work hangs and is left behind", lane=self.name, owner=owner)
        raise WorkHangs(f"{self.name}: no end within {self.deadline:g} s")

    async def _take_place(self, owner: str, deadline: float) -> None:
        while self._places.get(owner, 0) >= self._per_owner:
            line = self._owners.setdefault(owner, _Line())
            try:
                with trio.move_on_at(min(deadline, line.moved + PATIENCE)):
                    await line.lot.park()
            finally:
                if not line.lot and self._owners.get(owner) is line:
                    del self._owners[owner]
            if trio.current_time() >= min(deadline, line.moved + PATIENCE):
                raise WorkHangs(f"{self.name}: earlier work still hangs")
        with self.lock:
            self._places[owner] = self._places.get(owner, 0) + 1

    async def _wait_for_thread(self, deadline: float, owner: str) -> None:
        try:
            while trio.current_time() < deadline:
                slow_at = next(iter(self.counted.values()), math.inf) + SLOW
                with trio.move_on_at(min(deadline, slow_at)):
                    await self._queue.park()
                self._discount()
                if self.busy < self.threads:
                    return
            raise WorkHangs(f"{self.name}: no thread is free for {self.deadline:g} s")
        except BaseException:
            with self.lock:
                self.free_place(owner)
            self.wake(owner)
            raise

    def _discount(self) -> None:
        """Work that has become slow counts against its owners alone."""
        with self.lock:
            slow = [work for work, begun in self.counted.items() if begun + SLOW <= trio.current_time()]
            for work in slow:
                del self.counted[work]
            self.busy -= len(slow)

    def free_place(self, owner: str) -> None:
        """Work of this owner has ended. With the lock."""
        if not owner:
            return
        self._places[owner] -= 1
        if not self._places[owner]:
            del self._places[owner]

    def wake(self, owner: str) -> None:
        """Who waits for a thread or for a place of this owner may look again. In Trio's thread only."""
        if self._queue and self.busy < self.threads:
            self._queue.unpark()
        if (line := self._owners.get(owner)) is not None:
            line.moved = trio.current_time()
            line.lot.unpark()


class _Work(Generic[T]):
    """One call, and how far it is: two sides, the thread and who waits for it, may let go of it first."""

    __slots__ = (
        "_begun",
        "_discard",
        "_ended",
        "_function",
        "_lane",
        "_left",
        "_owner",
        "_results",
        "_task",
        "_token",
    )

    def __init__(
        self, lane: Lane, owner: str, function: Callable[[], T], discard: Callable[[T], object] | None
    ) -> None:
        self._lane = lane
        self._owner = owner
        self._function = function
        self._discard = discard
        self._results: list[T] = []  # the result, until somebody has it
        self._task: trio.lowlevel.Task | None = None  # which waits
        self._token = trio.lowlevel.current_trio_token()
        self._begun = self._ended = self._left = False

    def __call__(self) -> None:
        """Does the work, unless nobody waits for it any more. In the thread."""
        with self._lane.lock:
            if self._left:
                raise trio.BrokenResourceError("nobody waits")
            self._begun = True
        try:
            self._results.append(self._function())
        finally:
            self._end()

    async def done(self) -> T:
        """Has the work done in a thread, and returns or raises what it does. Cancelled, it goes on there.

        By `trio.to_thread` a turn costs a third more: it names the thread for each, which are two calls
        of the kernel, and gives it a context and ways back into Trio that nothing here uses. And where no
        thread is idle it waits for the start of one.
        """
        self._task = trio.lowlevel.current_task()
        THREADS.start_soon(self, self._deliver)
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        return self._results.pop()

    def _abort(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _deliver(self, outcome: Any) -> None:
        """In the thread, when it has ended."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._go_on, outcome)

    def _go_on(self, outcome: Any) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task, outcome)

    def _end(self) -> None:
        lane = self._lane
        with lane.lock:
            self._ended = True
            if not self._left:
                return
            lane.left_behind -= 1
            if self._owner:
                lane.free_place(self._owner)
            else:
                lane.busy -= 1
        self._throw_away()
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(lane.wake, self._owner)

    def leave(self) -> None:
        """Nobody waits for it any more, be it because it has ended."""
        lane = self._lane
        with lane.lock:
            self._left = True
            if hangs := self._begun and not self._ended:
                lane.left_behind += 1
                lane.left_behind_ever += 1
            else:
                lane.free_place(self._owner)
            if lane.counted.pop(self, None) is not None or not (self._owner or hangs):
                lane.busy -= 1
        if not hangs:  # else the thread will
            self._throw_away()

    def _throw_away(self) -> None:
        """What came back and nobody took: a caller may have been cancelled just when the work had ended."""
        if self._results and self._discard is not None:
            self._discard(self._results.pop())


VOLUMES: Final = Lane("volumes", threads=32, deadline=120.0, interruptible=True)
"""Mounts and files of pods' volumes, by pod."""
PERSISTENT_VOLUMES: Final = Lane("persistent-volumes", threads=32, deadline=120.0, interruptible=True)
"""Mounts, data files and devices of volumes that are not the agent's own, by volume."""
OWNERSHIP: Final = Lane("ownership", threads=8, deadline=86_400.0, interruptible=True)
"""Giving volumes to groups, by volume: millions of files take hours, and then they are done."""
DIRECTORIES: Final = Lane("directories", threads=16, deadline=60.0, interruptible=True)
"""The pods' directories, by pod."""
CONFIGS: Final = Lane("configs", threads=16, deadline=60.0, interruptible=True)
"""What a container's config is made from: env files, subPaths, hosts files, log directories; by pod."""
CONTAINER_FILES: Final = Lane("container-files", threads=16, deadline=30.0, per_owner=4)
"""Files that containers write, read for somebody: logs, termination messages; by pod."""
LOGS: Final = Lane("logs", threads=4, deadline=60.0)
"""Rotation and removal of logs and the links to them."""
CGROUPS: Final = Lane("cgroups", threads=8, deadline=60.0)
METER: Final = Lane("meter", threads=2, deadline=300.0, interruptible=True)
"""Walks over pods' volumes, by pod."""
STATS: Final = Lane("stats", threads=8, deadline=120.0)
"""What cgroups, disks and processes say of themselves."""
FILESYSTEMS: Final = Lane("filesystems", threads=4, deadline=2.0)
"""How large filesystems are, by where they are mounted."""
PRESSURE: Final = Lane("pressure", threads=2, deadline=10.0)
"""What is left of memory, disks and PIDs: a lane of its own, so that no other work holds up an eviction."""
NODE_FILES: Final = Lane("node-files", threads=16, deadline=60.0)
"""The agent's own files."""
NODE_LOGS: Final = Lane("node-logs", threads=8, deadline=30.0, per_owner=4)
"""The node's logs that clients ask for, by name."""
CERTIFICATES: Final = Lane("certificates", threads=4, deadline=60.0)
"""Keys and certificates: files, and arithmetic that takes its time."""
MANIFESTS: Final = Lane("manifests", threads=4, deadline=30.0, per_owner=2, interruptible=True)
"""Looks at the files of `staticPodPath`, the sockets of plugins, `staticPodURL`; by path or URL."""
NAMES: Final = Lane("names", threads=8, deadline=30.0, per_owner=2, interruptible=True)
"""Questions to the name service."""
PROGRAMS: Final = Lane("programs", threads=16, deadline=60.0, per_owner=4, interruptible=True)
"""Starts of programs, by program."""
STANDALONE: Final = Lane("standalone", threads=4, deadline=600.0)
"""The commands around an agent of one's own: unpacking, tidying up."""
TRACES: Final = Lane("traces", threads=1, deadline=2.0)
"""The end of the library that sends spans."""
TERMINAL: Final = Lane("terminal", threads=1, deadline=math.inf, interruptible=True)

LANES: Final = (
    VOLUMES,
    PERSISTENT_VOLUMES,
    OWNERSHIP,
    DIRECTORIES,
    CONFIGS,
    CONTAINER_FILES,
    LOGS,
    CGROUPS,
    METER,
    STATS,
    FILESYSTEMS,
    PRESSURE,
    NODE_FILES,
    NODE_LOGS,
    CERTIFICATES,
    MANIFESTS,
    NAMES,
    PROGRAMS,
    STANDALONE,
    TRACES,
    TERMINAL,
)


def count_left_behind(registry: CollectorRegistry, lanes: Iterable[Lane] = LANES) -> None:
    """Metrics of threads and work that were left behind, by lane."""
    make, all_lanes = MetricMaker(registry), tuple(lanes)
    make.counted(
        "trio_kubelet_abandoned_threads",
        "Worker threads that hang at work nobody waits for any more.",
        ["lane"],
        lambda: {(lane.name,): lane.left_behind for lane in all_lanes},
    )
    make.counted_ever(
        "trio_kubelet_abandoned_work",
        "Blocking work that was left behind, because it hung or because its caller was cancelled.",
        ["lane"],
        lambda: {(lane.name,): lane.left_behind_ever for lane in all_lanes},
    )

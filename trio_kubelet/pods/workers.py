"""The pod workers: one task per pod in its own cancel scope, driven by the transitions of `worker_state`.

Nothing here decides: a message goes through `step`, and the effects it asks for are carried out. A worker's
task takes up the work of its stage, hands it to the syncer and reports the outcome. Whatever a syncer does
wrong stays inside that pod; a worker that hangs holds up nobody and is visible in `report`.
"""

from __future__ import annotations

import math
import random
from functools import partial

import trio

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.common.log import get_logger
from trio_kubelet.observed.types import PodStatus, RunningPod
from trio_kubelet.pleg.cache import InspectionFailed
from trio_kubelet.podinfo.doors import RecorderDoor
from trio_kubelet.podinfo.updates import is_static
from trio_kubelet.pods.doors import PlegDoor, StatusDoor, SyncerDoor
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.refs import is_quiet, pod_full_name, split_full_name
from trio_kubelet.pods.story import Story
from trio_kubelet.pods.work import Attempt, SyncReport, WorkerPeriods, due_at, pause_before_next
from trio_kubelet.pods.worker_state import (
    AttemptOutcome,
    Create,
    Done,
    Effect,
    Kill,
    KillOrphan,
    Message,
    Remove,
    Retry,
    Stage,
    StatusPatch,
    Sync,
    Turn,
    Update,
    Worker,
    step,
    take,
)
from trio_kubelet.pods.worker_table import Slot, WorkerTable

log = get_logger(__name__)

LOOK_DEADLINE = 30.0  # seconds; a look at a pod that takes longer is left to the next relist
LONG = 10.0
"""Seconds after which a pod is told of though a round of it goes on, and again each time."""


class PodWorkers(WorkerTable):
    """All pod workers of an agent; `run` is the task that owns them.

    `ended` is called with the UID of each worker that finished (and may be wanted anew): the sync loop
    then forgets it or starts it again.
    """

    def __init__(
        self,
        *,
        syncer: SyncerDoor,
        status: StatusDoor,
        pleg: PlegDoor,
        clock: Clock,
        metrics: PodMetrics,
        recorder: RecorderDoor,
        story: Story,
        periods: WorkerPeriods = WorkerPeriods(),
    ) -> None:
        super().__init__(clock)
        self._syncer = syncer
        self._status = status
        self._pleg = pleg
        self._metrics = metrics
        self._recorder = recorder
        self._story = story
        self._periods = periods
        self._nursery: trio.Nursery | None = None
        self.ended: Listeners[[str]] = Listeners()  # UIDs of pods that are finished
        self.changed: Listeners[[str]] = Listeners()  # UIDs of pods whose stage or failure is another now

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Owns the workers' tasks until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                nursery.start_soon(self._tell_of_long_rounds)
                task_status.started()
                await self._watch()
            finally:
                # While the agent stops, the sync loop may still hand on an update.
                self._nursery = None
                for slot in self._slots.values():
                    slot.finishing.hurry()

    # Messages

    def create(self, pod: Pod, *, cause: str = "config") -> None:
        """A source wants the pod and it was admitted."""
        self._send(pod.metadata.uid, self._wanted(Create, pod), cause)

    def update(self, pod: Pod, *, cause: str = "config") -> None:
        """The pod or its mirror changed."""
        self._send(pod.metadata.uid, self._wanted(Update, pod), cause)

    def sync(self, pod: Pod, *, cause: str = "timer") -> None:
        """Look after the pod now; never brings up a pod that has no worker."""
        self._send(pod.metadata.uid, Sync(pod=pod), cause)

    def retry(self, uid: str) -> None:
        """Goes on with a pod that no source knows any more."""
        self._send(uid, Retry(), "timer")

    def remove(self, uid: str, *, cause: str = "config") -> None:
        """No source wants the pod any more."""
        self._send(uid, Remove(), cause)

    def kill(
        self,
        pod: Pod,
        *,
        grace: int | None = None,
        evict: bool = False,
        patch: StatusPatch | None = None,
        cause: str = "killed by the node",
    ) -> trio.Event:
        """Ends the pod by the node's own decision; the event is set once its containers are stopped."""
        message = Kill(pod=pod, grace=grace, evict=evict, patch=patch, cause=cause)
        stopped = trio.Event()
        self._send(pod.metadata.uid, message, "eviction" if evict else "node", stopped)
        return stopped

    def kill_orphan(self, running: RunningPod, grace: int | None) -> None:
        """Ends a pod that only the runtime knows; `grace` in seconds, None: each container's own."""
        self._send(running.uid, KillOrphan(running=running, grace=grace), "housekeeping")

    def hold_name(self, full_name: str, uid: str) -> None:
        """Keeps a static name for a pod seen in the runtime, until its worker ends or the name is freed."""
        self._names.claim(full_name, uid)

    def free_name(self, full_name: str, uid: str) -> None:
        """Gives up what `hold_name` took."""
        self._release(full_name, uid)

    def forget(self, uid: str) -> None:
        """Drops the history of a pod that is finished."""
        del self._workers[uid], self._slots[uid]
        self.changed.tell(uid)
        if not self._synced:
            self._gone.add(uid)

    def mark_synced(self) -> None:
        """All sources have reported: a pod without a worker is known not to be wanted."""
        self._synced = True
        self._gone.clear()

    # Carrying out

    def _wanted(self, kind: type[Create] | type[Update], pod: Pod) -> Create | Update:
        uid = pod.metadata.uid
        free = True
        if uid not in self._workers and is_static(pod):
            free = self._names.claim(pod_full_name(pod), uid)
        return kind(pod=pod, slot_free=free, quiet=is_quiet(self._status.get(uid)))

    def _send(self, uid: str, message: Message, cause: str, stopped: trio.Event | None = None) -> None:
        """Puts a message through `step` and carries out what it asks for."""
        now_ns = self._clock.now_ns()
        before = self._workers.get(uid)
        result = step(before, message, now_ns)
        worker = result.worker
        if worker is None:
            return
        self._workers[uid] = worker
        slot = self._slots.setdefault(uid, Slot())
        if stopped is not None:
            slot.stopped.append(stopped)
        self._tell(before, worker, message, cause, result.note)
        self._carry_out(uid, worker, slot, result.effects)

    def _carry_out(self, uid: str, worker: Worker, slot: Slot, effects: Effect) -> None:
        if Effect.STOPPED in effects:
            for event in slot.stopped:
                event.set()
            slot.stopped.clear()
        if Effect.WAKE in effects:
            self._rounds.take_out(uid)
            slot.wake.set()
        if Effect.CANCEL in effects:
            slot.interrupt()
        if Effect.START in effects:
            if worker.stage is Stage.SYNCING and worker.pod is not None:
                self._metrics.containers_per_pod.observe(len(worker.pod.spec.containers or ()))
            if self._nursery is not None:
                self._nursery.start_soon(self._work, uid)
        if Effect.ENDED in effects:
            self._release(worker.full_name, uid)
            self.ended.tell(uid)

    def _release(self, full_name: str, uid: str) -> None:
        following = self._names.release(full_name, uid)
        if following is not None:
            self._send(following, Turn(), "worker")

    def _tell(self, before: Worker | None, worker: Worker, message: Message, cause: str, note: str) -> None:
        """Into the story and the log goes what moved the pod on, not every look at it."""
        moved = before is None or before.stage is not worker.stage or before.reborn is not worker.reborn
        if isinstance(message, Done) and message.outcome is AttemptOutcome.FAILED:
            moved = True
            note = f"{worker.stage.value} failed: {self._slots[worker.uid].last_error}"
        elif isinstance(message, Update | Kill | Create):
            moved = True
        if moved or before is None or before.failures != worker.failures:
            self.changed.tell(worker.uid)
        if moved:
            self._story.note(worker.uid, self._clock.now_ns(), cause, note)
        log.v(2 if moved else 4).info(
            "Pod worker",
            pod=_ref(worker),
            podUID=worker.uid,
            stage=worker.stage.value,
            cause=cause,
            note=note,
        )

    async def _work(self, uid: str) -> None:
        """A worker's task: takes up work until the pod is finished."""
        slot = self._slots[uid]
        while True:
            worker = self._workers.get(uid)
            if worker is None or self._slots.get(uid) is not slot or worker.stage is Stage.FINISHED:
                return
            taken = take(worker)
            if taken is None:
                await slot.wake.wait()
                slot.wake = trio.Event()
                continue
            self._workers[uid] = taken
            await self._attempt(uid, taken, slot)

    async def _attempt(self, uid: str, worker: Worker, slot: Slot) -> None:
        """One attempt at the work of the worker's stage, interrupted when something more urgent comes."""
        report: SyncReport | None = None
        slot.begun, slot.warned = trio.current_time(), False
        try:
            with trio.CancelScope() as slot.scope, self._pleg.at_work(uid):
                report = await self._do(worker, slot)
        finally:
            began, slot.begun, slot.scope = slot.begun, None, None
        self._metrics.worker_duration.labels(_operation(worker)).observe(trio.current_time() - began)
        if report is None:
            outcome = AttemptOutcome.INTERRUPTED
            # It may have started a container that no status shows yet.
            slot.last_sync = trio.current_time()
        elif report.error:
            outcome = AttemptOutcome.FAILED
            log.error("Error syncing pod, skipping", pod=_ref(worker), podUID=uid, err=report.error)
        else:
            outcome = AttemptOutcome.TERMINAL if report.terminal else AttemptOutcome.OK
        slot.last_error = report.error if report is not None else slot.last_error
        self._send(uid, Done(worker.stage, outcome), "worker")
        after = self._workers.get(uid)
        if report is None or after is None or after.pending or after.stage is Stage.FINISHED:
            return
        pause = pause_before_next(
            worker.stage, report, after.failures, self._clock.now_ns(), self._periods, random.random()
        )
        self._rounds.put(uid, due_at(trio.current_time(), pause, report))

    async def _do(self, worker: Worker, slot: Slot) -> SyncReport:
        """The work itself, then a look at what it led to, so that nobody has to wait for the next relist."""
        try:
            report = await self._dispatch(worker, slot)
        except InspectionFailed as exc:
            if worker.pod is not None:
                message = f"error determining status: {exc}"
                self._recorder.record(worker.pod, "Warning", "FailedSync", message)
            report = SyncReport(error=str(exc))
        except Exception as exc:  # a defect met while syncing one pod must not end the others
            log.error("Unexpected error in pod worker", pod=_ref(worker), podUID=worker.uid, err=exc)
            report = SyncReport(error=f"unexpected {type(exc).__name__}: {exc}", acted=True)
            if worker.pod is not None:
                message = f"error syncing pod: {report.error}"
                self._recorder.record(worker.pod, "Warning", "FailedSync", message)
        if report.acted or report.error:  # else what it started from is as true as it was
            slot.last_sync = trio.current_time()
            if await self._look_now(worker.uid, inspect=report.unlisted):
                slot.last_sync = math.nextafter(slot.last_sync, -math.inf)
        return report

    async def _dispatch(self, worker: Worker, slot: Slot) -> SyncReport:
        if worker.stage is Stage.ORPHAN:
            if worker.running is None:
                return SyncReport()
            return await self._syncer.sync_terminating_runtime_pod(worker.running, worker.grace)
        status = await self._look(worker.uid, slot.last_sync)
        match worker.stage:
            case Stage.SYNCING:
                attempt = Attempt(
                    newest=partial(self._status.get, worker.uid),
                    is_ending=partial(self.is_termination_requested, worker.uid),
                    finishing=slot.finishing,
                )
                return await self._syncer.sync_pod(worker, status, attempt)
            case Stage.TERMINATING:
                look = partial(self._look_anew, worker.uid, slot)
                return await self._syncer.sync_terminating_pod(worker, status, look)
            case _:
                return await self._syncer.sync_terminated_pod(worker, status)

    async def _look(self, uid: str, moment: float) -> PodStatus:
        """The status after `moment`: at once if known, else by looking now, not with the next relist; when a
        relist has led to a look already, as to one at every pod after the start, that one will do.
        """
        if (known := self._status.known_newer_than(uid, moment)) is not None:
            return known
        if not self._pleg.is_look_coming(uid, moment) and await self._look_now(uid):
            moment = math.nextafter(moment, -math.inf)
        return await self._status.get_newer_than(uid, moment)

    async def _look_anew(self, uid: str, slot: Slot) -> PodStatus:
        """The status after what was just done in the runtime, from which the next attempt starts, too."""
        slot.last_sync = trio.current_time()
        return await self._look(uid, slot.last_sync)

    async def _look_now(self, uid: str, *, inspect: bool = False) -> bool:
        """Asks for a look; whether it was made.

        It began after what came before this call, even if the clock shows the same moment, as a simulated
        one may: a status of that very moment is then new enough.
        """
        with trio.move_on_after(LOOK_DEADLINE) as scope:
            await self._pleg.update_one(uid, inspect=inspect)
        return not scope.cancelled_caught

    async def _tell_of_long_rounds(self) -> None:
        """How a pod is would be said after the round only, which a hook that hangs keeps from ending."""
        while True:
            await trio.sleep(LONG)
            for uid, slot in list(self._slots.items()):
                worker = self._workers.get(uid)
                long = slot.begun is not None and trio.current_time() - slot.begun >= LONG
                if not long or worker is None or worker.stage is not Stage.SYNCING:
                    continue
                try:
                    if (status := self._status.get(uid)) is not None and self._syncer.tell(worker, status):
                        slot.interrupt()
                except Exception as exc:  # of one pod, about which the others need not wait
                    log.error("Unexpected error in telling of a pod", pod=_ref(worker), err=exc)
                await trio.lowlevel.checkpoint()

    async def _watch(self) -> None:
        """Says so when a worker has been busy for too long; it says it once for each attempt."""
        while True:
            await trio.sleep(min(30.0, self._periods.stuck / 2))
            stuck = 0
            for uid, slot in self._slots.items():
                worker = self._workers.get(uid)
                if worker is None or slot.begun is None:
                    continue
                busy = trio.current_time() - slot.begun
                allowed = self._periods.stuck + (worker.grace or 0)
                if busy < allowed:
                    continue
                stuck += 1
                if not slot.warned:
                    slot.warned = True
                    text = f"{worker.stage.value} has been busy for {busy:.0f} s"
                    self._story.note(uid, self._clock.now_ns(), "worker", text)
                    log.warning(
                        "Pod worker seems stuck",
                        pod=_ref(worker),
                        podUID=uid,
                        stage=worker.stage.value,
                        busy=busy,
                    )
            self._metrics.stuck_workers.set(stuck)


def _ref(worker: Worker) -> str:
    name, namespace = split_full_name(worker.full_name)
    return f"{namespace}/{name}"


def _operation(worker: Worker) -> str:
    """The kubelet's label for the duration of an attempt."""
    return "terminated" if worker.stage is Stage.TERMINATED else worker.sync_type.value

"""The life of a pod on the node as pure transitions: waiting → syncing → terminating → terminated → finished.

A pod's UID is brought up, looked after, ended and cleaned up once. It never goes back: the same UID wanted
again while the old one ends is remembered (`reborn`) and begins a new life after the old one is over. The
rules are those of the kubelet's `pod_workers.go`; that a pod which is wanted again, or waits for its static
name, goes on the moment the way is free, instead of at the next housekeeping, is this agent's own.

`step` takes a worker, a message and the time and returns the next worker and what the shell (`workers`) has
to do. docs/pod-worker-states.md shows every pair of stage and message; a test keeps it true.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from trio_kubelet.api.v1 import Pod, PodStatus
from trio_kubelet.observed.types import RunningPod
from trio_kubelet.podinfo.updates import is_static
from trio_kubelet.pods.refs import full_name, is_terminal_phase, pod_full_name

MIN_GRACE = 1
"""Seconds: the shortest grace period; 0 would skip the runtime's ordinary way of stopping."""

StatusPatch: TypeAlias = Callable[[PodStatus], PodStatus]
"""Changes the API status of a pod that the node ends, e.g. to phase Failed with the reason Evicted."""


class Stage(enum.StrEnum):
    """Where a pod is in its life."""

    WAITING = "waiting"  # static: a pod of the same full name has not ended yet
    SYNCING = "syncing"
    TERMINATING = "terminating"  # its containers are being stopped
    ORPHAN = "orphan"  # found in the runtime, wanted by nobody: being stopped without a spec
    TERMINATED = "terminated"  # nothing runs; volumes, cgroups and the last status are being settled
    FINISHED = "finished"  # nothing left to do; remembered so that it does not start again


class SyncType(enum.StrEnum):
    """Why a pod is synced (kubelet: `SyncPodType`)."""

    CREATE = "create"
    UPDATE = "update"
    SYNC = "sync"
    KILL = "kill"


class AttemptOutcome(enum.StrEnum):
    """How an attempt at the work of a stage ended."""

    OK = "ok"
    TERMINAL = "terminal"  # syncing only: the pod has run its course
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # something more urgent came up, or a pod's time was up


class Effect(enum.Flag):
    """What the shell does after a step."""

    NONE = 0
    START = enum.auto()  # a task for this worker
    WAKE = enum.auto()  # the task has something to do
    CANCEL = enum.auto()  # the attempt under way
    STOPPED = enum.auto()  # tell who waits for the containers to be stopped
    ENDED = enum.auto()  # finished: free the name, let the sync loop decide what comes next


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a pod."""

    uid: str
    full_name: str
    stage: Stage
    since_ns: int  # when the stage began
    pod: Pod | None = None  # None: an orphan of which only the runtime knows
    running: RunningPod | None = None  # of an orphan
    sync_type: SyncType = SyncType.CREATE
    pending: bool = True  # there is work that no attempt has begun yet
    grace: int | None = None  # seconds, only ever shortened; None: each container's own
    deleted: bool = False  # its source does not want it any more
    evicted: bool = False
    reborn: bool = False  # wanted again, for a new life after this one
    patches: tuple[StatusPatch, ...] = ()
    cause: str = ""  # why it ends
    failures: int = 0  # attempts in a row

    @property
    def ending(self) -> bool:
        """Whether the pod is to stop or has stopped."""
        return self.stage not in (Stage.WAITING, Stage.SYNCING)

    @property
    def may_run_containers(self) -> bool:
        """Whether containers of this life may be running."""
        return self.stage in (Stage.SYNCING, Stage.TERMINATING, Stage.ORPHAN)


class Create(msgspec.Struct, frozen=True, kw_only=True):
    """A source wants this pod and it was admitted.

    `slot_free`: no other pod holds its static name. `quiet`: nothing of it runs in the runtime.
    """

    pod: Pod
    slot_free: bool = True
    quiet: bool = False


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """A source changed the pod (or its mirror)."""

    pod: Pod
    slot_free: bool = True
    quiet: bool = False


class Sync(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened or time passed: look after the pod."""

    pod: Pod


class Retry(msgspec.Struct, frozen=True):
    """The time to try again has come, for a pod that no source knows any more."""


class Remove(msgspec.Struct, frozen=True):
    """No source wants the pod any more."""


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """The node itself ends the pod: eviction, preemption, rejection after the start. `grace` in seconds."""

    pod: Pod
    grace: int | None = None
    evict: bool = False
    patch: StatusPatch | None = None
    cause: str = "killed by the node"


class KillOrphan(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime has a pod that nobody wants. `grace` in seconds, None: each container's own."""

    running: RunningPod
    grace: int | None


class Turn(msgspec.Struct, frozen=True):
    """The static name is free for this pod."""


class Done(msgspec.Struct, frozen=True):
    """An attempt at the work of `stage` ended."""

    stage: Stage
    outcome: AttemptOutcome


Message: TypeAlias = Create | Update | Sync | Retry | Remove | Kill | KillOrphan | Turn | Done


class Step(msgspec.Struct, frozen=True):
    """What a message led to; `note` says it in words, for the pod's story and the docs."""

    worker: Worker | None
    effects: Effect
    note: str


def effective_grace(current: int | None, pod: Pod | None, override: int | None) -> int:
    """The grace period in seconds after one more word about it: it can only become shorter.

    What the API server set at deletion and what the node asks for replace the pod's own wish, which counts
    only when neither says anything (kubelet: `calculateEffectiveGracePeriod`).
    """
    grace = current
    asked = (pod.metadata.deletion_grace_period_seconds if pod is not None else None, override)
    for wish in asked:
        if wish is not None and (grace is None or wish < grace):
            grace = wish
    if grace is None and pod is not None:
        grace = pod.spec.termination_grace_period_seconds
    return max(grace or 0, MIN_GRACE)


def step(worker: Worker | None, message: Message, now_ns: int) -> Step:
    """The next state of a worker (None: there is none) after `message`."""
    if worker is None:
        return _first(message, now_ns)
    match message:
        case Create():
            return _wanted(worker, message, now_ns, SyncType.CREATE)
        case Update():
            return _wanted(worker, message, now_ns, SyncType.UPDATE)
        case Sync() if worker.reborn or worker.stage is Stage.ORPHAN:
            # The pod that is wanted is the next life; the time to look is that of this one, which has to end.
            return _retry(worker)
        case Sync():
            return _wanted(worker, message, now_ns, SyncType.SYNC)
        case Retry():
            return _retry(worker)
        case Remove():
            return _removed(worker, now_ns)
        case Kill():
            return _killed(worker, message, now_ns)
        case KillOrphan():
            return Step(worker, Effect.NONE, "ignored, its worker ends it if need be")
        case Turn():
            if worker.stage is not Stage.WAITING:
                return Step(worker, Effect.NONE, "ignored, not waiting")
            return _enter(worker, Stage.SYNCING, now_ns, Effect.WAKE, "its turn has come, starting")
        case Done():
            return _done(worker, message, now_ns)


def take(worker: Worker) -> Worker | None:
    """The worker with its work taken up, None when there is nothing to do now."""
    if not worker.pending or worker.stage in (Stage.WAITING, Stage.FINISHED):
        return None
    return replace(worker, pending=False)


def _first(message: Message, now_ns: int) -> Step:
    match message:
        case Create() | Update():
            return _first_wanted(message, now_ns)
        case Kill():
            pod = message.pod
            worker = Worker(
                uid=pod.metadata.uid,
                full_name=pod_full_name(pod),
                stage=Stage.TERMINATING,
                since_ns=now_ns,
                pod=pod,
                sync_type=SyncType.KILL,
                grace=effective_grace(None, pod, message.grace),
                evicted=message.evict,
                deleted=pod.metadata.deletion_timestamp is not None,
                patches=(message.patch,) if message.patch else (),
                cause=message.cause,
            )
            return Step(worker, Effect.START, "stopped, though it was not known to run")
        case KillOrphan(running=running):
            worker = Worker(
                uid=running.uid,
                full_name=full_name(running.name, running.namespace),
                stage=Stage.ORPHAN,
                since_ns=now_ns,
                running=running,
                sync_type=SyncType.KILL,
                grace=message.grace,
                deleted=True,
                cause="found in the runtime, wanted by no source",
            )
            return Step(worker, Effect.START, "stopping what the runtime has of it")
        case _:
            return Step(None, Effect.NONE, "ignored, not known")


def _first_wanted(message: Create | Update, now_ns: int) -> Step:
    pod = message.pod
    worker = Worker(
        uid=pod.metadata.uid,
        full_name=pod_full_name(pod),
        stage=Stage.SYNCING,
        since_ns=now_ns,
        pod=pod,
    )
    if why := _why_over(pod):
        over = is_terminal_phase(pod.status.phase) and message.quiet
        worker = replace(
            worker,
            stage=Stage.TERMINATED if over else Stage.TERMINATING,
            deleted=pod.metadata.deletion_timestamp is not None,
            grace=effective_grace(None, pod, None),
            cause=why,
        )
        return Step(worker, Effect.START, "already over, cleaning up" if over else f"stopping: {why}")
    if is_static(pod) and not message.slot_free:
        return Step(
            replace(worker, stage=Stage.WAITING),
            Effect.START,
            "waiting for the end of an earlier pod of the same name",
        )
    return Step(worker, Effect.START, "starting")


def _why_over(pod: Pod) -> str:
    """Why the pod as its source shows it must not run, "" if it may."""
    if pod.metadata.deletion_timestamp is not None:
        return "deleted from the API server"
    if is_terminal_phase(pod.status.phase):
        return f"in the terminal phase {pod.status.phase}"
    return ""


def _wanted(worker: Worker, message: Create | Update | Sync, now_ns: int, kind: SyncType) -> Step:
    if worker.ending and kind is SyncType.CREATE:
        again = replace(worker, reborn=True)
        if worker.stage is Stage.FINISHED:
            return Step(again, Effect.ENDED, "wanted again, starting anew")
        return Step(again, Effect.NONE, "wanted again, will start anew when this one has ended")
    if worker.stage in (Stage.FINISHED, Stage.ORPHAN):
        return Step(worker, Effect.NONE, "ignored, this life is over")
    if worker.reborn:
        return Step(worker, Effect.NONE, "ignored, it is about the next life")

    # A create or update that nobody has acted on yet is not hidden by a later sync.
    kept = worker.sync_type if worker.pending and kind is SyncType.SYNC else kind
    updated = replace(worker, pod=message.pod, sync_type=kept)
    why = _why_over(message.pod)
    match worker.stage:
        case Stage.WAITING if why:
            return _never_started(updated, now_ns, why)
        case Stage.WAITING:
            return Step(updated, Effect.NONE, "newest version noted, still waiting")
        case Stage.SYNCING if why:
            updated = replace(updated, deleted=message.pod.metadata.deletion_timestamp is not None)
            return _terminate(updated, now_ns, why, None)
        case Stage.TERMINATING:
            grace = effective_grace(worker.grace, message.pod, None)
            shorter = worker.grace is not None and grace < worker.grace
            updated = replace(updated, grace=grace, pending=True)
            updated = replace(
                updated, deleted=worker.deleted or message.pod.metadata.deletion_timestamp is not None
            )
            if shorter:
                return Step(updated, Effect.WAKE | Effect.CANCEL, "grace period shortened")
            return Step(updated, Effect.WAKE, "looked at again while it ends")
        case _:
            return Step(replace(updated, pending=True), Effect.WAKE, "looked at again")


def _retry(worker: Worker) -> Step:
    if worker.stage in (Stage.WAITING, Stage.FINISHED):
        return Step(worker, Effect.NONE, "ignored, nothing to try")
    return Step(replace(worker, pending=True), Effect.WAKE, "tried again")


def _removed(worker: Worker, now_ns: int) -> Step:
    gone = replace(worker, deleted=True, reborn=False)
    match worker.stage:
        case Stage.WAITING:
            return _never_started(gone, now_ns, "removed from its source")
        case Stage.SYNCING:
            return _terminate(gone, now_ns, "removed from its source", None)
        case Stage.FINISHED:
            return Step(gone, Effect.ENDED, "removed from its source, forgotten")
        case _:
            return Step(gone, Effect.NONE, "removed from its source, ending already")


def _killed(worker: Worker, message: Kill, now_ns: int) -> Step:
    if message.patch is not None:
        worker = replace(worker, patches=(*worker.patches, message.patch))
    killed = replace(worker, evicted=worker.evicted or message.evict)
    match worker.stage:
        case Stage.WAITING:
            return _never_started(killed, now_ns, message.cause)
        case Stage.SYNCING:
            return _terminate(killed, now_ns, message.cause, message.grace)
        case Stage.TERMINATING:
            grace = effective_grace(worker.grace, worker.pod, message.grace)
            if worker.grace is None or grace < worker.grace:
                killed = replace(killed, grace=grace, pending=True)
                return Step(killed, Effect.WAKE | Effect.CANCEL, f"grace period shortened: {message.cause}")
            return Step(replace(killed, pending=True), Effect.WAKE, "ending already")
        case Stage.ORPHAN:
            return Step(worker, Effect.NONE, "ending already")
        case _:
            return Step(worker, Effect.STOPPED, "has stopped already")


def _done(worker: Worker, message: Done, now_ns: int) -> Step:
    if worker.stage in (Stage.WAITING, Stage.FINISHED):
        return Step(worker, Effect.NONE, "ignored, no work is done in this stage")
    if message.stage is not worker.stage:
        return Step(replace(worker, pending=True), Effect.WAKE, "the attempt was overtaken")
    match message.outcome:
        case AttemptOutcome.INTERRUPTED:
            return Step(replace(worker, pending=True), Effect.WAKE, "interrupted, going on")
        case AttemptOutcome.FAILED:
            return Step(replace(worker, failures=worker.failures + 1), Effect.NONE, "failed, trying later")
        case _:
            worker = replace(worker, failures=0)
    match worker.stage:
        case Stage.SYNCING if message.outcome is AttemptOutcome.TERMINAL:
            ended = replace(worker, cause="it has run its course")
            return _enter(ended, Stage.TERMINATING, now_ns, Effect.WAKE, "ran its course, stopping")
        case Stage.TERMINATING:
            effects = Effect.STOPPED | Effect.WAKE
            return _enter(worker, Stage.TERMINATED, now_ns, effects, "all containers stopped, cleaning up")
        case Stage.ORPHAN:
            effects = Effect.STOPPED | Effect.ENDED
            return _enter(worker, Stage.FINISHED, now_ns, effects, "the orphan is gone")
        case Stage.TERMINATED:
            return _enter(worker, Stage.FINISHED, now_ns, Effect.ENDED, "nothing left of it to do")
        case _:
            return Step(worker, Effect.NONE, "in order")


def _terminate(worker: Worker, now_ns: int, cause: str, grace: int | None) -> Step:
    ending = replace(
        worker,
        cause=cause,
        grace=effective_grace(worker.grace, worker.pod, grace),
        sync_type=SyncType.KILL,
        failures=0,
    )
    return _enter(ending, Stage.TERMINATING, now_ns, Effect.WAKE | Effect.CANCEL, f"stopping: {cause}")


def _never_started(worker: Worker, now_ns: int, cause: str) -> Step:
    ended = replace(worker, cause=cause)
    effects = Effect.WAKE | Effect.STOPPED | Effect.ENDED
    return _enter(ended, Stage.FINISHED, now_ns, effects, f"never started: {cause}")


def _enter(worker: Worker, stage: Stage, now_ns: int, effects: Effect, note: str) -> Step:
    entered = replace(worker, stage=stage, since_ns=now_ns, pending=stage is not Stage.FINISHED)
    return Step(entered, effects, note)

"""All probes of the node: one scheduling task, and one short task per run. An exec probe that passes again
and again, as most do, needs none: the runtime's door repeats it until it has something to say.

The kubelet keeps a goroutine per probe; here a heap of due times serves thousands. Views of the
containers come in with each status that is generated for a pod, so nothing polls: a new container's readiness
is probed the moment it may be. Liveness and startup have their turns at whole periods since the pod was first
seen, as the kubelet's have: a program gets as long as it would get there before a failure counts. Startup is
tried once before its first turn, for a program that is up already need not wait for that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

import trio

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.doors import ExecResult, Repeat
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.observed.probes import (
    Outcome,
    ProbeKind,
    ProbeReadings,
    ProbeView,
    Verdict,
)
from trio_kubelet.podinfo.doors import PodRecorderDoor
from trio_kubelet.podinfo.restarts import field_path
from trio_kubelet.probes.decision import Action, ProbeDecision, ProbeState, on_due, on_outcome
from trio_kubelet.probes.metrics import ProbeMetrics, ProbeSeries
from trio_kubelet.probes.results import Results
from trio_kubelet.probes.runners import (
    ATTEMPTS,
    Exec,
    RepeatExec,
    exec_outcome,
    is_worth_another,
    run_probe,
    static_command,
)
from trio_kubelet.probes.timetable import GRID, TOGETHER, Timetable, first_due, phase
from trio_kubelet.probes.types import ProbedContainer, ProbeKey, container_views, probe_of

log = get_logger(__name__)

PARALLEL = 256
"""Probes that may wait for their answer at once."""
PATIENCE = 1.0
"""Seconds after which one that waits keeps no other from being started: pods whose probes hang are not to
hold up those of others.
"""
_LITTLE = 1024
"""Bytes of output beyond which a probe is run in a task of its own each time."""


class _Worker:
    """One probe of one container: its state and when it is due next."""

    __slots__ = (
        "added",
        "busy",
        "container",
        "due",
        "first_turn",
        "key",
        "pod",
        "probe",
        "repeat",
        "series",
        "state",
        "stopped",
    )

    def __init__(
        self,
        key: ProbeKey,
        pod: v1.Pod,
        container: v1.Container,
        probe: v1.Probe,
        series: ProbeSeries,
        added: float,
    ) -> None:
        self.key = key
        self.added = added
        self.first_turn = -math.inf  # what began before it counts only if it passed
        self.series = series
        self.pod = pod
        self.container = container
        self.probe = probe
        self.state = ProbeState()
        self.due = math.inf
        self.repeat: Repeat | None = None  # while it passes again and again
        self.busy = False
        self.stopped = False

    @property
    def period(self) -> float:
        return float(max(1, self.probe.period_seconds))


def probed_containers(pod: v1.Pod) -> Iterator[v1.Container]:
    """The containers that may have probes: regular ones and sidecars."""
    yield from pod.spec.containers or ()
    for container in pod.spec.init_containers or ():
        if is_sidecar(container):
            yield container


class ProbeManager:
    """The probes of all pods, and what they found. Implements `pods.doors.ProbeResults`."""

    def __init__(
        self,
        *,
        exec_sync: Exec,
        repeat_exec: RepeatExec,
        recorder: PodRecorderDoor,
        clock: Clock,
        metrics: ProbeMetrics,
        keeps_results: bool = True,
    ) -> None:
        """`keeps_results`: containers that ran before this agent keep the readiness they had until probed."""
        self._exec = exec_sync
        self._repeat_exec = repeat_exec
        self._recorder = recorder
        self._clock = clock
        self._metrics = metrics
        self._agent_started_ns = clock.now_ns()
        self._results = Results(kept_before_ns=self._agent_started_ns if keeps_results else 0)
        self.verdicts = self._results.verdicts
        self.changed = self._results.changed
        self._workers: dict[ProbeKey, _Worker] = {}
        self._by_pod: dict[str, dict[ProbeKey, _Worker]] = {}
        self._views: dict[str, Mapping[str, ProbedContainer]] = {}
        self._ended: set[str] = set()  # pods in a final phase
        self._timetable = Timetable[_Worker]()
        self._fresh: dict[_Worker, float] = {}  # which wait for their answer, not long yet: since when
        # Which are to be run at once: since when, and how often that may be tried.
        self._again: list[tuple[_Worker, float, int]] = []
        self._wake = trio.Event()
        self._sleeps_until = -math.inf  # what is due earlier wakes the scheduling task

    # What the rest of the agent asks and tells.

    def add_pod(self, pod: v1.Pod) -> None:
        """The pod has its probes, which begin with its next status; those that exist stay as they are.

        Not of a container that has ended for good. Its probe says so once and stops; one that was made anew
        with each round of the pod would say so each time, which is news that leads to the next round.
        """
        for container in probed_containers(pod):
            for kind in ProbeKind:
                probe = probe_of(container, kind)
                key = ProbeKey(pod.metadata.uid, container.name, kind)
                if probe is not None and key not in self._workers and not self._is_over(key):
                    series = self._metrics.series(key, pod)
                    worker = self._workers[key] = _Worker(
                        key, pod, container, probe, series, trio.current_time()
                    )
                    self._by_pod.setdefault(key.pod_uid, {})[key] = worker
                    self._timetable.one_more(worker.period)

    def stop_liveness_and_startup(self, pod: v1.Pod) -> None:
        """The pod is ending: nothing may restart its containers now; readiness is still told."""
        for worker in self._of_pod(pod.metadata.uid):
            if worker.key.kind is not ProbeKind.READINESS:
                self._stop(worker)

    def remove_pod(self, uid: str) -> None:
        """Ends all probes of a pod and forgets their results."""
        for worker in self._of_pod(uid):
            self._stop(worker)
        self._views.pop(uid, None)
        self._ended.discard(uid)

    def keep_only(self, uids: Collection[str]) -> None:
        """Ends the probes of all pods that are not among `uids`."""
        for uid in self._by_pod.keys() - set(uids):
            self.remove_pod(uid)

    def pod_status_changed(self, pod: v1.Pod, status: v1.PodStatus) -> None:
        """A new status was made for the pod: its probes see their containers through it."""
        uid = pod.metadata.uid
        workers = self._of_pod(uid)
        # One without probes any more may get them back: all of its containers may start again.
        if workers or uid in self._views:
            self._views[uid] = container_views(pod, status)
            self._ended.discard(uid)
            if status.phase in ("Failed", "Succeeded"):
                self._ended.add(uid)
        for worker in workers:
            worker.pod = pod
            if worker.repeat is not None and not self._goes_on(worker):
                self._take_back(worker)
            self._consider(worker)

    def view(self) -> ProbeView:
        """Readiness and startup results, for the pods' status."""
        return self._results.view()

    def readings(self) -> ProbeReadings:
        """Liveness and startup results, for what is to be killed or started."""
        return self._results.readings()

    def __len__(self) -> int:
        return len(self._workers)

    # The tasks.

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Probes until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            paced = -math.inf  # when all that were started had been, had they been started one by one
            not_before = -math.inf
            while True:
                now = await self._until_due(not_before)
                step, not_before = self._timetable.gap, -math.inf
                while self._again:
                    nursery.start_soon(self._run_probe, *self._again.pop())
                while now >= not_before and self._room_at() <= now:
                    if (worker := self._timetable.pop(now)) is None:
                        break
                    if self._tick(worker, now):
                        self._fresh[worker] = now
                        nursery.start_soon(self._run_probe, worker, now)
                        paced = max(paced, now) + step
                        # Who has to wait does so until as many may start together again: fewer wake-ups.
                        if paced - now > (TOGETHER - 0.5) * step:
                            not_before = paced

    async def _until_due(self, not_before: float) -> float:
        """Waits until a probe is due, and no less than until `not_before`; the time then."""
        while True:
            due = max(self._first_due(), not_before)
            now = trio.current_time()
            if due <= now:
                return now
            self._wake = trio.Event()
            self._sleeps_until = due
            with trio.move_on_at(due):
                await self._wake.wait()

    def _first_due(self) -> float:
        """When a probe can be started next."""
        if self._again:
            return -math.inf
        return max(self._timetable.first(), self._room_at())

    def _room_at(self) -> float:
        """When one more may wait for its answer."""
        while len(self._fresh) >= PARALLEL:
            oldest, began = next(iter(self._fresh.items()))
            if trio.current_time() < began + PATIENCE:
                return began + PATIENCE
            del self._fresh[oldest]
        return -math.inf

    async def _run_probe(self, worker: _Worker, began: float, attempts: int = ATTEMPTS) -> None:
        container_id = worker.state.container_id
        view = self._view(worker)
        try:
            outcome = await run_probe(
                worker.probe,
                worker.container,
                container_id,
                view.pod_ip if view else "",
                self._exec,
                attempts,
            )
        except Exception as exc:  # what one pod's probe raises is that pod's
            log.error("Unexpected error in a probe", pod=worker.pod, err=exc)
            outcome = Outcome(Verdict.UNKNOWN, error=f"unexpected {type(exc).__name__}: {exc}")
        self._end(worker, container_id, began, outcome)

    def _end(self, worker: _Worker, container_id: str, began: float, outcome: Outcome) -> None:
        """A run has ended."""
        worker.busy = False
        if len(self._fresh) >= PARALLEL:
            self._wake.set()
        self._fresh.pop(worker, None)
        if worker.stopped:
            return
        now = trio.current_time()
        if began < worker.first_turn and not outcome.passed:
            due = worker.first_turn
        else:
            self._report(worker, outcome, now - began)
            worker.state, result = on_outcome(worker.state, worker.key.kind, worker.probe, outcome)
            if result is not None:
                self._results.put(worker.key.kind, worker.key.pod_uid, container_id, result)
            due = self._timetable.next_due(worker.due, worker.period, now)
            if self._hand_over(worker, outcome, due):
                return
        self._schedule(worker, due)
        if (view := self._view(worker)) is not None and view.container_id != container_id:
            self._consider(worker)  # another has come meanwhile

    # Probes that pass again and again.

    def _hand_over(self, worker: _Worker, outcome: Outcome, due: float) -> bool:
        """Lets a probe be repeated from `due` on, if another pass would change nothing and it says little."""
        probe, state = worker.probe, worker.state
        if probe.exec is None or not outcome.passed or len(outcome.output) > _LITTLE:
            return False
        if state.run < probe.success_threshold or not self._goes_on(worker):
            return False
        command, timeout = static_command(probe.exec, worker.container), float(probe.timeout_seconds)
        container_id = state.container_id

        def passed(seconds: float) -> None:
            worker.series.count(False, seconds)

        def end(found: ExecResult | CRIError | None, began: float) -> None:
            worker.repeat, worker.busy = None, True
            worker.due = math.floor(began * GRID) / GRID
            if worker.stopped:
                return
            outcome = exec_outcome(found, command, timeout) if found is not None else None
            if outcome is not None and not is_worth_another(outcome):
                self._end(worker, container_id, began, outcome)
                return
            self._again.append((worker, began, ATTEMPTS if outcome is None else ATTEMPTS - 1))
            self._wake.set()

        worker.repeat = self._repeat_exec(container_id, command, timeout, due, worker.period, passed, end)
        return worker.repeat is not None

    def _goes_on(self, worker: _Worker) -> bool:
        """Whether a probe that passed would be run again, whenever it is due."""
        decision = self._decision(worker)
        return decision.action is Action.RUN and decision.state is worker.state

    def _take_back(self, worker: _Worker) -> None:
        """What the probe is about has changed: each run is to be decided about."""
        assert worker.repeat is not None
        due, worker.repeat = worker.repeat.stop(), None
        if due is None:
            worker.busy = True  # its end is told
        else:
            self._schedule(worker, due)

    # Scheduling.

    def _decision(self, worker: _Worker) -> ProbeDecision:
        """What would be done if the probe were due now."""
        pod = worker.pod
        return on_due(
            worker.state,
            worker.key.kind,
            worker.probe,
            self._view(worker),
            pod_ended=pod.metadata.uid in self._ended,
            pod_deleted=pod.metadata.deletion_timestamp is not None,
            kept_before_ns=self._results.kept_before_ns,
            now_ns=self._clock.now_ns(),
        )

    def _tick(self, worker: _Worker, now: float) -> bool:
        """Decides about a due probe; True when it is to run now."""
        decision = self._decision(worker)
        self._apply(worker, decision)
        if decision.action is Action.STOP:
            self._stop(worker)
        elif decision.action is Action.RUN:
            worker.busy = True
            return True
        else:
            self._schedule(worker, self._timetable.next_due(worker.due, worker.period, now))
        return False

    def _consider(self, worker: _Worker) -> None:
        """Something about the worker's container may have changed: when is its probe due?"""
        view = self._view(worker)
        if view is None or not view.container_id or worker.busy or worker.repeat is not None:
            return
        now = trio.current_time()
        is_new = view.container_id != worker.state.container_id
        # Moments of statuses are whole seconds: one that began in the agent's first second may be its own.
        if is_new and 0 < view.started_at_ns < self._agent_started_ns // NANOSECONDS * NANOSECONDS:
            offset = phase(worker.key, view.container_id, worker.period)
            due = self._timetable.adopted_due(offset, worker.period, now)
        elif is_new or self._ready_is_awaited(worker, view):
            age = (self._clock.now_ns() - view.started_at_ns) / NANOSECONDS if view.running else 0.0
            due = now + max(0.0, worker.probe.initial_delay_seconds - max(0.0, age))
            if worker.key.kind is not ProbeKind.READINESS:
                turn = first_due(worker.added, worker.period, due)
                worker.first_turn = self._timetable.next_due(turn - worker.period, worker.period, now)
            if worker.key.kind is ProbeKind.LIVENESS:
                due = worker.first_turn
        else:
            return
        self._schedule(worker, due)

    def _ready_is_awaited(self, worker: _Worker, view: ProbedContainer) -> bool:
        """A started container without a readiness verdict: the first one is wanted at once."""
        return (
            worker.key.kind is ProbeKind.READINESS
            and view.started
            and worker.state.last is None
            and worker.due - trio.current_time() > worker.period / 2
        )

    def _schedule(self, worker: _Worker, due: float) -> None:
        worker.due = due
        self._timetable.put(worker, due)
        if due < self._sleeps_until:
            self._wake.set()

    def _stop(self, worker: _Worker) -> None:
        if self._workers.pop(worker.key, None) is None:
            return
        of_pod = self._by_pod[worker.key.pod_uid]
        del of_pod[worker.key]
        if not of_pod:
            del self._by_pod[worker.key.pod_uid]
        self._timetable.take_out(worker)
        worker.stopped = True
        if worker.repeat is not None:
            worker.repeat.stop()
            worker.repeat = None
        self._timetable.one_less(worker.period)
        if worker.state.container_id:
            self._results.drop(worker.key.kind, worker.state.container_id)
        worker.series.forget()

    # Results.

    def _apply(self, worker: _Worker, decision: ProbeDecision) -> None:
        worker.state = decision.state
        if decision.first is not None:
            self._results.begin(worker.key.kind, decision.state.container_id, decision.first)
        for container_id, result in decision.results:
            if result is None:
                self._results.drop(worker.key.kind, container_id)
            else:
                self._results.put(worker.key.kind, worker.key.pod_uid, container_id, result)

    def _report(self, worker: _Worker, outcome: Outcome, seconds: float) -> None:
        """Metrics, log and events of one run."""
        if outcome.error is None:
            worker.series.count(outcome.verdict is Verdict.FAILURE, seconds)
            if outcome.verdict is Verdict.SUCCESS:
                return
        kind, pod = worker.key.kind.capitalize(), worker.pod
        words = dict[str, object](probeType=kind, pod=pod.metadata.name, container=worker.container.name)
        reason = "Unhealthy"
        if outcome.error is not None:
            log.v(1).info("Probe errored", **words, err=outcome.error)
            message = f"{kind} probe errored and resulted in {outcome.verdict} state: {outcome.error}"
        elif outcome.verdict is Verdict.FAILURE:
            log.v(1).info("Probe failed", **words, output=outcome.output)
            message = f"{kind} probe failed: {outcome.output}"
        else:
            reason, message = "ProbeWarning", f"{kind} probe warning: {outcome.output}"
        self._recorder.record(pod, "Warning", reason, message, field_path(pod, worker.container.name))

    def _view(self, worker: _Worker) -> ProbedContainer | None:
        return self._views.get(worker.key.pod_uid, {}).get(worker.key.container)

    def _is_over(self, key: ProbeKey) -> bool:
        view = self._views.get(key.pod_uid, {}).get(key.container)
        return view is not None and view.terminated and not view.will_restart

    def _of_pod(self, uid: str) -> list[_Worker]:
        return list(self._by_pod.get(uid, {}).values())

"""What a pod worker does in each stage: bring the pod in line, stop it, clean up after it.

The order of the steps is the kubelet's (`SyncPod`, `SyncTerminatingPod`, `SyncTerminatedPod`): the status is
said before anything is done, the pod's cgroup, directories and volumes are there before a container starts,
and volumes go only after the last container has stopped. Failures are reported, not raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.observed.types import ContainerState, PodStatus, RunningPod
from trio_kubelet.pleg.cache import InspectionFailed
from trio_kubelet.podinfo.doors import ConfigError, RecorderDoor
from trio_kubelet.podinfo.restarts import are_all_restarting
from trio_kubelet.podinfo.updates import CONFIG_SEEN_ANNOTATION
from trio_kubelet.pods.doors import ClaimsDoor, ClusterDoor, HealthDoor, ProbeResults, RuntimeDoor
from trio_kubelet.pods.groundwork import Groundwork
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.refs import PENDING, RUNNING, is_terminal_phase
from trio_kubelet.pods.resize.progress import ResizeProgress
from trio_kubelet.pods.rounds import RoundSteps
from trio_kubelet.pods.status.generate import past_active_deadline
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.status.reporter import StatusReporter
from trio_kubelet.pods.story import Story
from trio_kubelet.pods.work import Attempt, SyncReport
from trio_kubelet.pods.worker_state import SyncType, Worker
from trio_kubelet.runtime.doors import SyncContext
from trio_kubelet.runtime.results import PodSyncResult, SyncAction

NETWORK_NOT_READY = "network is not ready"
_RESTART_ALL_PERIOD_NS = NANOSECONDS
"""So long after the newest one was made all containers of a pod are started anew at the earliest: no back-off
holds back those that are removed for it, and what ends at once would be started as fast as the runtime can. A
kubelet hears of the end with its next relist.
"""


class Syncer:
    """Implements the workers' `SyncerDoor`."""

    def __init__(
        self,
        *,
        runtime: RuntimeDoor,
        statuses: StatusManager,
        reporter: StatusReporter,
        ground: Groundwork,
        resizes: ResizeProgress,
        probes: ProbeResults,
        health: HealthDoor,
        cluster: ClusterDoor,
        claims: ClaimsDoor,
        # Waits for the removal of what an earlier life of the UID left; whether that took waiting.
        settled: Callable[[str], Awaitable[bool]],
        steps: RoundSteps,
        story: Story,
        recorder: RecorderDoor,
        metrics: PodMetrics,
        clock: Clock,
    ) -> None:
        self._runtime = runtime
        self._statuses = statuses
        self._reporter = reporter
        self._ground = ground
        self._resizes = resizes
        self._probes = probes
        self._health = health
        self._cluster = cluster
        self._claims = claims
        self._settled = settled
        self._steps = steps
        self._story = story
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock

    async def sync_pod(self, worker: Worker, status: PodStatus, attempt: Attempt) -> SyncReport:
        """One round of bringing a pod in line (kubelet: `SyncPod`)."""
        pod = worker.pod
        if pod is None:
            return SyncReport()
        uid = pod.metadata.uid
        if await self._settled(uid):
            return SyncReport(acted=True, retry_at_ns=self._clock.now_ns())
        before = self._statuses.get(uid)
        if worker.sync_type is SyncType.CREATE and before is None:
            self._observe_start(pod, self._metrics.worker_start_duration.observe)
        shown = self._reporter.say(pod, status)
        if is_terminal_phase(shown.phase):
            return SyncReport(terminal=True)
        if (before is None or before.phase == PENDING) and shown.phase == RUNNING:
            self._observe_start(pod, self._metrics.start_duration.observe)
        restarts_all = are_all_restarting(shown)
        if restarts_all and (due_ns := _due_to_restart_all(status, self._clock.now_ns())) is not None:
            return SyncReport(retry_at_ns=due_ns)
        network = self._health.network_error()
        if network is not None and not pod.spec.host_network:
            error = f"{NETWORK_NOT_READY}: {network}"
            self._recorder.record(pod, "Warning", "NetworkNotReady", error)
            return SyncReport(error=error, transient=True)
        if (report := await self._ground.prepare_cgroup(pod, status)) is not None:
            return report
        self._cluster.mirrors.reconcile(pod)
        if (report := await self._ground.prepare_files(pod)) is not None:
            return report
        self._probes.add_pod(pod)
        self._probes.pod_status_changed(pod, shown)
        ips = tuple(ip.ip for ip in shown.pod_ips or ()) or ((shown.pod_ip,) if shown.pod_ip else ())
        with self._steps.at(uid, "credentials"):
            pull_secrets = await self._cluster.pull_secrets(pod)
        context = SyncContext(
            probes=self._probes.readings(),
            pull_secrets=pull_secrets,
            restart_all_containers=restarts_all,
            is_termination_requested=attempt.is_ending,
            finishing=attempt.finishing,
            prepare_claims=lambda: self._claims.prepare(pod),
            on_sandbox_ready=lambda: self._reporter.sandbox_ready(pod),
            resizing=self._resizes.is_to_be_made(pod),
        )
        result = await self._runtime.sync_pod(pod, replace(status, ips=ips), context)
        return self._after_sync(pod, status, attempt.newest() or status, result)

    def tell(self, worker: Worker, status: PodStatus) -> bool:
        """Says how a pod is whose round takes long: a container waits for its image, or for its postStart
        hook, until whose end it has not started. The others run, or have ended. Whether its time is up: then
        the round is to end, and the next one ends the pod.
        """
        pod = worker.pod
        if pod is None or self._statuses.get(pod.metadata.uid) is None:
            return False  # the round has said nothing yet: what is seen may be of an earlier life of the pod
        if past_active_deadline(pod, self._statuses.before(pod), self._clock.now_ns()):
            return True
        # What is being created or started has to come up before it is probed.
        starting = self._runtime.starting(pod.metadata.uid)
        there = (c for c in status.containers if c.id != starting and c.state is not ContainerState.CREATED)
        seen = replace(status, containers=tuple(there))
        self._probes.pod_status_changed(pod, self._reporter.say(pod, seen, amid=True))
        return False

    async def sync_terminating_pod(
        self, worker: Worker, status: PodStatus, look: Callable[[], Awaitable[PodStatus]]
    ) -> SyncReport:
        """Stops all containers of a pod and says how they ended (kubelet: `SyncTerminatingPod`).

        What `look` shows is the last that there is to see: after it nothing is done in the runtime.
        """
        pod = worker.pod
        if pod is None:
            return SyncReport()
        shown = self._reporter.say_ending(pod, status, worker.patches[-1] if worker.patches else None)
        self._probes.pod_status_changed(pod, shown)
        self._probes.stop_liveness_and_startup(pod)
        async with self._ground.renewed_files(pod):
            result = await self._runtime.kill_pod(pod, status, worker.grace)
        if not result.ok:
            self._recorder.record(pod, "Warning", "FailedKillPod", f"error killing pod: {result}")
            return SyncReport(error=f"error killing terminating pod: {result}", acted=True)
        self._probes.remove_pod(pod.metadata.uid)
        try:
            stopped = await look()
        except InspectionFailed as exc:
            return SyncReport(error=f"unable to read pod status prior to final pod termination: {exc}")
        if running := [c.id for c in stopped.running()]:
            error = f"detected running containers after a successful KillPod, CRI violation: {running}"
            return SyncReport(error=error)
        try:
            await self._claims.unprepare(pod)
        except ConfigError as exc:
            return SyncReport(error=str(exc))
        self._reporter.say_last(pod, stopped)
        return SyncReport()

    async def sync_terminating_runtime_pod(self, running: RunningPod, grace: int | None) -> SyncReport:
        """Stops a pod of which only the runtime knows (kubelet: `SyncTerminatingRuntimePod`)."""
        result = await self._runtime.kill_pod(None, running, grace)
        if not result.ok:
            error = f"error killing pod: {result}"
            meta = v1.ObjectMeta(uid=running.uid, name=running.name, namespace=running.namespace)
            self._recorder.record(v1.Pod(metadata=meta), "Warning", "FailedKillPod", error)
            return SyncReport(error=error, acted=True)
        return SyncReport(acted=True)

    async def sync_terminated_pod(self, worker: Worker, status: PodStatus) -> SyncReport:
        """Releases what a stopped pod still holds (kubelet: `SyncTerminatedPod`)."""
        pod = worker.pod
        if pod is None:
            return SyncReport()
        self._reporter.say_last(pod, status)
        if (report := await self._ground.clear(pod)) is not None:
            return report
        self._reporter.finish(pod)
        return SyncReport()

    def _after_sync(
        self, pod: v1.Pod, status: PodStatus, newest: PodStatus, result: PodSyncResult
    ) -> SyncReport:
        """What the runtime's answer means for the pod's status and for its next round."""
        uid, now_ns = pod.metadata.uid, self._clock.now_ns()
        acted = any(entry.retry_at_ns is None for entry in result.results)
        changed = self._reporter.after_round(pod, newest, result, acted=acted)
        for entry in result.results:
            nothing_to_kill = entry.action is SyncAction.KILL_POD_SANDBOX and not status.sandboxes
            if nothing_to_kill or (entry.retry_at_ns is not None and not changed):
                continue
            self._story.note(uid, now_ns, "worker", _entry_text(entry.action, entry.target, entry.reason))
        actions = {entry.action for entry in result.results}
        resized = SyncAction.RESIZE_POD_IN_PLACE in actions
        self._resizes.after_round(pod, status, result)
        error = "" if result.only_back_offs() else str(result)
        # No event tells of new resources, and that a container was removed leads to no round: the next, which
        # shows the former and starts all containers anew after the latter, comes at once.
        at_once = not error and (resized or SyncAction.REMOVE_CONTAINER in actions)
        retry_at_ns = now_ns if at_once else result.retry_at_ns()
        return SyncReport(acted=acted, unlisted=resized, error=error, retry_at_ns=retry_at_ns)

    def _observe_start(self, pod: v1.Pod, observe: Callable[[float], None]) -> None:
        """Measures from when the agent first saw the pod."""
        seen = (pod.metadata.annotations or {}).get(CONFIG_SEEN_ANNOTATION)
        if seen is None:
            return
        try:
            seen_ns = parse_rfc3339(seen)
        except ValueError:
            return  # somebody else's annotation
        observe(max(self._clock.now_ns() - seen_ns, 0) / NANOSECONDS)


def _due_to_restart_all(status: PodStatus, now_ns: int) -> int | None:
    """When all containers may be started anew; None: now."""
    newest_ns = max((container.created_at_ns for container in status.containers), default=0)
    is_young = 0 <= now_ns - newest_ns < _RESTART_ALL_PERIOD_NS
    return newest_ns + _RESTART_ALL_PERIOD_NS if is_young else None


def _entry_text(action: SyncAction, target: str, reason: str | None) -> str:
    return f"{action.value} {target}" + (f": {reason}" if reason is not None else "")

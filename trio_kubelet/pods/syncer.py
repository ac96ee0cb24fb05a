"""What a pod worker does in each stage: bring the pod in line, stop it, clean up after it.

The order of the steps is the kubelet's (`SyncPod`, `SyncTerminatingPod`, `SyncTerminatedPod`): the status is
said before anything is done, the pod's cgroup, directories and volumes are there before a container starts,
and volumes go only after the last container has stopped. Failures are reported, not raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.finishing import Finishing
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.credential_providers.doors import PullSecret
from trio_kubelet.observed.types import PodStatus, RunningPod
from trio_kubelet.pleg.cache import InspectionFailed
from trio_kubelet.podinfo.doors import ConfigError, RecorderDoor
from trio_kubelet.podinfo.restarts import NEVER, are_all_restarting
from trio_kubelet.podinfo.updates import CONFIG_SEEN_ANNOTATION, is_static
from trio_kubelet.pods.doors import (
    CgroupError,
    CgroupsDoor,
    ClaimsDoor,
    DirectoriesDoor,
    HealthDoor,
    MirrorsDoor,
    ProbeResults,
    RuntimeDoor,
    VolumesDoor,
)
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.refs import FAILED, PENDING, RUNNING, is_terminal_phase
from trio_kubelet.pods.resize.progress import ResizeProgress
from trio_kubelet.pods.rounds import ReasonCache, RoundSteps
from trio_kubelet.pods.status.conditions import READY_TO_START, condition, put
from trio_kubelet.pods.status.generate import (
    DEADLINE_EXCEEDED,
    DEADLINE_MESSAGE,
    StatusInputs,
    generate_status,
    past_active_deadline,
    rejected_status,
)
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.story import Story
from trio_kubelet.pods.work import SyncReport
from trio_kubelet.pods.worker_state import SyncType, Worker
from trio_kubelet.runtime.doors import SyncContext
from trio_kubelet.runtime.results import PodSyncResult, SyncAction
from trio_kubelet.volumes.errors import VolumeError

log = get_logger(__name__)

NETWORK_NOT_READY = "network is not ready"
_RESTART_ALL_PERIOD_NS = NANOSECONDS
"""So long after the newest one was made all containers of a pod are started anew at the earliest: no back-off
holds back those that are removed for it, and what ends at once would be started as fast as the runtime can. A
kubelet hears of the end with its next relist.
"""


class NoMirrors:
    """An agent without an API server."""

    def reconcile(self, pod: v1.Pod) -> None:
        pass

    def delete_orphan(self, full_name: str) -> None:
        pass


async def no_pull_secrets(pod: v1.Pod) -> Sequence[PullSecret]:
    """Images are pulled without credentials."""
    return ()


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """What statuses say about the node.

    `host_ips` is empty without an API server, as the kubelet then does not show them either.
    """

    host_ips: tuple[str, ...] = ()
    ipv6_first: bool = False
    runtime_name: str = "containerd"
    # Whether the handler of a pod's runtime class can do recursive read-only mounts.
    recursive_read_only: Callable[[v1.Pod], bool] = lambda pod: False
    stop_signals: bool = False
    ready_to_start: bool = True  # whether statuses say that a pod's sandbox is up
    pod_resources: bool = True  # whether statuses show the resources of the pod as a whole
    # Health of what plugins gave to a container, by pod and name (KEP-4680).
    given_health: Callable[[v1.Pod, str], Sequence[v1.ResourceStatus]] = lambda pod, container: ()


class _Basis(NamedTuple):
    """All that a status is made from, but for the time: one made from the same once more is the same. Most
    rounds find nothing new, and to generate their status would be half of what they cost.
    """

    pod: v1.Pod
    before: v1.PodStatus
    actuated: v1.Pod | None
    rest: tuple[object, ...]

    @classmethod
    def of(cls, pod: v1.Pod, observed: PodStatus, before: v1.PodStatus, inputs: StatusInputs) -> _Basis:
        """What is passed by reference is not changed afterwards, except the probes' verdicts."""
        readiness, startup = inputs.probes.readiness, inputs.probes.startup
        rest = (
            observed.ips,
            observed.containers,
            observed.sandboxes,
            inputs.runtime_name,
            inputs.reasons,
            inputs.recursive_read_only,
            inputs.stop_signals,
            inputs.adopted,
            inputs.host_ips,
            inputs.ipv6_first,
            [(readiness.get(c.id), startup.get(c.id)) for c in observed.containers],
            [inputs.given_health(c.name) for c in pod.spec.containers or ()],
        )
        return cls(pod, before, inputs.actuated, rest)

    def is_same(self, other: _Basis | None) -> bool:
        """Whether it is the same pod, after the same status, of which the same is known."""
        return (
            other is not None
            and self.pod is other.pod
            and self.before is other.before
            and self.actuated is other.actuated
            and self.rest == other.rest
            and self.pod.spec.active_deadline_seconds is None
        )


class Syncer:
    """Implements the workers' `SyncerDoor`."""

    def __init__(
        self,
        *,
        runtime: RuntimeDoor,
        statuses: StatusManager,
        volumes: VolumesDoor,
        cgroups: CgroupsDoor,
        directories: DirectoriesDoor,
        probes: ProbeResults,
        health: HealthDoor,
        recorder: RecorderDoor,
        clock: Clock,
        metrics: PodMetrics,
        story: Story,
        reasons: ReasonCache,
        steps: RoundSteps,
        mirrors: MirrorsDoor,
        claims: ClaimsDoor,
        node: Callable[[], NodeView],
        resizes: ResizeProgress,
        as_actuated: Callable[[v1.Pod], v1.Pod],  # the pod with what it has while a resize is not made
        is_ending: Callable[[str], bool],  # the workers' `is_termination_requested`
        finishing: Callable[[str], Finishing],  # the workers' `finishing`
        # Waits for the removal of what an earlier life of the UID left; whether that took waiting.
        settled: Callable[[str], Awaitable[bool]],
        pull_secrets: Callable[[v1.Pod], Awaitable[Sequence[PullSecret]]] = no_pull_secrets,
    ) -> None:
        self._runtime = runtime
        self._statuses = statuses
        self._volumes = volumes
        self._cgroups = cgroups
        self._directories = directories
        self._probes = probes
        self._health = health
        self._recorder = recorder
        self._clock = clock
        self._resizes = resizes
        self._as_actuated = as_actuated
        self._metrics = metrics
        self._story = story
        self._reasons = reasons
        self._steps = steps
        self._mirrors = mirrors
        self._claims = claims
        self._node = node
        self._is_ending = is_ending
        self._finishing = finishing
        self._settled = settled
        self._pull_secrets = pull_secrets
        self._said: dict[str, _Basis] = {}  # by UID: of a status that was the one before it

    async def sync_pod(self, worker: Worker, status: PodStatus) -> SyncReport:
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
        shown = self._say(pod, status, terminal=False)
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
        if (report := await self._prepare(pod, status)) is not None:
            return report
        self._probes.add_pod(pod)
        self._probes.pod_status_changed(pod, shown)
        ips = tuple(ip.ip for ip in shown.pod_ips or ()) or ((shown.pod_ip,) if shown.pod_ip else ())
        with self._steps.at(uid, "credentials"):
            pull_secrets = await self._pull_secrets(pod)
        context = SyncContext(
            probes=self._probes.readings(),
            pull_secrets=pull_secrets,
            restart_all_containers=restarts_all,
            is_termination_requested=lambda: self._is_ending(uid),
            finishing=self._finishing(uid),
            prepare_claims=lambda: self._claims.prepare(pod),
            on_sandbox_ready=lambda: self._sandbox_ready(pod),
            resizing=self._as_actuated(pod) is not pod,
        )
        result = await self._runtime.sync_pod(pod, replace(status, ips=ips), context)
        return self._after_sync(pod, status, result)

    async def sync_terminating_pod(
        self, worker: Worker, status: PodStatus, look: Callable[[], Awaitable[PodStatus]]
    ) -> SyncReport:
        """Stops all containers of a pod and says how they ended (kubelet: `SyncTerminatingPod`).

        What `look` shows is the last that there is to see: after it nothing is done in the runtime.
        """
        pod = worker.pod
        if pod is None:
            return SyncReport()
        self._tell_deadline(pod)
        shown = self._status_of_ending(pod, status, terminal=False)
        if worker.patches:
            shown = worker.patches[-1](shown)
        shown = self._statuses.set(pod, shown)
        self._probes.pod_status_changed(pod, shown)
        self._probes.stop_liveness_and_startup(pod)
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
        # The runtime has forgotten the addresses of a stopped pod, its status has not.
        self._say(pod, replace(stopped, ips=status.ips), terminal=True)
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
        uid = pod.metadata.uid
        self._say(pod, status, terminal=True)
        try:
            await self._volumes.tear_down(uid)
        except VolumeError as exc:
            self._recorder.record(pod, "Warning", "FailedUnmount", f"Volumes are still there: {exc}")
            return SyncReport(error=str(exc))
        try:
            await self._cgroups.remove(uid)
        except CgroupError as exc:
            return SyncReport(error=str(exc))
        self._reasons.forget(uid)
        self._said.pop(uid, None)
        self._statuses.terminate(pod)
        return SyncReport()

    # Steps

    def _say(self, pod: v1.Pod, status: PodStatus, *, terminal: bool) -> v1.PodStatus:
        """Generates the pod's API status and hands it to the status manager."""
        self._tell_deadline(pod)
        if terminal:
            return self._statuses.set(pod, self._status_of_ending(pod, status, terminal=True))
        before, inputs = self._statuses.before(pod), self._inputs(pod)
        basis = _Basis.of(pod, status, before, inputs)
        if self._statuses.is_shown(pod) and basis.is_same(self._said.get(pod.metadata.uid)):
            return before
        shown = self._statuses.set(pod, generate_status(pod, status, before, inputs, terminal=False))
        if shown == before:  # then the next one of the same basis is, too
            self._said[pod.metadata.uid] = basis
        return shown

    def _tell_deadline(self, pod: v1.Pod) -> None:
        """Tells of a pod whose time is up, before its status says so."""
        before = self._statuses.before(pod)
        if past_active_deadline(pod, before, self._clock.now_ns()) and not is_terminal_phase(before.phase):
            self._recorder.record(pod, "Normal", DEADLINE_EXCEEDED, DEADLINE_MESSAGE)

    def _status_of_ending(self, pod: v1.Pod, status: PodStatus, *, terminal: bool) -> v1.PodStatus:
        """The status of a pod that is being ended. What cannot be said of it must not keep it from ending."""
        before = self._statuses.before(pod)
        try:
            return generate_status(pod, status, before, self._inputs(pod), terminal=terminal)
        except Exception as exc:
            log.error("Unexpected error in the status of a pod that ends", pod=pod, err=exc)
            return replace(before, phase=FAILED) if terminal else before

    def _inputs(self, pod: v1.Pod) -> StatusInputs:
        node = self._node()
        return StatusInputs(
            runtime_name=node.runtime_name,
            reasons=self._reasons.get(pod.metadata.uid),
            recursive_read_only=node.recursive_read_only(pod),
            stop_signals=node.stop_signals,
            ready_to_start=node.ready_to_start,
            pod_resources=node.pod_resources,
            given_health=partial(node.given_health, pod),
            actuated=self._as_actuated(pod),
            adopted=is_static(pod) and self._statuses.get(pod.metadata.uid) is None,
            probes=self._probes.view(),
            host_ips=node.host_ips,
            ipv6_first=node.ipv6_first,
            now_ns=self._clock.now_ns(),
        )

    async def _prepare(self, pod: v1.Pod, status: PodStatus) -> SyncReport | None:
        """Cgroup, mirror, directories and volumes; a report if the pod cannot go on now."""
        if (report := await self._prepare_cgroup(pod, status)) is not None:
            return report
        self._mirrors.reconcile(pod)
        uid = pod.metadata.uid
        try:
            with self._steps.at(uid, "directories"):
                await self._directories.make(pod)
        except OSError as exc:
            error = f"error making pod data directories: {error_words(exc, 'mkdir')}"
            self._recorder.record(pod, "Warning", "FailedToMakePodDataDirectories", error)
            return SyncReport(error=error)
        try:
            with self._steps.at(uid, "volumes"):
                await self._volumes.set_up(pod)
        except VolumeError as exc:
            if exc.rejection:
                self._recorder.record(pod, "Warning", exc.rejection, str(exc))
                self._statuses.set(pod, rejected_status(pod, exc.rejection, str(exc)))
                self._metrics.admission_rejections.labels(exc.rejection).inc()
                return SyncReport(terminal=True)
            error = f"Unable to attach or mount volumes: {exc}"
            if not exc.told:
                self._recorder.record(pod, "Warning", "FailedMount", error)
            return SyncReport(error=error)
        return None

    async def _prepare_cgroup(self, pod: v1.Pod, status: PodStatus) -> SyncReport | None:
        """The pod's cgroup. Containers that run outside of it, from before, are ended to start inside."""
        uid = pod.metadata.uid
        try:
            with self._steps.at(uid, "cgroup"):
                running = {container.name for container in status.running()}
                # What a resize has not changed yet stays as it is until that is made, in its order.
                has = self._as_actuated(pod) if running else pod
                if await self._cgroups.ensure(has, running=running, new=not status.sandboxes):
                    return None
            log.info("Pod runs outside of its cgroup, restarting it", pod=pod, podUID=uid)
            result = await self._runtime.kill_pod(pod, status, None)
            if not result.ok:
                return SyncReport(error=f"error killing pod: {result}", acted=True)
            if not _restarts_anything(pod):
                return SyncReport(acted=True)
            with self._steps.at(uid, "cgroup"):
                await self._cgroups.ensure(pod)
        except CgroupError as exc:
            message = f"unable to ensure pod container exists: {exc}"
            self._recorder.record(pod, "Warning", "FailedCreatePodContainer", message)
            return SyncReport(
                error=f"failed to ensure that the pod: {uid} cgroups exist and are correctly applied: {exc}"
            )
        # The status still shows the containers that were just ended: look again before going on.
        return SyncReport(acted=True, retry_at_ns=self._clock.now_ns())

    def _after_sync(self, pod: v1.Pod, status: PodStatus, result: PodSyncResult) -> SyncReport:
        """What the runtime's answer means for the pod's status and for its next round."""
        uid, now_ns = pod.metadata.uid, self._clock.now_ns()
        acted = any(entry.retry_at_ns is None for entry in result.results)
        changed = self._reasons.update(uid, result)
        if changed and not acted:
            # Nothing happened that a look would find, so nobody else will tell of the back-off.
            self._say(pod, status, terminal=False)
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

    async def _sandbox_ready(self, pod: v1.Pod) -> None:
        """A new sandbox is up: say so at once, pulling images may take long."""
        if not self._node().ready_to_start:
            return
        shown = self._statuses.before(pod)
        conditions = put(shown.conditions, condition(pod, READY_TO_START, True))
        self._statuses.set(pod, replace(shown, conditions=conditions))

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


def _restarts_anything(pod: v1.Pod) -> bool:
    """Whether any container of the pod would start again after it was ended."""
    if pod.spec.restart_policy != NEVER:
        return True
    return any(
        rule.action == "Restart" or container.restart_policy != NEVER
        for container in pod.spec.containers or ()
        if container.restart_policy is not None
        for rule in container.restart_policy_rules or (v1.ContainerRestartRule(),)
    )


def _entry_text(action: SyncAction, target: str, reason: str | None) -> str:
    return f"{action.value} {target}" + (f": {reason}" if reason is not None else "")

"""Ends containers and pods: preStop hook, the turn of each container, stop signal, grace period, sandboxes.

The grace period is one budget for all of that: what the preStop hook and the waiting for others
take is missing for the stop itself, which always gets two seconds so that nothing is killed without
a word (kubelet: `killContainer`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from itertools import pairwise

import trio

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError, NotFound
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import ContainerState, PodStatus, RunningContainer, RunningPod
from trio_kubelet.podinfo.restarts import find_container
from trio_kubelet.runtime.configs.labels import read_identity, read_notes
from trio_kubelet.runtime.hooks import HookError, HookRunner
from trio_kubelet.runtime.naming import ContainerEvents
from trio_kubelet.runtime.plan import KillReason
from trio_kubelet.runtime.results import PodSyncResult, Reason, SyncAction, SyncResult

log = get_logger(__name__)

MINIMUM_GRACE = 2
"""Seconds between stop signal and SIGKILL, however little is left."""
LOOK_PERIOD = 1.0
"""Seconds between looks whether a container has ended whose preStop hook only sleeps."""
HOOK_LINGERS = 0.5
"""Seconds that a preStop hook gets to return after its container has ended; an exec ends with it."""


def grace_period(pod: v1.Pod, container: v1.Container, reason: KillReason) -> int:
    """Seconds a container gets to end (kubelet: `setTerminationGracePeriod`).

    The deletion's own grace period comes first; a failed probe may bring one of its own.
    """
    if pod.metadata.deletion_grace_period_seconds is not None:
        return pod.metadata.deletion_grace_period_seconds
    if pod.spec.termination_grace_period_seconds is None:
        return MINIMUM_GRACE
    probe = None
    if reason is KillReason.STARTUP_PROBE:
        probe = container.startup_probe
    elif reason is KillReason.LIVENESS_PROBE:
        probe = container.liveness_probe
    if probe is not None and probe.termination_grace_period_seconds is not None:
        return probe.termination_grace_period_seconds
    return pod.spec.termination_grace_period_seconds


class TerminationOrder:
    """Lets each container of a pod wait for those that have to end before it: a sidecar for all regular ones
    and the next sidecar that runs.

    So sidecars end after the containers they serve, the last started first (KEP-753).
    """

    def __init__(self, pod: v1.Pod, running: Iterable[str]) -> None:
        names = set(running)
        init = pod.spec.init_containers or ()
        sidecars = [each.name for each in init if is_sidecar(each) and each.name in names]
        self._next = dict(pairwise(sidecars))
        self._ended = {name: trio.Event() for name in sidecars}
        self._regular = {container.name for container in pod.spec.containers or ()} & names
        self._regular_ended = trio.Event()
        if not self._regular:
            self._regular_ended.set()

    async def wait_for_turn(self, name: str, grace: int) -> int:
        """Waits at most `grace` seconds; returns how many whole seconds it took."""
        started = trio.current_time()
        with trio.move_on_after(grace):
            if name in self._ended:
                await self._regular_ended.wait()
            if name in self._next:
                await self._ended[self._next[name]].wait()
        return int(trio.current_time() - started)

    def ended(self, name: str) -> None:
        """Says that a container has ended."""
        self._regular.discard(name)
        if not self._regular:
            self._regular_ended.set()
        if name in self._ended:
            self._ended[name].set()


def nothing_ended(uid: str, container_id: str) -> bool:
    """Of no container of a pod it is known that it has ended."""
    return False


class Killer:
    """Ends containers and pods. `has_ended`: whether a container of a pod, by UID, was seen to have ended."""

    def __init__(
        self,
        runtime: RuntimeService,
        hooks: HookRunner,
        events: ContainerEvents,
        has_ended: Callable[[str, str], bool],
    ) -> None:
        self._runtime = runtime
        self._hooks = hooks
        self._events = events
        self._has_ended = has_ended
        # Containers whose preStop hook has ended. A kill that is begun again, with less grace or after a
        # failed stop, does not run it a second time.
        self._hook_ended: set[str] = set()
        self._slept_at: dict[str, float] = {}  # Trio time at which a container's hook has slept

    async def kill_pod(
        self, pod: v1.Pod | None, running: RunningPod | PodStatus, grace_override: float | None
    ) -> PodSyncResult:
        """Ends all running containers in parallel, then stops all sandboxes."""
        target = running_part(running) if isinstance(running, PodStatus) else running
        result = PodSyncResult()
        result.results += await self._kill_containers(pod, target, grace_override)
        failure = ""
        for sandbox in target.sandboxes:
            try:
                await self._runtime.stop_pod_sandbox(sandbox.id)
            except NotFound:
                continue
            except CRIError as error:
                log.error("Failed to stop sandbox", podSandboxID=sandbox.id, err=error)
                failure = str(error)
        result.add(
            SyncAction.KILL_POD_SANDBOX,
            target.uid,
            Reason.KILL_POD_SANDBOX_ERROR if failure else None,
            failure,
        )
        return result

    async def _kill_containers(
        self, pod: v1.Pod | None, target: RunningPod, grace_override: float | None
    ) -> list[SyncResult]:
        if not target.containers:
            return []
        order = None
        if pod is not None and any(is_sidecar(c) for c in pod.spec.init_containers or ()):
            order = TerminationOrder(pod, [container.name for container in target.containers])
        outcomes: dict[str, SyncResult] = {}

        async def kill(container: RunningContainer) -> None:
            try:
                await self.kill(pod, container.id, container.name, grace_override=grace_override, order=order)
                outcomes[container.id] = SyncResult(SyncAction.KILL_CONTAINER, container.name)
            except CRIError as error:
                outcomes[container.id] = SyncResult(
                    SyncAction.KILL_CONTAINER, container.name, Reason.KILL_CONTAINER_ERROR, str(error)
                )
            except Exception as error:  # a defect met at one container must not keep the others running
                log.error("Unexpected error while ending a container", containerID=container.id, err=error)
                outcomes[container.id] = SyncResult(
                    SyncAction.KILL_CONTAINER, container.name, Reason.KILL_CONTAINER_ERROR, repr(error)
                )

        async with trio.open_nursery() as nursery:
            for container in target.containers:
                nursery.start_soon(kill, container)
                await trio.lowlevel.checkpoint()  # of thousands others have their turns in between
        return [outcomes[container.id] for container in target.containers]

    async def kill(
        self,
        pod: v1.Pod | None,
        container_id: str,
        name: str,
        *,
        message: str = "",
        reason: KillReason = KillReason.UNKNOWN,
        grace_override: float | None = None,
        order: TerminationOrder | None = None,
    ) -> None:
        """Ends one container; it has ended when this returns. Raises CRIError.

        What is not known of pod or container is read back from the container's annotations.
        """
        container = find_container(pod, name) if pod is not None else None
        if pod is None or container is None:
            try:
                pod, container = await self._restore(container_id, pod)
            except NotFound:
                return
        grace = grace_period(pod, container, reason)
        self._events.normal(pod, name, "Killing", message or f"Stopping container {name}", container_id)
        if grace_override is not None:
            grace = int(grace_override)
        handler = container.lifecycle.pre_stop if container.lifecycle is not None else None
        failure: CRIError | None = None
        async with trio.open_nursery() as nursery:
            hook = trio.CancelScope()
            if handler is not None and grace > 0 and container_id not in self._hook_ended:
                running = partial(self._pre_stop, pod, container, container_id, handler, hook)
                grace -= await self._wait_for_hook(nursery, running, grace, pod, name)
                self._hook_ended.add(container_id)
            if order is not None and grace > 0:
                grace -= await order.wait_for_turn(name, grace)
            try:
                await self._stop(pod, container_id, name, max(grace, MINIMUM_GRACE))
            except CRIError as error:
                failure = error
            else:
                self._hook_ended.discard(container_id)
                self._slept_at.pop(container_id, None)
                if order is not None:
                    order.ended(name)
            # A sleeping hook has nothing left to wait for.
            lingers = HOOK_LINGERS if handler is not None and handler.sleep is None else 0
            hook.deadline = trio.current_time() + lingers
        if failure is not None:
            raise failure

    def forget_all_but(self, ids: Collection[str]) -> None:
        """Only these containers exist: others went without being stopped by a kill that got to its end."""
        self._hook_ended.intersection_update(ids)
        self._slept_at = {id: moment for id, moment in self._slept_at.items() if id in ids}

    async def _stop(self, pod: v1.Pod, container_id: str, name: str, grace: int) -> None:
        """Stop signal, and SIGKILL after `grace` seconds. Raises CRIError."""
        log.v(2).info(
            "Killing container with a grace period",
            pod=pod,
            containerName=name,
            containerID=container_id,
            gracePeriod=grace,
        )
        try:
            await self._runtime.stop_container(container_id, grace)
        except NotFound:
            pass
        except CRIError as error:
            log.error(
                "Container termination failed",
                pod=pod,
                containerName=name,
                containerID=container_id,
                err=error,
            )
            raise

    async def _wait_for_hook(
        self,
        nursery: trio.Nursery,
        hook: Callable[[], Awaitable[None]],
        grace: int,
        pod: v1.Pod,
        name: str,
    ) -> int:
        """Starts a preStop hook in the nursery and waits at most `grace` seconds for it.

        Returns how many whole seconds it took. One that takes longer goes on beside the stop and usually
        ends with its container.
        """
        ended = trio.Event()

        async def run() -> None:
            await hook()
            ended.set()

        started = trio.current_time()
        nursery.start_soon(run)
        with trio.move_on_after(grace) as patience:
            await ended.wait()
        if patience.cancelled_caught:
            log.v(2).info("PreStop hook not completed in grace period", pod=pod, containerName=name)
        return int(trio.current_time() - started)

    async def _pre_stop(
        self,
        pod: v1.Pod,
        container: v1.Container,
        container_id: str,
        handler: v1.LifecycleHandler,
        scope: trio.CancelScope,
    ) -> None:
        """Runs the preStop hook to its end, or that of its scope."""
        with scope:
            try:
                if handler.sleep is not None:
                    await self._sleep(pod, container_id, handler.sleep.seconds)
                else:
                    await self._hooks.run(container_id, pod, container, handler)
            except HookError as error:
                log.error("PreStop hook failed", pod=pod, containerName=container.name, err=error)
                self._tell_of_hook(pod, container, container_id)
            except trio.Cancelled:
                if not scope.cancel_called:  # the kill is begun again, with less grace
                    self._hooks.cut_short(handler)
                    self._tell_of_hook(pod, container, container_id)
                raise

    async def _sleep(self, pod: v1.Pod, container_id: str, seconds: int) -> None:
        """A hook that sleeps has nothing to wait for once its container has ended by itself. (A kubelet keeps
        the pod until it has slept, kubernetes/kubernetes 134338.) A kill that is begun again has slept
        already.
        """
        with trio.move_on_at(self._slept_at.setdefault(container_id, trio.current_time() + seconds)):
            while not self._has_ended(pod.metadata.uid, container_id):  # noqa: ASYNC110 - it is rarely asked
                await trio.sleep(LOOK_PERIOD)

    def _tell_of_hook(self, pod: v1.Pod, container: v1.Container, container_id: str) -> None:
        """A hook failed. What a server said may hold secrets and stays out of the event."""
        self._events.warning(pod, container.name, "FailedPreStopHook", "PreStopHook failed", container_id)

    async def _restore(self, container_id: str, pod: v1.Pod | None) -> tuple[v1.Pod, v1.Container]:
        """What a container's labels and annotations say about how to end it. Raises CRIError."""
        status = (await self._runtime.container_status(container_id)).status
        owner = read_identity(status.labels)
        notes = read_notes(status.annotations)
        lifecycle = v1.Lifecycle(pre_stop=notes.pre_stop) if notes.pre_stop is not None else None
        container = v1.Container(
            name=owner.container,
            ports=list(notes.ports),
            lifecycle=lifecycle,
            termination_message_path=notes.termination_message_path,
        )
        if pod is not None:
            return pod, container
        restored = v1.Pod(
            metadata=v1.ObjectMeta(
                uid=owner.uid,
                name=owner.name,
                namespace=owner.namespace,
                deletion_grace_period_seconds=notes.deletion_grace_period,
            ),
            spec=v1.PodSpec(
                containers=[container],  # whatever kind it was: so the kubelet names it in events
                termination_grace_period_seconds=notes.termination_grace_period,
            ),
        )
        return restored, container


def running_part(status: PodStatus) -> RunningPod:
    """What runs of an observed pod, and all its sandboxes (kubelet: `ConvertPodStatusToRunningPod`)."""
    return RunningPod(
        uid=status.uid,
        name=status.name,
        namespace=status.namespace,
        containers=tuple(
            RunningContainer(id=c.id, name=c.name, state=c.state, pod_sandbox_id=c.pod_sandbox_id)
            for c in status.containers
            if c.state is ContainerState.RUNNING
        ),
        sandboxes=tuple(
            RunningContainer(
                id=s.id,
                name="",
                state=ContainerState.RUNNING if s.ready else ContainerState.EXITED,
                pod_sandbox_id=s.id,
            )
            for s in status.sandboxes
        ),
    )

"""Which init containers to start, restart or kill (kubelet: `computeInitContainerActions`). Pure.

The list is walked from its end: dead init containers may have been removed from the runtime at any
time, so the last one that has left a trace says how far initialization got. Everything before it
has ended well; of those only the sidecars (restartable init containers) matter any more.

Traces of an earlier sandbox say nothing of this one. Kubelet v1.36 takes them for its own, and so leaves out
init containers after a reboot (kubernetes/kubernetes 137710, 140309).
"""

from __future__ import annotations

from collections.abc import Callable

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.observed.probes import ProbeReadings, ProbeResult
from trio_kubelet.observed.types import OOM_KILLED, ContainerState, ContainerStatus, PodStatus
from trio_kubelet.podinfo.restarts import restarts_after_kill, should_start
from trio_kubelet.runtime.plan import KillReason, PodActions

Resize = Callable[[int, ContainerStatus], bool]
"""Plans a change of resources of the init container at an index; whether it is kept."""


def init_container_failed(status: ContainerStatus) -> bool:
    """An exit code, an OOM kill (even with exit code 0) or an unknown state is a failure."""
    if status.reason == OOM_KILLED or status.state is ContainerState.UNKNOWN:
        return True
    return status.state is ContainerState.EXITED and status.exit_code != 0


def plan_init_containers(
    pod: v1.Pod,
    status: PodStatus,
    probes: ProbeReadings,
    hash_of: Callable[[str, str], str],
    resize: Resize,
    actions: PodActions,
) -> bool:
    """Adds what to do to `actions`; whether the pod is initialized and its regular containers may run.

    Sets `kill_pod` when an init container failed for good.
    """
    if not pod.spec.init_containers:
        return True
    walk = _Walk(pod, status, probes, hash_of, resize, actions)
    for index in range(len(walk.containers) - 1, -1, -1):
        if not walk.step(index):
            actions.kill_pod = True
            actions.init_containers_to_start = []
            return False
    if not walk.passed:
        actions.init_containers_to_start.append(0)
    actions.init_containers_to_start.reverse()  # found from the end, started in the pod's order
    return walk.initialized


class _Walk:
    """The walk from the last init container to the first.

    `passed`: a container at or behind the present place has left a trace, so this one has ended well before.
    `initialized`: all init containers are done (sidecars: have started).
    """

    def __init__(
        self,
        pod: v1.Pod,
        status: PodStatus,
        probes: ProbeReadings,
        hash_of: Callable[[str, str], str],
        resize: Resize,
        actions: PodActions,
    ) -> None:
        self.pod = pod
        self.status = status
        self.probes = probes
        self.hash_of = hash_of
        self.resize = resize
        self.actions = actions
        self.containers = pod.spec.init_containers or []
        self._present = {"", *(sandbox.id for sandbox in status.sandboxes[:1])}
        # A regular container that exists proves initialization; one that has exited may be of an earlier
        # sandbox.
        self.initialized = any(
            found is not None and found.state in (ContainerState.CREATED, ContainerState.RUNNING)
            for found in (self._found(container.name) for container in pod.spec.containers or ())
        )
        self.passed = self.initialized

    def step(self, index: int) -> bool:
        """Looks at one container; False when initialization has failed for good."""
        container = self.containers[index]
        found = self._found(container.name)
        if found is None:
            # A sidecar whose remains were removed still has to run.
            if self.passed and is_sidecar(container):
                self._start(index)
            return True
        if self.passed and not is_sidecar(container):
            return True
        if found.state is ContainerState.CREATED:
            self._start(index)  # creating and starting is one step: this start has failed
        elif found.state is ContainerState.RUNNING:
            if is_sidecar(container):
                self._running_sidecar(index, container, found)
            else:
                self.resize(index, found)
        elif found.state is ContainerState.EXITED:
            if not self._exited(index, container, found):
                return False
        elif not self._unknown(index, container, found):
            return False
        self.passed = True
        return True

    def _found(self, name: str) -> ContainerStatus | None:
        """The newest container of that name; none if it is what an earlier sandbox left."""
        newest = self.status.container_status(name)
        if newest is None or newest.state is ContainerState.RUNNING:
            return newest
        return newest if newest.pod_sandbox_id in self._present else None

    def _start(self, index: int) -> None:
        self.actions.init_containers_to_start.append(index)

    def _done(self, index: int) -> None:
        """This one lets the next go ahead."""
        if index == len(self.containers) - 1:
            self.initialized = True
        elif not self.passed:
            self._start(index + 1)

    def _running_sidecar(self, index: int, container: v1.Container, found: ContainerStatus) -> None:
        if container.startup_probe is not None:
            startup = self.probes.startup.get(found.id)
            if startup is ProbeResult.FAILURE:
                self.actions.kill(
                    found, f"Init container {container.name} failed startup probe", KillReason.STARTUP_PROBE
                )
                self._start(index)
            if startup is not ProbeResult.SUCCESS:
                return
        self._done(index)
        if found.hash != self.hash_of(container.name, container.image):
            self.actions.kill(found, f"Init container {container.name} definition changed", KillReason.NONE)
            self._start(index)
            return
        if container.liveness_probe is not None:
            liveness = self.probes.liveness.get(found.id)
            if liveness is ProbeResult.FAILURE:
                self.actions.kill(
                    found, f"Init container {container.name} failed liveness probe", KillReason.LIVENESS_PROBE
                )
                self._start(index)
            if liveness in (None, ProbeResult.FAILURE):
                return
        self.resize(index, found)

    def _exited(self, index: int, container: v1.Container, found: ContainerStatus) -> bool:
        if is_sidecar(container):
            self._start(index)
        elif not init_container_failed(found):
            self._done(index)
        elif should_start(self.pod, container, self.status):
            self._start(index)
        else:
            return False
        return True

    def _unknown(self, index: int, container: v1.Container, found: ContainerStatus) -> bool:
        if not is_sidecar(container) and not restarts_after_kill(self.pod, container):
            return False
        self.actions.kill(
            found,
            f'Init container is in "{found.state}" state, try killing it before restart',
            KillReason.UNKNOWN,
        )
        self._start(index)
        return True

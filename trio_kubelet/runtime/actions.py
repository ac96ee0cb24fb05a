"""What has to be done to bring the runtime in line with a pod: the kubelet's `computePodActions`,
as a pure function.

`compute_pod_actions` looks at the pod, at what was observed of it and at what the probes say, and
returns what to kill and what to start. Nothing is done here and nothing is remembered, so every
rule can be tested as a table. The part about init containers is in `init_actions`, the shared
values in `plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.observed.probes import ProbeReadings, ProbeResult
from trio_kubelet.observed.types import ContainerState, ContainerStatus, PodStatus
from trio_kubelet.podinfo.restarts import asks_for_all, restarts_after_kill, should_start
from trio_kubelet.runtime.init_actions import init_container_failed, plan_init_containers
from trio_kubelet.runtime.plan import ContainerToReset, KillReason, PodActions, pod_sandbox_changed
from trio_kubelet.runtime.resize import Resources, plan_resize


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What `compute_pod_actions` decides on, besides the pod itself.

    `actuated`: resources last put into force by container name; a container without an entry is not resized.
    `pod_resized`: what the pod asks for as a whole is not in force, or not known to be.
    """

    status: PodStatus
    probes: ProbeReadings = ProbeReadings()
    hash_of: Callable[[str, str], str]  # container hash from name and image
    restart_all_containers: bool = False
    actuated: Mapping[str, Resources] = {}
    pod_resized: bool = False


def compute_pod_actions(pod: v1.Pod, seen: Observed) -> PodActions:
    """What to do now; an empty answer when everything is as it should be."""
    create, attempt, sandbox_id = pod_sandbox_changed(pod, seen.status)
    actions = PodActions(kill_pod=create, create_sandbox=create, sandbox_id=sandbox_id, attempt=attempt)
    if seen.restart_all_containers:
        actions.containers_to_reset = _containers_to_reset(pod, seen.status)
        return actions
    if create:
        _plan_new_sandbox(pod, seen.status, actions)
        return actions
    # Ephemeral containers may start before initialization is complete, and never again once there was one.
    # (One that was removed a kubelet starts again, kubernetes/kubernetes 124176.)
    were = {each.name for each in pod.status.ephemeral_container_statuses or () if each.container_id}
    for index, ephemeral in enumerate(pod.spec.ephemeral_containers or ()):
        if ephemeral.name not in were and seen.status.container_status(ephemeral.name) is None:
            actions.ephemeral_containers_to_start.append(index)
    initialized = plan_init_containers(
        pod,
        seen.status,
        seen.probes,
        seen.hash_of,
        lambda i, status: _resize(pod, i, True, status, seen, actions),
        actions,
    )
    if actions.kill_pod:
        return actions
    if not initialized:
        # An init container that had too little memory beside a sidecar would starve in its pod's old limit.
        actions.resize_pod = actions.resize_pod or seen.pod_resized
        return actions
    kept = 0
    for index in range(len(pod.spec.containers or ())):
        kept += _plan_container(pod, index, seen, actions)
    if not kept and not actions.containers_to_start:
        actions.kill_pod = True
        actions.init_containers_to_start = []  # sidecars alone do not keep a pod alive
        actions.containers_to_resize, actions.resize_pod = [], False
    else:
        actions.resize_pod = actions.resize_pod or seen.pod_resized
    return actions


def _plan_new_sandbox(pod: v1.Pod, status: PodStatus, actions: PodActions) -> None:
    """Everything of the pod starts anew in a new sandbox, unless the pod is done.

    That of a pod which is not to restart, too, as long as one of its containers has not run yet. (Once there
    was any, a kubelet leaves the pod pending for ever, kubernetes/kubernetes 118321.)
    """
    init, containers = pod.spec.init_containers or [], pod.spec.containers or []
    to_start = [index for index, container in enumerate(containers) if _starts_anew(pod, container, status)]
    # All are over, or there are none: a sandbox would be ended and made anew for ever.
    if not to_start or not all(_has_not_failed(pod, container, status) for container in init):
        actions.create_sandbox = False
    elif init:
        actions.init_containers_to_start = [0]
    else:
        actions.containers_to_start = to_start


def _starts_anew(pod: v1.Pod, container: v1.Container, status: PodStatus) -> bool:
    """Whether a container starts in its pod's new sandbox: not where its own policy leaves it ended.

    (A kubelet starts such a one again unless it succeeded and is `OnFailure`, or there are init containers.
    The API server then takes no status of the pod any more: what has ended for good may not run there.)
    """
    newest = status.container_status(container.name)
    if newest is not None and newest.state in (ContainerState.RUNNING, ContainerState.UNKNOWN):
        return restarts_after_kill(pod, container)
    return should_start(pod, container, status)


def _has_not_failed(pod: v1.Pod, container: v1.Container, status: PodStatus) -> bool:
    """Whether an init container has ended well, or may be begun in the new sandbox."""
    newest = status.container_status(container.name)
    if newest is None or newest.state is not ContainerState.EXITED or init_container_failed(newest):
        return _starts_anew(pod, container, status)
    return True


def _plan_container(pod: v1.Pod, index: int, seen: Observed, actions: PodActions) -> bool:
    """Plans one regular container; whether it runs and is to be kept."""
    assert pod.spec.containers is not None
    container = pod.spec.containers[index]
    status = seen.status.container_status(container.name)
    if status is None or status.state is not ContainerState.RUNNING:
        if should_start(pod, container, seen.status):
            actions.containers_to_start.append(index)
            if status is not None and status.state is ContainerState.UNKNOWN:
                # It may run after all: two live containers of one name must never be.
                actions.kill(
                    status,
                    f'Container is in "{status.state}" state, try killing it before restart',
                    KillReason.UNKNOWN,
                )
        return False
    restart = restarts_after_kill(pod, container)
    reason = KillReason.NONE
    if status.hash != seen.hash_of(container.name, container.image):
        message = f"Container {container.name} definition changed"
        restart = True  # whatever the policy: this is another container
    elif seen.probes.liveness.get(status.id) is ProbeResult.FAILURE:
        message = f"Container {container.name} failed liveness probe"
        reason = KillReason.LIVENESS_PROBE
    elif seen.probes.startup.get(status.id) is ProbeResult.FAILURE:
        message = f"Container {container.name} failed startup probe"
        reason = KillReason.STARTUP_PROBE
    else:
        return _resize(pod, index, False, status, seen, actions)
    if restart:
        message += ", will be restarted"
        actions.containers_to_start.append(index)
    actions.kill(status, message, reason)
    return False


def _resize(
    pod: v1.Pod, index: int, init: bool, status: ContainerStatus, seen: Observed, actions: PodActions
) -> bool:
    """Plans a change of resources; whether the container is kept while that is done."""
    containers = (pod.spec.init_containers if init else pod.spec.containers) or []
    container = containers[index]
    plan = plan_resize(pod, container, status, seen.actuated.get(container.name))
    if plan is None:
        return True
    if plan.restart:
        actions.kill(status, f"Container {container.name} resize requires restart", KillReason.NONE)
        (actions.init_containers_to_start if init else actions.containers_to_start).append(index)
        actions.resize_pod = True
        return False
    actions.containers_to_resize.append(plan)
    return True


def _containers_to_reset(pod: v1.Pod, status: PodStatus) -> list[ContainerToReset]:
    """All containers, in the order they are removed: those whose end asked for this come last of
    their kind.
    """
    sources: list[ContainerToReset] = []
    targets: list[ContainerToReset] = []
    init_sources: list[ContainerToReset] = []
    init_targets: list[ContainerToReset] = []
    for containers, asked, others in (
        (pod.spec.containers, sources, targets),
        (pod.spec.init_containers, init_sources, init_targets),
    ):
        for container in containers or ():
            for found in status.containers_named(container.name):
                entry = ContainerToReset(found.id, found.name, found.state is not ContainerState.EXITED)
                (asked if asks_for_all(container, found) else others).append(entry)
    return [*targets, *init_targets, *sources, *init_sources]

"""The conditions of a pod that the node answers for (kubelet: `status/generate.go`). Pure.

Moments of transition are not set here: the status manager compares with what was said before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar, regular_containers
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.podinfo.restarts import ALL_RESTARTING, may_restart_all
from trio_kubelet.pods.refs import FAILED, SUCCEEDED
from trio_kubelet.runtime.plan import pod_sandbox_changed

READY_TO_START: Final = "PodReadyToStartContainers"
INITIALIZED: Final = "Initialized"
READY: Final = "Ready"
CONTAINERS_READY: Final = "ContainersReady"
SCHEDULED: Final = "PodScheduled"
DISRUPTION_TARGET: Final = "DisruptionTarget"
RESIZE_PENDING: Final = "PodResizePending"
RESIZE_IN_PROGRESS: Final = "PodResizeInProgress"

OWN: Final = frozenset(
    {READY_TO_START, INITIALIZED, READY, CONTAINERS_READY, SCHEDULED, ALL_RESTARTING}
    | {RESIZE_PENDING, RESIZE_IN_PROGRESS}
)
"""Conditions this node writes afresh each time; others it only passes on."""

_COMPLETED = "PodCompleted"


def condition(pod: v1.Pod, kind: str, status: bool, reason: str = "", message: str = "") -> v1.PodCondition:
    """A condition as of the pod's present generation."""
    return v1.PodCondition(
        type=kind,
        status="True" if status else "False",
        reason=reason,
        message=message,
        observed_generation=pod.metadata.generation,
    )


def find(conditions: Sequence[v1.PodCondition] | None, kind: str) -> v1.PodCondition | None:
    """The condition of that type."""
    return next((c for c in conditions or () if c.type == kind), None)


def put(conditions: Sequence[v1.PodCondition] | None, new: v1.PodCondition) -> list[v1.PodCondition]:
    """The conditions with `new` in the place of the one of its type.

    Without one it goes where the next status has it: before the node's others if it is of a resize, else at
    the end.
    """
    kept = list(conditions or ())
    for index, old in enumerate(kept):
        if old.type == new.type:
            kept[index] = new
            return kept
    if new.type in (RESIZE_PENDING, RESIZE_IN_PROGRESS):
        after = OWN - {RESIZE_PENDING} if new.type == RESIZE_IN_PROGRESS else OWN
        place = next((index for index, other in enumerate(kept) if other.type in after), len(kept))
        return [*kept[:place], new, *kept[place:]]
    return [*kept, new]


def own_conditions(
    pod: v1.Pod, observed: PodStatus, status: v1.PodStatus, old: v1.PodStatus, all_restarting: bool
) -> list[v1.PodCondition]:
    """The conditions for `status`, whose container statuses, phase and foreign conditions are already set."""
    containers = [*(status.init_container_statuses or ()), *(status.container_statuses or ())]
    before = [
        condition(pod, READY_TO_START, not pod_sandbox_changed(pod, observed)[0]),
        initialized(pod, containers, status.phase, old),
    ]
    conditions = [
        *before,
        # A readiness gate may name one of the node's own that is known by then.
        ready(pod, containers, status.phase, [*(status.conditions or ()), *before]),
        containers_ready(pod, containers, status.phase),
        condition(pod, SCHEDULED, True),
    ]
    if may_restart_all(pod.spec):
        conditions.append(_all_restarting(pod, observed, status.phase, all_restarting))
    return conditions


def containers_ready(pod: v1.Pod, statuses: Sequence[v1.ContainerStatus], phase: str) -> v1.PodCondition:
    """Whether all containers and sidecars are ready; their names, sorted by their place, if not."""
    sidecars = [c for c in pod.spec.init_containers or () if is_sidecar(c)]
    containers = [*sidecars, *(pod.spec.containers or ())]
    unknown, unready = _sort_out(containers, statuses, lambda container, status: status.ready)
    if phase == SUCCEEDED and not unknown:
        return condition(pod, CONTAINERS_READY, False, _COMPLETED)
    if phase == FAILED:
        return condition(pod, CONTAINERS_READY, False, "PodFailed")
    message = _message(unknown, unready, "unready")
    reason = "ContainersNotReady" if message else ""
    return condition(pod, CONTAINERS_READY, not message, reason, message)


def ready(
    pod: v1.Pod, statuses: Sequence[v1.ContainerStatus], phase: str, others: Sequence[v1.PodCondition]
) -> v1.PodCondition:
    """Containers are ready and so is every readiness gate (KEP-580)."""
    containers = containers_ready(pod, statuses, phase)
    if containers.status != "True":
        return condition(pod, READY, False, containers.reason, containers.message)
    messages = []
    for gate in pod.spec.readiness_gates or ():
        found = find(others, gate.condition_type)
        name = f'"{gate.condition_type}"'
        if found is None:
            messages.append(f"corresponding condition of pod readiness gate {name} does not exist.")
        elif found.status != "True":
            messages.append(f'the status of pod readiness gate {name} is not "True", but {found.status}')
    return condition(
        pod, READY, not messages, "ReadinessGatesNotReady" if messages else "", ", ".join(messages)
    )


def initialized(
    pod: v1.Pod, statuses: Sequence[v1.ContainerStatus], phase: str, old: v1.PodStatus
) -> v1.PodCondition:
    """Whether every init container has completed and every sidecar has started once."""
    unknown, incomplete = _sort_out(pod.spec.init_containers or (), statuses, _is_initialised)
    if phase == SUCCEEDED and not unknown:
        return condition(pod, INITIALIZED, True, _COMPLETED)
    names = {container.name for container in pod.spec.containers or ()}
    if any(s.name in names and (s.state.running or s.state.terminated) for s in statuses):
        return condition(pod, INITIALIZED, True)
    message = _message(unknown, incomplete, "incomplete")
    before = find(old.conditions, INITIALIZED)
    if not message or (before is not None and before.status == "True"):
        return condition(pod, INITIALIZED, True)
    return condition(pod, INITIALIZED, False, "ContainersNotInitialized", message)


def _is_initialised(container: v1.Container, status: v1.ContainerStatus) -> bool:
    return bool(status.started) if is_sidecar(container) else status.ready


def _sort_out(
    containers: Sequence[v1.Container],
    statuses: Sequence[v1.ContainerStatus],
    good: Callable[[v1.Container, v1.ContainerStatus], bool],
) -> tuple[list[str], list[str]]:
    """Names of the containers without a status, and of those whose status is not `good`."""
    by_name = {status.name: status for status in statuses}
    unknown, bad = [], []
    for container in containers:
        status = by_name.get(container.name)
        if status is None:
            unknown.append(container.name)
        elif not good(container, status):
            bad.append(container.name)
    return unknown, bad


def _message(unknown: Sequence[str], bad: Sequence[str], word: str) -> str:
    """The kubelet's text; lists of names in Go's notation."""
    parts = []
    if unknown:
        parts.append(f"containers with unknown status: [{' '.join(unknown)}]")
    if bad:
        parts.append(f"containers with {word} status: [{' '.join(bad)}]")
    return ", ".join(parts)


def _all_restarting(pod: v1.Pod, observed: PodStatus, phase: str, wanted: bool) -> v1.PodCondition:
    """Whether all containers are being taken away to start again (KEP-5532); it carries no generation.

    Ephemeral ones stay.
    """
    status, reason, message = "False", "", ""
    if phase == SUCCEEDED:
        reason = _COMPLETED
    elif phase == FAILED:
        reason = "PodFailed"
    elif wanted and any(observed.containers_named(each.name) for each in regular_containers(pod.spec)):
        status, reason = "True", "RestartAllContainersStarted"
        message = "container exited with restart policy rule"
    return v1.PodCondition(type=ALL_RESTARTING, status=status, reason=reason, message=message)

"""Whether a container that ended is started again: pod policy, container policy, container rules. Pure.

Follows the kubelet with the gates `ContainerRestartRules` and
`RestartAllContainersOnContainerExits` on (KEP-5307, KEP-5532): the rules of a container come first,
then its own policy, then the pod's.
"""

from __future__ import annotations

from typing import Any

from trio_kubelet.api import v1
from trio_kubelet.api.containers import containers_by_name, regular_containers
from trio_kubelet.observed.types import ContainerState, ContainerStatus, PodStatus

ALWAYS = "Always"
ON_FAILURE = "OnFailure"
NEVER = "Never"
RESTART_ALL_CONTAINERS = "RestartAllContainers"
ALL_RESTARTING = "AllContainersRestarting"
"""The condition of a pod whose containers are all started again."""


def matching_rule(container: v1.Container, exit_code: int) -> v1.ContainerRestartRule | None:
    """The first restart rule of the container that names this exit code."""
    for rule in container.restart_policy_rules or ():
        if rule.exit_codes is None:
            continue
        listed = exit_code in (rule.exit_codes.values or ())
        if (rule.exit_codes.operator == "In" and listed) or (
            rule.exit_codes.operator == "NotIn" and not listed
        ):
            return rule
    return None


def may_restart_all(spec: v1.PodSpec) -> bool:
    """Whether a rule of a container can make all of the pod start again."""
    return any(
        rule.action == RESTART_ALL_CONTAINERS
        for container in regular_containers(spec)
        for rule in container.restart_policy_rules or ()
    )


def are_all_restarting(status: v1.PodStatus) -> bool:
    """Whether a pod's status says that all of its containers are started again (KEP-5532)."""
    return any(each.type == ALL_RESTARTING and each.status == "True" for each in status.conditions or ())


def asks_for_all(container: v1.Container, status: ContainerStatus) -> bool:
    """Whether this end of the container restarts all containers of the pod."""
    if status.state is not ContainerState.EXITED:
        return False
    rule = matching_rule(container, status.exit_code)
    return rule is not None and rule.action == RESTART_ALL_CONTAINERS


def should_restart_after(pod: v1.Pod, container: v1.Container, exit_code: int) -> bool:
    """Whether policies and rules start the container again after this exit code."""
    if container.restart_policy is not None:
        rule = matching_rule(container, exit_code)
        if rule is not None and rule.action in ("Restart", RESTART_ALL_CONTAINERS):
            return True
        if container.restart_policy in (ALWAYS, ON_FAILURE, NEVER):
            return _by_policy(container.restart_policy, exit_code)
    return _by_policy(pod.spec.restart_policy, exit_code)


def _by_policy(policy: str, exit_code: int) -> bool:
    if policy == NEVER:
        return False
    return exit_code != 0 if policy == ON_FAILURE else True


def should_start(pod: v1.Pod, container: v1.Container, status: PodStatus) -> bool:
    """Whether a container that does not run is to be started (kubelet: `ShouldContainerBeRestarted`).

    One that was created but never started, or whose state is unknown, is; nothing is once the pod
    is being deleted.
    """
    if pod.metadata.deletion_timestamp is not None:
        return False
    newest = status.container_status(container.name)
    if newest is None or newest.state in (ContainerState.UNKNOWN, ContainerState.CREATED):
        return True
    if newest.state is ContainerState.RUNNING:
        return False
    return should_restart_after(pod, container, newest.exit_code)


def restarts_after_kill(pod: v1.Pod, container: v1.Container) -> bool:
    """Whether a container killed while it runs (failed probe) comes back; rules need an exit code,
    so they do not count here.
    """
    policy = container.restart_policy if container.restart_policy is not None else pod.spec.restart_policy
    return policy != NEVER


def as_container(ephemeral: v1.EphemeralContainer) -> v1.Container:
    """The part of an ephemeral container that it shares with the others."""
    shared: dict[str, Any] = {name: getattr(ephemeral, name) for name in v1.Container.__struct_fields__}
    return v1.Container(**shared)


def find_container(pod: v1.Pod, name: str) -> v1.Container | None:
    """The container of that name among all kinds (kubelet: `GetContainerSpec`)."""
    found = containers_by_name(pod.spec).get(name)
    if found is None:
        return None
    container = found.container
    return as_container(container) if isinstance(container, v1.EphemeralContainer) else container


def field_path(pod: v1.Pod, name: str) -> str:
    """Where the container stands in the pod, as events name it: `spec.containers{web}`.

    A container that the pod does not have (any more) is named as the kubelet does it.
    """
    found = containers_by_name(pod.spec).get(name)
    return f"implicitly required container {name}" if found is None else f"{found.field}{{{name}}}"

"""The values that `actions` computes, and whether a pod needs a new sandbox. Pure."""

from __future__ import annotations

import enum

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.observed.types import ContainerStatus, PodStatus
from trio_kubelet.runtime.resize import ContainerResize


class KillReason(enum.StrEnum):
    """What makes a container be killed; decides which grace period counts."""

    NONE = ""
    STARTUP_PROBE = "StartupProbe"
    LIVENESS_PROBE = "LivenessProbe"
    FAILED_POST_START_HOOK = "FailedPostStartHook"
    RESTART_ALL_CONTAINERS = "RestartAllContainers"
    UNKNOWN = "Unknown"


class ContainerToKill(msgspec.Struct, frozen=True):
    """A container that must not go on running; the message is the text of the Killing event."""

    id: str
    name: str
    message: str
    reason: KillReason


class ContainerToReset(msgspec.Struct, frozen=True):
    """A container to be removed because all containers of the pod start again."""

    id: str
    name: str
    kill: bool  # it is not known to be dead


class PodActions(msgspec.Struct, kw_only=True):
    """What to do for a pod; indexes count in the pod's own lists."""

    kill_pod: bool = False
    create_sandbox: bool = False
    sandbox_id: str = ""
    attempt: int = 0
    init_containers_to_start: list[int] = []
    containers_to_start: list[int] = []
    ephemeral_containers_to_start: list[int] = []
    containers_to_kill: dict[str, ContainerToKill] = {}  # by id
    containers_to_reset: list[ContainerToReset] = []
    containers_to_resize: list[ContainerResize] = []
    resize_pod: bool = False

    def kill(self, status: ContainerStatus, message: str, reason: KillReason) -> None:
        """Adds a container to those to be killed."""
        self.containers_to_kill[status.id] = ContainerToKill(status.id, status.name, message, reason)

    @property
    def starts_something(self) -> bool:
        """Whether a container is to be started."""
        return bool(
            self.init_containers_to_start or self.containers_to_start or self.ephemeral_containers_to_start
        )

    @property
    def nothing_to_do(self) -> bool:
        """Whether the pod is as it should be."""
        return not (
            self.kill_pod
            or self.create_sandbox
            or self.starts_something
            or self.containers_to_kill
            or self.containers_to_reset
            or self.containers_to_resize
            or self.resize_pod
        )


def pod_sandbox_changed(pod: v1.Pod, status: PodStatus) -> tuple[bool, int, str]:
    """Whether a new sandbox is needed, its attempt number (or the present one's) and the present one's id.

    The newest sandbox must be the only ready one, on the network the pod wants and with an address (kubelet:
    `PodSandboxChanged`).
    """
    if not status.sandboxes:
        return True, 0, ""
    newest = status.sandboxes[0]
    following = (newest.attempt + 1) % 2**32  # the runtime has 32 bits for it
    ready = sum(sandbox.ready for sandbox in status.sandboxes)
    if ready > 1 or not newest.ready:
        return True, following, newest.id
    if newest.host_network != pod.spec.host_network:
        return True, following, ""
    if not pod.spec.host_network and newest.network_reported and not newest.ips:
        return True, following, newest.id
    return False, newest.attempt, newest.id

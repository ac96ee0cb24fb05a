"""What this room needs from others, as small Protocols: configs, events, probe results, the state of pods.

The runtime room knows neither volumes nor probes nor workers; whoever composes the agent hands these in.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.runtime.configs.context import ImageUser


class ConfigError(Exception):
    """A sandbox or container config cannot be made now; the text is shown in the pod's status."""


class ProbeResult(enum.StrEnum):
    """The last verdict of a probe."""

    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class ProbeReadings(msgspec.Struct, frozen=True):
    """Verdicts by container id; a container without an entry has not been probed yet."""

    liveness: Mapping[str, ProbeResult] = {}
    startup: Mapping[str, ProbeResult] = {}


class ContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a container config is made from, besides pod and container."""

    restart_count: int
    image_ref: str  # what the runtime calls the image after it was made present
    image_user: ImageUser = ImageUser()
    pod_ips: tuple[str, ...] = ()
    runtime_handler: str = ""
    target_container_id: str = ""  # of an ephemeral container that looks into another one
    image_volumes: Mapping[str, cri.ImageSpec] = {}  # by volume name


class PodConfigs(Protocol):
    """Makes the CRI configs of a pod; raises ConfigError."""

    async def sandbox_config(self, pod: v1.Pod, attempt: int) -> cri.PodSandboxConfig:
        """The sandbox's config; `log_directory` is set."""
        ...

    def runtime_handler(self, pod: v1.Pod) -> str:
        """The runtime handler of the pod's runtime class, "" for the default one."""
        ...

    async def container_config(
        self, pod: v1.Pod, container: v1.Container, request: ContainerRequest
    ) -> cri.ContainerConfig:
        """A container's config, its mounts, `/etc/hosts` and termination log being there."""
        ...


class EventRecorder(Protocol):
    """Takes events about pods. Never waits and never fails."""

    def record(self, pod: v1.Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        """`type` is Normal or Warning; `field_path` names a container: `spec.containers{web}`."""
        ...


class PodStates(Protocol):
    """What the pod workers know about a pod (kubelet: `podStateProvider`)."""

    def is_termination_requested(self, uid: str) -> bool:
        """Whether the pod is to end or has ended; false for a pod that is not known."""
        ...

    def should_content_be_removed(self, uid: str) -> bool:
        """Whether everything of the pod may go: it ended, or nobody knows it."""
        ...

    def should_runtime_be_removed(self, uid: str) -> bool:
        """Whether the pod's containers may go: none of them runs any more, or nobody knows the pod."""
        ...


class PullSecret(Protocol):
    """A place where registry credentials come from; the image manager asks each in turn."""

    def credentials(self, image: str) -> Sequence[cri.AuthConfig]:
        """What to try for a normalised image reference, best first."""
        ...

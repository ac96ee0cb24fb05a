"""What this room needs from others, as small Protocols: configs, events, probe results, the state of pods.

The runtime room knows neither volumes nor probes nor workers; whoever composes the agent hands these in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.common.finishing import Finishing
from trio_kubelet.credential_providers.doors import PullSecret
from trio_kubelet.credential_providers.keyring import Credential
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.net.http import HTTPRequest
from trio_kubelet.observed.probes import ProbeReadings
from trio_kubelet.podinfo.context import ImageUser
from trio_kubelet.podinfo.given import Given
from trio_kubelet.runtime.pod_amounts import PodAmounts


class ContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a container config is made from, besides pod and container."""

    restart_count: int | None  # None: one more than any log that is there
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

    def remind(self, pod: v1.Pod) -> None:
        """Tells again what of the pod's settings is left out."""
        ...

    def runtime_handler(self, pod: v1.Pod) -> str:
        """The runtime handler of the pod's runtime class, "" for the default one."""
        ...

    async def container_config(
        self, pod: v1.Pod, container: v1.Container, request: ContainerRequest
    ) -> cri.ContainerConfig:
        """A container's config, its mounts, `/etc/hosts` and termination log being there."""
        ...

    def container_resources(self, pod: v1.Pod, container: v1.Container) -> cri.LinuxContainerResources:
        """The resources part of that config."""
        ...


class PodLimits(Protocol):
    """The limits of pods as a whole (their cgroups)."""

    def wanted(self, pod: v1.Pod) -> PodAmounts:
        """What the pod may use by its spec; None where it is not limited."""
        ...

    async def current(self, pod: v1.Pod) -> PodAmounts:
        """What is in force, None where that cannot be known. Raises ConfigError."""
        ...

    async def memory_in_use(self, pod: v1.Pod) -> int | None:
        """Bytes of memory, None where that cannot be known. Raises ConfigError."""
        ...

    async def apply(self, pod: v1.Pod, amounts: PodAmounts) -> None:
        """Puts limits into force; None leaves one as it is. Raises ConfigError."""
        ...

    def sandbox_update(
        self, pod: v1.Pod, amounts: PodAmounts
    ) -> tuple[cri.LinuxContainerResources, cri.LinuxContainerResources]:
        """Overhead and resources, as the runtime is told that these amounts are in force."""
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


class HookHTTPError(Exception):
    """An HTTP hook had no answer. `plain_http`: the server speaks HTTP where HTTPS was expected."""

    def __init__(self, text: str, plain_http: bool = False) -> None:
        super().__init__(text)
        self.plain_http = plain_http


class HookHTTP(Protocol):
    """The HTTP client of lifecycle hooks."""

    async def get(self, request: HTTPRequest) -> None:
        """Sends a GET and reads at most 10 KiB of the answer; any status is good. Raises HookHTTPError.

        Certificates are not checked. Redirects to other hosts are not followed, as with HTTP probes.
        """
        ...


class GCPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for dead containers (kubelet flags minimum-container-ttl-duration, maximum-dead-containers…).

    A negative limit means no limit; `min_age` in seconds.
    """

    min_age: float = 0.0
    max_per_pod_container: int = 1
    max_containers: int = -1


class SyncContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a sync needs to know besides the pod and its status."""

    probes: ProbeReadings = ProbeReadings()
    pull_secrets: Sequence[PullSecret] = ()
    restart_all_containers: bool = False  # a container rule asked for all containers to start again
    resizing: bool = False  # the pod was granted other resources, and it is not known that it has them
    # Asked when a sandbox could not be created: a pod that is being deleted is then no error.
    is_termination_requested: Callable[[], bool] = lambda: False
    # Hears that the sync is about to be cancelled.
    finishing: Finishing = msgspec.field(default_factory=Finishing)
    # Called before a new sandbox is made; raises ConfigError if what the pod claims is not to be had.
    prepare_claims: Callable[[], Awaitable[None]] | None = None
    # Called when a new sandbox is up, before the images are pulled (condition PodReadyToStartContainers).
    on_sandbox_ready: Callable[[], Awaitable[None]] | None = None


Lookup = Callable[[], Awaitable[Sequence[Credential]]]


RecordPulled = Callable[[str, Credential | None], None]


class AccessCheck(Protocol):
    """Says who may use an image that is there, and hears of pulls."""

    async def may_use(self, image: str, ref: str, lookup: Lookup) -> bool:
        """Whether a pod may use `image`, named as in its spec; `ref` is the runtime's name. Never raises."""
        ...

    def pulling(self, image: str) -> AbstractAsyncContextManager[RecordPulled]:
        """Around a pull; what it yields takes the image's reference and the credential that was good.

        Raises IntentNotWritten.
        """
        ...


class UserNamespaceMapper(Protocol):
    """Gives pods their ranges of user ids."""

    async def mapping(self, pod: v1.Pod, handler: str) -> cri.UserNamespace | None:
        """The pod's range, None if it uses the node's ids. Raises ConfigError."""
        ...


class RuntimeClasses(Protocol):
    """Knows the handlers of runtime classes."""

    def handler(self, name: str) -> str:
        """The handler of a runtime class. Raises ConfigError for one that does not exist."""
        ...


class ServiceVariables(Protocol):
    """Knows the services of the cluster."""

    async def variables(self, pod: v1.Pod) -> Mapping[str, str]:
        """The variables of the services the pod sees. Raises ConfigError if they are not known yet."""
        ...


class Givers(Protocol):
    """Give containers more than their specs name: devices, claimed resources."""

    async def given(self, pod: v1.Pod, container: v1.Container) -> Given:
        """What the container gets, being about to start. Raises ConfigError."""
        ...

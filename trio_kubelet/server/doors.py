"""What several endpoints need of the agent."""

from __future__ import annotations

import ssl
from typing import Protocol, TypeVar, runtime_checkable

from trio_kubelet.api import v1
from trio_kubelet.api.containers import all_containers
from trio_kubelet.observed.types import PodStatus

T = TypeVar("T")


class PodsByName(Protocol):
    """The desired pods."""

    def get_by_name(self, namespace: str, name: str) -> v1.Pod | None: ...


class Statuses(Protocol):
    """The statuses the agent made of what it observed."""

    def get(self, uid: str) -> v1.PodStatus | None: ...


class ObservedStatuses(Protocol):
    """What was last observed in the runtime."""

    def get(self, uid: str) -> PodStatus | None: ...


def has_container(pod: v1.Pod, name: str) -> bool:
    """Whether the pod has a container of that name, of whatever kind."""
    return any(container.name == name for container in all_containers(pod.spec))


@runtime_checkable
class ClosableBody(Protocol):
    """A body that wants to know when it is no longer needed, even if nothing was ever taken of it.

    (A generator that was never begun does not run its `finally`.)
    """

    async def aclose(self) -> None: ...


class ReviewClient(Protocol):
    """What of `KubeClient` is used."""

    async def create(self, path: str, thing: v1.Object, kind: type[T]) -> T: ...


class ContextProvider(Protocol):
    """Knows the certificate to show; `kube.certificates.serving.ServingCertificate` is one."""

    def ssl_context(self) -> ssl.SSLContext:
        """The context for a handshake that begins now. Raises OSError when there is none."""
        ...

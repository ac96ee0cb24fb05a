"""What several endpoints need of the agent."""

from __future__ import annotations

from typing import Protocol

from trio_kubelet.api import v1
from trio_kubelet.api.containers import all_containers
from trio_kubelet.observed.types import PodStatus


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

"""Changes of a running container's resources without a restart (KEP-1287, in-place resize). Pure.

Compares the resources the pod wants with those last put into force and says what to change. Whether
a change may be made at all has been decided before (allocation); here only pods that can be resized
in place are looked at.
"""

from __future__ import annotations

import enum

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.runtime.configs.amounts import amount, milli, whole
from trio_kubelet.runtime.types import ContainerState, ContainerStatus

STATIC_POD_SOURCE_ANNOTATION = "kubernetes.io/config.source"


class ResourceName(enum.StrEnum):
    """The resources that can change in place."""

    CPU = "cpu"
    MEMORY = "memory"


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of a container in force; memory in bytes, CPU in thousandths of a core, 0 for none."""

    memory_limit: int = 0
    memory_request: int = 0
    cpu_limit: int = 0
    cpu_request: int = 0


class ContainerResize(msgspec.Struct, frozen=True):
    """A container whose resources differ from what was last put into force."""

    id: str
    name: str
    desired: Resources
    actuated: Resources
    restart: bool  # its resize policy wants a restart for one of the changed resources

    def changes(self, resource: ResourceName) -> bool:
        """Whether limit or request of the resource differ."""
        return _pair(self.desired, resource) != _pair(self.actuated, resource)


def _pair(resources: Resources, resource: ResourceName) -> tuple[int, int]:
    if resource is ResourceName.CPU:
        return resources.cpu_limit, resources.cpu_request
    return resources.memory_limit, resources.memory_request


def resources_of(container: v1.Container) -> Resources:
    """What the container asks for."""
    limits = container.resources.limits or {}
    requests = container.resources.requests or {}
    return Resources(
        memory_limit=whole(amount(limits.get("memory", "0"))),
        memory_request=whole(amount(requests.get("memory", "0"))),
        cpu_limit=milli(amount(limits.get("cpu", "0"))),
        cpu_request=milli(amount(requests.get("cpu", "0"))),
    )


def can_resize_in_place(pod: v1.Pod) -> bool:
    """Whether the pod takes part in in-place resize; static pods do not, a change makes them another pod."""
    source = (pod.metadata.annotations or {}).get(STATIC_POD_SOURCE_ANNOTATION, "api")
    return source == "api"


def plan_resize(
    pod: v1.Pod, container: v1.Container, status: ContainerStatus, actuated: Resources | None
) -> ContainerResize | None:
    """What to change of a running container, None if nothing.

    `actuated` None: it is not known what is in force, and the container is left as it is.
    """
    if actuated is None or status.state is not ContainerState.RUNNING or not can_resize_in_place(pod):
        return None
    desired = resources_of(container)
    if desired == actuated:
        return None
    resize = ContainerResize(status.id, container.name, desired, actuated, False)
    restart = any(
        policy.restart_policy == "RestartContainer"
        and policy.resource_name in tuple(ResourceName)
        and resize.changes(ResourceName(policy.resource_name))
        for policy in container.resize_policy or ()
    )
    return msgspec.structs.replace(resize, restart=restart)

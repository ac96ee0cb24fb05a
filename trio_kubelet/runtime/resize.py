"""Changes of a running container's resources without a restart (KEP-1287, in-place resize). Pure.

Compares the resources the pod wants with those last put into force and says what to change. Whether
a change may be made at all has been decided before (allocation). A static pod takes part if its manifest
gives it a UID: else a change makes it another pod.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.common.interning import shared
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.observed.types import ContainerResources, ContainerState, ContainerStatus
from trio_kubelet.podinfo.amounts import amount, milli, whole


class ResourceName(enum.StrEnum):
    """The resources that can change in place."""

    CPU = "cpu"
    MEMORY = "memory"


class Resources(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Resources of a container in force; memory in bytes, CPU in thousandths of a core, 0 for none."""

    memory_limit: int = 0
    memory_request: int = 0
    cpu_limit: int = 0
    cpu_request: int = 0


NOTHING = Resources()


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


def resources_of(container: v1.Container, of_pod: v1.ResourceRequirements | None = None) -> Resources:
    """What the container asks for; where it has no limit, that of its pod counts for it (KEP-2837)."""
    own = _resources(container.resources)
    if of_pod is None:
        return own
    pod = _resources(of_pod)
    return shared(
        msgspec.structs.replace(
            own,
            memory_limit=own.memory_limit or pod.memory_limit,
            cpu_limit=own.cpu_limit or pod.cpu_limit,
        )
    )


def pod_resources_of(pod: v1.Pod) -> Resources:
    """What the pod asks for as a whole, apart from its containers; nothing for most pods."""
    return _resources(pod.spec.resources) if pod.spec.resources is not None else NOTHING


def _resources(asked: v1.ResourceRequirements) -> Resources:
    limits, requests = asked.limits or {}, asked.requests or {}
    return shared(
        Resources(
            memory_limit=whole(amount(limits.get("memory", "0"))),
            memory_request=whole(amount(requests.get("memory", "0"))),
            cpu_limit=milli(amount(limits.get("cpu", "0"))),
            cpu_request=milli(amount(requests.get("cpu", "0"))),
        )
    )


def plan_resize(
    pod: v1.Pod, container: v1.Container, status: ContainerStatus, actuated: Resources | None
) -> ContainerResize | None:
    """What to change of a running container, None if nothing.

    `actuated` None: it is not known what is in force, and the container is left as it is.
    """
    if actuated is None or status.state is not ContainerState.RUNNING:
        return None
    desired = resources_of(container, pod.spec.resources)
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


def in_force(
    desired: Resources, reported: ContainerResources | None, wanted: cri.LinuxContainerResources
) -> Resources | None:
    """What is in force for a running container, from what the runtime reports; None if it does not say.

    For containers started before this agent was. `wanted` is what would be in force if nothing had
    changed, which is what `desired` asks for: where the runtime reports just that, rounding of shares
    and quotas does not look like a change. Memory requests never reach the runtime and count as unchanged.
    """
    if reported is None:
        return None
    shares, quota = reported.cpu_shares or 0, reported.cpu_quota or 0
    period = reported.cpu_period or 100_000
    same_shares = shares in (wanted.cpu_shares, _read_back(wanted.cpu_shares))
    same_quota = quota == wanted.cpu_quota or (quota <= 0 and wanted.cpu_quota <= 0)
    memory = reported.memory_limit_in_bytes or 0
    return Resources(
        memory_limit=desired.memory_limit if memory == wanted.memory_limit_in_bytes else memory,
        memory_request=desired.memory_request,
        cpu_limit=desired.cpu_limit if same_quota else max(0, quota) * 1000 // period,
        cpu_request=desired.cpu_request if same_shares else shares * 1000 // 1024,
    )


def _read_back(shares: int) -> int:
    """What a runtime reads of these shares in a cgroup v2, which has a weight of 1 to 10000 instead."""
    return 2 + (max(shares, 2) - 2) * 9999 // 262142 * 262142 // 9999


def with_resources(container: v1.Container, resources: Resources) -> v1.Container:
    """The container asking for these CPU and memory resources, its others unchanged."""

    def amounts(given: dict[str, str] | None, cpu: int, memory: int) -> dict[str, str]:
        others = {name: text for name, text in (given or {}).items() if name not in tuple(ResourceName)}
        return {
            **others,
            **({"cpu": f"{cpu}m"} if cpu else {}),
            **({"memory": str(memory)} if memory else {}),
        }

    old = container.resources
    new = msgspec.structs.replace(
        old,
        limits=amounts(old.limits, resources.cpu_limit, resources.memory_limit),
        requests=amounts(old.requests, resources.cpu_request, resources.memory_request),
    )
    return msgspec.structs.replace(container, resources=new)


def only(resize: ContainerResize, resource: ResourceName) -> Resources:
    """What is to be in force after changing one resource: the rest as it is now."""
    old, new = resize.actuated, resize.desired
    if resource is ResourceName.MEMORY:
        return msgspec.structs.replace(old, memory_limit=new.memory_limit, memory_request=new.memory_request)
    return msgspec.structs.replace(old, cpu_limit=new.cpu_limit, cpu_request=new.cpu_request)


def decreases_first(resizes: Iterable[ContainerResize], resource: ResourceName) -> list[ContainerResize]:
    """The containers whose share of this resource changes; those that give some back come first."""
    changed = [resize for resize in resizes if resize.changes(resource)]
    return sorted(changed, key=lambda r: _pair(r.desired, resource) > _pair(r.actuated, resource))

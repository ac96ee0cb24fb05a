"""Puts changed resources of running containers into force, one resource after the other (kubelet:
`doPodResizeAction`).

What was last put into force is remembered for each container that this agent started or changed;
for others it is taken from what the runtime reports. So a change that was asked for while no agent
ran is made all the same, and a container is never restarted because the agent was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trio_kubelet.api import v1
from trio_kubelet.cri.client import RuntimeService
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.log import get_logger
from trio_kubelet.runtime.naming import pod_name
from trio_kubelet.runtime.ports import ConfigError, PodConfigs, PodLimits
from trio_kubelet.runtime.resize import (
    NOTHING,
    ContainerResize,
    ResourceName,
    Resources,
    can_resize_in_place,
    decreases_first,
    in_force,
    only,
    pod_resources_of,
    resources_of,
    with_resources,
)
from trio_kubelet.runtime.restarts import find_container
from trio_kubelet.runtime.results import PodSyncResult, Reason, SyncAction
from trio_kubelet.runtime.types import PodStatus

log = get_logger(__name__)

_FEW = 100


class Resizer:
    """Knows what resources are in force, and changes them."""

    def __init__(self, runtime: RuntimeService, configs: PodConfigs, pod_limits: PodLimits | None) -> None:
        self._runtime = runtime
        self._configs = configs
        self._pod_limits = pod_limits
        # By container id, and by sandbox id for pods that ask for something as a whole.
        self._actuated: dict[str, Resources] = {}
        self._kept = 0  # how many were left when the rest was last forgotten

    def note_start(self, container_id: str, container: v1.Container, pod: v1.Pod) -> None:
        """The container was started with what it asks for now."""
        self._actuated[container_id] = resources_of(container, pod.spec.resources)

    def note_sandbox(self, sandbox_id: str, pod: v1.Pod) -> None:
        """The pod has as a whole what it asks for now."""
        if (resources := pod_resources_of(pod)) != NOTHING:
            self._actuated[sandbox_id] = resources

    def pod_differs(self, pod: v1.Pod, status: PodStatus) -> bool:
        """Whether the pod asks for something else as a whole than what is known to be in force."""
        if not status.running() or not status.sandboxes or not can_resize_in_place(pod):
            return False
        return pod_resources_of(pod) != self._actuated.get(status.sandboxes[0].id, NOTHING)

    def has_grown(self) -> bool:
        """Whether so many containers were started since the last time that some can be forgotten.

        Asking the runtime which ones are there costs more than keeping a few too many.
        """
        return len(self._actuated) > 2 * self._kept + _FEW

    def forget_all_but(self, ids: Iterable[str]) -> None:
        """Only these containers and sandboxes exist."""
        known = set(ids)
        self._actuated = {id: resources for id, resources in self._actuated.items() if id in known}
        self._kept = len(self._actuated)

    def actuated(self, pod: v1.Pod, status: PodStatus) -> dict[str, Resources]:
        """What is in force for the pod's running containers, by name; those of whom it is not known
        are left out.
        """
        if not can_resize_in_place(pod):
            return {}
        found: dict[str, Resources] = {}
        for running in status.running():
            resources = self._actuated.get(running.id)
            container = find_container(pod, running.name)
            if resources is None and container is not None:
                try:
                    wanted = self._configs.container_resources(pod, container)
                except ConfigError as error:
                    log.warning(
                        "Resources cannot be compared", pod=pod, containerName=running.name, err=error
                    )
                    continue
                desired = resources_of(container, pod.spec.resources)
                resources = in_force(desired, running.resources, wanted)
            if resources is not None:
                found[running.name] = resources
        return found

    async def apply(
        self,
        pod: v1.Pod,
        sandbox_id: str,
        resizes: Sequence[ContainerResize],
        actuated: Mapping[str, Resources],
        result: PodSyncResult,
    ) -> None:
        """Makes the changes; the first failure ends them, the next sync goes on. What happened is
        in `result`.

        The pod's own limits grow before those of its containers and shrink after them, so that no
        container is ever promised more than its pod has.
        """
        try:
            await self._refuse_less_memory_than_used(resizes)
            of_pod = self._actuated.get(sandbox_id, NOTHING)
            for resource in (ResourceName.MEMORY, ResourceName.CPU):
                grows = _grows(pod, of_pod, actuated, resource)
                if grows and self._pod_limits is not None:
                    await self._pod_limits.apply(pod, resource)
                for resize in decreases_first(resizes, resource):
                    await self._update(pod, resize, resource)
                if grows is False and self._pod_limits is not None:
                    await self._pod_limits.apply(pod, resource)
        except (CRIError, ConfigError) as error:
            log.error("Resize failed", pod=pod, err=error)
            result.add(
                SyncAction.RESIZE_POD_IN_PLACE, pod_name(pod), Reason.RESIZE_POD_IN_PLACE_ERROR, str(error)
            )
            return
        self.note_sandbox(sandbox_id, pod)
        result.add(SyncAction.RESIZE_POD_IN_PLACE, pod_name(pod))

    async def _update(self, pod: v1.Pod, resize: ContainerResize, resource: ResourceName) -> None:
        container = find_container(pod, resize.name)
        assert container is not None
        before = self._actuated.get(resize.id, resize.actuated)
        resources = only(ContainerResize(resize.id, resize.name, resize.desired, before, False), resource)
        linux = self._configs.container_resources(pod, with_resources(container, resources))
        await self._runtime.update_container_resources(resize.id, linux)
        self._actuated[resize.id] = resources

    async def _refuse_less_memory_than_used(self, resizes: Sequence[ContainerResize]) -> None:
        """A limit below what is in use would kill the container. Raises ConfigError, CRIError."""
        for resize in resizes:
            limit, old = resize.desired.memory_limit, resize.actuated.memory_limit
            if not limit or (old and limit >= old):
                continue
            used = (await self._runtime.container_stats(resize.id)).memory.usage_bytes.value
            if used >= limit:
                raise ConfigError(
                    f'cannot decrease memory limits: attempting to set container "{resize.name}" memory limit'
                    f" ({limit}) below current usage ({used})"
                )


def _grows(
    pod: v1.Pod, of_pod: Resources, actuated: Mapping[str, Resources], resource: ResourceName
) -> bool | None:
    """Whether the pod needs more of the resource than before (None: just as much). Pure.

    `of_pod` is what was in force for it as a whole.
    """
    old, new = _weight(of_pod, resource), _weight(pod_resources_of(pod), resource)
    if old != new:
        return new > old
    old = new = 0
    for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        if container.name in actuated:
            old += _weight(actuated[container.name], resource)
            new += _weight(resources_of(container, pod.spec.resources), resource)
    return None if old == new else new > old


def _weight(resources: Resources, resource: ResourceName) -> int:
    if resource is ResourceName.CPU:
        return resources.cpu_limit + resources.cpu_request
    return resources.memory_limit

"""Puts changed resources of running containers into force, one resource after the other (kubelet:
`doPodResizeAction`).

What was last put into force is remembered for each container that this agent started or changed;
for others it is taken from what the runtime reports. So a change that was asked for while no agent
ran is made all the same, and a container is never restarted because the agent was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.grpc.errors import Code
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.restarts import find_container
from trio_kubelet.runtime.doors import PodConfigs, PodLimits
from trio_kubelet.runtime.metrics import RuntimeMetrics
from trio_kubelet.runtime.naming import pod_name
from trio_kubelet.runtime.pod_amounts import PodAmounts, merged, shrinks_memory, steps
from trio_kubelet.runtime.resize import (
    NOTHING,
    ContainerResize,
    ResourceName,
    Resources,
    decreases_first,
    in_force,
    only,
    pod_resources_of,
    resources_of,
    with_resources,
)
from trio_kubelet.runtime.results import PodSyncResult, Reason, SyncAction

log = get_logger(__name__)

_FEW = 100


@dataclass
class _Limits:
    """A pod as a whole while it is resized."""

    pod: v1.Pod
    sandbox_id: str
    door: PodLimits
    told: PodAmounts  # what is in force, as the runtime was told
    now: PodAmounts
    wanted: PodAmounts


class Resizer:
    """Knows what resources are in force, and changes them."""

    def __init__(
        self,
        *,
        runtime: RuntimeService,
        configs: PodConfigs,
        pod_limits: PodLimits | None,
        metrics: RuntimeMetrics,
    ) -> None:
        self._runtime = runtime
        self._configs = configs
        self._pod_limits = pod_limits
        self._metrics = metrics
        # By container id, and by sandbox id for pods that ask for something as a whole.
        self._actuated: dict[str, Resources] = {}
        self._halfway: set[str] = set()  # sandboxes of pods whose last resize failed
        self._kept = 0  # how many were left when the rest was last forgotten

    def note_start(self, container_id: str, container: v1.Container, pod: v1.Pod) -> None:
        """The container was started with what it asks for now."""
        self._actuated[container_id] = resources_of(container, pod.spec.resources)

    def note_sandbox(self, sandbox_id: str, pod: v1.Pod) -> None:
        """The pod has as a whole what it asks for now."""
        if (resources := pod_resources_of(pod)) != NOTHING:
            self._actuated[sandbox_id] = resources

    def pod_differs(self, pod: v1.Pod, status: PodStatus, resizing: bool) -> bool:
        """Whether the pod asks for something else as a whole than what is known to be in force; also while
        none of its containers runs, as the next one that starts has to find it there.

        `resizing`: a resize of it was granted, and maybe only a part was made: by an agent before this one.
        Else what an agent before this one has made of the pod is what was granted.
        """
        if not status.sandboxes:
            return False
        id = status.sandboxes[0].id
        wanted = pod_resources_of(pod)
        return resizing or id in self._halfway or self._actuated.get(id, wanted) != wanted

    def has_grown(self) -> bool:
        """Whether so many containers were started since the last time that some can be forgotten.

        Asking the runtime which ones are there costs more than keeping a few too many.
        """
        return len(self._actuated) > 2 * self._kept + _FEW

    def forget_all_but(self, ids: Collection[str]) -> None:
        """Only these containers and sandboxes exist."""
        self._actuated = {id: resources for id, resources in self._actuated.items() if id in ids}
        self._halfway.intersection_update(ids)
        self._kept = len(self._actuated)

    def actuated(self, pod: v1.Pod, status: PodStatus) -> dict[str, Resources]:
        """What is in force for the pod's running containers, by name; those of whom it is not known
        are left out. Of two of a name that run, the newer one counts.
        """
        found: dict[str, Resources] = {}
        for running in reversed(status.running()):
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
        whole: bool,
        result: PodSyncResult,
    ) -> None:
        """Makes the changes; the first failure ends them, the next sync goes on. What happened is
        in `result`.

        `whole`: more changes than those of `resizes`, of the pod itself or of a container that starts anew.
        """
        started, success = trio.current_time(), False
        self._halfway.add(sandbox_id)
        try:
            await self._change(pod, sandbox_id, resizes, whole)
            success = True
        except (CRIError, ConfigError) as error:
            log.error("Resize failed", pod=pod, err=error)
            result.add(
                SyncAction.RESIZE_POD_IN_PLACE, pod_name(pod), Reason.RESIZE_POD_IN_PLACE_ERROR, str(error)
            )
            return
        finally:
            took = (trio.current_time() - started) * 1000
            self._metrics.resize_duration.labels(str(success).lower()).observe(took)
        self._halfway.discard(sandbox_id)
        self.note_sandbox(sandbox_id, pod)
        result.add(SyncAction.RESIZE_POD_IN_PLACE, pod_name(pod))

    async def _change(
        self, pod: v1.Pod, sandbox_id: str, resizes: Sequence[ContainerResize], whole: bool
    ) -> None:
        """Raises CRIError, ConfigError."""
        limits = await self._limits_of(pod, sandbox_id)
        await self._refuse_less_memory_than_used(pod, limits, resizes)
        for resource in (ResourceName.MEMORY, ResourceName.CPU):
            changed = decreases_first(resizes, resource)
            if not changed and not whole:
                continue
            if limits is None:
                await self._update_each(pod, changed, resource)
                continue
            todo = steps(resource, limits.now, limits.wanted)
            for step in todo.before:
                await self._set(limits, resource, step)
            await self._update_each(pod, changed, resource)
            for step in todo.after:
                await self._set(limits, resource, step)

    async def _limits_of(self, pod: v1.Pod, sandbox_id: str) -> _Limits | None:
        """The pod's limits as a whole; None where pods have none. Raises ConfigError."""
        if self._pod_limits is None:
            return None
        now, wanted = await self._pod_limits.current(pod), self._pod_limits.wanted(pod)
        return _Limits(pod, sandbox_id, self._pod_limits, merged(wanted, now), now, wanted)

    async def _set(self, limits: _Limits, resource: ResourceName, step: PodAmounts) -> None:
        """Takes one step with the pod as a whole. Raises ConfigError."""
        after = merged(limits.told, step)
        try:
            await self._tell(limits, after)
        except CRIError as error:
            raise ConfigError(
                f"failed to notify runtime for UpdatePodSandboxResources (resource={resource}); "
                "resize rejected: updatePodSandboxResources failed for "
                f'sanboxID "{limits.sandbox_id}": {error}'
            ) from error
        try:
            await limits.door.apply(limits.pod, step)
        except ConfigError:
            try:
                await self._tell(limits, limits.told)
            except CRIError as error:
                log.error("Cannot tell the runtime that nothing changed", pod=limits.pod, err=error)
            raise
        limits.told = after

    async def _tell(self, limits: _Limits, amounts: PodAmounts) -> None:
        """Tells the runtime what the pod may use as a whole; one that cannot be told does not have to know.
        Raises CRIError.
        """
        overhead, resources = limits.door.sandbox_update(limits.pod, amounts)
        try:
            await self._runtime.update_pod_sandbox_resources(limits.sandbox_id, overhead, resources)
        except CRIError as error:
            # containerd 2.2 does not have the code for it.
            unknown = error.code is Code.UNKNOWN and "not implemented" in error.message
            if error.code is not Code.UNIMPLEMENTED and not unknown:
                raise
            log.v(3).info("The runtime cannot be told of limits of pods", sandboxID=limits.sandbox_id)

    async def _update_each(
        self, pod: v1.Pod, resizes: Sequence[ContainerResize], resource: ResourceName
    ) -> None:
        for resize in resizes:
            await self._update(pod, resize, resource)

    async def _update(self, pod: v1.Pod, resize: ContainerResize, resource: ResourceName) -> None:
        container = find_container(pod, resize.name)
        assert container is not None
        before = self._actuated.get(resize.id, resize.actuated)
        resources = only(ContainerResize(resize.id, resize.name, resize.desired, before, False), resource)
        linux = self._configs.container_resources(pod, with_resources(container, resources))
        await self._runtime.update_container_resources(resize.id, linux)
        self._actuated[resize.id] = resources

    async def _refuse_less_memory_than_used(
        self, pod: v1.Pod, limits: _Limits | None, resizes: Sequence[ContainerResize]
    ) -> None:
        """A limit below what is in use would kill the container. Raises ConfigError."""
        refused = []
        if limits is not None and limits.wanted.memory and shrinks_memory(limits.now, limits.wanted):
            used, limit = await limits.door.memory_in_use(pod), limits.wanted.memory
            if used is not None and used >= limit:
                refused.append(f"attempting to set pod memory limit ({limit}) below current usage ({used})")
        for resize in resizes:
            limit, old = resize.desired.memory_limit, resize.actuated.memory_limit
            if not limit or (old and limit >= old):
                continue
            try:
                memory = (await self._runtime.container_stats(resize.id)).memory
            except CRIError as error:
                log.error("Container stats cannot be read", pod=pod, containerName=resize.name, err=error)
                raise ConfigError(f'unable to read memory usage for pod "{pod_name(pod)}"') from error
            used = memory.usage_bytes.value
            if not memory.HasField("usage_bytes"):
                refused.append(f'missing container "{resize.name}" memory usage')
            elif used >= limit:
                refused.append(
                    f'attempting to set container "{resize.name}" memory limit ({limit}) below current usage'
                    f" ({used})"
                )
        if refused:
            text = refused[0] if len(refused) == 1 else f"[{', '.join(refused)}]"
            raise ConfigError(f"cannot decrease memory limits: {text}")

"""The CPU manager: containers of Guaranteed pods that ask for whole CPUs have them to themselves.

It owns the state; the policy decides. A container is created with its CPUs; what the others share changes
with each assignment, and they are told at once, each `cpuManagerReconcilePeriod` at the latest. The state
file is the kubelet's, and is on disk before a container that it names is created.
"""

from __future__ import annotations

from typing import Final

import trio

from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.placement.checkpoint import FILE_NAME, PlacementStateError, decode, encode
from trio_kubelet.placement.cpu_policy import (
    CPUPolicy,
    CPUState,
    InvalidState,
    SMTAlignmentError,
    exclusive_cpus,
    reusable_after,
)
from trio_kubelet.placement.cpusets import NONE, CPUSet, cpus_text
from trio_kubelet.placement.doors import AllocationError, CPUSetter, PlacementPods
from trio_kubelet.placement.hints import Hint, Hints
from trio_kubelet.placement.manager_file import ManagerFile
from trio_kubelet.placement.metrics import AlignmentMetrics, CPUMetrics
from trio_kubelet.placement.stale import stale_containers
from trio_kubelet.placement.taking import NotEnoughCPUs
from trio_kubelet.placement.topology import cache_of

log = get_logger(__name__)

POLICY: Final = "static"


def cpu_state_file(root_dir: str) -> ManagerFile:
    """The file in the agent's directory."""
    return ManagerFile(root_dir=root_dir, name=FILE_NAME, manager="CPU manager")


class CPUManager:
    """The policy `static` at work. Implements `doors.HintProvider`."""

    def __init__(
        self,
        *,
        policy: CPUPolicy,
        root_dir: str,
        period: float,
        pods: PlacementPods,
        setter: CPUSetter,
        metrics: CPUMetrics,
        alignment: AlignmentMetrics,
    ) -> None:
        self._policy = policy
        self._file = cpu_state_file(root_dir)
        self._period = period
        self._pods = pods
        self._setter = setter
        self._metrics = metrics
        self._alignment = alignment
        alignment.show_cpus()
        self._state = CPUState()
        self._reusable: dict[str, CPUSet] = {}  # by pod: what its later containers may be given again
        self._told: dict[str, str] = {}  # the CPUs of each running container, by id
        self._changed = trio.Event()

    async def load(self) -> None:
        """Goes on with what an earlier agent, or a kubelet, assigned. Raises PlacementStateError, OSError."""
        try:
            content = await self._file.read()
            known = CPUState() if content is None else decode(content, POLICY)
            self._state = self._policy.check(known)
        except (InvalidState, PlacementStateError) as exc:
            raise self._file.unfit(exc) from exc
        await self._write()
        self._metrics.show(self._policy, self._state)

    # Admission

    def hints(self, pod: v1.Pod, container: v1.Container) -> Hints:
        self._release_stale()
        return self._policy.hints(self._state, pod, container, self._reusable_of(pod))

    def pod_hints(self, pod: v1.Pod) -> Hints:
        self._release_stale()
        return self._policy.pod_hints(self._state, pod, self._reusable_of(pod))

    async def ready(self, pod: v1.Pod) -> None:
        """CPUs are known from the start."""

    async def allocate(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None) -> None:
        """Gives the container its CPUs and returns when that is written down. Raises AllocationError."""
        self._release_stale()
        if not exclusive_cpus(pod, container):
            return
        self._metrics.requests.inc()
        reusable = self._reusable_of(pod)
        whole_cores = self._policy.options.full_pcpus_only
        try:
            state = self._policy.allocate(self._state, pod, container, affinity, reusable)
        except (SMTAlignmentError, NotEnoughCPUs) as exc:
            self._metrics.errors.inc()
            if whole_cores:
                self._alignment.cores(whole=False)
            reason = "SMTAlignmentError" if isinstance(exc, SMTAlignmentError) else ""
            raise AllocationError(str(exc), reason) from exc
        if whole_cores:
            self._alignment.cores(whole=True)
        cpus = state.of(pod.metadata.uid, container.name) or NONE
        self._reusable[pod.metadata.uid] = reusable_after(pod, container, cpus, reusable)
        if state != self._state:
            if len(self._policy.topology.groups(cpus, cache_of)) == 1:
                self._alignment.cache()
            self._put(state)
            try:
                await self._write()
            except OSError as exc:
                self._put(self._state.without_container(pod.metadata.uid, container.name))
                raise AllocationError(f"the CPU manager's state cannot be written: {exc}") from exc

    def _reusable_of(self, pod: v1.Pod) -> CPUSet:
        return self._reusable.get(pod.metadata.uid, NONE)

    # What containers have

    def concerns(self, pod: v1.Pod) -> bool:
        """Whether a container of the pod is to have CPUs to itself."""
        containers = regular_containers(pod.spec)
        return any(exclusive_cpus(pod, container) for container in containers)

    def cpus_of(self, uid: str, container: str) -> str:
        """The CPUs a container is to run on: its own, or those that are shared."""
        own = self._state.of(uid, container)
        return cpus_text(self._state.shared if own is None else own)

    def exclusive(self, uid: str, container: str) -> CPUSet:
        """The CPUs a container has to itself."""
        return self._state.of(uid, container) or NONE

    def allocatable(self) -> CPUSet:
        """All CPUs that containers may have to themselves."""
        return self._policy.allocatable()

    async def run(self) -> None:
        """Keeps running containers on their CPUs: after each assignment, and each period."""
        while True:
            with trio.move_on_after(self._period):
                await self._changed.wait()
            self._changed = trio.Event()
            if self._release_stale():
                await self._write_or_log()
            await self._reconcile()

    async def _reconcile(self) -> None:
        told: dict[str, str] = {}
        for running in list(self._pods.running()):
            wanted = self.cpus_of(running.uid, running.name)
            if wanted and self._told.get(running.id) != wanted:
                try:
                    await self._setter.set_cpus(running.id, wanted)
                except CRIError as exc:
                    log.error("Failed to update container", containerID=running.id, cpuSet=wanted, err=exc)
                    continue
            told[running.id] = wanted
        self._told = told

    # The state

    def _release_stale(self) -> bool:
        """CPUs of pods that are over are shared again, once all pods are known; whether there were any."""
        state = self._state
        for uid, name in stale_containers(state.assigned, self._pods):
            state = state.without_container(uid, name)
        for uid in self._reusable.keys() - state.assigned.keys():
            del self._reusable[uid]
        released = state != self._state
        if released:
            self._put(state)
        return released

    def _put(self, state: CPUState) -> None:
        self._state = state
        self._changed.set()
        self._metrics.show(self._policy, state)

    async def _write(self) -> None:
        """The state as it is now is on disk afterwards. Raises OSError."""
        await self._file.write(lambda: encode(POLICY, self._state))

    async def _write_or_log(self) -> None:
        try:
            await self._write()
        except OSError as exc:
            log.error("Failed to save checkpoint", path=self._file.path, err=exc)
            self._changed.set()

"""What is plugged into the node: the plugin watcher, device plugins, and what they give to pods. Joins rooms.

The parts need the agent to know its pods, and the agent needs them to admit pods: `attach` closes the circle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.base import Base
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.devices.manager import DeviceManager
from trio_kubelet.devices.registration import PLUGIN_TYPE, DevicePluginHandler, DevicePlugins
from trio_kubelet.dra.checkpoint import ClaimCheckpointError
from trio_kubelet.dra.claims import ClaimError
from trio_kubelet.dra.doors import ClaimObjects
from trio_kubelet.dra.drivers import PLUGIN_TYPE as DRIVER_TYPE
from trio_kubelet.dra.manager import DraManager
from trio_kubelet.grpc.loop import AsyncioLoop
from trio_kubelet.machine.numa import numa_memory, numa_nodes
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.placement import checkpoint, memory_checkpoint
from trio_kubelet.placement.allocator import NO_POLICY, Allocator, TopologyPolicy
from trio_kubelet.placement.cpu_state import CPUState
from trio_kubelet.placement.doors import AllocationError, HintProvider, PlacementStateError, Running
from trio_kubelet.placement.manager_file import cpu_state_file, memory_state_file
from trio_kubelet.placement.memory_state import NO_POLICY as NO_MEMORY_POLICY
from trio_kubelet.placement.memory_state import MemoryState
from trio_kubelet.placement.metrics import (
    AlignmentMetrics,
    CPUMetrics,
    MemoryMetrics,
    ResourceManagerMetrics,
)
from trio_kubelet.placement.settings import pod_level, topology_policy
from trio_kubelet.plugins.doors import PluginHandler as AnyHandler
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.given import Given
from trio_kubelet.podinfo.pinned import PinnedCPUs
from trio_kubelet.podinfo.updates import may_be_of_api
from trio_kubelet.pods.admission.allocating import Allocating
from trio_kubelet.pods.refs import view_runs
from trio_kubelet.sources.podconfig import PodConfig

if TYPE_CHECKING:  # imported with a policy
    from trio_kubelet.placement.cpu_manager import CPUManager
    from trio_kubelet.placement.cpu_policy import CPUPolicy
    from trio_kubelet.placement.memory_manager import MemoryManager
    from trio_kubelet.placement.memory_policy import MemoryPolicy
    from trio_kubelet.placement.topology import Topology

T = TypeVar("T")

DEVICE_PLUGINS: Final = "device-plugins"
_UNMETERED: Final = "DisableCPUQuotaWithExclusiveCPUs"


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The policies by which CPUs and memory are given, on this machine."""

    cpus: CPUPolicy | None
    memory: MemoryPolicy | None
    topology: TopologyPolicy


async def placement(base: Base) -> Placement:
    """What the configuration comes to. Looks at the machine only where it matters. Raises
    ConfigurationError.
    """
    config = base.config
    none = {"", NO_POLICY}
    if {config.cpu_manager_policy, config.topology_manager_policy} <= none:
        topology = None
    else:
        topology = await _topology()
    return Placement(
        cpus=_cpu_policy(base, topology),
        memory=await _memory_policy(base),
        topology=topology_policy(config, base.gates, topology),
    )


async def _topology() -> Topology:
    from trio_kubelet.placement.topology import read_topology

    return await _of_machine(read_topology)


async def _of_machine(read: Callable[[], T]) -> T:
    try:
        return await NODE_FILES.run(read)
    except (OSError, ValueError) as exc:
        raise ConfigurationError(f"the topology of the machine cannot be read: {error_words(exc)}") from exc


def _cpu_policy(base: Base, topology: Topology | None) -> CPUPolicy | None:
    config = base.config
    if config.cpu_manager_policy in ("", NO_POLICY) and not config.cpu_manager_policy_options:
        return None
    from trio_kubelet.placement.cpu_manager import cpu_policy

    return cpu_policy(config, base.gates, topology)


async def _memory_policy(base: Base) -> MemoryPolicy | None:
    config = base.config
    if config.memory_manager_policy in ("", NO_MEMORY_POLICY):
        return None
    from trio_kubelet.placement.memory_manager import memory_policy

    nodes = await _of_machine(numa_memory)
    return memory_policy(
        config,
        base.profile.capacity,
        nodes,
        pod_level=pod_level(config, base.gates),
        ignore_eviction=base.flags.experimental_allocatable_ignore_eviction,
    )


class Plugged:
    """The parts, joined. `counts_changed` tells when the Node's status has to say something else."""

    def __init__(
        self,
        *,
        base: Base,
        placement: Placement,
        loop: AsyncioLoop,
        sources: PodConfig,
        objects: ClaimObjects | None,
    ) -> None:
        config, root_dir = base.config, base.flags.root_dir
        self._gates = base.gates
        self._agent: NodeAgent | None = None
        self._sources = sources
        self.counts_changed: Listeners[[]] = Listeners()
        directory = os.path.join(root_dir, DEVICE_PLUGINS)
        self.devices = DeviceManager(
            directory=directory,
            pods=self,
            recorder=base.recorder,
            registry=base.registry,
            numa_nodes=numa_nodes(),
            claims=base.gates.enabled("DRAExtendedResource"),
            counts_changed=self.counts_changed.tell,
            health_changed=self._health_changed,
        )
        self.device_plugins = DevicePlugins(loop=loop, directory=directory, manager=self.devices)
        shows_health = base.gates.enabled("ResourceHealthStatus")
        self.dra = DraManager(
            root_dir=root_dir,
            loop=loop,
            objects=objects,
            pods=self,
            registry=base.registry,
            extended=base.gates.enabled("DRAExtendedResource"),
            of_groups=base.gates.enabled("DRAWorkloadResourceClaims"),
            messages=base.gates.enabled("ResourceHealthStatusMessage"),
            health_changed=self._health_changed if shows_health else None,
            clock=base.clock,
        )
        self._runtime = base.services.runtime
        more = None
        if base.gates.enabled("PodLevelResourceManagers"):
            more = ResourceManagerMetrics(base.registry)
        metrics, memory_metrics = CPUMetrics(base.registry, more), MemoryMetrics(base.registry, more)
        alignment = AlignmentMetrics(base.registry)
        self.cpus: CPUManager | None = None
        if placement.cpus is not None:
            from trio_kubelet.placement.cpu_manager import CPUManager

            self.cpus = CPUManager(
                policy=placement.cpus,
                root_dir=root_dir,
                period=config.cpu_manager_reconcile_period,
                pods=self,
                setter=self,
                metrics=metrics,
                alignment=alignment,
                pinned=base.pinned if base.gates.enabled(_UNMETERED) else PinnedCPUs(),
            )
        self.memory: MemoryManager | None = None
        if placement.memory is not None:
            from trio_kubelet.placement.memory_manager import MemoryManager

            self.memory = MemoryManager(
                policy=placement.memory,
                root_dir=root_dir,
                pods=self,
                metrics=memory_metrics,
            )
        self._root_dir = root_dir
        self._pod_level = placement.topology.pod_level
        managers: Sequence[HintProvider | None] = (self.devices, self.cpus, self.memory)
        providers = [each for each in managers if each is not None]
        self._allocator = Allocator(
            providers=providers,
            policy=placement.topology,
            registry=base.registry,
            alignment=alignment,
            runs=self.runs,
            recorder=base.recorder,
        )
        self.allocating = Allocating(self)

    @property
    def handlers(self) -> Mapping[str, AnyHandler]:
        """For the plugin watcher, by type of plugin."""
        found: dict[str, AnyHandler] = {PLUGIN_TYPE: DevicePluginHandler(self.device_plugins)}
        if self._gates.enabled("DynamicResourceAllocation"):
            found[DRIVER_TYPE] = self.dra.drivers
        return found

    def attach(self, agent: NodeAgent) -> None:
        """The agent whose pods these are."""
        self._agent = agent

    async def start(self, nursery: trio.Nursery) -> None:
        """Takes over what an earlier agent gave. Raises ConfigurationError."""
        await self.devices.load()
        try:
            await self.dra.load()
        except (ClaimCheckpointError, OSError) as exc:
            text = "could not initialize checkpoint manager, please drain node and remove DRA state file"
            raise ConfigurationError(f"{text}: {error_words(exc)}") from exc
        try:
            await self._load_placement()
        except PlacementStateError as exc:
            raise ConfigurationError(str(exc)) from exc
        if self.cpus is not None:
            nursery.start_soon(self.cpus.run)
        nursery.start_soon(self.dra.run)
        nursery.start_soon(self.dra.drivers.run)
        nursery.start_soon(self.devices.run)

    async def _load_placement(self) -> None:
        """Without a policy the state files say so; one of another policy is refused, as by the kubelet."""
        level = self._pod_level
        if self.cpus is not None:
            await self.cpus.load()
        else:
            none = checkpoint.encode(NO_POLICY, CPUState(), level)
            await cpu_state_file(self._root_dir).keep_empty(
                none, lambda c: checkpoint.decode(c, NO_POLICY, level)
            )
        if self.memory is not None:
            await self.memory.load()
        else:
            none = memory_checkpoint.encode(NO_MEMORY_POLICY, MemoryState(), level)
            await memory_state_file(self._root_dir).keep_empty(
                none, lambda c: memory_checkpoint.decode(c, NO_MEMORY_POLICY, level)
            )

    # What pods are given

    def concerns(self, pod: v1.Pod) -> bool:
        """Whether the pod asks for what is handed out piece by piece."""
        others = (each for each in (self.cpus, self.memory) if each is not None)
        return self.devices.concerns(pod) or any(each.concerns(pod) for each in others)

    def passes(self, pod: v1.Pod) -> None:
        """Counts a pod that asks for nothing of the kind."""
        self._allocator.passes(pod)

    async def allocate(self, pod: v1.Pod) -> tuple[str, str] | None:
        """Gives it to the pod; else reason and message of its refusal."""
        return await self._allocator.allocate(pod)

    async def given(self, pod: v1.Pod, container: v1.Container) -> Given:
        """What goes into a container's config. Raises ConfigError."""
        try:
            claimed = self.dra.cdi_ids(pod, container)
            given = await self.devices.given(pod, container)
        except (AllocationError, ClaimError) as exc:
            raise ConfigError(str(exc)) from exc
        uid, cpus, nodes = pod.metadata.uid, "", ""
        if self.cpus is not None:
            await self.cpus.take_back()  # of it is what is shared
            cpus = self.cpus.cpus_of(uid, container.name)
        if self.memory is not None:
            await self.memory.take_back()
            await self.memory.starts(pod, container)
            nodes = self.memory.nodes_of(uid, container.name)
        if not claimed and not cpus and not nodes:
            return given
        every = (*claimed, *given.cdi_devices)
        return msgspec.structs.replace(given, cdi_devices=every, cpus=cpus, memory_nodes=nodes)

    async def prepare(self, pod: v1.Pod) -> None:
        """Has drivers prepare what the pod claims. Raises ConfigError."""
        try:
            await self.dra.prepare(pod)
        except ClaimError as exc:
            raise ConfigError(str(exc)) from exc

    async def unprepare(self, pod: v1.Pod) -> None:
        """Gives back what the pod has claimed. Raises ConfigError."""
        try:
            await self.dra.unprepare(pod)
        except ClaimError as exc:
            raise ConfigError(str(exc)) from exc

    def given_health(self, pod: v1.Pod, container: str) -> Sequence[v1.ResourceStatus]:
        """What the pod's status says of a container's devices (gate ResourceHealthStatus)."""
        if not self._gates.enabled("ResourceHealthStatus"):
            return ()
        return self.dra.health(pod, container) + [
            v1.ResourceStatus(
                name=name,
                resources=[
                    v1.ResourceHealth(resource_id=id, health="Healthy" if healthy else "Unhealthy")
                    for id, healthy in devices.items()
                ],
            )
            for name, devices in self.devices.health(pod.metadata.uid, container).items()
        ]

    def healthy(self) -> str | None:
        """Why no device plugin can register, None if they can."""
        return self.device_plugins.healthy()

    def _health_changed(self, uids: Collection[str]) -> None:
        if self._agent is not None and self._gates.enabled("ResourceHealthStatus"):
            self._agent.room.loop.objects_changed(uids)

    # The pods, for the managers

    def active(self) -> Collection[v1.Pod]:
        """Pods that run or will run here."""
        return self._agent.room.handler.active_pods() if self._agent is not None else ()

    def all_known(self) -> bool:
        """Whether every source has told its pods."""
        return self._agent is not None and self._sources.all_ready()

    def is_known(self, uid: str) -> bool:
        """Whether every source has told its pods that the pod may be of. That of the API server may be away
        because it is itself a static pod, which waits for what its earlier version had.
        """
        return self.all_known() or (self._sources.manifests_ready() and not may_be_of_api(uid))

    def runs(self, uid: str) -> bool:
        """Whether the runtime has the pod's sandbox or a container of it running."""
        return self._agent is not None and view_runs(self._agent.pleg.pod(uid))

    def ending(self) -> Collection[str]:
        """UIDs of pods of which something still runs though no source wants them, or they were refused."""
        if self._agent is None:
            return ()
        workers = self._agent.room.workers.known().items()
        running = {uid for uid, worker in workers if worker.may_run_containers}
        running.update(filter(self.runs, self._agent.pleg.pods()))
        return running.difference(pod.metadata.uid for pod in self.active())

    def running(self) -> Iterable[Running]:
        """Containers that run, also of pods that are ending."""
        for uid in (*(pod.metadata.uid for pod in self.active()), *self.ending()):
            status = self._agent.cache.get(uid) if self._agent is not None else None
            for container in status.running() if status is not None else ():
                yield Running(uid, container.name, container.id)

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        """Has a running container run on these CPUs. Raises CRIError."""
        await self._runtime.update_container_resources(
            container_id, cri.LinuxContainerResources(cpuset_cpus=cpus)
        )

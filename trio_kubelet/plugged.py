"""What is plugged into the node: the plugin watcher, device plugins, and what they give to pods. Joins rooms.

The parts need the agent to know its pods, and the agent needs them to admit pods: `attach` closes the circle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.base import Base
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.client import RuntimeService
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.devices.manager import DeviceManager
from trio_kubelet.devices.registration import PLUGIN_TYPE, DevicePluginHandler, DevicePlugins
from trio_kubelet.dra.checkpoint import ClaimCheckpointError
from trio_kubelet.dra.claims import ClaimError
from trio_kubelet.dra.doors import ClaimObjects
from trio_kubelet.dra.drivers import PLUGIN_TYPE as DRIVER_TYPE
from trio_kubelet.dra.manager import DraManager
from trio_kubelet.grpc.loop import AsyncioLoop
from trio_kubelet.machine.numa import numa_nodes
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.placement.allocator import NO_POLICY, Allocator
from trio_kubelet.placement.checkpoint import CPUCheckpointError
from trio_kubelet.placement.cpu_manager import CPUManager
from trio_kubelet.placement.doors import AllocationError, HintProvider, Running
from trio_kubelet.placement.metrics import CPUMetrics
from trio_kubelet.placement.settings import cpu_policy, topology_policy
from trio_kubelet.placement.topology import CPU, Topology, read_topology
from trio_kubelet.plugins.doors import PluginHandler as AnyHandler
from trio_kubelet.podinfo.errors import ConfigError
from trio_kubelet.podinfo.given import Given
from trio_kubelet.pods.admission.allocating import Allocating
from trio_kubelet.pods.refs import view_runs
from trio_kubelet.sources.podconfig import PodConfig

DEVICE_PLUGINS: Final = "device-plugins"


async def machine_topology(config: KubeletConfiguration) -> Topology:
    """The machine's CPUs, if the configuration has containers placed by them. Raises ConfigurationError."""
    if {config.cpu_manager_policy, config.topology_manager_policy} <= {"", NO_POLICY}:
        return Topology({0: CPU(0, 0, 0, 0)})
    try:
        return await NODE_FILES.run(read_topology)
    except (OSError, ValueError) as exc:
        raise ConfigurationError(f"the topology of the machine's CPUs cannot be read: {exc}") from exc


class Plugged:
    """The parts, joined. `counts_changed` is called when the Node's status has to say something else."""

    def __init__(
        self,
        *,
        base: Base,
        config: KubeletConfiguration,
        topology: Topology,
        root_dir: str,
        runtime: RuntimeService,
        loop: AsyncioLoop,
        sources: PodConfig,
        objects: ClaimObjects | None,
    ) -> None:
        self._gates = base.gates
        self._agent: NodeAgent | None = None
        self._sources = sources
        self.counts_changed: Callable[[], None] = lambda: None
        directory = os.path.join(root_dir, DEVICE_PLUGINS)
        self.devices = DeviceManager(
            directory=directory,
            pods=self,
            recorder=base.recorder,
            registry=base.registry,
            numa_nodes=numa_nodes(),
            counts_changed=lambda: self.counts_changed(),
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
            messages=base.gates.enabled("ResourceHealthStatusMessage"),
            health_changed=self._health_changed if shows_health else None,
        )
        self._runtime = runtime
        metrics = CPUMetrics(base.registry)
        policy = cpu_policy(config, base.gates, topology)
        self.cpus: CPUManager | None = None
        if policy is not None:
            self.cpus = CPUManager(
                policy=policy,
                root_dir=root_dir,
                period=config.cpu_manager_reconcile_period,
                pods=self,
                setter=self,
                metrics=metrics,
            )
        providers: list[HintProvider] = [self.devices]
        if self.cpus is not None:
            providers.append(self.cpus)
        self._allocator = Allocator(
            providers=providers, policy=topology_policy(config, topology), registry=base.registry
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
        """Takes over what an earlier agent gave and begins to serve plugins. Raises
        ConfigurationError.
        """
        await self.devices.load()
        try:
            await self.dra.load()
        except (ClaimCheckpointError, OSError) as exc:
            text = (
                f"could not initialize checkpoint manager, please drain node and remove DRA state file: {exc}"
            )
            raise ConfigurationError(text) from exc
        if self.cpus is not None:
            try:
                await self.cpus.load()
            except (CPUCheckpointError, OSError) as exc:
                raise ConfigurationError(str(exc)) from exc
            nursery.start_soon(self.cpus.run)
        nursery.start_soon(self.dra.run)
        nursery.start_soon(self.dra.drivers.run)
        nursery.start_soon(self.devices.run)
        nursery.start_soon(keep_running, "device plugins", self.device_plugins.run)

    # What pods are given

    def concerns(self, pod: v1.Pod) -> bool:
        """Whether the pod asks for what is handed out piece by piece."""
        return self.devices.concerns(pod) or (self.cpus is not None and self.cpus.concerns(pod))

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
        cpus = self.cpus.cpus_of(pod.metadata.uid, container.name) if self.cpus is not None else ""
        if not claimed and not cpus:
            return given
        return msgspec.structs.replace(given, cdi_devices=(*claimed, *given.cdi_devices), cpus=cpus)

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
        spec = next((each for each in pod.spec.containers or () if each.name == container), None)
        claimed = self.dra.health(pod, spec) if spec is not None else []
        return claimed + [
            v1.ResourceStatus(
                name=name,
                resources=[
                    v1.ResourceHealth(resource_id=id, health="Healthy" if healthy else "Unhealthy")
                    for id, healthy in devices.items()
                ],
            )
            for name, devices in self.devices.health(pod.metadata.uid, container).items()
        ]

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

    def runs(self, uid: str) -> bool:
        """Whether the runtime has the pod's sandbox or a container of it running."""
        return self._agent is not None and view_runs(self._agent.pleg.pod(uid))

    def running(self) -> Iterable[Running]:
        """Containers of active pods that run."""
        for pod in self.active():
            status = self._agent.cache.get(pod.metadata.uid) if self._agent is not None else None
            for container in status.running() if status is not None else ():
                yield Running(pod.metadata.uid, container.name, container.id)

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        """Has a running container run on these CPUs. Raises CRIError."""
        await self._runtime.update_container_resources(
            container_id, cri.LinuxContainerResources(cpuset_cpus=cpus)
        )

"""The device manager: which devices there are, who has them, and giving them to containers.

It owns the state, and what it says of it is there at once; to give devices (`giving.py`) takes their plugin.

What an earlier agent gave stays given, whether the plugin is back or not: a pod that runs is not asked about
again, and for one that does not run the plugin is waited for, as long as its resource stays on the Node.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from typing import Final

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import LabelValues
from trio_kubelet.common.state_file import StateFile
from trio_kubelet.devices.assignments import Assignment, Assignments, Key
from trio_kubelet.devices.checkpoint import (
    FILE_NAME,
    Data,
    DeviceCheckpointError,
    assignments_of,
    data_of,
    decode,
    encode,
)
from trio_kubelet.devices.choice import container_requests, device_hints, in_order, pod_requests
from trio_kubelet.devices.doors import DevicePluginError, DevicePods, Recorder
from trio_kubelet.devices.given import given
from trio_kubelet.devices.giving import Giver, Wish
from trio_kubelet.devices.inventory import Inventory
from trio_kubelet.devices.metrics import DeviceMetrics
from trio_kubelet.devices.values import GRACE, Counts, Device
from trio_kubelet.placement.doors import AllocationError
from trio_kubelet.placement.hints import Hint
from trio_kubelet.podinfo.given import NOTHING, Given

log = get_logger(__name__)

EXPIRY_PERIOD: Final = 20.0
"""Seconds between looks for resources whose plugin has been away for too long."""
SOURCES_PERIOD: Final = 0.1
"""Seconds between looks whether all sources have told their pods."""
WAITING: Final = "WaitingForDevicePlugin"


class DeviceManager:
    """Devices of the node. Implements `placement.doors.HintProvider`.

    `claims`: whether claims may stand for extended resources (gate DRAExtendedResource).
    """

    def __init__(
        self,
        *,
        directory: str,
        pods: DevicePods,
        recorder: Recorder,
        registry: CollectorRegistry,
        numa_nodes: Sequence[int],
        claims: bool,
        counts_changed: Callable[[], None],
        health_changed: Callable[[Collection[str]], None],
    ) -> None:
        self._pods = pods
        self._claims = claims
        self._recorder = recorder
        self._metrics = DeviceMetrics(registry)
        self._counted = LabelValues(most=1000, longest=512)  # resources of which registrations are counted
        self._numa_nodes = tuple(numa_nodes)
        self._counts_changed = counts_changed
        self._health_changed = health_changed
        self.inventory = Inventory(numa_nodes=numa_nodes, changed=self._inventory_changed)
        self._assignments = Assignments()
        self._giver = Giver(self.inventory, self._assignments, self._metrics)
        self._damaged = False  # what an earlier agent gave cannot be known
        self._lost = os.path.join(directory, f".{FILE_NAME}.damaged")
        self._store = StateFile(os.path.join(directory, FILE_NAME), self._to_checkpoint, encode)

    async def load(self) -> None:
        """Takes over what an earlier agent, or a kubelet, gave; before `run`."""
        try:
            content = await NODE_FILES.run(self._store.read)
            data = decode(content) if content is not None else Data(None, None)
        except (OSError, DeviceCheckpointError) as exc:
            text = "Continue after failing to read checkpoint file. "
            text += "Device allocation info may NOT be up-to-date"
            log.error(text, path=self._store.path, err=exc)
            await NODE_FILES.run(self._set_aside)
            data = Data(None, None)
        self._damaged = await NODE_FILES.run(os.path.exists, self._lost)
        for key, assignment in assignments_of(data):
            self._assignments.put(key, assignment)
        self.inventory.await_plugins(data.registered_devices or {})

    async def run(self) -> None:
        """Writes the checkpoint, and takes resources off the Node whose plugin does not come back."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._store.run)
            while True:
                await trio.sleep(EXPIRY_PERIOD)
                self.inventory.expire()

    def count_registration(self, name: str) -> None:
        """A plugin has called to register for the resource, whatever becomes of it."""
        self._metrics.registrations.labels(self._counted.counted(name)).inc()

    # What others ask

    def counts(self) -> Counts:
        """What the Node's status says of devices."""
        return self.inventory.counts()

    def least_allocatable(self) -> dict[str, int]:
        """Allocatable as admission sees it: what pods have counts (kubelet: `sanitizeNodeAllocatable`)."""
        allocatable = dict(self.inventory.counts().allocatable)
        for name in self._assignments.resources():
            allocatable[name] = max(allocatable.get(name, 0), len(self._assignments.in_use(name)))
        return allocatable

    def has_devices(self, uid: str) -> bool:
        """Whether the pod has devices."""
        return self._assignments.has_pod(uid)

    def concerns(self, pod: v1.Pod) -> bool:
        """Whether the pod asks for a resource of a plugin."""
        return any(
            self._is_ours(name) for each in regular_containers(pod.spec) for name in self._requests(pod, each)
        )

    def of_container(self, uid: str, container: str) -> dict[str, Assignment]:
        """What a container has, by resource."""
        return self._assignments.of_container(uid, container)

    def allocatable(self) -> dict[str, list[Device]]:
        """Every healthy device, by resource, whoever has it."""
        return {
            name: [resource.devices[id] for id in in_order(resource.healthy)]
            for name, resource in self.inventory.resources()
            if resource.offered
        }

    def health(self, uid: str, container: str) -> dict[str, dict[str, bool]]:
        """Of each device of a container, by resource, whether it is healthy; one that nobody lists is."""
        found = {}
        for name, assignment in self.of_container(uid, container).items():
            devices = self.inventory.told(name)
            found[name] = {
                id: device is None or device.healthy
                for id in in_order(assignment.devices)
                for device in (devices.get(id),)
            }
        return found

    # Hints

    def hints(self, pod: v1.Pod, container: v1.Container) -> dict[str, list[Hint] | None]:
        """Where the container's devices could come from (kubelet: `GetTopologyHints`)."""
        self._take_back()
        uid = pod.metadata.uid
        found: dict[str, list[Hint] | None] = {}
        for name, wanted in self._requests(pod, container).items():
            if self._is_ours(name):
                has = self._assignments.get(Key(uid, container.name, name))
                reusable = self._assignments.reusable(pod, container.name, name)
                found[name] = self._hints(name, wanted, has.devices if has else frozenset(), reusable)
        return found

    def pod_hints(self, pod: v1.Pod) -> dict[str, list[Hint] | None]:
        """Where the pod's devices could come from (kubelet: `GetPodTopologyHints`)."""
        self._take_back()
        return {
            name: self._hints(name, wanted, self._assignments.of_pod(pod.metadata.uid, name), frozenset())
            for name, wanted in pod_requests(pod).items()
            if self._is_ours(name)
        }

    def _hints(
        self, name: str, wanted: int, has: frozenset[str], reusable: frozenset[str]
    ) -> list[Hint] | None:
        resource = self.inventory.known(name)
        if not resource.near_nodes():
            return None
        if has:
            if len(has) != wanted:
                return []
            return device_hints(resource.devices, has, (), wanted, self._numa_nodes)
        return device_hints(resource.devices, self._giver.free(name), reusable, wanted, self._numa_nodes)

    # Giving devices

    async def ready(self, pod: v1.Pod) -> None:
        """Waits for plugins that were there before and are away, as long as their resources stay on the Node;
        after a checkpoint was lost, for all pods to be known.
        """
        if self._pods.runs(pod.metadata.uid):
            return
        for name in pod_requests(pod):
            if self.inventory.awaited(name):
                message = f"Waiting for the device plugin of {name}, at most {GRACE:.0f} s"
                self._recorder.record(pod, "Normal", WAITING, message)
                with trio.move_on_after(GRACE):
                    await self.inventory.until_offered(name)
        while self._damaged and not self._pods.all_known():  # noqa: ASYNC110 (sources wake nobody)
            await trio.sleep(SOURCES_PERIOD)
        if self._damaged and not self._unaccounted() and not self._pods.ending():
            self._damaged = False  # everything that runs is accounted for
            with contextlib.suppress(OSError):
                await NODE_FILES.run(os.unlink, self._lost)

    def take(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None) -> None:
        """Takes devices for the container; what it has already stays. Raises AllocationError."""
        self._take(pod, container, affinity, admission=True)

    async def confirm(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None) -> None:
        """Has plugins prepare them, and returns when that is written down. Raises AllocationError."""
        whose = pod.metadata.uid, container.name
        own = [key for key in self._assignments.taken if (key.pod, key.container) == whose]
        for key in own:
            await self._giver.give(key, self._wish(pod, key, len(self._assignments.taken[key]), affinity))
            self._store.write_soon()
        if own:
            await self._store.written()

    def let_go(self, pod: v1.Pod) -> None:
        self._assignments.let_go(pod.metadata.uid)

    def _take(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None, *, admission: bool) -> None:
        for name, wanted in self._requests(pod, container).items():
            if not self._is_ours(name):
                continue
            self._take_back()
            key = Key(pod.metadata.uid, container.name, name)
            has = self._assignments.get(key)
            if has is not None and len(has.devices) != wanted:
                raise AllocationError(
                    f'pod "{key.pod}" container "{key.container}" changed request for resource "{name}" '
                    f"from {len(has.devices)} to {wanted}"
                )
            if admission and self._pods.runs(key.pod):
                continue  # it has run before this agent did, with what it has
            self._giver.check(name, has)
            if has is None and wanted > 0:
                self._check_known(name)
                self._giver.take(key, self._wish(pod, key, wanted, affinity))

    def _wish(self, pod: v1.Pod, key: Key, number: int, affinity: Hint | None) -> Wish:
        reusable = self._assignments.reusable(pod, key.container, key.resource)
        return Wish(number, reusable & self.inventory.known(key.resource).healthy, affinity)

    def _check_known(self, name: str) -> None:
        """After a checkpoint was lost, none of a resource's devices are given away while a pod runs that has
        some which nobody knows: they could be the same.
        """
        if self._damaged and (name in self._unaccounted() or self._pods.ending()):
            raise AllocationError(
                f"devices of {name} that running pods have are not known, for the checkpoint was damaged"
            )

    def _unaccounted(self) -> set[str]:
        """Resources that running pods ask for without having any, as far as is known."""
        return {
            name
            for pod in self._pods.active()
            if self._pods.runs(pod.metadata.uid)
            for container in regular_containers(pod.spec)
            for name, wanted in self._requests(pod, container).items()
            if wanted and self._assignments.get(Key(pod.metadata.uid, container.name, name)) is None
        }

    def _set_aside(self) -> None:
        """Keeps a damaged checkpoint under another name: as long as it is there, so is the doubt."""
        with contextlib.suppress(OSError):
            os.replace(self._store.path, self._lost)

    def leaving(self) -> Collection[str]:
        self._take_back()
        unwanted = self._unwanted()
        return unwanted.union(self._pods.ending()) if self._damaged else unwanted

    def _take_back(self) -> None:
        """What belongs to pods that are over is free (kubelet: `UpdateAllocatedDevices`). One that no source
        wants any more has its devices until it has ended.
        """
        unwanted = frozenset(filter(self._pods.is_known, self._unwanted()))
        if unwanted and (over := unwanted.difference(self._pods.ending())):
            log.v(3).info("Pods to be removed", podUIDs=sorted(over))
            self._assignments.take_back(over)
            self._store.write_soon()

    def _unwanted(self) -> frozenset[str]:
        return self._assignments.pods() - {pod.metadata.uid for pod in self._pods.active()}

    def _requests(self, pod: v1.Pod, container: v1.Container) -> dict[str, int]:
        return container_requests(pod, container, claims=self._claims)

    def _is_ours(self, name: str) -> bool:
        return name in self.inventory or name in self._assignments.resources()

    # When a container is about to start

    async def given(self, pod: v1.Pod, container: v1.Container) -> Given:
        """What goes into the container's config for its devices; its plugins are told that it starts.

        A container of ours without devices is given some: its pod was restarted under the same UID. Raises
        AllocationError.
        """
        uid = pod.metadata.uid
        names = [n for n, wanted in self._requests(pod, container).items() if wanted and self._is_ours(n)]
        if not names and not self.has_devices(uid):
            return NOTHING
        if any(self._assignments.get(Key(uid, container.name, name)) is None for name in names):
            log.info("Needs to re-allocate device plugin resources", pod=pod, container=container.name)
            try:
                self._take(pod, container, None, admission=False)
                await self.confirm(pod, container, None)
            finally:
                self.let_go(pod)
        for name in names:
            await self._pre_start(Key(uid, container.name, name))
        config, conflicts = given(self.of_container(uid, container.name))
        for what in conflicts:
            log.error("Plugins disagree, the first counts", pod=pod, container=container.name, what=what)
        return config

    async def _pre_start(self, key: Key) -> None:
        has = self._assignments.get(key)
        if has is None or not self.inventory.known(key.resource).options.pre_start_required:
            return
        try:
            async with self.inventory.asking(key.resource) as plugin:
                await plugin.pre_start(in_order(has.devices))
        except DevicePluginError as exc:
            text = f"device plugin PreStartContainer rpc failed with err: {exc}"
            raise AllocationError(text) from exc

    def _inventory_changed(self, name: str, changed: frozenset[str]) -> None:
        """There are other devices of the resource, or others are healthy."""
        self._counts_changed()
        self._store.write_soon()
        if pods := self._assignments.pods_with(name, changed):
            self._health_changed(pods)

    def _to_checkpoint(self) -> Data:
        healthy = {name: in_order(resource.healthy) for name, resource in self.inventory.resources()}
        return data_of(self._assignments.items(), healthy)

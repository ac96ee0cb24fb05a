"""A node for the PLEG's tests: a simulated runtime in memory, the PLEG over it, all on Trio's clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.native import RelistTable
from trio_kubelet.observed.types import PodLifecycleEvent, PodParts, PodStatus
from trio_kubelet.pleg.cache import StatusCache
from trio_kubelet.pleg.evented import EventedPLEG, EventedSettings
from trio_kubelet.pleg.generic import GenericPLEG, GenericSettings, RelistDuration
from trio_kubelet.pleg.looks import LookLimits
from trio_kubelet.pleg.metrics import PLEGMetrics
from trio_kubelet.runtime.status_reader import StatusReader
from trio_kubelet.sim.door import sim_services
from trio_kubelet.sim.faults import Fault
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.service import SimService

EPOCH_NS = 1_700_000_000 * NANOSECONDS


class Reader:
    """Reads pod statuses as `PodRuntime` does, and counts how many are read at once."""

    def __init__(self, reader: StatusReader) -> None:
        self._reader = reader
        self.now = self.most = 0

    async def read_pod_status(self, parts: PodParts) -> PodStatus:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await self._reader.parts(parts)
        finally:
            self.now -= 1


class World:
    """The runtime's state can be changed directly; `unimplemented` methods are refused."""

    def __init__(
        self,
        *,
        capacity: int = 1000,
        duration: RelistDuration | None = None,
        limits: LookLimits | None = None,
        unimplemented: frozenset[str] = frozenset(),
    ) -> None:
        self.clock = TrioClock(EPOCH_NS)
        self.sim = SimRuntime(preload=("busybox",))
        self.service = SimService(self.sim, self.clock, unimplemented=unimplemented)
        self.door = sim_services(self.service)
        self.cache = StatusCache()
        self.metrics = PLEGMetrics(CollectorRegistry())
        self.reader = Reader(StatusReader(self.door.runtime, self.clock))
        self.pleg = GenericPLEG(
            runtime=self.door.runtime,
            reader=self.reader,
            table=RelistTable(),
            cache=self.cache,
            clock=self.clock,
            metrics=self.metrics,
            settings=GenericSettings(
                duration=duration or RelistDuration(), limits=limits or LookLimits(), capacity=capacity
            ),
        )
        self.evented = EventedPLEG(
            generic=self.pleg,
            runtime=self.door.runtime,
            cache=self.cache,
            clock=self.clock,
            metrics=self.metrics,
            settings=EventedSettings(polling=duration or RelistDuration()),
        )
        self.sandboxes: dict[str, str] = {}
        self.containers: dict[str, list[str]] = {}

    def fault(self, *faults: Fault) -> None:
        self.service.faults.add(*faults)

    def add_pod(self, uid: str, containers: int = 1) -> None:
        """A running pod."""
        now = self.service.now_ns()
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=uid, uid=uid, namespace="default"),
            labels={
                "io.kubernetes.pod.uid": uid,
                "io.kubernetes.pod.name": uid,
                "io.kubernetes.pod.namespace": "default",
            },
        )
        self.sandboxes[uid] = self.sim.run_sandbox(config, "", now).id
        self.containers[uid] = []
        for number in range(containers):
            self.add_container(uid, f"c{number}")

    def add_container(self, uid: str, name: str, attempt: int = 0) -> str:
        now = self.service.now_ns()
        sandbox = self.sandboxes[uid]
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name, attempt=attempt),
            image=cri.ImageSpec(image="busybox"),
            labels={
                "io.kubernetes.pod.uid": uid,
                "io.kubernetes.pod.name": uid,
                "io.kubernetes.pod.namespace": "default",
                "io.kubernetes.container.name": name,
            },
        )
        pod = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(uid=uid))
        container_id = self.sim.create_container(sandbox, config, pod, now).id
        self.sim.start_container(container_id, now)
        self.containers[uid].append(container_id)
        return container_id

    def kill(self, uid: str) -> None:
        """All containers of the pod die."""
        for container_id in self.containers[uid]:
            self.sim.kill(container_id, self.service.now_ns())

    def remove(self, uid: str) -> None:
        now = self.service.now_ns()
        self.sim.stop_sandbox(self.sandboxes[uid], now)
        self.sim.remove_sandbox(self.sandboxes[uid], now)

    @asynccontextmanager
    async def running(self, evented: bool = False) -> AsyncIterator[trio.Nursery]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.service.run)
            await nursery.start(self.pleg.run)
            if evented:
                nursery.start_soon(self.evented.run)
            yield nursery
            nursery.cancel_scope.cancel()

    async def events_for(self, seconds: float) -> list[PodLifecycleEvent]:
        """What arrives within that time."""
        found = []
        with trio.move_on_after(seconds):
            async for event in self.pleg.watch():
                found.append(event)
        return found

    def truth(self) -> dict[str, set[tuple[str, bool]]]:
        """Containers of each pod as they really are: (id, runs)."""
        pods: dict[str, set[tuple[str, bool]]] = {}
        for sandbox in self.sim.sandboxes.values():
            pods.setdefault(sandbox.config.metadata.uid, set())
        for container in self.sim.containers.values():
            uid = container.config.labels["io.kubernetes.pod.uid"]
            pods.setdefault(uid, set()).add((container.id, container.state == cri.CONTAINER_RUNNING))
        return pods

    def known(self) -> dict[str, set[tuple[str, bool]]]:
        """The same as the cache has it."""
        return {
            uid: {(c.id, c.state == "running") for c in status.containers}
            for uid in self.cache.uids()
            if (status := self.cache.get(uid)) is not None
        }

"""A node in memory for the pods room's tests: all that a pod touches, on Trio's clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import trio
from prometheus_client import CollectorRegistry

from tests.pods.admit_all import AdmitAll
from tests.pods.fake_runtime import EPOCH_NS, FakePleg, FakeRuntime
from trio_kubelet.api.v1 import Pod
from trio_kubelet.api.v1 import PodStatus as ApiPodStatus
from trio_kubelet.common.clock import TrioClock
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.observed.probes import ProbeReadings, ProbeUpdate, ProbeView
from trio_kubelet.pleg.cache import StatusCache
from trio_kubelet.podinfo.updates import PodOperation, PodUpdate
from trio_kubelet.pods.admission.allocating import Allocating
from trio_kubelet.pods.doors import (
    Admitter,
    CgroupError,
    ClusterDoor,
    NoCluster,
    NothingPlugged,
    ProbeResults,
    TracesDoor,
    Untraced,
)
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.room import PodsRoom
from trio_kubelet.pods.status.reporter import NodeView
from trio_kubelet.pods.work import WorkerPeriods
from trio_kubelet.pods.worker_state import Stage
from trio_kubelet.runtime.doors import GCPolicy
from trio_kubelet.sources.podconfig import PodConfig
from trio_kubelet.volumes.errors import VolumeError


class NoProbes:
    """An agent that does not probe."""

    def __init__(self) -> None:
        self.verdicts: Listeners[[ProbeUpdate]] = Listeners()

    def view(self) -> ProbeView:
        return ProbeView()

    def readings(self) -> ProbeReadings:
        return ProbeReadings()

    def add_pod(self, pod: Pod) -> None:
        pass

    def pod_status_changed(self, pod: Pod, status: ApiPodStatus) -> None:
        pass

    def stop_liveness_and_startup(self, pod: Pod) -> None:
        pass

    def remove_pod(self, uid: str) -> None:
        pass

    def keep_only(self, uids: Collection[str]) -> None:
        pass


class FakeVolumes:
    """Volumes that take no time; `busy` pods cannot be torn down."""

    def __init__(self) -> None:
        self.up: set[str] = set()
        self.failing: dict[str, str] = {}
        self.busy: set[str] = set()
        self.renewed: list[float] = []

    async def set_up(self, pod: Pod) -> None:
        await trio.lowlevel.checkpoint()
        if (why := self.failing.get(pod.metadata.uid)) is not None:
            raise VolumeError(why)
        self.up.add(pod.metadata.uid)

    async def renew(self, pod: Pod) -> None:
        await trio.lowlevel.checkpoint()
        self.renewed.append(trio.current_time())

    async def tear_down(self, uid: str) -> None:
        await trio.lowlevel.checkpoint()
        if uid in self.busy:
            raise VolumeError("device is busy")
        self.up.discard(uid)


class FakeSets:
    """Cgroups or directories: a set of pod UIDs; those that are `busy` cannot be removed."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.busy: set[str] = set()
        self.classes: list[set[str]] = []  # pods of each update of the QoS classes
        self.classes_fail = False
        self.all_known = False  # at the last of these updates

    async def ensure(self, pod: Pod, *, running: Collection[str] = (), new: bool = False) -> bool:
        await trio.lowlevel.checkpoint()
        if running and pod.metadata.uid not in self.there:
            return False
        self.there.add(pod.metadata.uid)
        return True

    async def make(self, pod: Pod) -> None:
        await self.ensure(pod)

    async def remove(self, uid: str) -> None:
        await trio.lowlevel.checkpoint()
        if uid in self.busy:
            raise CgroupError("device or resource busy")
        self.there.discard(uid)

    async def pods(self) -> Collection[str]:
        await trio.lowlevel.checkpoint()
        return tuple(self.there)

    async def update_classes(self, pods: Iterable[Pod], *, all_known: bool = True) -> None:
        await trio.lowlevel.checkpoint()
        self.all_known = all_known
        self.classes.append({pod.metadata.name for pod in pods})
        if self.classes_fail:
            raise CgroupError("read-only file system")


class FakeHealth:
    """Runtime and network as the test wants them."""

    def __init__(self) -> None:
        self.runtime: str | None = None
        self.network: str | None = None

    def runtime_error(self) -> str | None:
        return self.runtime

    def network_error(self) -> str | None:
        return self.network


class FakeSources:
    """Sources that have reported."""

    def __init__(self, configured: Sequence[str]) -> None:
        self.configured = set(configured)
        self.seen: set[str] = set()

    def add_source(self, source: str) -> None:
        self.seen.add(source)

    def all_ready(self) -> bool:
        return self.configured <= self.seen

    def manifests_ready(self) -> bool:
        return self.configured - {"api"} <= self.seen

    def source_ready(self, source: str) -> bool:
        return source in self.seen or source not in self.configured


class Events:
    """The events that were recorded."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str, str]] = []

    def record(
        self,
        pod: Pod,
        type: str,
        reason: str,
        message: str,
        field_path: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        self.all.append((pod.metadata.uid, reason, message))

    def record_node(self, type: str, reason: str, message: str) -> None:
        self.all.append(("", reason, message))

    def reasons(self, uid: str) -> list[str]:
        return [reason for pod, reason, _ in self.all if pod == uid]


class World:
    """A node with the pods room on it."""

    def __init__(
        self,
        *,
        sources: Sequence[str] = ("file",),
        admitter: Admitter | None = None,
        allocating: Allocating | None = None,
        probes: ProbeResults | None = None,
        capacity: int = 1000,
        periods: WorkerPeriods | None = None,
        node: World | None = None,
        pod_config: PodConfig | None = None,
        pods: PodManager | None = None,
        cluster: ClusterDoor = NoCluster(),
        gc_policy: GCPolicy = GCPolicy(),
        view: NodeView | None = None,
        traces: TracesDoor = Untraced(),
    ) -> None:
        """`node`: another world whose runtime, mounts, cgroups and directories this one finds.

        `pod_config`: where the pods come from, instead of the test's own words.
        """
        self.clock = TrioClock(EPOCH_NS)
        self.runtime: FakeRuntime = node.runtime if node else FakeRuntime(self.clock)
        self.cache = StatusCache()
        self.pleg = FakePleg(self.runtime, self.cache, capacity)
        self.volumes: FakeVolumes = node.volumes if node else FakeVolumes()
        self.cgroups: FakeSets = node.cgroups if node else FakeSets()
        self.directories: FakeSets = node.directories if node else FakeSets()
        self.health = FakeHealth()
        self.sources: FakeSources | PodConfig = pod_config or FakeSources(sources)
        self.events = Events()
        self.registry = CollectorRegistry()
        self.room = PodsRoom(
            pods=pods or PodManager(),
            runtime=self.runtime,
            cache=self.cache,
            pleg=self.pleg,
            volumes=self.volumes,
            cgroups=self.cgroups,
            directories=self.directories,
            health=self.health,
            sources=self.sources,
            recorder=self.events,
            admitter=admitter or AdmitAll(),
            allocating=allocating,
            clock=self.clock,
            registry=self.registry,
            probes=probes or NoProbes(),
            cluster=cluster,
            claims=NothingPlugged(),
            gc_policy=gc_policy,
            worker_periods=periods or WorkerPeriods(),
            node=lambda: view or NodeView(),
            traces=traces,
        )
        self.updates, self._receive = trio.open_memory_channel[PodUpdate](16)
        if pod_config is not None:
            self._receive = pod_config.updates()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        """The room at work; at the end it is cancelled, pods stay."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.pleg.run)
            await nursery.start(self.room.run, self._receive)
            yield self
            nursery.cancel_scope.cancel()

    async def run_room(self, scope: trio.CancelScope) -> None:
        """Runs the room to its own end, then cancels `scope`."""
        await self.room.run(self._receive)
        scope.cancel()

    async def add(self, *pods: Pod, source: str = "file") -> None:
        await self.updates.send(PodUpdate(PodOperation.ADD, source, pods))

    async def update(self, *pods: Pod, source: str = "file") -> None:
        await self.updates.send(PodUpdate(PodOperation.UPDATE, source, pods))

    async def remove(self, *pods: Pod, source: str = "file") -> None:
        await self.updates.send(PodUpdate(PodOperation.REMOVE, source, pods))

    async def until(self, true: Callable[[], bool], seconds: float = 60) -> None:
        """Waits for a condition, in small steps of the virtual clock."""
        with trio.fail_after(seconds):
            while not true():  # noqa: ASYNC110 - the condition is any expression of the test
                await trio.sleep(0.01)

    def is_finished(self, uid: str) -> bool:
        """Whether everything the node does for the pod is done, and its worker still knows it."""
        worker = self.room.workers.get(uid)
        return worker is not None and worker.stage is Stage.FINISHED

    def status(self, pod: Pod) -> ApiPodStatus:
        status = self.room.statuses.get(pod.metadata.uid)
        assert status is not None
        return status

    def stories(self, pod: Pod) -> list[str]:
        return [entry.text for entry in self.room.story.entries(pod.metadata.uid)]

"""Collects what pods and node use: from the runtime and from cgroup files, off the hot path.

Nothing is collected unless somebody asks, and all who ask within some seconds share one collection. Files
are read in worker threads, a bounded batch at a time. What cannot be had is left out. A runtime that does not
answer is waited for only shortly: the pods are those it named last, with what their cgroups say now, and what
it alone knows is as it told last, with the times of then. It is the same with a disk that hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
import trio

from trio_kubelet.api.validation.formats import directory_name, path_part
from trio_kubelet.common.caching import LastGood, Shared
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.lanes import FILESYSTEMS, STATS, WorkHangs
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import ImageService, RuntimeService
from trio_kubelet.machine import node_reader
from trio_kubelet.machine.cgroup_reader import CgroupReader
from trio_kubelet.machine.values import (
    MAX,
    CgroupUse,
    ContainerSample,
    Network,
    NodeSample,
    PodSample,
    RuntimeDisk,
    RuntimeUse,
    StatsSnapshot,
    SystemSample,
    VolumeUse,
)
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.paths import etc_hosts_path
from trio_kubelet.stats import disk
from trio_kubelet.stats.cgroup_map import NOWHERE, CgroupMap, map_cgroups
from trio_kubelet.stats.filesystems import sizes_of
from trio_kubelet.stats.runtime_values import pods_of, runtime_disks, uses_of, with_uses

_RUNNING: Final = cri.ContainerFilter(state=cri.ContainerStateValue(state=cri.CONTAINER_RUNNING))

BATCH = 32
"""Pods that are read in one visit to a worker thread; between visits the collection can be cancelled."""


class CPUReading(NamedTuple):
    """A counter of CPU nanoseconds at a moment."""

    at_ns: int
    cpu: int


def nano_cores(before: CPUReading | None, now: CPUReading) -> int | None:
    """Nanoseconds of CPU per second between two readings.

    None without an earlier one, with a clock that did not advance, or with a counter that fell, as it does
    when a cgroup was made anew.
    """
    if before is None or now.at_ns <= before.at_ns or now.cpu < before.cpu:
        return None
    return min((now.cpu - before.cpu) * NANOSECONDS // (now.at_ns - before.at_ns), MAX)


class Rates:
    """The last reading of each cgroup; those not read in a round are forgotten with it."""

    def __init__(self) -> None:
        self._before: dict[str, CPUReading] = {}
        self._now: dict[str, CPUReading] = {}

    def read(self, cgroup: str, at_ns: int, cpu: int | None) -> int | None:
        """Notes a reading; the rate since the last round's."""
        if cpu is None:
            return None
        self._now[cgroup] = now = CPUReading(at_ns, cpu)
        return nano_cores(self._before.get(cgroup), now)

    def next_round(self) -> None:
        """Ends a round of readings."""
        self._before, self._now = self._now, {}


class StatsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the collector has to know of the node; ages and deadlines in seconds (`runtime_deadline`: of
    one question; nobody waits so long for it).

    `kubelet_cgroup`, `runtime_cgroup` and `system_cgroup` are configured names, "" for none.
    """

    node_name: str
    root_dir: str
    pod_logs_dir: str
    names: CgroupNames
    memory_capacity: int
    swap_capacity: int = 0
    kubelet_cgroup: str = ""
    runtime_cgroup: str = ""
    system_cgroup: str = ""
    hidden_metrics: bool = False  # whether those that will go away are shown
    max_age: float = 5.0
    disk_max_age: float = 20.0
    details_max_age: float = 10.0  # as often as cAdvisor looks at a busy container
    runtime_deadline: float = 10.0
    proc: str = "/proc"


class StatsCollector:
    """Makes snapshots of what everything uses. `volumes` gives what was last measured of a pod's, by UID."""

    def __init__(
        self,
        *,
        runtime: RuntimeService,
        images: ImageService,
        cgroups: CgroupReader,
        clock: Clock,
        volumes: Callable[[str], tuple[VolumeUse, ...] | None],
        settings: StatsSettings,
    ) -> None:
        self._runtime, self._images = runtime, images
        self._cgroups, self._clock, self._volumes = cgroups, clock, volumes
        self._settings = settings
        self._rates = Rates()
        self._networks = node_reader.NetworkReader(clock, settings.proc)
        self._started_ns = clock.now_ns()
        self._where = NOWHERE
        deadline = settings.runtime_deadline
        self._pods = LastGood("pods of the runtime", self._list_pods, deadline)
        self._uses = LastGood("what containers use", self._list_uses, deadline)
        self._runtime_disks = LastGood("filesystems of the runtime", self._ask_disks, deadline)
        self._figures: tuple[LastGood[Any], ...] = (self._pods, self._uses, self._runtime_disks)
        self._usage: Shared[StatsSnapshot] = Shared(self._collect, settings.max_age)
        self._disk = LastGood("what logs and volumes take", self._collect_disk, deadline)

    async def run(self) -> None:
        """Asks the runtime and the disk when it is needed, until cancelled."""
        async with trio.open_nursery() as nursery:
            for each in (*self._figures, self._disk):
                nursery.start_soon(each.run)

    async def usage(self) -> StatsSnapshot:
        """CPU, memory, network and the node; nothing about what is on disks except the runtime's figures."""
        return await self._usage.get()

    async def everything(self, max_age: float | None = None) -> StatsSnapshot:
        """The same with what logs, volumes and filesystems take; that part may be older. `max_age` in seconds
        is for a reader in need of fresh figures; volumes are as they were measured last even then.
        """
        snapshot = await self._usage.get(max_age)
        on_disk = {pod.uid: pod for pod in await self.disks(max_age)}
        pods = tuple(_with_disk(pod, on_disk.get(pod.uid)) for pod in snapshot.pods)
        return msgspec.structs.replace(snapshot, pods=pods)

    async def in_use(self) -> StatsSnapshot:
        """What the cgroups say now, collected for this reader alone. The runtime is asked which pods there
        are, but not for its figures: it asks the shim of every container for them, which takes long on a
        dense node, and longest on one that runs short of something.
        """
        return await self._collect(figures=False)

    async def disks(self, max_age: float | None = None) -> tuple[PodSample, ...]:
        """The pods with what their logs and volumes take alone; the runtime is asked for no figures."""
        return await self._disk.get(self._settings.disk_max_age if max_age is None else max_age) or ()

    async def _collect(self, *, figures: bool = True) -> StatsSnapshot:
        pods, failed = await self._ask_runtime(figures=figures)
        s = self._settings
        ids = {pod.uid: [pod.sandbox_id, *(each.id for each in pod.containers)] for pod in pods}
        self._where = await STATS.run(map_cgroups, self._cgroups, s.names, ids, self._where)
        read: list[PodSample] = []
        for start in range(0, len(pods), BATCH):
            read += await STATS.run(self._read_pods, pods[start : start + BATCH], self._where)
        node = await self._with_filesystems(await STATS.run(self._read_node), pods)
        if figures:
            self._rates.next_round()
        return StatsSnapshot(at_ns=self._clock.now_ns(), node=node, pods=tuple(read), failed=failed)

    async def _ask_runtime(self, *, figures: bool) -> tuple[tuple[PodSample, ...], bool]:
        """The pods as the runtime named them last, and whether it failed to tell them or anything of them;
        those that run with its `figures`, or all, without.
        """
        asked = self._figures if figures else (self._pods,)
        async with trio.open_nursery() as nursery:
            for each in asked:
                nursery.start_soon(each.get)
        pods, uses = self._pods.last or (), self._uses.last or {}
        if figures:
            pods = await STATS.run(with_uses, pods, uses)
        return pods, self._pods.failed or (figures and self._uses.failed)

    async def _list_pods(self) -> tuple[PodSample, ...]:
        sandboxes = await self._runtime.list_pod_sandboxes_raw()
        containers = await self._runtime.list_containers_raw(_RUNNING)
        return await STATS.run(pods_of, sandboxes, containers)

    async def _list_uses(self) -> dict[str, RuntimeUse]:
        return await STATS.run(uses_of, await self._runtime.list_container_stats())

    async def _ask_disks(self) -> tuple[RuntimeDisk | None, RuntimeDisk | None]:
        return runtime_disks(await self._images.image_fs_info())

    def _read_pods(self, pods: Sequence[PodSample], where: CgroupMap) -> list[PodSample]:
        """These pods with what their cgroups say."""
        of_pods = [path for pod in pods if (path := where.pods.get(pod.uid))]
        of_containers = [
            path for pod in pods for each in pod.containers if (path := where.containers.get(each.id))
        ]
        cgroups = self._cgroups
        uses = dict(zip(of_pods, cgroups.uses(of_pods, processes=False), strict=True))
        uses.update(zip(of_containers, cgroups.uses(of_containers), strict=True))
        networks = self._read_networks(
            [path for pod in pods if (path := where.containers.get(pod.sandbox_id))]
        )
        read = []
        for pod in pods:
            path, sandbox = where.pods.get(pod.uid, ""), where.containers.get(pod.sandbox_id, "")
            containers = (
                self._with_use(each, where.containers.get(each.id, ""), uses) for each in pod.containers
            )
            use = uses.get(path)
            read.append(
                msgspec.structs.replace(
                    pod,
                    containers=tuple(containers),
                    cgroup=path,
                    sandbox_cgroup=sandbox,
                    use=use,
                    nano_cores=self._rates.read(path, use.at_ns, use.cpu) if use is not None else None,
                    network=networks.get(sandbox),
                )
            )
        return read

    def _read_networks(self, sandboxes: Sequence[str]) -> dict[str, Network | None]:
        """The network of each sandbox that has a process, by its cgroup."""
        processes = zip(sandboxes, self._cgroups.processes(sandboxes), strict=True)
        first = {path: pids[0] for path, pids in processes if pids}
        return dict(zip(first, self._networks.of(first.values()), strict=True))

    def _with_use(
        self, container: ContainerSample, path: str, uses: Mapping[str, CgroupUse | None]
    ) -> ContainerSample:
        use = uses.get(path)
        if use is None:
            return container
        rate = self._rates.read(path, use.at_ns, use.cpu)
        return msgspec.structs.replace(container, cgroup=path, use=use, nano_cores=rate)

    async def _with_filesystems(self, node: NodeSample, pods: Sequence[PodSample]) -> NodeSample:
        """The node with its filesystems and those that the runtime has named, but for one that hangs."""
        root_dir = self._settings.root_dir
        images, containers = self._runtime_disks.last or (None, None)
        layers = (each.runtime.layer for pod in pods for each in pod.containers if each.runtime is not None)
        of_runtime = {each.mountpoint or "" for each in (images, containers, *layers) if each is not None}
        sizes = await sizes_of({root_dir, *of_runtime} - {""}, self._clock)
        return msgspec.structs.replace(
            node,
            filesystem=sizes.get(root_dir),
            image_disk=images,
            container_disk=containers if await _are_apart(images, containers) else None,
            filesystems={mount: sizes[mount] for mount in of_runtime & sizes.keys()},
        )

    def _read_node(self) -> NodeSample:
        s, clock = self._settings, self._clock
        boot = node_reader.boot_time(s.proc)
        kubelet = s.kubelet_cgroup or node_reader.cgroup_of(proc=s.proc)
        system = (
            ("kubelet", kubelet, self._started_ns),
            ("runtime", s.runtime_cgroup, 0),
            ("misc", s.system_cgroup, 0),
            ("pods", s.names.literal(s.names.node()), 0),
        )
        samples = (self._system(name, path, started) for name, path, started in system if path)
        return NodeSample(
            name=s.node_name,
            booted_ns=boot,
            memory_capacity=s.memory_capacity,
            swap_capacity=s.swap_capacity,
            root=self._system("/", "/", boot),
            system=tuple(sample for sample in samples if sample is not None),
            network=self._networks.of([1])[0],
            processes=node_reader.processes_of_machine(clock, s.proc),
        )

    def _system(self, name: str, cgroup: str, started_ns: int) -> SystemSample | None:
        use = self._cgroups.use(cgroup)
        if use is None:
            return None
        return SystemSample(
            name=name,
            use=use,
            started_ns=started_ns or self._cgroups.detail(cgroup).created_ns,
            nano_cores=self._rates.read(cgroup, use.at_ns, use.cpu),
        )

    async def _collect_disk(self) -> tuple[PodSample, ...]:
        pods, _ = await self._ask_runtime(figures=False)
        read: list[PodSample] = []
        for start in range(0, len(pods), BATCH):
            read += await STATS.run(self._read_disks, pods[start : start + BATCH], owner="disks of pods")
        return tuple(read)

    def _read_disks(self, pods: Sequence[PodSample]) -> list[PodSample]:
        clock, s = self._clock, self._settings
        read = []
        for pod in filter(_has_files, pods):
            logs = f"{s.pod_logs_dir}/{pod.namespace}_{pod.name}_{pod.uid}"
            containers = (
                msgspec.structs.replace(each, logs=disk.files_use(f"{logs}/{each.name}", clock))
                for each in pod.containers
            )
            read.append(
                msgspec.structs.replace(
                    pod,
                    containers=tuple(containers),
                    logs=disk.files_use(logs, clock),
                    etc_hosts=disk.file_use(etc_hosts_path(s.root_dir, pod.uid), clock),
                    volumes=self._volumes(pod.uid),
                )
            )
        return read


def _has_files(pod: PodSample) -> bool:
    """Whether it can have directories here; what others start in the runtime may be called anything."""
    names = (pod.namespace, pod.name, *(container.name for container in pod.containers))
    return not directory_name(pod.uid) and not any(map(path_part, names))


async def _are_apart(one: RuntimeDisk | None, other: RuntimeDisk | None) -> bool:
    """Whether both are known, and on different filesystems; False while one of them hangs."""
    if one is None or other is None or one.mountpoint == other.mountpoint:
        return False
    paths = one.mountpoint or "", other.mountpoint or ""
    with suppress(WorkHangs):
        return await FILESYSTEMS.run(node_reader.are_apart, *paths, owner=":".join(paths))
    return False


def _with_disk(pod: PodSample, measured: PodSample | None) -> PodSample:
    """The pod's use with what was measured on disks, for the containers that were there then."""
    if measured is None:
        return pod
    logs = {each.name: each.logs for each in measured.containers}
    return msgspec.structs.replace(
        pod,
        containers=tuple(
            msgspec.structs.replace(each, logs=logs[each.name]) if each.name in logs else each
            for each in pod.containers
        ),
        logs=measured.logs,
        etc_hosts=measured.etc_hosts,
        volumes=measured.volumes,
    )

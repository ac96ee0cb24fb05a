"""Collects what `/metrics/cadvisor` shows of each cgroup: of the node, of pods, of containers and sandboxes.

On top of the collector's snapshot come the files that only this page needs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from trio_kubelet.common.caching import LastGood, Shared
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.lanes import STATS
from trio_kubelet.cri.info import sandbox_image
from trio_kubelet.cri.services import ImageService, RuntimeService
from trio_kubelet.machine import text
from trio_kubelet.machine.cgroup_reader import CgroupReader
from trio_kubelet.machine.node_reader import cgroup_of
from trio_kubelet.machine.values import CgroupDetail, CgroupUse, Network, NodeSample, PodSample
from trio_kubelet.native.pure_figures import read_file
from trio_kubelet.stats.cgroup_map import class_cgroups
from trio_kubelet.stats.collector import BATCH, StatsCollector, StatsSettings
from trio_kubelet.stats.filesystems import MountedFilesystem, block_devices, mounted_filesystems
from trio_kubelet.stats.runtime_values import pinned_image

_SETTLED_NS = 60 * NANOSECONDS
_MOST_DESCRIPTORS = 20_000
"""Open files of one cgroup that are listed; more of them are not told apart, and counted where the kernel
tells their number.
"""


class OpenFiles(msgspec.Struct, frozen=True, gc=False):
    """What the processes of a cgroup hold open, and how many files its first process may open (-1: any)."""

    descriptors: int = 0
    sockets: int = 0
    limit: int | None = None


class CgroupRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One cgroup with its labels. `network` is set where it is shown: for the node and for sandboxes."""

    cgroup: str
    use: CgroupUse
    detail: CgroupDetail
    processes: int = 0
    container: str = ""
    image: str = ""
    name: str = ""
    namespace: str = ""
    pod: str = ""
    network: Network | None = None
    files: OpenFiles = OpenFiles()


class Details(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All cgroups at one moment, and the machine's filesystems. `devices` names block devices by number
    (`major:minor`).
    """

    at_ns: int
    node: NodeSample
    rows: tuple[CgroupRow, ...]
    devices: dict[str, str]
    filesystems: tuple[MountedFilesystem, ...]
    failed: bool


class _Wanted(msgspec.Struct, frozen=True, gc=False):
    """A cgroup that is to be read, with its labels; `use` if it is known already."""

    cgroup: str
    labels: dict[str, str]
    use: CgroupUse | None = None
    network: Network | None = None
    processes: bool = False


class _Known(msgspec.Struct, frozen=True, gc=False):
    """What was read of a cgroup, and until when its settings hold."""

    detail: CgroupDetail
    files: OpenFiles
    until_ns: int


class DetailsCollector:
    """Makes `Details`; several readers share one.

    What a cgroup is set to (shares, quota, limits of threads and files) is read again after a minute or two
    only: it is a third of all files, and changes when a pod is resized.
    """

    def __init__(
        self,
        *,
        usage: StatsCollector,
        runtime: RuntimeService,
        images: ImageService,
        cgroups: CgroupReader,
        clock: Clock,
        settings: StatsSettings,
    ) -> None:
        self._usage = usage
        self._runtime, self._images = runtime, images
        self._cgroups, self._clock = cgroups, clock
        self._settings = settings
        self._details: Shared[Details] = Shared(self._collect, settings.details_max_age)
        self._known: dict[str, _Known] = {}
        self._fresh: dict[str, _Known] = {}
        deadline = settings.runtime_deadline
        self._sandbox_image = LastGood("image of sandboxes", self._ask_sandbox_image, deadline)

    async def run(self) -> None:
        """Asks the runtime when it is needed, until cancelled."""
        await self._sandbox_image.run()

    async def get(self) -> Details:
        """All cgroups, some seconds old at most."""
        return await self._details.get()

    async def _collect(self) -> Details:
        snapshot = await self._usage.usage()
        if self._sandbox_image.last is None and not snapshot.failed:
            await self._sandbox_image.get()
        wanted = await STATS.run(self._wanted, snapshot.node, snapshot.pods)
        rows: list[CgroupRow] = []
        for start in range(0, len(wanted), BATCH):
            rows += await STATS.run(self._read, wanted[start : start + BATCH])
        self._known, self._fresh = self._fresh, {}
        s = self._settings
        devices = await STATS.run(block_devices, s.proc)
        filesystems = await mounted_filesystems(s.root_dir, self._clock, s.proc)
        return Details(
            at_ns=self._clock.now_ns(),
            node=snapshot.node,
            rows=tuple(rows),
            devices=devices,
            filesystems=filesystems,
            failed=snapshot.failed,
        )

    async def _ask_sandbox_image(self) -> str:
        status = await self._runtime.status(verbose=True)
        return sandbox_image(status.info) or pinned_image(await self._images.list_images())

    def _wanted(self, node: NodeSample, pods: Sequence[PodSample]) -> list[_Wanted]:
        s = self._settings
        root = node.root.use if node.root is not None else None
        if root is not None:  # the node's limits are the machine's
            root = msgspec.structs.replace(root, memory_limit=s.memory_capacity, swap_limit=s.swap_capacity)
        found = {"/": _Wanted("/", {}, root, node.network)}
        kubelet = s.kubelet_cgroup or cgroup_of(proc=s.proc)
        system = (kubelet, s.runtime_cgroup, s.system_cgroup, *class_cgroups(s.names))
        found.update((path, _Wanted(path, {})) for path in system if path and path != "/")
        for pod in pods:
            found.update((each.cgroup, each) for each in _of_pod(pod, self._sandbox_image.last or ""))
        return list(found.values())

    def _read(self, wanted: Sequence[_Wanted]) -> list[CgroupRow]:
        cgroups = self._cgroups
        unread = [each.cgroup for each in wanted if each.use is None]
        uses = dict(zip(unread, cgroups.uses(unread), strict=True))
        there = [(each, use) for each in wanted if (use := each.use or uses.get(each.cgroup)) is not None]
        knowns = [self._known_of(each.cgroup, use.at_ns) for each, use in there]
        details = cgroups.details(
            [each.cgroup for each, _ in there], [None if known is None else known.detail for known in knowns]
        )
        with_processes = [each.cgroup for each, _ in there if each.processes]
        processes = dict(zip(with_processes, cgroups.processes(with_processes), strict=True))
        rows = []
        for (each, use), known, detail in zip(there, knowns, details, strict=True):
            files, count = OpenFiles(), use.processes
            if each.cgroup == "/":
                files = OpenFiles(limit=file_limit(read_file(f"{self._settings.proc}/1/limits")))
            elif each.processes:
                pids = processes[each.cgroup]
                before = known.files if known is not None else None
                files, count = open_files(pids, self._settings.proc, before), len(pids)
            row = CgroupRow(
                cgroup=each.cgroup,
                use=use,
                detail=detail,
                processes=count,
                network=each.network,
                files=files,
                **each.labels,
            )
            rows.append(row)
            until = known.until_ns if known else use.at_ns + int(_SETTLED_NS * (1 + random.random()))
            self._fresh[each.cgroup] = _Known(detail, files, until)
        return rows

    def _known_of(self, cgroup: str, now_ns: int) -> _Known | None:
        known = self._known.get(cgroup)
        return known if known is not None and known.until_ns >= now_ns else None


def _of_pod(pod: PodSample, image: str) -> Iterator[_Wanted]:
    of_pod = {"namespace": pod.namespace, "pod": pod.name}
    if pod.cgroup:
        yield _Wanted(pod.cgroup, of_pod, pod.use)
    if pod.sandbox_cgroup:
        labels = {**of_pod, "name": pod.sandbox_id, "image": image}
        yield _Wanted(pod.sandbox_cgroup, labels, None, pod.network, True)
    for each in pod.containers:
        if each.cgroup:
            labels = {**of_pod, "name": each.id, "container": each.name, "image": each.image}
            yield _Wanted(each.cgroup, labels, each.use, None, True)


def open_files(processes: Sequence[int], proc: str = "/proc", known: OpenFiles | None = None) -> OpenFiles:
    """What these processes hold open; those that have ended meanwhile hold nothing. The limit is that of
    `known`, if given. Blocking.
    """
    descriptors = sockets = 0
    for pid in processes:
        directory = f"{proc}/{pid}/fd"
        left = _MOST_DESCRIPTORS - descriptors
        try:
            names = _some_names(directory, left + 1) if left >= 0 else []
            if len(names) > left:
                # The directory's size is the number of open files since Linux 6.2, and 0 before.
                descriptors += max(len(names), os.stat(directory).st_size)
                continue
        except OSError:
            continue
        descriptors += len(names)
        sockets += sum(_is_socket(f"{directory}/{name}") for name in names)
    if known is not None:
        return OpenFiles(descriptors, sockets, known.limit)
    limit = file_limit(read_file(f"{proc}/{processes[0]}/limits")) if processes else None
    return OpenFiles(descriptors, sockets, limit)


def _some_names(directory: str, most: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in islice(entries, most)]


def _is_socket(path: str) -> bool:
    """By the link's text: asking for the file itself could wait for a dead server."""
    try:
        return os.readlink(path).startswith("socket:")
    except OSError:
        return False


def file_limit(limits: bytes | None) -> int | None:
    """The soft limit on open files in a `/proc/PID/limits`; -1 for none. Pure."""
    for line in (limits or b"").splitlines():
        if line.startswith(b"Max open files"):
            words = line.split()
            if len(words) > 3:
                return -1 if words[3] == b"unlimited" else text.number(words[3])
    return None

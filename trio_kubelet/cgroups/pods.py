"""Pod cgroups: a tree of QoS classes with a cgroup for each pod, in which the runtime puts its containers.

The limits of a pod as a whole are set here; those of its containers by the runtime. Everything is below
`cgroupRoot`, for two agents with the same one would remove each other's pods. Removing a cgroup kills what
is left in it. Which limits: `cgroups.plan`.

What this agent has put in force is kept, and put in force again where somebody changed it. The limits of a
pod that an agent before this one made are taken for what its spec says, once.

A pod's start and end wait for its own cgroup only. What the classes get because of it follows in a task of
its own, once for all pods that came and went meanwhile: systemd does one thing after the other, so it would
cost the pod as much again.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.cgroups.doors import CgroupDriver
from trio_kubelet.cgroups.files import CgroupTree
from trio_kubelet.cgroups.limits import Limits, with_limits
from trio_kubelet.cgroups.metrics import MemoryQOSMetrics
from trio_kubelet.cgroups.plan import (
    CgroupSettings,
    PodRequests,
    asked_by,
    class_limits,
    node_limits,
    pod_cgroup_limits,
    protects_memory,
)
from trio_kubelet.cgroups.units import with_whole_percents
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import CGROUPS
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.dbus.values import BusError
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.qos import QOSClass, pod_qos
from trio_kubelet.pods.doors import CgroupError
from trio_kubelet.runtime.naming import pod_name
from trio_kubelet.runtime.pod_amounts import PodAmounts, sandbox_update

log = get_logger(__name__)

_CLASSES_REST = 0.1
"""Seconds between two changes of what the classes have. Many pods that start together are many changes."""
_REMOVE_TRIES = 9
_FIRST_WAIT = 0.02
_REQUIRED = ("cpu", "cpuacct", "cpuset", "memory")
"""Controllers of version 1 that a node has to have (kubelet: `validateSystemRequirements`)."""


@contextmanager
def _told() -> Iterator[None]:
    """Failures of files and of D-Bus as CgroupError."""
    try:
        yield
    except (OSError, BusError) as error:
        raise CgroupError(error_words(error)) from error


def _amounts(limits: Limits) -> PodAmounts:
    return PodAmounts(
        memory=limits.memory,
        cpu_shares=limits.cpu_shares,
        cpu_quota=limits.cpu_quota,
        cpu_period=limits.cpu_period,
    )


class PodCgroups:
    """The cgroups of pods on this node (see `pods.doors.CgroupsDoor`).

    `timed` measures what is done to one cgroup: create, update or destroy. `unlimited` says why all pods
    together are not limited as they should be, "" if they are; `limited` tells when they are after all.
    """

    def __init__(
        self,
        *,
        tree: CgroupTree,
        driver: CgroupDriver,
        node: Callable[[], NodeContext],
        settings: CgroupSettings,
        timed: Callable[[str], AbstractContextManager[object]] = nullcontext,
        metrics: MemoryQOSMetrics | None = None,
    ) -> None:
        context = node()
        self._tree = tree
        self._driver = driver
        self._node = node
        self._settings = settings
        self._timed = timed
        self._metrics = metrics
        self._names = CgroupNames(context.cgroup_root, context.cgroup_driver, context.cgroups_per_qos)
        self._acts = context.cgroups_per_qos
        self._in_force: dict[str, Limits] = {}  # by path: what this agent has set, or takes for set
        self._asked: dict[str, PodRequests] = {}  # by pod UID
        self._least_shares = 0  # of the burstable class, until all pods are known
        self._least_protected: dict[tuple[str, str], int] = {}  # bytes by path and file, until then
        self.unlimited = ""
        self.limited: Listeners[[]] = Listeners()
        self._refreshing = trio.Lock()
        self._asked_otherwise = trio.Event()

    async def run(self) -> None:
        """Gives the classes what their pods ask for, soon after one came or went. What fails is done with the
        next pod, or by `update_classes`.
        """
        while True:
            await self._asked_otherwise.wait()
            self._asked_otherwise = trio.Event()
            try:
                await self._refresh()
            except (OSError, BusError) as error:
                log.warning("Classes of service do not have what their pods ask for", err=error_words(error))
            await trio.sleep(_CLASSES_REST)

    async def start(self) -> list[str]:
        """Makes the cgroups of the node and of the QoS classes, and limits those reserved for others.

        Returns what there is to tell about the latter. Raises CgroupError.
        """
        if self._acts:
            if missing := self._tree.missing(_REQUIRED):
                text = "system validation failed - Following Cgroup subsystem not mounted: "
                raise CgroupError(f"{text}[{' '.join(missing)}]")
            with _told():
                await self._limit_node()
                classes = class_limits((), self._node(), self._settings)
                if protects_memory(self._node()):
                    await self._keep_protected(classes)
                for qos in (QOSClass.BURSTABLE, QOSClass.BEST_EFFORT):
                    # An agent before this one knew its pods; until they are known here theirs is kept.
                    limits = classes[qos]
                    if self._tree.exists(self._class_path(qos)):
                        shares = limits.cpu_shares
                        if qos is QOSClass.BURSTABLE:
                            shares, self._least_shares = None, await self._shares_of(self._class_path(qos))
                        limits = Limits(cpu_shares=shares, huge_pages=limits.huge_pages)
                    await self._start(qos, limits)
        return await self._limit_reserved()

    async def _shares_of(self, path: str) -> int:
        """The shares of a cgroup, 0 where they cannot be read; of a weight the fewest that come to it."""
        try:
            shares = (await CGROUPS.run(self._tree.limits, path)).cpu_shares or 0
        except OSError as error:
            log.warning("Limits of a cgroup cannot be read", path=path, err=error)
            return 0
        return shares + 1 if self._node().cgroup_v2 else shares

    async def _keep_protected(self, classes: Mapping[QOSClass, Limits]) -> None:
        """Of the memory of pods that are not known yet nothing is to be reclaimed either."""
        files = [(self._class_path(qos), name) for qos, limits in classes.items() for name in limits.unified]

        def read() -> dict[tuple[str, str], int]:
            return {file: self._tree.protected(*file) for file in files if self._tree.exists(file[0])}

        try:
            self._least_protected = await CGROUPS.run(read)
        except OSError as error:
            log.warning("Memory that is protected cannot be read", err=error)

    async def _limit_node(self) -> None:
        """Limits all pods together. cgroup v1 takes no limit of memory below what is in use; evictions bring
        that down, and `update_classes` tries again (kubelet: `enforceNodeAllocatableCgroups`).
        """
        limits = node_limits(self._settings, self._node())
        if limits.pids and self._tree.missing(["pids"]):
            log.warning("Processes of all pods together are not limited, the cgroup controller is missing")
            limits = msgspec.structs.replace(limits, pids=None)
        try:
            await self._start(QOSClass.GUARANTEED, limits)
        except OSError as error:
            if error.errno != errno.EBUSY or not limits.memory:
                raise
            await self._start(QOSClass.GUARANTEED, msgspec.structs.replace(limits, memory=None))
            path = self._class_path(QOSClass.GUARANTEED)
            self._in_force[path] = limits
            used = await CGROUPS.run(self._tree.memory_in_use, path)
            name = " ".join(map(json.dumps, self._names.node()))
            self.unlimited = (
                f"Failed to update Node Allocatable Limits [{name}]: "
                f"unable to set memory limit to {limits.memory} (current usage: {used})"
            )

    async def _start(self, qos: QOSClass, limits: Limits) -> None:
        path = self._class_path(qos)
        try:
            await self._create(path, limits)
        except BusError as error:
            if not self._tree.exists(path):
                raise
            log.warning("Cgroup is there and cannot be changed now, it will be later", path=path, err=error)
        self._in_force[path] = limits

    async def _limit_reserved(self) -> list[str]:
        told = []
        for reserved in self._settings.reserved:
            path = self._names.literal(self._names.parse(reserved.name))
            try:
                if not self._tree.exists(path):
                    raise FileNotFoundError(f"cgroup {path} does not exist")
                with self._timed("update"):
                    await self._driver.update(path, reserved.limits)
            except (OSError, BusError) as error:
                why = error_words(error)
                text = f'Failed to enforce {reserved.title} Cgroup Limits on "{reserved.name}": {why}'
                raise CgroupError(text) from error
            self._in_force[path] = reserved.limits
            told.append(
                f"Updated limits on {reserved.whose.removesuffix(' compressible')} cgroup {reserved.name}"
            )
        return told

    async def ensure(self, pod: v1.Pod, *, running: Collection[str] = (), new: bool = False) -> bool:
        """See `pods.doors.CgroupsDoor`. To look for a cgroup takes a thread, so it is not done where it tells
        nothing: one that is known here cannot go while containers run in it, and that of a new pod is made
        whether it is there or not.
        """
        if not self._acts:
            return True
        path = self._path(pod)
        if path in self._in_force and all(c.name in running for c in pod.spec.containers or ()):
            await trio.lowlevel.checkpoint_if_cancelled()  # not a turn for the others: most rounds pass here
            return True
        # In a thread: where many cgroups come and go, looking for one waits for the kernel's lock on all.
        there = (not new or path in self._in_force) and await CGROUPS.run(self._tree.exists, path)
        if there and path in self._in_force:
            return True
        if running and not there:
            return False
        limits = pod_cgroup_limits(pod, self._node(), self._settings.pids_limit)
        if there:
            self._in_force[path] = limits
            try:
                await self._repair([path])
            except (OSError, BusError) as error:
                log.warning("Pod cgroup is there and cannot be looked after now", pod=pod, err=error)
        else:
            with _told():
                await self._create(path, limits)
            self._in_force[path] = limits
        self._note(pod)
        return True

    def wanted(self, pod: v1.Pod) -> PodAmounts:
        """What the pod's cgroup is limited to by the pod's spec (see `runtime.doors.PodLimits`)."""
        return _amounts(self._as_driven(pod_cgroup_limits(pod, self._node(), self._settings.pids_limit)))

    def _as_driven(self, limits: Limits) -> Limits:
        """The limits as the driver makes them."""
        return with_whole_percents(limits) if self._node().cgroup_driver == "systemd" else limits

    async def current(self, pod: v1.Pod) -> PodAmounts:
        """What the pod's cgroup is limited to; not known where it is not the agent's. Raises ConfigError."""
        if not self._acts:
            return PodAmounts()
        try:
            return _amounts(await CGROUPS.run(lambda: self._tree.limits(self._path(pod))))
        except OSError as error:
            text = f'unable to get pod cgroup config for pod "{pod_name(pod)}": {error_words(error)}'
            raise ConfigError(text) from error

    async def memory_in_use(self, pod: v1.Pod) -> int | None:
        """Bytes the pod's processes use together. Raises ConfigError."""
        if not self._acts:
            return None
        try:
            return await CGROUPS.run(lambda: self._tree.memory_in_use(self._path(pod)))
        except OSError as error:
            log.error("Memory of a pod cannot be read", pod=pod, err=error)
            raise ConfigError(f'unable to read memory usage for pod "{pod_name(pod)}"') from error

    async def apply(self, pod: v1.Pod, amounts: PodAmounts) -> None:
        """Puts limits of the pod as a whole into force, others stay as they are. Raises ConfigError."""
        if not self._acts:
            return
        limits = Limits(**msgspec.structs.asdict(amounts))
        path = self._path(pod)
        try:
            await self._update(path, limits)
        except (OSError, BusError) as error:
            raise ConfigError(f"failed to set limits of the pod's cgroup: {error_words(error)}") from error
        if (old := self._in_force.get(path)) is not None:
            self._in_force[path] = with_limits(old, limits)
        self._note(pod)

    def sandbox_update(
        self, pod: v1.Pod, amounts: PodAmounts
    ) -> tuple[cri.LinuxContainerResources, cri.LinuxContainerResources]:
        """How the runtime is told of such limits."""
        return sandbox_update(pod, amounts, self._node())

    async def update_classes(self, pods: Iterable[v1.Pod], *, all_known: bool = True) -> None:
        """Gives the classes what the pods that are active now request, and puts right what was changed by
        others. A pod whose spec has come to ask for no quantity counts as it did. Raises CgroupError.
        """
        if all_known:
            self._least_shares = 0
            self._least_protected = {}
        if not self._acts:
            return
        asked: dict[str, PodRequests] = {}
        for pod in pods:
            uid = pod.metadata.uid
            try:
                asked[uid] = asked_by(pod, self._node())
            except Exception as exc:  # what one pod makes the code raise does not keep it from the others
                log.error("Unexpected error in counting what a pod asks for", pod=pod, podUID=uid, err=exc)
                if uid in self._asked:
                    asked[uid] = self._asked[uid]
        self._asked = asked
        with _told():
            await self._refresh()
            await self._repair(list(self._in_force))

    async def remove(self, uid: str) -> None:
        """The pod's cgroup is gone, with every process in it, whatever its class. Raises CgroupError."""
        if not self._acts:
            return
        wait = _FIRST_WAIT
        with _told():
            for _ in range(_REMOVE_TRIES):
                if await self._try_remove(uid):
                    self._asked.pop(uid, None)
                    self._asked_otherwise.set()
                    return
                await trio.sleep(wait)
                wait *= 2
        raise CgroupError(f"cgroup of pod {uid} still has processes that do not end")

    async def pods(self) -> Collection[str]:
        """UIDs of all pods that have a cgroup, in any class and any hierarchy. Raises CgroupError."""
        if not self._acts:
            return ()
        with _told():
            return await CGROUPS.run(self._find_pods)

    def _path(self, pod: v1.Pod) -> str:
        qos = pod_qos(pod, self._node().features.pod_level_resources)
        return self._names.literal(self._names.pod(pod.metadata.uid, qos))

    def _class_path(self, qos: QOSClass) -> str:
        return self._names.literal(self._names.qos(qos))

    async def _create(self, path: str, limits: Limits) -> None:
        with self._timed("create"):
            await self._driver.create(path, limits)

    async def _update(self, path: str, limits: Limits) -> None:
        with self._timed("update"):
            await self._driver.update(path, limits)

    def _note(self, pod: v1.Pod) -> None:
        self._asked[pod.metadata.uid] = asked_by(pod, self._node())
        self._asked_otherwise.set()

    async def _refresh(self) -> None:
        """Gives the classes what their pods ask for."""
        async with self._refreshing:
            classes = class_limits(self._asked.values(), self._node(), self._settings)
            if self._metrics is not None:
                self._metrics.set(self._asked.values(), self._node())
            for qos, limits in classes.items():
                path = self._class_path(qos)
                if qos is QOSClass.BURSTABLE:
                    shares = max(limits.cpu_shares or 0, self._least_shares)
                    limits = msgspec.structs.replace(limits, cpu_shares=shares)
                unified = {
                    name: str(max(int(value), self._least_protected.get((path, name), 0)))
                    for name, value in limits.unified.items()
                }
                limits = await self._above_use(path, msgspec.structs.replace(limits, unified=unified))
                old = self._in_force.get(path, Limits())
                if (new := with_limits(old, limits)) != old:
                    await self._update(path, limits)
                    self._in_force[path] = new

    async def _above_use(self, path: str, limits: Limits) -> Limits:
        """The limits of a class; memory not below what is in use, for that would kill."""
        if not limits.memory or limits.memory < 0:
            return limits
        used = await CGROUPS.run(self._tree.memory_in_use, path)
        return msgspec.structs.replace(limits, memory=max(limits.memory, used))

    async def _repair(self, paths: Collection[str]) -> None:
        """Puts limits in force again where they are not. A memory limit below what is in use is left alone:
        it would kill.
        """

        def look() -> list[tuple[str, Limits]]:
            found = []
            for path in paths:
                limits = self._in_force.get(path)
                if limits is not None and self._tree.exists(path):
                    different = self._tree.differing(path, self._as_driven(limits))
                    if different != Limits():
                        found.append((path, different))
            return found

        for path, limits in await CGROUPS.run(look):
            if limits.memory and limits.memory > 0:
                used = await CGROUPS.run(self._tree.memory_in_use, path)
                if used >= limits.memory:
                    log.warning("Memory limit is not put in force, more is in use", path=path, used=used)
                    limits = msgspec.structs.replace(limits, memory=None)
            log.info("Limits of a cgroup are put in force again", path=path, limits=limits)
            # Making one that is there gives it its controllers too.
            await self._create(path, limits)
            if self.unlimited and limits.memory and path == self._class_path(QOSClass.GUARANTEED):
                self.unlimited = ""
                self.limited.tell()

    async def _try_remove(self, uid: str) -> bool:
        gone = True
        for qos in QOSClass:
            path = self._names.literal(self._names.pod(uid, qos))
            self._in_force.pop(path, None)
            with self._timed("destroy"):
                removed = await self._driver.remove(path)
            if not removed:
                killed = await CGROUPS.run(self._tree.kill, path)
                log.v(3).info("Killed processes left in pod cgroup", podUID=uid, path=path, count=killed)
                gone = await self._driver.remove(path) and gone
        return gone

    def _find_pods(self) -> set[str]:
        names = {name for qos in QOSClass for name in self._tree.children(self._class_path(qos))}
        return {uid for uid in map(self._names.pod_uid, names) if uid is not None}

"""The volumes of this node that outlive or are shared by pods: wanted, made and taken away.

One task acts on news: a pod wants or gives up volumes, the Node's status changes, a driver registers, an
operation ends, a pause after a failure is over. It never polls. Each operation is a task of its own; one at a
time for a volume, any number side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.common.log import get_logger
from trio_kubelet.podinfo.context import BlockDevice, VolumeMountPoint
from trio_kubelet.podinfo.doors import PodRecorderDoor
from trio_kubelet.storage.backoff import OperationBackOff
from trio_kubelet.storage.csi.limits import AttachLimits
from trio_kubelet.storage.doors import Mounting
from trio_kubelet.storage.errors import OperationError, StepError
from trio_kubelet.storage.names import pod_devices
from trio_kubelet.storage.operations import FAILED_ATTACH, Operations
from trio_kubelet.storage.progress import FAILED_MAP, FAILED_MOUNT
from trio_kubelet.storage.reconstruct import VolumesFound
from trio_kubelet.storage.resolver import Resolver
from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.steps import (
    Operation,
    OperationKind,
    ReportedVolumes,
    held,
    possible_steps,
    unattached,
    unmounted,
)
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.storage.world import (
    Actual,
    Desired,
    MountState,
    WantedVolume,
    in_use_as,
    volumes_in_use,
    with_mount,
)
from trio_kubelet.volumes.doors import Shortfall
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.metrics import VolumeMetrics

log = get_logger(__name__)

PATIENCE: Final = 123.0
"""Seconds the end of a pod waits for its volumes (kubelet: `podAttachAndMountTimeout`)."""
FRESH: Final = 30.0
"""Seconds for which what claims said of mounted volumes is good, where pods are not synced more often."""
_DIGITS: Final = 20  # more than a number of 64 bits has
_FOR_PODS: Final = (OperationKind.MOUNT, OperationKind.MAP)
_FROM_PODS: Final = (OperationKind.UNMOUNT, OperationKind.UNMAP)
_DEFECTS: Final = {
    OperationKind.ATTACH: FAILED_ATTACH,
    OperationKind.MOUNT: FAILED_MOUNT,
    OperationKind.MAP: FAILED_MAP,
}
"""Why pods are told of errors that nobody expected."""


class PersistentVolumes:
    """Implements `volumes.doors.PersistentVolumesDoor`; `run` has to be running."""

    def __init__(
        self,
        *,
        root_dir: str,
        resolver: Resolver,
        mounting: Mapping[str, Mounting],
        operations: Operations,
        desired: Desired,
        actual: Actual,
        node: Callable[[], ReportedVolumes],
        read_back: Callable[[], VolumesFound],
        take_away: Callable[[str], None],
        events: PodRecorderDoor,
        metrics: VolumeMetrics,
        limits: AttachLimits | None = None,
        sync_frequency: float = math.inf,
    ) -> None:
        """`node` is what the Node's status says now, `read_back` what is found on the disk, of which
        `take_away` unmounts what nobody knows (both blocking).
        """
        self._root_dir = root_dir
        self._resolver = resolver
        self._mounting = mounting
        self._operations = operations
        self._desired = desired
        self._actual = actual
        self._node = node
        self._read_back = read_back
        self._take_away = take_away
        self._lost: dict[str, Sequence[str]] = {}  # mount points nobody knows, by UID of the pod
        self._events = events
        self._metrics = metrics
        self._limits = limits
        self._sync_frequency = sync_frequency
        self._back_off = OperationBackOff()
        self._busy: set[str] = set()
        self._dirty: set[str] = set()
        self._waiting: dict[str, float] = {}  # volumes in a pause, and until when
        self._wake = trio.Event()
        self._news: dict[str, trio.Event] = {}  # by UID of the pod: something of its volumes has changed
        self._still_mounted: dict[tuple[str, str], str] = {}  # why, by volume and UID of the pod
        self._resolved_at: dict[str, float] = {}
        metrics.count(self._mounted_plugins, self._wanted_plugins)
        # What volumes are called that are in use, as far as those who look at the Node were told.
        self._in_use: dict[str, frozenset[str]] = {}
        self._withdrawn: set[str] = set()  # the Node's status calls them in use, the next one will not
        self.in_use_changed: Listeners[[]] = Listeners()

    # For pods

    async def set_up(self, pod: v1.Pod, volumes: Sequence[v1.Volume], patience: float) -> Shortfall:
        """Waits until the volumes are there, or until it is clear that they will not be for now."""
        uid = pod.metadata.uid
        expected = [volume.name for volume in volumes]
        now = trio.current_time()
        if self._is_fresh(uid, expected, now):
            return Shortfall()
        problems = await self._resolve(pod, volumes, now)
        with trio.move_on_after(0 if problems else patience):
            while missing := unmounted(self._desired, self._actual, uid, expected):
                await self._news.setdefault(uid, trio.Event()).wait()
        missing = unmounted(self._desired, self._actual, uid, expected)
        if not missing:
            return Shortfall()
        waiting = unattached(self._desired, self._actual, self._node(), uid)
        return Shortfall(
            too_many=await self._too_many(uid, waiting),
            unmounted=tuple(missing),
            unattached=tuple(waiting),
            unprocessed={name: text for name, text in problems.items() if name in missing},
        )

    async def _too_many(self, uid: str, names: Sequence[str]) -> bool:
        """Whether some of the pod's volumes are not attached because the node has too many."""
        if self._limits is None:
            return False
        wanted = self._desired.pods.get(uid, {})
        for name in names:
            if name in wanted and await self._limits.exhausted(wanted[name].spec):
                return True
        return False

    async def tear_down(self, uid: str) -> None:
        """Nothing is mounted for the pod any more. Raises VolumeError when that takes too long."""
        names = {wanted.spec.unique_name for wanted in self._desired.pods.get(uid, {}).values()}
        names.update(held(self._actual, uid))
        self._desired.release(uid)
        self._resolved_at.pop(uid, None)
        self._stir(names)
        with trio.move_on_after(PATIENCE):
            while held(self._actual, uid):
                await self._news.setdefault(uid, trio.Event()).wait()
        if left := held(self._actual, uid):
            causes = [cause for name in left if (cause := self._still_mounted.get((name, uid)))]
            why = "; ".join(causes) or "context deadline exceeded"
            raise VolumeError(f"mounted volumes=[{' '.join(left)}]: {why}")
        for target in self._lost.get(uid, ()):
            try:
                await in_thread(target, self._take_away, target)
            except OperationError as error:
                raise VolumeError(str(error)) from error
        self._lost.pop(uid, None)
        if uid not in self._desired.pods:
            self._desired.released.discard(uid)
            self._news.pop(uid, None)
            self._back_off.forget_pod(uid)

    def mounts(self, uid: str) -> dict[str, VolumeMountPoint]:
        """Where a pod's volumes are, by their names in it."""
        found = {}
        for outer, wanted in self._desired.pods.get(uid, {}).items():
            spec = wanted.spec
            if spec.block:
                continue
            plugin = self._mounting[spec.plugin]
            relabel = not spec.read_only and plugin.relabels(spec, uid)
            found[outer] = VolumeMountPoint(plugin.path(spec, uid), spec.read_only, spec.name, relabel)
        return found

    def devices(self, uid: str) -> dict[str, BlockDevice]:
        """A pod's block devices, by the names of its volumes."""
        return {
            outer: BlockDevice(
                f"{pod_devices(self._root_dir, uid, wanted.spec.plugin)}/{wanted.spec.name}",
                wanted.spec.read_only,
            )
            for outer, wanted in self._desired.pods.get(uid, {}).items()
            if wanted.spec.block
        }

    def extra_groups(self, pod: v1.Pod) -> tuple[int, ...]:
        """Groups that the pod's volumes ask for (annotation `pv.beta.kubernetes.io/gid`), besides its own."""
        context = pod.spec.security_context
        own = (context.supplemental_groups if context is not None else None) or []
        wanted = self._desired.pods.get(pod.metadata.uid, {}).values()
        texts = {each.spec.gid for each in wanted}
        return tuple(sorted({int(text) for text in texts if _is_group(text)} - set(own)))

    def _mounted_plugins(self) -> list[str]:
        return [m.spec.metrics_plugin for volume in self._actual.values() for m in volume.mounts.values()]

    def _wanted_plugins(self) -> list[str]:
        return [each.spec.metrics_plugin for pod in self._desired.pods.values() for each in pod.values()]

    # For the Node

    def in_use(self) -> Sequence[str]:
        """Volumes the Node's status has to call in use; whoever asks writes it.

        One that was left out stays so until the status shows that. Only of a status that calls it in use
        again is it known that it was written later, and that the volume cannot be detached any more.
        """
        in_use, named = set(volumes_in_use(self._desired, self._actual)), set(self._node().in_use)
        self._withdrawn = (self._withdrawn | (named - in_use)) & named
        return sorted(in_use - self._withdrawn)

    def node_changed(self) -> None:
        """The Node's status says something else of volumes."""
        left = self._withdrawn & set(self._node().in_use)
        if left != self._withdrawn:
            self._withdrawn = left
            self.in_use_changed.tell()
        self._stir(name for name in [*self._desired.volumes, *self._actual])

    def _reported(self) -> ReportedVolumes:
        """What the Node's status says, without what is about to go from it."""
        node = self._node()
        if not self._withdrawn:
            return node
        return msgspec.structs.replace(node, in_use=set(node.in_use) - self._withdrawn)

    def driver_changed(self, name: str) -> None:
        """A driver has come or gone: what waited for it is tried at once."""
        specs = [each.spec for users in self._desired.volumes.values() for each in users.values()]
        specs += [volume.spec for volume in self._actual.values()]
        names = {spec.unique_name for spec in specs if spec.driver == name}
        self._back_off.hurry(names)
        self._stir(names)

    # The task

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reads back what is on the disk, then acts on news until cancelled."""
        found = await NODE_FILES.run(self._read_back)
        self._actual.update(found.volumes)
        self._lost.update(found.lost)
        if found.volumes:
            log.info("Volumes were found on the disk", volumes=len(found.volumes))
        self._stir(found.volumes)
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                self._wake = trio.Event()
                self._start_steps(nursery)
                soonest = min(self._waiting.values(), default=math.inf)
                with trio.CancelScope(deadline=soonest):
                    await self._wake.wait()

    def _start_steps(self, nursery: trio.Nursery) -> None:
        now, node = trio.current_time(), self._reported()
        due = [name for name, until in self._waiting.items() if until <= now]
        for name in due:
            del self._waiting[name]
        names, self._dirty = {*self._dirty, *due}, set()
        self._tell_in_use(names)
        for name in names:
            if name in self._busy:
                continue
            possible = possible_steps(self._desired, self._actual, node, name)
            ready_at = {step: self._back_off.ready_at(_key(step), step.kind) for step in possible}
            step = next((each for each in possible if ready_at[each] <= now), None)
            if step is not None:
                self._busy.add(name)
                nursery.start_soon(self._operate, step)
            elif possible:
                self._waiting[name] = min(ready_at.values())

    async def _operate(self, step: Operation) -> None:
        spec, again = self._spec_of(step), self._is_remount(step)
        if spec is not None and step.kind in _FOR_PODS and step.name not in self._actual:
            self._metrics.attached(spec.metrics_plugin, spec.migrated)
        try:
            if spec is None or step.kind is OperationKind.FORGET:
                await self._operations.run(step)
            else:
                with self._metrics.timed(step.kind, spec.metrics_plugin, spec.migrated):
                    await self._operations.run(step)
            self._back_off.succeeded(_key(step))
            if step.kind in _FROM_PODS:
                self._still_mounted.pop(_key(step), None)
            wanted = self._desired.find(step.uid, step.name)
            if wanted is not None and step.kind is OperationKind.MOUNT and not again:
                self._metrics.mounted(wanted.spec.metrics_plugin, trio.current_time() - wanted.since)
            if step.kind in (OperationKind.FORGET, OperationKind.DETACH):
                self._back_off.forget(step.name)
        except StepError as error:
            self._failed(step, "Operation on a volume failed", error, error.reason)
        except Exception as error:  # what one volume, its driver or its files raise stays with that volume
            reason = _DEFECTS.get(step.kind, "")
            self._failed(step, "Unexpected error in an operation on a volume", error, reason)
        finally:
            self._busy.discard(step.name)
            self._told(step)

    def _failed(self, step: Operation, what: str, error: Exception, reason: str) -> None:
        """It is tried again after a pause; with a reason its pod is told."""
        pause = self._back_off.failed(_key(step), step.kind, trio.current_time())
        log.error(
            what,
            operation=step.kind,
            volume=step.name,
            podUID=step.uid,
            durationBeforeRetry=pause,
            err=error,
        )
        if step.kind in _FROM_PODS:
            self._still_mounted[_key(step)] = error_words(error)
        wanted = self._desired.find(step.uid, step.name)
        if reason and wanted is not None:
            self._events.record(wanted.pod, "Warning", reason, error_words(error))

    def _is_remount(self, step: Operation) -> bool:
        volume = self._actual.get(step.name)
        mount = volume.mounts.get(step.uid) if volume is not None else None
        return mount is not None and mount.remount

    def _spec_of(self, step: Operation) -> Spec | None:
        if (volume := self._actual.get(step.name)) is not None:
            return volume.spec
        wanted = self._desired.find(step.uid, step.name)
        return wanted.spec if wanted is not None else None

    def _told(self, step: Operation) -> None:
        """An operation has ended: its volume may want another, and pods may have what they wait for."""
        if step.uid and (event := self._news.pop(step.uid, None)) is not None:
            event.set()
        self._stir([step.name])

    def _stir(self, names: Iterable[str]) -> None:
        self._dirty.update(names)
        self._wake.set()

    def _tell_in_use(self, names: Iterable[str]) -> None:
        """Of these volumes something has changed: some may be in use now, or no longer."""
        changed = False
        for name in names:
            before, now = self._in_use.pop(name, None), in_use_as(self._desired, self._actual, name)
            if now:
                self._in_use[name] = now
            changed |= (before or frozenset()) != now
        if changed:
            self.in_use_changed.tell()

    # What pods want

    def _is_fresh(self, uid: str, expected: Sequence[str], now: float) -> bool:
        """Whether the claims need not be read; by a sync that comes as late as it may they always are."""
        at, good = self._resolved_at.get(uid), min(FRESH, self._sync_frequency / 2)
        return (
            at is not None and now - at < good and not unmounted(self._desired, self._actual, uid, expected)
        )

    async def _resolve(self, pod: v1.Pod, volumes: Sequence[v1.Volume], now: float) -> dict[str, str]:
        """Finds out what the volumes are and wants them; why some cannot be told, by their names."""
        uid = pod.metadata.uid
        before = self._desired.pods.get(uid, {})
        found: dict[str, WantedVolume] = {}
        problems: dict[str, str] = {}

        async def one(volume: v1.Volume) -> None:
            try:
                spec = await self._resolver.resolve(pod, volume)
                if spec.plugin in self._mounting and await self._mounting[spec.plugin].requires_remount(spec):
                    self._remount(spec, uid)
            except (VolumeError, OperationError) as error:
                problems[volume.name] = str(error)
                if volume.name in before:
                    found[volume.name] = before[volume.name]
            else:
                since = before[volume.name].since if volume.name in before else now
                found[volume.name] = WantedVolume(pod, volume.name, spec, since)

        async with trio.open_nursery() as nursery:
            for volume in volumes:
                nursery.start_soon(one, volume)
        self._desired.want(uid, found)
        for wanted in found.values():
            self._known(wanted.spec)
        if not problems:
            self._resolved_at[uid] = now
        self._stir(wanted.spec.unique_name for wanted in found.values())
        return problems

    def _remount(self, spec: Spec, uid: str) -> None:
        volume = self._actual.get(spec.unique_name)
        mount = volume.mounts.get(uid) if volume is not None else None
        if mount is not None and mount.state is MountState.MOUNTED:
            with_mount(self._actual, spec.unique_name, msgspec.structs.replace(mount, remount=True))

    def _known(self, spec: Spec) -> None:
        """What the volume is now is known better than what was read back, or was said before."""
        volume = self._actual.get(spec.unique_name)
        if volume is not None:
            size = volume.size or spec.claim_size
            known = msgspec.structs.replace(volume, spec=spec, size=size, not_yet=False)
            self._actual[spec.unique_name] = known


def _is_group(text: str) -> bool:
    """Whether it is a number of 64 bits; whatever else is there is passed over, as by a kubelet."""
    return text.isascii() and text.isdigit() and len(text) < _DIGITS and int(text) < 1 << 63


def _key(step: Operation) -> tuple[str, str]:
    """What failures are counted by: the volume, and the pod it was for."""
    return step.name, step.uid

"""The volumes of pods: plans them, fetches what they are made of, and does the work in threads.

A hung filesystem (a dead NFS server under a hostPath) must cost its own pod only. So the work runs in
threads that are left behind at the deadline, and nothing else is done for a pod whose last work still hangs.

A volume that was set up once stays usable: when its files cannot be brought up to date (the config map is
gone, the API server is away), that is told and the pod goes on with what it has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.api.errors import aggregate_errors
from trio_kubelet.common.clock import Clock, SystemClock
from trio_kubelet.common.duration import format_duration
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import VOLUMES
from trio_kubelet.common.log import get_logger
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.doors import ObjectError, PodRecorderDoor, VolumeObjects, read_all
from trio_kubelet.podinfo.paths import pod_dir
from trio_kubelet.volumes import payload
from trio_kubelet.volumes.atomic_writer import has_files
from trio_kubelet.volumes.doors import PersistentVolumesDoor, Shortfall
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.files import take_away, unmount_volumes
from trio_kubelet.volumes.local import check_host_path, fs_group_of, set_up_empty_dir, set_up_projection
from trio_kubelet.volumes.metrics import MOUNT, UNMOUNT, VolumeMetrics
from trio_kubelet.volumes.payload import FileProjection, Objects
from trio_kubelet.volumes.plan import (
    EmptyDir,
    HostPath,
    Persistent,
    PodWide,
    Projection,
    VolumePlan,
    plan_volume,
    plugin_name,
    source_name,
    used_volumes,
)
from trio_kubelet.volumes.project_quotas import forget_below

log = get_logger(__name__)

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

# What of a pod's directory belongs to volumes; `plugins` holds the markers that they are ready.
_PARTS = ("volume-subpaths", "volumes", "volumeDevices", "plugins")
_PATIENCE = 123.0
"""Seconds a round of a pod waits for volumes that others make (kubelet: `podAttachAndMountTimeout`)."""

LIMIT_EXCEEDED = "VolumeAttachmentLimitExceeded"
_MOST_TOLD = 11
"""Reasons why volumes cannot be told at most (kubelet: `AddErrorToPod`)."""
_LIMIT_REACHED = "Node has reached its volume attachment limit, rejecting pod."


class VolumeManager:
    """Makes and removes the volumes of pods. `timeout` in seconds is for one call.

    `node` is asked each time, for what is known of a node changes; without `objects` (no API server)
    volumes with config maps, secrets or tokens fail. `events` hears of each volume that fails. `persistent`
    makes those volumes that are not the agent's own.
    """

    def __init__(
        self,
        node: Callable[[], NodeContext],
        objects: VolumeObjects | None = None,
        clock: Clock | None = None,
        timeout: float = 120.0,
        events: PodRecorderDoor | None = None,
        metrics: VolumeMetrics | None = None,
        persistent: PersistentVolumesDoor | None = None,
    ) -> None:
        self._node = node
        self._objects = objects
        self._clock = clock or SystemClock()
        self._timeout = timeout
        self._events = events
        self._persistent = persistent
        self._plugins: dict[str, dict[str, str]] = {}  # of the volumes that are set up, by UID of the pod
        self._wanted_since: dict[str, float] = {}
        self._set_up_now: dict[str, str] = {}  # by UID of the pod: the volume that a thread is at
        self._being_emptied: set[str] = set()  # UIDs of pods whose files a thread removes
        self._metrics = metrics or VolumeMetrics(CollectorRegistry())
        self._metrics.count(lambda: [name for names in self._plugins.values() for name in names.values()])

    async def set_up(self, pod: v1.Pod) -> None:
        """Everything the pod mounts is there afterwards; files the agent writes are up to date. May be
        repeated. Raises VolumeError.
        """
        if self._objects is not None:
            self._objects.register(pod)
        volumes = used_volumes(pod)
        if not volumes:
            return
        node, began = self._node(), trio.current_time()
        planned, impossible = _plan_volumes(pod, volumes, node)
        others = [volume for volume in volumes if isinstance(planned.get(volume.name), Persistent)]
        plans = {name: plan for name, plan in planned.items() if not isinstance(plan, Persistent)}
        failed, kept = await self._set_up_own(pod, plans, node) if plans else ({}, {})
        self._measure(pod, {name: plan for name, plan in plans.items() if name not in failed}, began)
        for name, text in {**failed, **kept}.items():
            self._tell(pod, name, text)
            await trio.lowlevel.checkpoint()  # thousands may have failed
        short = Shortfall()
        if others:
            short = await self._set_up_others(pod, others, 0 if failed or impossible else _PATIENCE)
        if failed or impossible or short.unmounted:
            raise self._unmounted(failed, impossible, short)

    async def renew(self, pod: v1.Pod) -> None:
        """Files that a pod that ends is shown are up to date afterwards; what cannot be had stays as it is.

        A grace may be longer than a token's life. (A kubelet leaves them, kubernetes/kubernetes 122102.)
        """
        node = self._node()
        planned, _ = _plan_volumes(pod, used_volumes(pod), node)
        plans = {name: plan for name, plan in planned.items() if isinstance(plan, Projection)}
        if not plans:
            return
        if self._objects is not None:
            self._objects.register(pod)
        try:
            failed, kept = await self._set_up_own(pod, plans, node, only_shown=True)
        except VolumeError as error:
            failed, kept = dict.fromkeys(plans, str(error)), {}
        for name, text in {**failed, **kept}.items():
            log.info("Files of a pod that ends stay as they are", pod=pod, volume=name, reason=text)
            await trio.lowlevel.checkpoint()

    async def tear_down(self, uid: str) -> None:
        """Nothing is mounted for the pod any more, its volumes are gone, and nothing is followed for it.
        May be repeated. Raises VolumeError.
        """
        node = self._node()
        directory, counted = pod_dir(node.root_dir, uid), node.features.quota_monitoring
        if self._persistent is not None:
            await self._persistent.tear_down(uid)

        def work() -> None:
            with ExitStack() as measured:
                for plugin in self._plugins.get(uid, {}).values():
                    measured.enter_context(self._metrics.timed(UNMOUNT, plugin))
                unmount_volumes(directory)
                if counted:
                    forget_below(f"{directory}/volumes")
                self._being_emptied.add(uid)
                try:
                    for part in _PARTS:
                        take_away(f"{directory}/{part}")
                finally:
                    self._being_emptied.discard(uid)

        try:
            with _deadline(self._timeout):
                await self._in_thread(uid, work)
        except VolumeError as error:
            if uid in self._being_emptied:
                raise VolumeError("files are being removed") from error
            raise
        self._plugins.pop(uid, None)
        self._wanted_since.pop(uid, None)
        if self._objects is not None:
            self._objects.unregister(uid)

    def _measure(self, pod: v1.Pod, made: Mapping[str, VolumePlan], began: float) -> None:
        """How long it took until what was `made` was there: from when it was wanted, of what was there before
        and is made of files from this round's beginning.
        """
        uid, now = pod.metadata.uid, trio.current_time()
        since = self._wanted_since.setdefault(uid, began)
        there = self._plugins.setdefault(uid, {})
        for volume in used_volumes(pod):
            if (name := volume.name) not in made:
                continue
            plugin = plugin_name(volume)
            if name not in there:
                self._metrics.attached(plugin)
                self._metrics.mounted(plugin, now - since)
                there[name] = plugin
            elif isinstance(made[name], Projection):
                self._metrics.mounted(plugin, now - began)

    async def _set_up_others(self, pod: v1.Pod, volumes: Sequence[v1.Volume], patience: float) -> Shortfall:
        """The volumes that are not the agent's own."""
        if self._persistent is not None:
            return await self._persistent.set_up(pod, volumes, patience)
        texts = {each.name: f"{source_name(each)} volumes are not supported" for each in volumes}
        return Shortfall(unmounted=tuple(sorted(texts)), unprocessed=texts)

    async def _set_up_own(
        self,
        pod: v1.Pod,
        plans: Mapping[str, VolumePlan],
        node: NodeContext,
        *,
        only_shown: bool = False,
    ) -> tuple[dict[str, str], dict[str, str]]:
        """The volumes that are the agent's own; as `_set_up_all`, or which one hangs. Raises VolumeError."""
        uid = pod.metadata.uid
        try:
            with _deadline(self._timeout):
                files = await self._files(pod, plans, node)
                there = frozenset(self._plugins.get(uid, ()))
                return await self._in_thread(
                    uid, lambda: self._set_up_all(pod, plans, files, there, only_shown)
                )
        except VolumeError as error:
            if (name := self._set_up_now.get(uid)) is None:
                raise
            return {name: str(error)}, {}

    def _set_up_all(
        self,
        pod: v1.Pod,
        plans: Mapping[str, VolumePlan],
        files: Mapping[str, dict[str, FileProjection] | VolumeError],
        there: Collection[str],
        only_shown: bool,
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Sets up each volume; what could not be set up, and what could only not be brought up to date. What
        is `there` already is measured only if it is made of files. `only_shown`: nothing is done but for
        files that are shown already.
        """
        fs_group = fs_group_of(pod)
        failed: dict[str, str] = {}
        kept: dict[str, str] = {}
        plugins = {volume.name: plugin_name(volume) for volume in used_volumes(pod)}
        for name, plan in plans.items():
            if only_shown and not _is_shown(plan):
                continue
            self._set_up_now[pod.metadata.uid] = name
            try:
                with ExitStack() as measured:
                    if name not in there or isinstance(plan, Projection):
                        measured.enter_context(self._metrics.timed(MOUNT, plugins[name]))
                    self._set_up(plan, files.get(name, {}), fs_group, plugins[name])
            except (OSError, VolumeError) as error:
                (kept if _is_shown(plan) else failed)[name] = error_words(error)
            finally:
                del self._set_up_now[pod.metadata.uid]
        return failed, kept

    def _set_up(
        self,
        plan: VolumePlan,
        files: dict[str, FileProjection] | VolumeError,
        fs_group: int | None,
        plugin: str,
    ) -> None:
        timed = self._metrics.giving
        match plan:
            case EmptyDir():
                set_up_empty_dir(plan, fs_group, timed)
            case HostPath():
                check_host_path(plan)
            case Projection():
                if isinstance(files, VolumeError):
                    raise files
                set_up_projection(plan, files, fs_group, self._clock.now_ns(), plugin, timed)

    async def _files(
        self, pod: v1.Pod, plans: Mapping[str, VolumePlan], node: NodeContext
    ) -> dict[str, dict[str, FileProjection] | VolumeError]:
        """The files of each volume that is made of them, or why they cannot be had."""
        projections = [v for v in used_volumes(pod) if isinstance(plans.get(v.name), Projection)]
        objects = await self._fetch(pod, projections)
        files: dict[str, dict[str, FileProjection] | VolumeError] = {}
        made = payload.PodFiles(pod, node)
        for volume in projections:
            try:
                if isinstance(found := objects[volume.name], VolumeError):
                    raise found
                files[volume.name] = made.of(volume, found)
            except VolumeError as error:
                files[volume.name] = error
        return files

    async def _fetch(self, pod: v1.Pod, volumes: list[v1.Volume]) -> dict[str, Objects | VolumeError]:
        """What volumes' files are made from. A missing object is left out: it may be optional."""
        source, namespace = self._objects, pod.metadata.namespace
        maps = {volume.name: list(payload.config_map_names(volume)) for volume in volumes}
        secrets = {volume.name: list(payload.secret_names(volume)) for volume in volumes}
        tokens = {
            (volume.name, index): token
            for volume in volumes
            for index, token in payload.token_sources(volume)
        }
        anchors = {(v.name, index): part for v in volumes for index, part in payload.anchor_sources(v)}
        certificates = [(v.name, index) for v in volumes for index in payload.certificate_places(v)]
        if source is None:
            needing = {name for name in maps if maps[name] or secrets[name]}
            needing |= {name for name, _ in (*tokens, *anchors, *certificates)}
            return {v.name: _no_client(v) if v.name in needing else Objects() for v in volumes}
        found_maps = await read_all(
            [name for names in maps.values() for name in names],
            lambda name: source.config_map(namespace, name),
        )
        found_secrets = await read_all(
            [name for names in secrets.values() for name in names],
            lambda name: source.secret(namespace, name),
        )
        found_tokens = await read_all(tokens, lambda key: source.service_account_token(pod, tokens[key]))
        found_anchors = await read_all(anchors, lambda key: source.trust_anchors(anchors[key]))
        found_certificates = await read_all(certificates, lambda key: source.pod_certificate(pod, *key))
        tokens_of, anchors_of = _by_volume(found_tokens), _by_volume(found_anchors)
        certificates_of = _by_volume(found_certificates)
        result: dict[str, Objects | VolumeError] = {}
        for volume in volumes:
            name = volume.name
            try:
                result[name] = Objects(
                    config_maps=_there({key: found_maps[key] for key in maps[name]}),
                    secrets=_there({key: found_secrets[key] for key in secrets[name]}),
                    tokens=_there(tokens_of.get(name, {})),
                    anchors=anchors_of.get(name, {}),
                    certificates=certificates_of.get(name, {}),
                )
            except ObjectError as error:
                result[name] = VolumeError(str(error))
        return result

    def _tell(self, pod: v1.Pod, volume: str, text: str) -> None:
        if self._events is not None:
            message = f'MountVolume.SetUp failed for volume "{volume}" : {text}'
            self._events.record(pod, "Warning", "FailedMount", message)

    def _unmounted(
        self, failed: Mapping[str, str], impossible: Mapping[str, str], short: Shortfall
    ) -> VolumeError:
        """Why the pod cannot go on. Of volumes that fail, or take long, no more is said than of each of them
        (kubelet: `wait.Interrupted`).
        """
        impossible = {**impossible, **short.unprocessed}
        if impossible:
            cause = "; ".join(sorted([*dict.fromkeys(impossible.values())][:_MOST_TOLD]))
        else:
            cause = "; ".join(failed.values()) or "context deadline exceeded"
        names = " ".join(sorted({*failed, *impossible, *short.unmounted}))
        limit = f"{_LIMIT_REACHED} " if short.too_many else ""
        return VolumeError(
            f"{limit}unmounted volumes=[{names}], unattached volumes=[{' '.join(short.unattached)}], "
            f"failed to process volumes=[{' '.join(sorted(impossible))}]: {cause}",
            told=not impossible and (self._events is not None or not failed),
            rejection=LIMIT_EXCEEDED if short.too_many else "",
        )

    async def _in_thread(self, uid: str, work: Callable[[], T]) -> T:
        """Runs blocking work for one pod after its last work has ended. Raises VolumeError."""
        try:
            return await VOLUMES.run(work, owner=uid)
        except OSError as error:
            raise VolumeError(error_words(error)) from error


def _plan_volumes(
    pod: v1.Pod, volumes: Iterable[v1.Volume], node: NodeContext
) -> tuple[dict[str, VolumePlan], dict[str, str]]:
    """The plans of a pod's volumes by name, and why there is none."""
    plans: dict[str, VolumePlan] = {}
    impossible: dict[str, str] = {}
    shared = PodWide(pod, node)
    for volume in volumes:
        try:
            plans[volume.name] = plan_volume(pod, volume, node, shared)
        except VolumeError as error:
            impossible[volume.name] = str(error)
    return plans, impossible


def _is_shown(plan: VolumePlan) -> bool:
    return isinstance(plan, Projection) and has_files(plan.directory.path)


def _there(found: Mapping[K, V | ObjectError | None]) -> dict[K, V]:
    """What exists of what was read. Raises ObjectError if anything could not be read."""
    errors = [value for value in found.values() if isinstance(value, ObjectError)]
    if errors:
        raise ObjectError(aggregate_errors([str(error) for error in errors]))
    return {
        key: value for key, value in found.items() if value is not None and not isinstance(value, ObjectError)
    }


def _by_volume(found: Mapping[tuple[str, int], V]) -> dict[str, dict[int, V]]:
    """What is each volume's, by place among its sources."""
    volumes: dict[str, dict[int, V]] = {}
    for (name, index), value in found.items():
        volumes.setdefault(name, {})[index] = value
    return volumes


def _no_client(volume: v1.Volume) -> VolumeError:
    kind = source_name(volume)
    return VolumeError(f"cannot setup {kind} volume {volume.name} because kube client is not configured")


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError:
        raise VolumeError(f"timed out after {format_duration(seconds)}") from None

"""The volumes of pods: plans them, fetches what they are made of, and does the work in threads.

A hung filesystem (a dead NFS server under a hostPath) must cost its own pod only. So the work runs in
threads that are left behind at the deadline, and nothing else is done for a pod whose last work still hangs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import trio

from trio_kubelet.api import v1
from trio_kubelet.clock import Clock, SystemClock
from trio_kubelet.pods.doors import VolumeError
from trio_kubelet.runtime.configs.context import NodeContext
from trio_kubelet.runtime.configs.paths import pod_dir
from trio_kubelet.volumes import payload
from trio_kubelet.volumes.files import remove_tree, unmount_all
from trio_kubelet.volumes.local import check_host_path, fs_group_of, set_up_empty_dir, set_up_projection
from trio_kubelet.volumes.objects import ClusterObjects, ObjectError
from trio_kubelet.volumes.payload import File, Objects
from trio_kubelet.volumes.plan import EmptyDir, HostPath, Projection, VolumePlan, plan_volumes

_WAIT_FOR_LAST = 5.0
_THREADS = 32
# What of a pod's directory belongs to volumes; `plugins` holds the markers that they are ready.
_PARTS = ("volume-subpaths", "volumes", "plugins")


class VolumeManager:
    """Makes and removes the volumes of pods. `timeout` in seconds is for one call.

    `node` is asked each time, for what is known of a node changes; without `objects` (no API server)
    volumes with config maps, secrets or tokens fail.
    """

    def __init__(
        self,
        node: Callable[[], NodeContext],
        objects: ClusterObjects | None = None,
        clock: Clock | None = None,
        timeout: float = 120.0,
    ) -> None:
        self._node = node
        self._objects = objects
        self._clock = clock or SystemClock()
        self._timeout = timeout
        self._limiter = trio.CapacityLimiter(_THREADS)
        self._busy: dict[str, threading.Lock] = {}

    async def set_up(self, pod: v1.Pod) -> None:
        """Everything the pod mounts is there afterwards; files the agent writes are up to date. May be
        repeated. Raises VolumeError.
        """
        if not pod.spec.volumes:
            return
        node = self._node()
        plans = plan_volumes(pod, node)
        files: dict[str, dict[str, File]] = {}
        with _deadline(self._timeout):
            for volume, plan in zip(pod.spec.volumes, plans, strict=True):
                if isinstance(plan, Projection):
                    objects = await self._fetch(pod, volume)
                    files[volume.name] = payload.volume_files(pod, volume, node, objects)
            await self._in_thread(pod.metadata.uid, lambda: self._set_up_all(pod, plans, files))

    async def tear_down(self, uid: str) -> None:
        """Nothing is mounted for the pod any more and its volumes are gone. May be repeated. Raises
        VolumeError.
        """
        directory = pod_dir(self._node().root_dir, uid)

        def work() -> None:
            unmount_all(directory)
            for part in _PARTS:
                remove_tree(f"{directory}/{part}")

        with _deadline(self._timeout):
            await self._in_thread(uid, work)
        self._busy.pop(uid, None)

    def _set_up_all(self, pod: v1.Pod, plans: list[VolumePlan], files: dict[str, dict[str, File]]) -> None:
        fs_group = fs_group_of(pod)
        for plan in plans:
            try:
                match plan:
                    case EmptyDir():
                        set_up_empty_dir(plan, fs_group)
                    case HostPath():
                        check_host_path(plan)
                    case Projection():
                        set_up_projection(plan, files[plan.name], fs_group, self._clock.now_ns())
            except OSError as error:
                raise VolumeError(f'volume "{plan.name}": {error}') from error

    async def _fetch(self, pod: v1.Pod, volume: v1.Volume) -> Objects:
        """What the files of a volume are made from. A missing object is left out: it may be optional."""
        config_maps = dict.fromkeys(payload.config_map_names(volume))
        secrets = dict.fromkeys(payload.secret_names(volume))
        tokens = dict(payload.token_sources(volume))
        if not (config_maps or secrets or tokens):
            return Objects()
        if self._objects is None:
            raise VolumeError(f"cannot setup volume {volume.name} because kube client is not configured")
        namespace = pod.metadata.namespace
        try:
            maps = {name: await self._objects.config_map(namespace, name) for name in config_maps}
            found = {name: await self._objects.secret(namespace, name) for name in secrets}
            return Objects(
                config_maps={name: value for name, value in maps.items() if value is not None},
                secrets={name: value for name, value in found.items() if value is not None},
                tokens={
                    index: await self._objects.service_account_token(pod, source)
                    for index, source in tokens.items()
                },
            )
        except ObjectError as error:
            raise VolumeError(f'volume "{volume.name}": {error}') from error

    async def _in_thread(self, uid: str, work: Callable[[], None]) -> None:
        """Runs blocking work for one pod after its last work has ended. Raises VolumeError."""
        lock = self._busy.setdefault(uid, threading.Lock())

        def run() -> None:
            if not lock.acquire(timeout=_WAIT_FOR_LAST):
                raise VolumeError("the last work on the pod's volumes still hangs")
            try:
                work()
            finally:
                lock.release()

        try:
            await trio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._limiter)
        except OSError as error:
            raise VolumeError(str(error)) from error


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError:
        raise VolumeError(f"timed out after {seconds:g} s") from None

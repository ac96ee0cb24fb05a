"""What a pod stands on: its cgroup, directories and volumes, which are there before a container starts and go
when nothing runs any more. Failures are told and reported, not raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.podinfo.doors import RecorderDoor
from trio_kubelet.podinfo.restarts import NEVER
from trio_kubelet.pods.doors import CgroupError, CgroupsDoor, DirectoriesDoor, RuntimeDoor, VolumesDoor
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.rounds import RoundSteps
from trio_kubelet.pods.status.reporter import StatusReporter
from trio_kubelet.pods.work import SyncReport
from trio_kubelet.volumes.errors import VolumeError

log = get_logger(__name__)

_RENEWAL: Final = 60.0
"""Seconds between two looks at the files of a pod that ends: tokens are due at least two minutes early."""


class Groundwork:
    """Prepares it and clears it away; each may be repeated."""

    def __init__(
        self,
        *,
        cgroups: CgroupsDoor,
        directories: DirectoriesDoor,
        volumes: VolumesDoor,
        runtime: RuntimeDoor,
        as_actuated: Callable[[v1.Pod], v1.Pod],  # the pod with what it has while a resize is not made
        reporter: StatusReporter,
        steps: RoundSteps,
        recorder: RecorderDoor,
        metrics: PodMetrics,
        clock: Clock,
    ) -> None:
        self._cgroups = cgroups
        self._directories = directories
        self._volumes = volumes
        self._runtime = runtime
        self._as_actuated = as_actuated
        self._reporter = reporter
        self._steps = steps
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock

    async def prepare_cgroup(self, pod: v1.Pod, status: PodStatus) -> SyncReport | None:
        """The pod's cgroup is there; a report if the pod cannot go on now. Containers that run outside of it,
        from before, are ended to start inside.
        """
        uid = pod.metadata.uid
        try:
            with self._steps.at(uid, "cgroup"):
                running = {container.name for container in status.running()}
                # What a resize has not changed yet stays as it is until that is made, in its order.
                has = self._as_actuated(pod) if running else pod
                if await self._cgroups.ensure(has, running=running, new=not status.sandboxes):
                    return None
            log.info("Pod runs outside of its cgroup, restarting it", pod=pod, podUID=uid)
            result = await self._runtime.kill_pod(pod, status, None)
            if not result.ok:
                return SyncReport(error=f"error killing pod: {result}", acted=True)
            if not _restarts_anything(pod):
                return SyncReport(acted=True)
            with self._steps.at(uid, "cgroup"):
                await self._cgroups.ensure(pod)
        except CgroupError as exc:
            message = f"unable to ensure pod container exists: {exc}"
            self._recorder.record(pod, "Warning", "FailedCreatePodContainer", message)
            return SyncReport(
                error=f"failed to ensure that the pod: {uid} cgroups exist and are correctly applied: {exc}"
            )
        # The status still shows the containers that were just ended: look again before going on.
        return SyncReport(acted=True, retry_at_ns=self._clock.now_ns())

    async def prepare_files(self, pod: v1.Pod) -> SyncReport | None:
        """Directories and volumes are there; a report if the pod cannot go on now."""
        uid = pod.metadata.uid
        try:
            with self._steps.at(uid, "directories"):
                await self._directories.make(pod)
        except OSError as exc:
            error = f"error making pod data directories: {error_words(exc, 'mkdir')}"
            self._recorder.record(pod, "Warning", "FailedToMakePodDataDirectories", error)
            return SyncReport(error=error)
        try:
            with self._steps.at(uid, "volumes"):
                await self._volumes.set_up(pod)
        except VolumeError as exc:
            if exc.rejection:
                self._recorder.record(pod, "Warning", exc.rejection, str(exc))
                self._reporter.say_refused(pod, exc.rejection, str(exc))
                self._metrics.admission_rejections.labels(exc.rejection).inc()
                return SyncReport(terminal=True)
            error = f"Unable to attach or mount volumes: {exc}"
            if not exc.told:
                self._recorder.record(pod, "Warning", "FailedMount", error)
            return SyncReport(error=error)
        return None

    @asynccontextmanager
    async def renewed_files(self, pod: v1.Pod) -> AsyncIterator[None]:
        """The files of a pod that ends, and has no rounds any more, are kept up to date in the block."""

        async def renew() -> None:
            while True:
                await trio.sleep(_RENEWAL)
                try:
                    await self._volumes.renew(pod)
                except Exception as exc:  # a defect met there must not keep the pod from ending
                    log.error("Unexpected error in renewing the files of a pod that ends", pod=pod, err=exc)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(renew)
            yield
            nursery.cancel_scope.cancel()

    async def clear(self, pod: v1.Pod) -> SyncReport | None:
        """Volumes and cgroup are gone; a report if one could not go. Directories are left to the cleaner."""
        uid = pod.metadata.uid
        try:
            await self._volumes.tear_down(uid)
        except VolumeError as exc:
            self._recorder.record(pod, "Warning", "FailedUnmount", f"Volumes are still there: {exc}")
            return SyncReport(error=str(exc))
        try:
            await self._cgroups.remove(uid)
        except CgroupError as exc:
            return SyncReport(error=str(exc))
        return None


def _restarts_anything(pod: v1.Pod) -> bool:
    """Whether any container of the pod would start again after it was ended."""
    if pod.spec.restart_policy != NEVER:
        return True
    return any(
        rule.action == "Restart" or container.restart_policy != NEVER
        for container in pod.spec.containers or ()
        if container.restart_policy is not None
        for rule in container.restart_policy_rules or (v1.ContainerRestartRule(),)
    )

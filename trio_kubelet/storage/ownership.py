"""Giving the files of a volume that outlives its pods to the pod's group (KEP-1682): all of them, or none if
the root is right. It is done in a thread, and told of when it takes long.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Final

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.lanes import OWNERSHIP
from trio_kubelet.podinfo.doors import PodRecorderDoor
from trio_kubelet.storage.errors import Ending, OperationError
from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.volumes.local import fs_group_of
from trio_kubelet.volumes.ownership import Progress, Timed, give_volume

REASON: Final = "VolumePermissionChangeInProgress"
FIRST_NEWS: Final = 30.0
NEXT_NEWS: Final = 60.0
"""Seconds after which it is told that the work takes long, and between two reports of how far it is."""


def long_message(directory: str, uid: str) -> str:
    """The event when the work takes long; the path begins with the pod's UID."""
    return (
        f"Setting volume ownership for {_shown(directory, uid)} is taking longer than expected, consider "
        "using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
        "#configure-volume-permission-and-ownership-change-policy-for-pods"
    )


def progress_message(directory: str, uid: str, files: int) -> str:
    """The event of how far the work is."""
    return f"Setting volume ownership for {_shown(directory, uid)}, processed {files} files."


def _shown(directory: str, uid: str) -> str:
    at = directory.find(uid)
    return directory if at < 0 else directory[at:]


class VolumeOwnership:
    """`events` hears of what takes long, which `timed` measures."""

    def __init__(self, events: PodRecorderDoor, timed: Timed = nullcontext) -> None:
        self._events = events
        self._timed = timed

    async def give(
        self, spec: Spec, directory: str, pod: v1.Pod, *, read_only: bool, again: bool = False
    ) -> None:
        """Gives the files of a pod's volume to the pod's group, if it has one. `again`: that was done when it
        was mounted, and what the pod has made of them since is left, unless it was interrupted: the root,
        which comes last, tells. Raises OperationError; the volume is there all the same, to be taken back.
        """
        context, group, progress = pod.spec.security_context, fs_group_of(pod), Progress()
        if context is None or group is None:
            return
        on_mismatch = again or context.fs_group_change_policy == "OnRootMismatch"

        def work() -> None:
            give_volume(
                directory,
                group,
                read_only=read_only,
                on_mismatch=on_mismatch,
                progress=progress,
                timed=partial(self._timed, spec.metrics_plugin),
            )

        failed: OperationError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report, pod, directory, progress)
            try:
                await in_thread(spec.unique_name, work, lane=OWNERSHIP)
            except OperationError as error:
                failed = error
            finally:
                progress.stop = True  # a walk that was left behind ends by itself
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise OperationError(str(failed), Ending.UNCERTAIN) from failed

    async def _report(self, pod: v1.Pod, directory: str, progress: Progress) -> None:
        uid = pod.metadata.uid
        await trio.sleep(FIRST_NEWS)
        self._events.record(pod, "Warning", REASON, long_message(directory, uid))
        while True:
            await trio.sleep(NEXT_NEWS)
            self._events.record(pod, "Warning", REASON, progress_message(directory, uid, progress.files))

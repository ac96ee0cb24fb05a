"""What resources each pod was granted, kept in a file so that a restart judges pods by what they have.

A pod's spec may ask for more than it was granted (KEP-1287, in-place resize); until that can be granted, it
counts, and runs, with what it has. The file is a hint like any checkpoint: without it, or with a damaged one,
pods are granted what their specs say.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

import msgspec
import trio
from msgspec.structs import replace

from trio_kubelet.api.containers import regular_containers
from trio_kubelet.api.v1 import Container, Pod, ResourceRequirements
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.state_file import read_state, replace_state

log = get_logger(__name__)

FILE_NAME = "trio_kubelet_allocations.json"


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod was granted: for itself and for its containers by name."""

    containers: dict[str, ResourceRequirements] = {}
    pod_level: ResourceRequirements | None = None


def allocation_of(pod: Pod) -> Allocation:
    """What the pod's spec asks for."""
    containers = regular_containers(pod.spec)
    return Allocation(containers={c.name: c.resources for c in containers}, pod_level=pod.spec.resources)


def with_allocation(pod: Pod, granted: Allocation | None) -> Pod:
    """The pod with the resources it was granted; the same object when they are those of its spec. Pure."""
    if granted is None or granted == allocation_of(pod):
        return pod

    def each(containers: Sequence[Container] | None) -> list[Container] | None:
        if containers is None:
            return None
        return [replace(c, resources=granted.containers.get(c.name, c.resources)) for c in containers]

    spec = replace(
        pod.spec,
        containers=each(pod.spec.containers),
        init_containers=each(pod.spec.init_containers),
        resources=granted.pod_level,
    )
    return replace(pod, spec=spec)


class AllocationStore:
    """Allocations by pod UID; `run` writes them down."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._granted: dict[str, Allocation] = {}
        self._changed = trio.Event()

    def load(self) -> None:
        """Reads what an earlier agent wrote. Blocking; never raises."""
        try:
            if (content := read_state(self._path)) is not None:
                self._granted = msgspec.json.decode(content, type=dict[str, Allocation])
        except (OSError, msgspec.MsgspecError) as exc:
            log.error("Cannot read what pods were granted, going by their specs", path=self._path, err=exc)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Writes after each change until cancelled; changes made meanwhile are written together."""
        task_status.started()
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            content = msgspec.json.encode(self._granted)
            try:
                await NODE_FILES.run(replace_state, self._path, content)
            except OSError as exc:
                log.error("Cannot write down what pods were granted", path=self._path, err=exc)
                await trio.sleep(10)
                self._changed.set()

    def get(self, uid: str) -> Allocation | None:
        """What the pod was granted."""
        return self._granted.get(uid)

    def grant(self, pod: Pod) -> None:
        """The pod gets what its spec asks for."""
        uid, granted = pod.metadata.uid, allocation_of(pod)
        if self._granted.get(uid) != granted:
            self._granted[uid] = granted
            self._changed.set()

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        if self._granted.pop(uid, None) is not None:
            self._changed.set()

    def keep_only(self, uids: Collection[str]) -> None:
        """Forgets every pod that is not among `uids`."""
        for uid in [uid for uid in self._granted if uid not in uids]:
            self.forget(uid)

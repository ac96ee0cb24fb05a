"""Removes what is left of pods on the node, beside the sync loop: mounts, cgroups, directories, containers.

What cannot be removed now is asked for again by housekeeping, which finds it still there; nothing is lost
when the agent is killed here.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, nullcontext

import trio

from trio_kubelet.api.errors import aggregate_errors
from trio_kubelet.common.each import ASIDE, LENT
from trio_kubelet.common.error_groups import leaves
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.places import Places
from trio_kubelet.podinfo.doors import RecorderDoor
from trio_kubelet.pods.doors import (
    CgroupsDoor,
    DirectoriesDoor,
    RuntimeDoor,
    SourcesDoor,
    StatusDoor,
    VolumesDoor,
)
from trio_kubelet.runtime.doors import GCPolicy, PodStates

log = get_logger(__name__)

GC_PERIOD = 60.0  # seconds
GC_GAP = 1.0  # seconds between two collections, however often one is asked for
STEP_DEADLINE = 120.0  # seconds for what is left of one pod
PARALLEL = 8
TOLD = 1000
"""So many failures are remembered, to tell of each once: housekeeping asks for what is left ever again."""


class Cleaner:
    """One task that removes things; whatever is asked for twice is done once."""

    def __init__(
        self,
        *,
        runtime: RuntimeDoor,
        cache: StatusDoor,
        volumes: VolumesDoor,
        cgroups: CgroupsDoor,
        directories: DirectoriesDoor,
        sources: SourcesDoor,
        policy: GCPolicy,
        recorder: RecorderDoor,
        span: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._runtime = runtime
        self._cache = cache
        self._volumes = volumes
        self._cgroups = cgroups
        self._directories = directories
        self._sources = sources
        self._policy = policy
        # The last one stays whatever the limit (kubelet: `minDeadContainerInPod`).
        self._keep = max(policy.max_per_pod_container, 1)
        self._recorder = recorder
        self._span = span
        self._gc_failed = False
        self._states: PodStates | None = None
        self._pods: dict[str, None] = {}
        self._cleaned: dict[str, trio.Event] = {}  # pods whose cleaning is asked for or under way
        self._prunes: dict[tuple[str, str], bool] = {}
        self._under_way: set[str] = set()
        self._told: dict[tuple[str, str], str] = {}  # of which pod, of what, and why it failed
        self._collect = trio.Event()
        self._wake = trio.Event()

    def clean(self, uid: str) -> None:
        """Nothing of this pod is needed any more."""
        self._pods[uid] = None
        self._cleaned.setdefault(uid, trio.Event())
        self._wake.set()

    async def settled(self, uid: str) -> bool:
        """Waits until nothing of an earlier life of the pod is being removed; whether that took waiting."""
        if (cleaned := self._cleaned.get(uid)) is None:
            return False
        await cleaned.wait()
        return True

    def prune(self, uid: str, container_id: str, remove_all: bool) -> None:
        """Older dead containers of that name are not needed any more, or none of the pod's."""
        self._prunes[uid, container_id] = remove_all
        self._wake.set()

    def collect_garbage(self) -> None:
        """Containers and sandboxes may have become superfluous."""
        self._collect.set()

    async def run(
        self, states: PodStates, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Cleans until cancelled; what hangs holds up only itself. `states`: the pod workers, who know what
        may go.
        """
        self._states = states
        limit = Places(PARALLEL, lent=LENT, aside=ASIDE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._collect_now_and_then)
            task_status.started()
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                self._begin(nursery, limit)

    def _begin(self, nursery: trio.Nursery, limit: Places) -> None:
        """Starts on everything asked for so far."""
        prunes, self._prunes = self._prunes, {}
        for (uid, container_id), remove_all in prunes.items():
            nursery.start_soon(self._prune, limit, uid, container_id, remove_all)
        for uid in [uid for uid in self._pods if uid not in self._under_way]:
            del self._pods[uid]
            self._under_way.add(uid)
            nursery.start_soon(self._clean, limit, uid)

    async def _collect_now_and_then(self) -> None:
        """Collects garbage each minute, and soon after pods have gone."""
        while True:
            with trio.move_on_after(GC_PERIOD):
                await self._collect.wait()
            self._collect = trio.Event()
            await self._gc()
            await trio.sleep(GC_GAP)

    async def _prune(self, limit: Places, uid: str, container_id: str, remove_all: bool) -> None:
        status = self._cache.get(uid)
        if status is None:
            return
        async with self._step(uid, "dead containers"), limit:
            await self._runtime.prune(status, container_id, remove_all, self._keep)

    async def _clean(self, limit: Places, uid: str) -> None:
        try:
            async with self._step(uid, "what is left of it"):
                if (status := self._cache.get(uid)) is not None:
                    async with limit:
                        await self._runtime.prune(status, "", True)
                await self._volumes.tear_down(uid)  # without a turn: one that hangs takes none from others
                async with limit:
                    await self._cgroups.remove(uid)
                await self._directories.remove(uid)
                self.collect_garbage()
        finally:
            self._under_way.discard(uid)
            if uid in self._pods:  # it was asked for again meanwhile
                self._wake.set()
            else:
                self._cleaned.pop(uid).set()

    async def delete_unused_containers(self) -> None:
        """Removes every container that is not needed, also of pods that are over and not deleted yet: for a
        disk that is full.
        """
        await self._gc(evict_non_deleted_pods=True)

    @contextlib.asynccontextmanager
    async def _step(self, uid: str, what: str) -> AsyncGenerator[None]:
        """Whatever goes wrong with one pod here stays with it; housekeeping asks again for what is left."""
        try:
            with trio.fail_after(STEP_DEADLINE):
                yield
        except trio.TooSlowError:
            say = self._say(uid, what, "hangs")
            say("Cleaning up after a pod hangs", podUID=uid, what=what, seconds=STEP_DEADLINE)
        except Exception as exc:
            say = self._say(uid, what, error_words(exc))
            say("Failed to clean up after a pod", podUID=uid, what=what, err=exc)
        else:
            self._told.pop((uid, what), None)

    def _say(self, uid: str, what: str, why: str) -> Callable[..., None]:
        """How to tell of a failure: quietly once it was told."""
        before = self._told.pop((uid, what), None)
        self._told[uid, what] = why
        if len(self._told) > TOLD:
            del self._told[next(iter(self._told))]
        return log.v(4 if before == why else 0).warning

    async def _gc(self, *, evict_non_deleted_pods: bool = False) -> None:
        if self._states is None:
            return
        try:
            with self._span("Containers/GarbageCollect"):
                await self._runtime.garbage_collect(
                    self._policy,
                    self._states,
                    all_sources_ready=self._sources.all_ready(),
                    evict_non_deleted_pods=evict_non_deleted_pods,
                )
        except* Exception as group:
            self._gc_failed = True
            log.error("Container garbage collection failed", err=group)
            self._recorder.record_node(
                "Warning", "ContainerGCFailed", aggregate_errors(map(error_words, leaves(group)))
            )
        else:
            log.v(1 if self._gc_failed else 4).info("Container garbage collection succeeded")
            self._gc_failed = False

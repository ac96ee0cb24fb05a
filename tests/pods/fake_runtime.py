"""A container runtime and a PLEG in memory, on Trio's clock, for the pods room's tests.

The runtime keeps a log of what ran when, from which tests read off that two pods never ran at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import trio

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.cri.errors import Unavailable
from trio_kubelet.native.types import ListedContainer, PodView, SandboxView
from trio_kubelet.observed.types import (
    ContainerState,
    ContainerStatus,
    PodLifecycleEvent,
    PodLifecycleEventType,
    PodStatus,
    RunningContainer,
    RunningPod,
    SandboxStatus,
)
from trio_kubelet.pleg.cache import StatusCache
from trio_kubelet.podinfo.restarts import should_start
from trio_kubelet.podinfo.updates import CONFIG_SOURCE_ANNOTATION
from trio_kubelet.runtime.doors import GCPolicy, PodStates, SyncContext
from trio_kubelet.runtime.results import PodSyncResult, Reason, SyncAction

EPOCH_NS = 1_700_000_000 * NANOSECONDS
RUNNING, EXITED = ContainerState.RUNNING, ContainerState.EXITED


@dataclass
class Container:
    """A container in the fake runtime."""

    id: str
    name: str
    sandbox: str
    state: ContainerState
    created: int
    started: int = 0
    finished: int = 0
    exit_code: int = 0
    restarts: int = 0


@dataclass
class RuntimePod:
    """A pod in the fake runtime."""

    uid: str
    name: str
    namespace: str
    source: str
    sandbox: str
    ready: bool = True
    created: int = 0
    containers: list[Container] = field(default_factory=list)


@dataclass(frozen=True)
class Happened:
    """Something the runtime did."""

    at: float
    what: str  # start, stop, kill-begin
    uid: str
    name: str
    grace: float | None = None


class FakeRuntime:
    """Starts in `start_takes` seconds, stops in `stop_takes` or the grace period, whichever is shorter."""

    def __init__(self, clock: TrioClock) -> None:
        self._clock = clock
        self.pods: dict[str, RuntimePod] = {}
        self.log: list[Happened] = []
        self.start_takes = 0.05
        self.stop_takes: dict[str, float] = {}  # by pod uid; default: at once
        self.gc_errors: list[str] = []
        self.sync_errors: dict[str, int] = {}  # so many failing syncs
        self.resize_errors: dict[str, str] = {}  # by pod uid: why no resize of it is made
        self.kill_errors: dict[str, int] = {}
        self.hang: set[str] = set()
        self.in_hook: dict[str, str] = {}  # by pod uid: its container whose postStart hook runs
        self.syncs = 0
        self.calls: list[str] = []
        self._number = 0

    # What a test does to it

    def add(self, uid: str, name: str, *, source: str = "file", namespace: str = "default") -> None:
        """A pod left running by an earlier agent."""
        now = self._clock.now_ns()
        pod = RuntimePod(uid, name, namespace, source, self._id("s"), created=now)
        pod.containers.append(Container(self._id("c"), "c", pod.sandbox, RUNNING, now, now))
        self.pods[uid] = pod
        self._happened("start", pod)

    def die(self, uid: str, exit_code: int = 1) -> None:
        """The newest container of the pod ends."""
        container = self.pods[uid].containers[-1]
        container.state, container.exit_code = EXITED, exit_code
        container.finished = self._clock.now_ns()

    def alive(self) -> set[str]:
        """UIDs of pods with a running container."""
        return {uid for uid, pod in self.pods.items() if any(c.state is RUNNING for c in pod.containers)}

    def starts(self, uid: str) -> list[float]:
        """When containers of the pod were started."""
        return [h.at for h in self.log if h.uid == uid and h.what == "start"]

    def stopped_at(self, uid: str) -> float:
        """When the pod last stopped."""
        return max(h.at for h in self.log if h.uid == uid and h.what == "stop")

    # The door

    async def get_pods(self, all: bool = False) -> list[RunningPod]:
        await trio.lowlevel.checkpoint()
        self.calls.append("get_pods")
        return [self._running(pod) for pod in self.pods.values() if all or self._is_up(pod)]

    async def get_pod_status(self, uid: str, name: str, namespace: str) -> PodStatus:
        await trio.lowlevel.checkpoint()
        return self.observe(uid) or PodStatus(uid=uid, name=name, namespace=namespace)

    async def sync_pod(self, pod: Pod, status: PodStatus, context: SyncContext) -> PodSyncResult:
        uid = pod.metadata.uid
        self.syncs += 1
        result = PodSyncResult()
        if uid in self.hang:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        if self.sync_errors.get(uid, 0) > 0:
            self.sync_errors[uid] -= 1
            result.add(SyncAction.CREATE_POD_SANDBOX, "p", Reason.CREATE_POD_SANDBOX_ERROR, "no network")
            return result
        if uid in self.resize_errors:
            error = self.resize_errors[uid]
            result.add(SyncAction.RESIZE_POD_IN_PLACE, "p", Reason.RESIZE_POD_IN_PLACE_ERROR, error)
            return result
        if context.resizing and status.running():
            result.add(SyncAction.RESIZE_POD_IN_PLACE, "p")
        kept = self.pods.get(uid)
        if context.restart_all_containers and kept is not None:
            for removed in kept.containers:
                result.add(SyncAction.REMOVE_CONTAINER, removed.name)
            kept.containers.clear()
            return result
        to_start = [c for c in pod.spec.containers or () if should_start(pod, c, status)]
        if not to_start:
            return result
        if kept is None or not kept.ready:
            source = (pod.metadata.annotations or {}).get(CONFIG_SOURCE_ANNOTATION, "")
            old = kept.containers if kept is not None else []
            now = self._clock.now_ns()
            kept = RuntimePod(
                uid, pod.metadata.name, pod.metadata.namespace, source, self._id("s"), True, now, old
            )
            self.pods[uid] = kept
            result.add(SyncAction.CREATE_POD_SANDBOX, "p")
            if context.on_sandbox_ready is not None:
                await context.on_sandbox_ready()
        for container in to_start:
            await self._start(kept, container.name, status, result)
        return result

    async def _start(self, pod: RuntimePod, name: str, status: PodStatus, result: PodSyncResult) -> None:
        dead = [c for c in pod.containers if c.name == name]
        last = dead[-1] if dead else None
        if last is not None and last.restarts and last.exit_code:
            retry = last.finished + 10 * NANOSECONDS * 2 ** (last.restarts - 1)
            if self._clock.now_ns() < retry:
                text = "back-off 10s restarting failed container"
                result.add(SyncAction.START_CONTAINER, name, Reason.CRASH_LOOP_BACK_OFF, text, retry)
                return
        await trio.sleep(self.start_takes)
        now = self._clock.now_ns()
        pod.containers.append(
            Container(
                self._id("c"), name, pod.sandbox, RUNNING, now, now, restarts=last.restarts + 1 if last else 0
            )
        )
        self._happened("start", pod)
        result.add(SyncAction.START_CONTAINER, name)

    async def kill_pod(
        self, pod: Pod | None, running: RunningPod | PodStatus, grace_override: float | None = None
    ) -> PodSyncResult:
        uid = running.uid
        result = PodSyncResult()
        await trio.lowlevel.checkpoint()
        if self.kill_errors.get(uid, 0) > 0:
            self.kill_errors[uid] -= 1
            result.add(SyncAction.KILL_CONTAINER, "c", Reason.KILL_CONTAINER_ERROR, "runtime is busy")
            return result
        kept = self.pods.get(uid)
        if kept is None:
            return result
        self._happened("kill-begin", kept, grace_override)
        if any(c.state is RUNNING for c in kept.containers):
            grace = 30.0 if grace_override is None else grace_override
            await trio.sleep(min(self.stop_takes.get(uid, 0.0), grace))
        now = self._clock.now_ns()
        for container in kept.containers:
            if container.state is RUNNING:
                container.state, container.finished, container.exit_code = EXITED, now, 137
        kept.ready = False
        self._happened("stop", kept)
        result.add(SyncAction.KILL_CONTAINER, "c")
        return result

    async def prune(
        self, status: PodStatus, exited_container_id: str, remove_all: bool, keep: int = 1
    ) -> None:
        await trio.lowlevel.checkpoint()
        self.calls.append(f"prune {status.uid} {remove_all}")
        pod = self.pods.get(status.uid)
        if pod is None:
            return
        dead = [c for c in pod.containers if c.state is EXITED]
        gone = dead if remove_all else dead[:-keep]
        pod.containers = [c for c in pod.containers if c not in gone]

    async def garbage_collect(
        self,
        policy: GCPolicy,
        states: PodStates,
        *,
        all_sources_ready: bool,
        evict_non_deleted_pods: bool = False,
    ) -> None:
        await trio.lowlevel.checkpoint()
        self.calls.append("gc")
        if self.gc_errors:
            raise ExceptionGroup("garbage collection", list(map(Unavailable, self.gc_errors)))
        for uid, pod in list(self.pods.items()):
            if all_sources_ready and states.should_content_be_removed(uid) and not self._is_up(pod):
                del self.pods[uid]

    def starting(self, uid: str) -> str:
        return self.in_hook.get(uid, "")

    def collect_back_offs(self) -> None:
        pass

    # Looking

    def observe(self, uid: str) -> PodStatus | None:
        """The status of one pod as a look finds it."""
        pod = self.pods.get(uid)
        if pod is None:
            return None
        sandbox = SandboxStatus(
            id=pod.sandbox,
            name=pod.name,
            namespace=pod.namespace,
            uid=uid,
            attempt=0,
            ready=pod.ready,
            created_at_ns=pod.created,
            ips=("10.0.0.7",) if pod.ready else (),
            annotations={CONFIG_SOURCE_ANNOTATION: pod.source} if pod.source else {},
        )
        containers = tuple(
            ContainerStatus(
                id=c.id,
                name=c.name,
                state=c.state,
                pod_sandbox_id=c.sandbox,
                created_at_ns=c.created,
                started_at_ns=c.started,
                finished_at_ns=c.finished,
                exit_code=c.exit_code,
                restart_count=c.restarts,
                reason="Error" if c.exit_code else "Completed" if c.state is EXITED else "",
                image="img",
            )
            for c in reversed(pod.containers)
        )
        return PodStatus(
            uid=uid,
            name=pod.name,
            namespace=pod.namespace,
            ips=sandbox.ips,
            containers=containers,
            sandboxes=(sandbox,),
            timestamp_ns=self._clock.now_ns(),
        )

    def view(self, uid: str) -> PodView | None:
        """The pod as a relist shows it."""
        pod = self.pods.get(uid)
        if pod is None:
            return None
        containers = tuple(
            ListedContainer(c.id, c.name, c.state, c.created, c.sandbox, "", "", "", "")
            for c in pod.containers
        )
        sandbox = SandboxView(pod.sandbox, RUNNING if pod.ready else EXITED, pod.created, 0)
        return PodView(uid, pod.name, pod.namespace, pod.created, containers, (sandbox,))

    def _running(self, pod: RuntimePod) -> RunningPod:
        containers = tuple(RunningContainer(id=c.id, name=c.name, state=c.state) for c in pod.containers)
        sandbox = RunningContainer(id=pod.sandbox, name="", state=RUNNING if pod.ready else EXITED)
        return RunningPod(
            uid=pod.uid,
            name=pod.name,
            namespace=pod.namespace,
            created_at_ns=pod.created,
            containers=containers,
            sandboxes=(sandbox,),
        )

    def _is_up(self, pod: RuntimePod) -> bool:
        return pod.ready or any(c.state is RUNNING for c in pod.containers)

    def _id(self, kind: str) -> str:
        self._number += 1
        return f"{kind}{self._number}"

    def _happened(self, what: str, pod: RuntimePod, grace: float | None = None) -> None:
        self.log.append(Happened(trio.current_time(), what, pod.uid, pod.name, grace))


class FakePleg:
    """Relists each second; a look at one pod is made when asked for."""

    def __init__(self, runtime: FakeRuntime, cache: StatusCache, capacity: int) -> None:
        self._runtime = runtime
        self._cache = cache
        self._send, self._receive = trio.open_memory_channel[PodLifecycleEvent](capacity)
        self._known: dict[str, dict[str, ContainerState]] = {}
        self._listed: dict[str, PodView] = {}
        self._waiting: list[PodLifecycleEvent] = []
        self._something = trio.Event()
        self.paused = False

    def watch(self) -> trio.MemoryReceiveChannel[PodLifecycleEvent]:
        return self._receive

    def pod(self, uid: str) -> PodView | None:
        return self._listed.get(uid)

    def namesakes(self, name: str, namespace: str) -> list[str]:
        known = self._listed.items()
        return [uid for uid, view in known if (view.name, view.namespace) == (name, namespace)]

    def pods(self) -> Iterator[str]:
        return iter(tuple(self._listed))

    def is_look_coming(self, uid: str, since: float) -> bool:
        return False

    def at_work(self, uid: str) -> AbstractContextManager[None]:
        return nullcontext()

    async def update_one(self, uid: str, *, inspect: bool = False) -> None:
        await trio.sleep(0.005)  # a look takes time, and only a later one counts as newer
        self._look(uid)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deliver)
            self.relist()
            task_status.started()
            while True:
                await trio.sleep(1)
                if not self.paused:
                    self.relist()

    def relist(self) -> None:
        for uid in {*self._known, *self._runtime.pods}:
            self._look(uid)
        self._cache.update_time(trio.current_time())

    def _look(self, uid: str) -> None:
        view, status = self._runtime.view(uid), self._runtime.observe(uid)
        now = trio.current_time()
        if view is None or status is None:
            self._cache.delete(uid, now)
            self._listed.pop(uid, None)
        else:
            self._cache.set(uid, status, now)
            self._listed[uid] = view
        states = {c.id: c.state for c in view.containers} if view is not None else {}
        for cid in {**self._known.get(uid, {}), **states}:
            before, after = self._known.get(uid, {}).get(cid), states.get(cid)
            if before is after:
                continue
            if after is RUNNING:
                self._put(uid, PodLifecycleEventType.CONTAINER_STARTED, cid)
            elif after is EXITED:
                self._put(uid, PodLifecycleEventType.CONTAINER_DIED, cid)
            else:
                self._put(uid, PodLifecycleEventType.CONTAINER_REMOVED, cid)
        self._known[uid] = states

    async def tell(self, *events: PodLifecycleEvent) -> None:
        """Delivers events of the test's own, all in one turn."""
        for event in events:
            self._send.send_nowait(event)
        await trio.lowlevel.checkpoint()

    def waiting(self) -> int:
        """Events that were not delivered yet."""
        return len(self._waiting)

    def _put(self, uid: str, kind: PodLifecycleEventType, cid: str) -> None:
        self._waiting.append(PodLifecycleEvent(uid, kind, cid))
        self._something.set()

    async def _deliver(self) -> None:
        while True:
            await self._something.wait()
            self._something = trio.Event()
            while self._waiting:
                await self._send.send(self._waiting.pop(0))

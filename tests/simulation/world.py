"""A node's life in memory: the agent's own tasks over a simulated runtime, Trio's mock clock, and a seed.

Nothing here waits for a socket or a thread, and everything random comes from the seed, Trio's choice of the
next task included, so that a failing seed replays. The agent can be killed at any moment and started again;
the runtime, what sources want and what the node keeps on disk live on.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec
import trio
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from tests.pods.admit_all import AdmitAll
from trio_kubelet.api import v1
from trio_kubelet.api.containers import ends, regular_containers
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.cri import deadlines
from trio_kubelet.cri.errors import Unavailable
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import ImageService, RuntimeService
from trio_kubelet.node.runtime_health import RuntimeHealth
from trio_kubelet.node_agent import AgentSettings, NodeAgent
from trio_kubelet.observed.types import ContainerState, PodLifecycleEvent, PodLifecycleEventType
from trio_kubelet.podinfo.context import ContainerInputs, NodeContext
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.recorder import EventRecorder
from trio_kubelet.podinfo.updates import CONFIG_HASH_ANNOTATION, FILE_SOURCE, PodOperation, PodUpdate
from trio_kubelet.pods.doors import CgroupError, NothingPlugged
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.runtime.configs.container import container_config
from trio_kubelet.runtime.configs.resources import container_resources
from trio_kubelet.runtime.configs.sandbox import sandbox_config
from trio_kubelet.runtime.doors import ContainerRequest
from trio_kubelet.runtime.pod_runtime import RuntimeSettings
from trio_kubelet.sim.behaviour import ExecOutcome
from trio_kubelet.sim.door import SimCaller
from trio_kubelet.sim.faults import Faults
from trio_kubelet.sim.records import Container
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.service import SimService
from trio_kubelet.sources.podconfig import PodConfig
from trio_kubelet.volumes.errors import VolumeError

Task: TypeAlias = Callable[[], Awaitable[None]]

EPOCH_NS = 1_700_000_000 * NANOSECONDS
IMAGE = "localhost/busybox:1"
NODE = "node"

SLOWLY = "slowly"
STARTING = 3.0  # seconds in which a container with a startup probe fails all its probes
PROBES = {
    "startup": v1.Probe(period_seconds=1, timeout_seconds=1, success_threshold=1, failure_threshold=30),
    "liveness": v1.Probe(period_seconds=5, timeout_seconds=1, success_threshold=1, failure_threshold=2),
    "readiness": v1.Probe(period_seconds=4, timeout_seconds=1, success_threshold=1, failure_threshold=1),
}
for _name, _probe in PROBES.items():
    _probe.exec = v1.ExecAction(command=["probe", _name])

HOOK_TAKES = 1.0  # seconds
HOOKS = v1.Lifecycle(
    post_start=v1.LifecycleHandler(exec=v1.ExecAction(command=["hook", "postStart"])),
    pre_stop=v1.LifecycleHandler(exec=v1.ExecAction(command=["hook", "preStop"])),
)


class WallClock(TrioClock):
    """One that is set now and then."""

    def __init__(self, epoch_ns: int) -> None:
        super().__init__(epoch_ns)
        self.ahead_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.ahead_ns


class Hook(NamedTuple):
    """A hook that was run."""

    container: str  # its id
    kind: str
    agent: int
    at: float


class CutOff(SimCaller):
    """The calls of one agent. Those of a killed one, whose tasks unwind, do not reach the runtime."""

    def __init__(self, service: SimService, called: Callable[[str], None]) -> None:
        super().__init__(service, lambda method, seconds, code: called(method))
        self.killed = False

    async def raw(self, method: str, request: Message, timeout: float) -> Sequence[bytes]:
        if self.killed:
            await trio.lowlevel.checkpoint()
            raise Unavailable("killed", method)
        return await super().raw(method, request, timeout)


class MemoryConfigs:
    """The agent's own configs, without the files that stand behind them on a real node."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node

    async def sandbox_config(self, pod: v1.Pod, attempt: int) -> cri.PodSandboxConfig:
        return sandbox_config(pod, self._node, attempt)

    def remind(self, pod: v1.Pod) -> None:
        """Nothing is left out."""

    def runtime_handler(self, pod: v1.Pod) -> str:
        return ""

    async def container_config(
        self, pod: v1.Pod, container: v1.Container, request: ContainerRequest
    ) -> cri.ContainerConfig:
        logs = os.path.join(sandbox_config(pod, self._node, 0).log_directory, container.name)
        os.makedirs(logs, exist_ok=True)
        inputs = ContainerInputs(image_ref=request.image_ref, restart_count=request.restart_count or 0)
        return container_config(pod, container, self._node, inputs)

    def container_resources(self, pod: v1.Pod, container: v1.Container) -> cri.LinuxContainerResources:
        return container_resources(pod, container, self._node)


class MemoryKeep:
    """What a node keeps of its pods, as a set of UIDs: stands for volumes, cgroups and directories.

    On a bad day of the runtime its disks and drivers have one, too: `error` is what is raised then.
    """

    def __init__(self, node: Node, error: type[Exception]) -> None:
        self.kept: set[str] = set()
        self.robbed: list[str] = []  # pods that lost it while a container of theirs ran
        self._node = node
        self._error = error

    async def set_up(self, pod: v1.Pod) -> None:
        self.kept.add(pod.metadata.uid)
        await self._takes_a_while()

    make = set_up

    async def renew(self, pod: v1.Pod) -> None:
        await self._takes_a_while()

    async def ensure(self, pod: v1.Pod, *, running: Collection[str] = (), new: bool = False) -> bool:
        if running and pod.metadata.uid not in self.kept:
            await trio.lowlevel.checkpoint()
            return False
        await self.set_up(pod)
        return True

    async def remove(self, uid: str) -> None:
        if any(self._node.uid_of(container) == uid for container in self._node.running_containers()):
            self.robbed.append(uid)
        await self._takes_a_while()
        self.kept.discard(uid)

    tear_down = remove

    async def pods(self) -> Collection[str]:
        await trio.lowlevel.checkpoint()
        return tuple(self.kept)

    async def update_classes(self, pods: Iterable[v1.Pod], *, all_known: bool = True) -> None:
        await trio.lowlevel.checkpoint()

    async def _takes_a_while(self) -> None:
        random = self._node.random
        await trio.lowlevel.checkpoint()
        if self._node.service.faults.script and random.random() < 0.1:
            await trio.sleep(random.choice((0.1, 1, 10, 150)))
            if random.random() < 0.5:
                raise self._error("a bad day")


class MemoryClaims(NothingPlugged):
    """What pods claim of drivers, which find out by themselves what is left of those without a worker."""

    def __init__(self, node: Node) -> None:
        self._keep = MemoryKeep(node, ConfigError)
        self.robbed = self._keep.robbed

    async def prepare(self, pod: v1.Pod) -> None:
        await self._keep.set_up(pod)

    async def unprepare(self, pod: v1.Pod) -> None:
        await self._keep.remove(pod.metadata.uid)


class Node:
    """The runtime, the desired pods, and one agent at a time."""

    def __init__(self, seed: int, base: Path) -> None:
        self.random = random.Random(seed)
        self.clock = WallClock(EPOCH_NS)
        self.service = SimService(
            SimRuntime(seed, preload=(IMAGE,)),
            self.clock,
            faults=Faults(seed=seed),
            exec_script=self._executed,
            write_logs=True,
        )
        self.hooks: list[Hook] = []
        self.ill: set[str] = set()  # containers whose liveness probe fails
        self.on_call: Callable[[str], None] = lambda method: None  # each answered CRI call
        self.on_story: Callable[[], None] = lambda: None  # each decision about a pod
        self.context = NodeContext(
            node_name=NODE, root_dir=str(base / "root"), pod_logs_dir=str(base / "pods")
        )
        self.logs = RuntimeSettings(
            pod_logs_dir=str(base / "pods"), container_logs_dir=str(base / "containers")
        )
        (base / "containers").mkdir(exist_ok=True)
        self.volumes, self.cgroups = MemoryKeep(self, VolumeError), MemoryKeep(self, CgroupError)
        self.directories, self.claims = MemoryKeep(self, OSError), MemoryClaims(self)
        self.desired: dict[str, v1.Pod] = {}  # by name
        self.versions = 0
        self.agent: NodeAgent | None = None
        self.agent_starts = 0
        self.heard: dict[tuple[PodLifecycleEventType, str], float] = {}  # by the present agent: what, when
        self._sources: PodConfig | None = None
        self._scope: trio.CancelScope | None = None
        self._caller: CutOff | None = None

    @property
    def runtime(self) -> SimRuntime:
        return self.service.runtime

    # What is desired

    def want(
        self,
        name: str,
        containers: int,
        *,
        grace: int = 2,
        probes: Collection[str] = (),
        before: Sequence[str] = (),
        hooks: bool = False,
        term_seconds: float = 0.0,
    ) -> v1.Pod:
        """A static pod of that name is desired from the next `publish` on, as a new version.

        Its containers run until they are ended, for which they take `term_seconds`. `probes`: names in
        `PROBES` that they have; `before`: what runs before them, "init" or "sidecar"; `hooks`: whether they
        have `HOOKS`.
        """
        self.versions += 1
        uid = f"{name}-v{self.versions}"
        spec = v1.PodSpec(
            node_name=NODE,
            restart_policy="Always",
            enable_service_links=True,
            security_context=v1.PodSecurityContext(),
            termination_grace_period_seconds=grace,
            init_containers=[
                v1.Container(
                    name=f"{kind}{number}",
                    image=IMAGE,
                    image_pull_policy="IfNotPresent",
                    command=["serve"] if kind == "sidecar" else ["sleep", "2"],
                    termination_message_path="/dev/termination-log",
                    restart_policy="Always" if kind == "sidecar" else None,
                )
                for number, kind in enumerate(before)
            ],
            containers=[
                v1.Container(
                    name=f"c{number}",
                    image=IMAGE,
                    image_pull_policy="IfNotPresent",
                    command=["serve", SLOWLY] if "startup" in probes else ["serve"],
                    termination_message_path="/dev/termination-log",
                    lifecycle=HOOKS if hooks else None,
                    startup_probe=PROBES["startup"] if "startup" in probes else None,
                    liveness_probe=PROBES["liveness"] if "liveness" in probes else None,
                    readiness_probe=PROBES["readiness"] if "readiness" in probes else None,
                )
                for number in range(containers)
            ],
        )
        metadata = v1.ObjectMeta(
            name=f"{name}-{NODE}",
            namespace="default",
            uid=uid,
            annotations={CONFIG_HASH_ANNOTATION: uid, "sim/term-seconds": str(term_seconds)},
        )
        self.desired[name] = v1.Pod(metadata=metadata, spec=spec, status=v1.PodStatus(phase="Pending"))
        return self.desired[name]

    def _executed(self, container: Container, command: Sequence[str]) -> ExecOutcome:
        """What a probe of that container finds, or how long its hook takes."""
        if command[0] == "hook":
            self.hooks.append(Hook(container.id, command[1], self.agent_starts, trio.current_time()))
            return ExecOutcome(seconds=HOOK_TAKES)
        age = (self.clock.now_ns() - container.started_ns) / NANOSECONDS
        starting = SLOWLY in container.config.command and 0 <= age < STARTING
        failed = starting or (command[-1] == "liveness" and container.id in self.ill)
        return ExecOutcome(exit_code=1 if failed else 0)

    async def publish(self) -> None:
        """The source says what is desired."""
        if self._sources is not None:
            update = PodUpdate(PodOperation.SET, FILE_SOURCE, tuple(self.desired.values()))
            await self._sources.channel(FILE_SOURCE).send(update)

    # The agent

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.service.run)
            yield nursery
            nursery.cancel_scope.cancel()

    async def start_agent(self, nursery: trio.Nursery) -> None:
        """A new agent process: nothing of the last one's memory is left."""
        self.agent_starts += 1
        await nursery.start(self._run_agent)
        await self.publish()

    def kill_agent(self) -> None:
        """kill -9."""
        if self._scope is not None and self._caller is not None:
            self._caller.killed = True
            self._scope.cancel()
        self._scope = self._caller = self._sources = self.agent = None

    async def _run_agent(self, task_status: trio.TaskStatus[None]) -> None:
        caller = CutOff(self.service, lambda method: self.on_call(method))
        runtime = RuntimeService(caller, deadlines.DEFAULT_REQUEST_TIMEOUT)
        images = ImageService(caller, deadlines.DEFAULT_REQUEST_TIMEOUT)
        recorder = EventRecorder(self.clock)
        sources = PodConfig(recorder=recorder, clock=self.clock)
        sources.channel(FILE_SOURCE)
        compose = partial(
            NodeAgent,
            pods=PodManager(),
            runtime=runtime,
            images=images,
            health=RuntimeHealth(runtime),
            configs=MemoryConfigs(self.context),
            volumes=self.volumes,
            cgroups=self.cgroups,
            directories=self.directories,
            plugged=self.claims,
            sources=sources,
            admitter=AdmitAll(),
            recorder=recorder,
            clock=self.clock,
            registry=CollectorRegistry(),
            settings=AgentSettings(runtime=self.logs),
        )
        agent, beside = self.join(compose, sources)
        with trio.CancelScope() as scope:
            self._scope, self._caller, self._sources, self.agent = scope, caller, sources, agent
            self._listen_to_story(agent)
            self._listen_to_events(agent)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sources.run)
                for task in beside:
                    nursery.start_soon(task)
                nursery.start_soon(agent.follow_events)
                task_status.started()
                await agent.run(sources.updates())

    def join(self, compose: Callable[..., NodeAgent], sources: PodConfig) -> tuple[NodeAgent, Sequence[Task]]:
        """The agent, composed with further doors if need be, and the tasks that run beside it."""
        return compose(), ()

    def exclusive(self, name: str) -> bool:
        """Whether at most one version of the pod of that name may run at a time."""
        return True

    def _listen_to_story(self, agent: NodeAgent) -> None:
        note = agent.room.story.note

        def noted(uid: str, at_ns: int, cause: str, text: str) -> None:
            note(uid, at_ns, cause, text)
            self.on_story()

        agent.room.story.note = noted  # type: ignore[method-assign]

    def _listen_to_events(self, agent: NodeAgent) -> None:
        """Notes what the PLEG tells the sync loop, at the moment at which the loop hears of it."""
        heard: dict[tuple[PodLifecycleEventType, str], float] = {}
        self.heard = heard
        handle = agent.room.loop._handle_events

        async def handled(events: list[PodLifecycleEvent]) -> None:
            for event in events:
                heard.setdefault((event.type, event.data), trio.current_time())
            await handle(events)

        agent.room.loop._handle_events = handled  # type: ignore[method-assign]

    # What is observed

    def running_containers(self) -> list[Container]:
        return [c for c in self.runtime.containers.values() if c.state == cri.CONTAINER_RUNNING]

    def uid_of(self, container: Container) -> str:
        return container.config.labels["io.kubernetes.pod.uid"]

    def may_end(self, container: Container) -> bool:
        """Whether a container of a wanted pod may be ended, or end by itself."""
        return False

    def has_liveness(self, container: Container) -> bool:
        """Whether it is a container of a wanted pod that has a liveness probe."""
        pod = self.desired_by_uid().get(self.uid_of(container))
        name = container.config.metadata.name
        return pod is not None and any(
            c.name == name and c.liveness_probe is not None for c in pod.spec.containers or ()
        )

    def desired_by_uid(self) -> dict[str, v1.Pod]:
        return {pod.metadata.uid: pod for pod in self.desired.values()}

    def unmet(self) -> list[str]:
        """How what runs differs from what is desired; empty when all is as it should be."""
        wanted = {
            (uid, c.name)
            for uid, pod in self.desired_by_uid().items()
            for c in regular_containers(pod.spec)
            if not ends(pod.spec, c)
        }
        have = [(self.uid_of(c), c.config.metadata.name) for c in self.running_containers()]
        ready = {
            s.config.metadata.uid for s in self.runtime.sandboxes.values() if s.state == cri.SANDBOX_READY
        }
        problems = [f"not running: {key}" for key in wanted - set(have)]
        problems += [f"should not run: {key}" for key in set(have) - wanted]
        problems += [f"ill and still runs: {c.id}" for c in self.running_containers() if c.id in self.ill]
        problems += [f"sandbox should not be: {uid}" for uid in ready - self.desired_by_uid().keys()]
        for name, keep in (("volumes", self.volumes), ("cgroups", self.cgroups), ("dirs", self.directories)):
            problems += [f"left of {uid}: {name}" for uid in keep.kept - self.desired_by_uid().keys()]
        return problems

    def forbidden(self) -> list[str]:
        """What must never have happened."""
        keeps = (self.volumes, self.cgroups, self.directories, self.claims)
        problems = [f"taken from {uid} while it ran" for keep in keeps for uid in keep.robbed]
        ended: dict[tuple[str, str, int], float] = {}
        for hook in self.hooks:
            # One before the end that was broken off is run again, also by the next agent.
            before_end = hook.kind == "preStop"
            key = (hook.container, hook.kind, hook.agent if before_end else 0)
            if hook.at >= ended.get(key, math.inf):
                problems.append(f"hook is run again: {hook}")
            ended[key] = hook.at + (HOOK_TAKES if before_end else 0.0)
        return problems

    def told(self) -> list[str]:
        """How the agent's statuses, and what it knows of the runtime, differ from what runs."""
        if self.agent is None:
            return ["no agent"]
        statuses = {pod.metadata.uid: pod.status for pod in self.agent.room.pods_with_status()}
        problems = [f"no status: {uid}" for uid in self.desired_by_uid().keys() - statuses.keys()]
        for uid, status in statuses.items():
            states = {
                c.name: c.state.running is not None and c.ready for c in status.container_statuses or ()
            }
            if status.phase != "Running" or not all(states.values()):
                problems.append(f"{uid}: {status.phase} {msgspec.json.encode(states)!r}")
        cache = self.agent.cache
        known = {
            (uid, c.id, c.state is ContainerState.RUNNING)
            for uid in cache.uids()
            if (seen := cache.get(uid)) is not None
            for c in seen.containers
        }
        true = {
            (self.uid_of(c), c.id, c.state == cri.CONTAINER_RUNNING) for c in self.runtime.containers.values()
        }
        return problems + [f"known wrongly: {each}" for each in known ^ true]

    def unheard(self) -> list[str]:
        """What is so in the runtime and nobody told this agent's sync loop; no look puts that right."""
        kinds = {
            cri.CONTAINER_RUNNING: PodLifecycleEventType.CONTAINER_STARTED,
            cri.CONTAINER_EXITED: PodLifecycleEventType.CONTAINER_DIED,
        }
        return [
            f"not heard: {kind.value} {container.id}"
            for container in self.runtime.containers.values()
            if (kind := kinds.get(container.state)) is not None and (kind, container.id) not in self.heard
        ]

    def unwell(self) -> list[str]:
        """Why the agent is not healthy."""
        agent = self.agent
        if agent is None:
            return ["no agent"]
        checks = (agent.health.runtime_error(), agent.pleg.healthy(), agent.room.loop.healthy())
        return [error for error in checks if error]

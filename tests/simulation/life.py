"""Random lives of a node: what may happen to one, and what must never.

Checked at every change of a container: no container of a pod runs twice at once, no two versions of a static
pod run together, no container that should run is ended by the agent, and none starts before those have ended
that go before it, or without what its pod is to have. Checked after each quiet time: what runs is what is
desired, nothing is left of what is not, statuses say so, the sync loop has heard of every start and end of
what is there, no hook was run twice, and the agent is healthy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import trio

from tests.simulation.world import IMAGE, PROBES, Node
from trio_kubelet.api import v1
from trio_kubelet.api.containers import ends
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim.faults import EVENTS, Fault, Kind, random_script
from trio_kubelet.sim.records import Container

QUIET = 420.0  # the longest back-off, a resync, and some time to act


class Watcher:
    """Watches the runtime for what must never happen."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.violations: list[str] = []
        self.excused: set[str] = set()  # containers the world itself has ended, or made ill
        self.evicted: set[str] = set()  # pods that the node was told to end
        self._ended_well: set[tuple[str, str]] = set()  # sandbox and name of containers
        self._disturbed: set[str] = set()  # sandboxes of which somebody else has removed a container
        self.attach()

    def attach(self) -> None:
        """Watches the runtime's present state; a runtime that lost its state has nothing of the old one."""
        self._node.runtime.listeners.append(self._event)
        self._node.runtime.on_end.append(self._ended)

    def excuse_all_of(self, uid: str) -> None:
        """The containers that the pod has now may end."""
        containers = self._node.runtime.containers.values()
        self.excused.update(c.id for c in containers if self._node.uid_of(c) == uid)

    def excuse_removal(self, container: Container) -> None:
        """Somebody else removes it."""
        self.excused.add(container.id)
        self._disturbed.add(container.sandbox_id)

    def _event(self, event: Callable[[], cri.ContainerEventResponse]) -> None:
        happened = event()
        container = self._node.runtime.containers.get(happened.container_id)
        if happened.container_event_type == cri.CONTAINER_STARTED_EVENT and container is not None:
            self._started(container)
        running = self._node.running_containers()
        twice = Counter((self._node.uid_of(c), c.config.metadata.name) for c in running)
        for key, number in twice.items():
            if number > 1:
                self._violated(f"{key} runs {number} times")
        versions: dict[str, set[str]] = {}
        for container in running:
            name = container.config.labels["io.kubernetes.pod.name"]
            versions.setdefault(name, set()).add(self._node.uid_of(container))
        for name, uids in versions.items():
            if len(uids) > 1 and self._node.exclusive(name):
                self._violated(f"{name} runs in versions {sorted(uids)}")

    def _started(self, container: Container) -> None:
        """What has to be there before a container starts."""
        uid, name = self._node.uid_of(container), container.config.metadata.name
        pod = self._node.desired_by_uid().get(uid)
        if pod is None:
            return
        keeps = (self._node.volumes, self._node.cgroups, self._node.directories)
        if not all(uid in keep.kept for keep in keeps):
            self._violated(f"{name} of {uid} starts without what its pod is to have")
        if container.sandbox_id not in self._disturbed:
            self._follows(container, pod)

    def _follows(self, container: Container, pod: v1.Pod) -> None:
        """Init containers end before those that come after them begin, and are not begun again."""
        name, init = container.config.metadata.name, pod.spec.init_containers or ()
        before = [c.name for c in init]
        if name in before:
            if (container.sandbox_id, name) in self._ended_well:
                self._violated(f"{name} of {pod.metadata.uid} has ended well and starts again")
            before = before[: before.index(name)]
        elif not any(c.name == name for c in pod.spec.containers or ()):
            return  # an ephemeral one waits for nobody
        for each in init:
            first = each.name in before and ends(pod.spec, each)
            if first and (container.sandbox_id, each.name) not in self._ended_well:
                self._violated(f"{name} of {pod.metadata.uid} starts before {each.name} has ended")

    def _ended(self, container: Container) -> None:
        """A container that ended though it is wanted, its sandbox is well and nobody else killed it."""
        uid, name = self._node.uid_of(container), container.config.metadata.name
        sandbox, pod = container.sandbox_id, self._node.desired_by_uid().get(uid)
        if container.exit_code == 0:
            self._ended_well.add((sandbox, name))
        if pod is None or uid in self.evicted or container.id in self.excused:
            return
        is_well = sandbox in self._node.runtime.sandboxes and self._node.runtime.sandboxes[sandbox].ready
        if is_well and not (has_done(container, pod) or self._node.may_end(container)):
            self._violated(f"container {name} of {uid} was ended")

    def _violated(self, what: str) -> None:
        self.violations.append(f"{trio.current_time():.3f}: {what}")


def has_done(container: Container, pod: v1.Pod) -> bool:
    """Whether it is an init container of the pod that has ended well."""
    name = container.config.metadata.name
    init = any(c.name == name and ends(pod.spec, c) for c in pod.spec.init_containers or ())
    return init and container.exit_code == 0


def bad_day(seed: int) -> list[Fault]:
    """Faults of the runtime; probes that cannot be run among them, which must not end anything, an open
    stream without events, and starts and stops that take longer than anybody waits. No pull hangs for ever:
    it is waited for as long.
    """
    return [
        *(fault for fault in random_script(seed) if fault.method != "PullImage" or fault.kind != Kind.HANG),
        Fault(Kind.FAIL, "ExecSync", 0.2, code="UNAVAILABLE"),
        Fault(Kind.DROP, EVENTS),
        Fault(Kind.SLOW, "St*Container", 0.1, seconds=300),
        Fault(Kind.SLOW, "PullImage", 0.5, seconds=40),
        Fault(Kind.FAIL, "PullImage", 0.5),
    ]


class Life:
    """One random life. `faults`: whether the runtime has bad days besides what happens to pods."""

    def __init__(
        self, seed: int, base: Path, *, seconds: float, faults: bool, node: Node | None = None
    ) -> None:
        self._seconds = seconds
        self.node = node or Node(seed, base)
        self.random = self.node.random
        self.watcher = Watcher(self.node)
        self._faults = bad_day(seed) if faults else []
        self.nursery: trio.Nursery | None = None
        self.happenings: list[tuple[float, Callable[[], Coroutine[Any, Any, None]]]] = [
            (4, self._add),
            (2, self._edit),
            (2, self._remove),
            (4, self._container_dies),
            (2, self._container_falls_ill),
            (1, self._sandbox_dies),
            (1, self._agent_dies),
            (0.5, self._runtime_restarts),
            (0.5, self._events_end),
            (1, self._container_is_removed),
            (1, self._sandbox_is_removed),
            (1, self._pod_is_evicted),
            (0.5, self._clock_is_set),
            (0.5, self._image_is_removed),
        ]

    async def run(self) -> None:
        """Busy times and quiet times in turn, for so many simulated seconds."""
        node = self.node
        weights = [weight for weight, _ in self.happenings]
        async with node.running() as nursery:
            self.nursery = nursery
            await node.start_agent(nursery)
            while trio.current_time() < self._seconds:
                node.service.faults.add(*(f for f in self._faults if self.random.random() < 0.3))
                until = trio.current_time() + self.random.uniform(30, 200)
                while trio.current_time() < until:
                    await trio.sleep(self.random.expovariate(1 / 5))
                    _, happening = self.random.choices(self.happenings, weights)[0]
                    await happening()
                await self._quiet()

    # What may happen

    async def _add(self) -> None:
        if len(self.node.desired) < 12:
            name = f"p{self.random.randrange(20)}"
            if name not in self.node.desired:
                self._want(name)
                await self.node.publish()

    async def _edit(self) -> None:
        if self.node.desired:
            name = self.random.choice(sorted(self.node.desired))
            for _ in range(self.random.choice((1, 1, 3))):
                self._want(name)
                await self.node.publish()

    def _want(self, name: str) -> None:
        probes = [probe for probe in PROBES if self.random.random() < 0.3]
        before = [kind for kind in ("sidecar", "init", "sidecar") if self.random.random() < 0.2]
        self.node.want(
            name,
            self.random.randint(1, 3),
            grace=self.random.choice((0, 2, 30)),
            probes=probes,
            before=before,
            hooks=not self._faults and self.random.random() < 0.3,  # one that fails ends its container
            term_seconds=self.random.choice((0.0, 0.0, 1.5, 60.0)),
        )

    async def _remove(self) -> None:
        if self.node.desired:
            name = self.random.choice(sorted(self.node.desired))
            pod = self.node.desired.pop(name)
            await self.node.publish()
            if self.random.random() < 0.5:  # and put back, the very same one
                await trio.sleep(self.random.uniform(0, 3))
                if name not in self.node.desired:
                    self.watcher.excuse_all_of(pod.metadata.uid)  # they are of the life that has to end
                    self.node.desired[name] = pod
                    await self.node.publish()

    async def _container_dies(self) -> None:
        if running := self.node.running_containers():
            container = self.random.choice(sorted(running, key=lambda c: c.id))
            self.watcher.excused.add(container.id)
            self.node.runtime.kill(container.id, self.node.service.now_ns())

    async def _container_falls_ill(self) -> None:
        """Its liveness probe fails from now on."""
        probed = sorted(c.id for c in self.node.running_containers() if self.node.has_liveness(c))
        if probed:
            ill = self.random.choice(probed)
            self.watcher.excused.add(ill)
            self.node.ill.add(ill)

    async def _sandbox_dies(self) -> None:
        ready = [s for s in self.node.runtime.sandboxes.values() if s.state == cri.SANDBOX_READY]
        if ready:
            sandbox = self.random.choice(sorted(ready, key=lambda s: s.id))
            self.watcher.excused.update(sandbox.container_ids)
            self.node.runtime.sandbox_dies(sandbox, self.node.service.now_ns())

    async def _container_is_removed(self) -> None:
        """By somebody else, at the runtime."""
        if containers := sorted(self.node.runtime.containers):
            container = self.node.runtime.containers[self.random.choice(containers)]
            self.watcher.excuse_removal(container)
            self.node.runtime.remove_container(container.id, self.node.service.now_ns())

    async def _sandbox_is_removed(self) -> None:
        """With all that is in it."""
        if sandboxes := sorted(self.node.runtime.sandboxes):
            sandbox = self.node.runtime.sandboxes[self.random.choice(sandboxes)]
            self.watcher.excused.update(sandbox.container_ids)
            self.node.runtime.remove_sandbox(sandbox.id, self.node.service.now_ns())

    async def _pod_is_evicted(self) -> None:
        """Or ended for a shutdown that is called off. Its source replaces it sooner or later."""
        victims = self.node.agent.room.victims if self.node.agent is not None else None
        if victims is None or not (candidates := victims.candidates()):
            return
        pod = self.random.choice(sorted(candidates, key=lambda pod: pod.metadata.uid))
        uid, grace = pod.metadata.uid, self.random.choice((0, 1, 5))
        self.watcher.evicted.add(uid)
        if self.random.random() < 0.5:
            victims.evict(pod, grace=grace, message="", disruption=True, annotations={}, why="")
        else:
            victims.shut_down(pod, grace=grace, reason="Terminated", message="")
        await trio.sleep(self.random.choice((0, 1, 20)))
        for name, desired in tuple(self.node.desired.items()):
            if desired.metadata.uid == uid:
                self._want(name)
                await self.node.publish()

    async def _clock_is_set(self) -> None:
        by_ns = self.random.choice((-4000, -60, -1, 1, 60, 4000)) * NANOSECONDS
        self.node.clock.ahead_ns += by_ns
        self.node.runtime.clock_was_set(by_ns)

    async def _image_is_removed(self) -> None:
        if self.node.runtime.images.find(IMAGE) is not None:
            self.node.runtime.images.remove(IMAGE)

    async def _agent_dies(self) -> None:
        self.node.kill_agent()
        await trio.sleep(self.random.choice((0, 0.1, 5, 60)))
        for _ in range(self.random.choice((0, 0, 1, 3))):  # what it finds when it comes back
            await self.random.choice((self._add, self._edit, self._remove, self._container_dies))()
        assert self.nursery is not None
        await self.node.start_agent(self.nursery)

    async def _runtime_restarts(self) -> None:
        """Mostly its containers live on; sometimes, as after a machine's crash, nothing is left."""
        lose = self.random.random() < 0.2
        await self.node.service.restart(self.random.uniform(0.1, 40), lose_state=lose)
        if lose:
            self.watcher.attach()

    async def _events_end(self) -> None:
        self.node.service.events.end(None)

    # What must come of it

    def calm(self) -> None:
        """No fault is left."""
        self.node.service.faults.clear()

    def problems(self) -> list[str]:
        """What is not as it should be."""
        return self.node.unmet() + self.node.told() + self.node.unheard() + self.node.unwell()

    async def _quiet(self) -> None:
        """Faults end; after a while everything is as it should be, and stays so."""
        self.calm()
        deadline = trio.current_time() + QUIET
        problems = ["not looked at yet"]
        while problems and trio.current_time() < deadline:
            await trio.sleep(1)
            problems = self.problems()
        assert not problems, f"at {trio.current_time():.0f}: {problems}"
        violations = self.watcher.violations + self.node.forbidden()
        assert not violations, violations

"""Random lives of a node, by seed: whatever happens, it ends as desired, and nothing forbidden happens.

Checked at every change of a container: no container of a pod runs twice at once, no two versions of a static
pod run together, and no container that should run is ended by the agent. Checked after each quiet time: what
runs is what is desired, nothing is left of what is not, statuses say so, and the agent is healthy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.simulation.world import Node
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim.faults import random_script
from trio_kubelet.sim.records import Container

LIFE = 300.0  # simulated seconds of each seed
LONG_LIFE = 1000.0
QUIET = 420.0  # the longest back-off, a resync, and some time to act

SEEDS = 100
SOAK_SEEDS = 1000


def simulate(seed: int, script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs with everything Trio does by chance taken from the seed; the same seed is the same run."""
    trio._core._run._r.seed(seed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(script, clock=clock, strict_exception_groups=True)


class Watcher:
    """Watches the runtime for what must never happen."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.violations: list[str] = []
        self.excused: set[str] = set()  # containers the world itself has killed
        node.runtime.listeners.append(self._event)
        node.runtime.on_end.append(self._ended)

    def _event(self, event: Callable[[], cri.ContainerEventResponse]) -> None:
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
            if len(uids) > 1:
                self._violated(f"{name} runs in versions {sorted(uids)}")

    def _ended(self, container: Container) -> None:
        """A container that ended though it is wanted, its sandbox is well and nobody else killed it."""
        uid = self._node.uid_of(container)
        sandbox = self._node.runtime.sandboxes.get(container.sandbox_id)
        well = sandbox is not None and sandbox.state == cri.SANDBOX_READY
        if uid in self._node.desired_by_uid() and well and container.id not in self.excused:
            self._violated(f"container {container.config.metadata.name} of {uid} was ended")

    def _violated(self, what: str) -> None:
        self.violations.append(f"{trio.current_time():.3f}: {what}")


class Life:
    """One random life."""

    def __init__(self, seed: int, base: Path, *, seconds: float, faults: bool) -> None:
        self._seconds = seconds
        self.node = Node(seed, base)
        self.random = self.node.random
        self.watcher = Watcher(self.node)
        self._faults = random_script(seed) if faults else []
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        node = self.node
        async with node.running() as nursery:
            self._nursery = nursery
            await node.start_agent(nursery)
            while trio.current_time() < self._seconds:
                node.service.faults.add(*(f for f in self._faults if self.random.random() < 0.3))
                until = trio.current_time() + self.random.uniform(30, 200)
                while trio.current_time() < until:
                    await trio.sleep(self.random.expovariate(1 / 5))
                    await self._something()
                await self._quiet()

    async def _something(self) -> None:
        """One thing that may happen to a node."""
        node, rng = self.node, self.random
        happenings: list[tuple[float, Callable[[], Coroutine[Any, Any, None]]]] = [
            (4, self._add),
            (2, self._edit),
            (2, self._remove),
            (4, self._container_dies),
            (1, self._sandbox_dies),
            (1, self._agent_dies),
        ]
        weights = [weight for weight, _ in happenings]
        happening = rng.choices([each for _, each in happenings], weights)[0]
        await happening()
        assert len(node.desired) < 40

    async def _add(self) -> None:
        if len(self.node.desired) < 12:
            name = f"p{self.random.randrange(20)}"
            if name not in self.node.desired:
                self.node.want(name, self.random.randint(1, 3))
                await self.node.publish()

    async def _edit(self) -> None:
        if self.node.desired:
            name = self.random.choice(sorted(self.node.desired))
            for _ in range(self.random.choice((1, 1, 3))):
                self.node.want(name, self.random.randint(1, 3))
                await self.node.publish()

    async def _remove(self) -> None:
        if self.node.desired:
            name = self.random.choice(sorted(self.node.desired))
            pod = self.node.desired.pop(name)
            await self.node.publish()
            if self.random.random() < 0.5:  # and put back, the very same one
                await trio.sleep(self.random.uniform(0, 3))
                if name not in self.node.desired:
                    self.node.desired[name] = pod
                    await self.node.publish()

    async def _container_dies(self) -> None:
        running = self.node.running_containers()
        if running:
            container = self.random.choice(sorted(running, key=lambda c: c.id))
            self.watcher.excused.add(container.id)
            self.node.runtime.kill(container.id, self.node.service.now_ns())

    async def _sandbox_dies(self) -> None:
        ready = [s for s in self.node.runtime.sandboxes.values() if s.state == cri.SANDBOX_READY]
        if ready:
            sandbox = self.random.choice(sorted(ready, key=lambda s: s.id))
            self.watcher.excused.update(sandbox.container_ids)
            self.node.runtime.sandbox_dies(sandbox, self.node.service.now_ns())

    async def _agent_dies(self) -> None:
        self.node.kill_agent()
        await trio.sleep(self.random.choice((0, 0.1, 5, 60)))
        assert self._nursery is not None
        await self.node.start_agent(self._nursery)

    async def _quiet(self) -> None:
        """Faults end; after a while everything is as it should be, and stays so."""
        self.node.service.faults.clear()
        deadline = trio.current_time() + QUIET
        problems = ["not looked at yet"]
        while problems and trio.current_time() < deadline:
            await trio.sleep(1)
            problems = self.node.unmet() + self.node.told()
        assert not problems, f"at {trio.current_time():.0f}: {problems}"
        agent = self.node.agent
        assert agent is not None
        assert agent.health.runtime_error() is None
        assert agent.pleg.healthy() is None
        assert agent.room.loop.healthy() is None
        assert not self.watcher.violations


def live(seed: int, base: Path, seconds: float) -> None:
    simulate(seed, Life(seed, base, seconds=seconds, faults=seed % 4 != 0).run)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_life_ends_as_desired(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path, LIFE)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + SOAK_SEEDS))
def test_many_more_random_lives(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path, LONG_LIFE)

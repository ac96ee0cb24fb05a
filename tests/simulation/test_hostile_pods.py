"""Absurd pods through the whole agent: others do not notice, each can be ended, nothing is unexpected."""

from __future__ import annotations

import errno
import io
import os
import shutil
import socket
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
import trio

from tests.simulation.deterministic import simulate
from tests.simulation.hostile_pods import LONGEST_GRACE, UNEXPECTED, Absurd
from tests.simulation.world import NODE, Node, Task
from trio_kubelet.api import v1
from trio_kubelet.common import log
from trio_kubelet.node.directories import PodDirectories
from trio_kubelet.node.userns import UserNamespaceRanges
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.pods.admission.fit import NodeFacts
from trio_kubelet.pods.admission.node_admitter import NodeAdmitter
from trio_kubelet.pods.admission.sysctls import SysctlAllowlist
from trio_kubelet.pods.resize.allocation import AllocationStore
from trio_kubelet.pods.resize.rules import NO_RULES
from trio_kubelet.runtime.configs.builder import ConfigBuilder
from trio_kubelet.sources.podconfig import PodConfig
from trio_kubelet.volumes.linux import mounts_below, unmount
from trio_kubelet.volumes.manager import VolumeManager

TOGETHER = 40  # absurd pods at a time
HEALTHY = 3
SETTLES = 40.0  # simulated seconds the absurd pods have
ENDS = 5.0  # seconds an ended pod may take beyond its grace
SEEDS = 10
SOAK_PODS = int(os.environ.get("TRIO_KUBELET_HOSTILE_PODS", "100000"))
SOAK_PARTS = 100


class NoNames(trio.abc.HostnameResolver):
    """A name service that knows nothing."""

    async def getaddrinfo(self, host: bytes | None, *args: object, **kwargs: object) -> list[object]:  # type: ignore[override]
        raise socket.gaierror(socket.EAI_NONAME, "no such host")

    async def getnameinfo(self, *args: object) -> tuple[str, str]:
        raise socket.gaierror(socket.EAI_NONAME, "no such host")


class NoNetwork(trio.abc.SocketFactory):
    """A machine without a network: a simulation waits for no socket."""

    def socket(self, *args: object, **kwargs: object) -> trio.socket.SocketType:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))


class RealFiles(Node):
    """A node whose volumes, directories and configs are the agent's own, on a disk."""

    def __init__(self, seed: int, base: Path) -> None:
        super().__init__(seed, base)
        self._base = base
        self._pods = Path(self.context.root_dir) / "pods"

    def join(self, compose: Callable[..., NodeAgent], sources: PodConfig) -> tuple[NodeAgent, Sequence[Task]]:
        root = self.context.root_dir
        os.makedirs(root, exist_ok=True)
        agent = compose(
            configs=ConfigBuilder(self._node, "", UserNamespaceRanges(root, dict)),
            volumes=VolumeManager(self._node, clock=self.clock),
            directories=PodDirectories(root),
            admitter=self._admitter(),
        )
        return agent, ()

    def _admitter(self) -> NodeAdmitter:
        facts = NodeFacts(
            name=NODE, allocatable={"cpu": "64", "memory": "1Ti", "pods": "110", "ephemeral-storage": "1Ti"}
        )
        store = AllocationStore(str(self._base))
        return NodeAdmitter(
            node=lambda: facts,
            sysctls=SysctlAllowlist([]),
            allocations=store,
            pressures=frozenset,
            resizes=NO_RULES,
        )

    def _node(self) -> NodeContext:
        return self.context

    async def others(self) -> None:
        """Absurd pods come, do what they can, and are ended, while healthy ones run."""
        trio.socket.set_custom_hostname_resolver(NoNames())
        trio.socket.set_custom_socket_factory(NoNetwork())
        async with self.running() as nursery:
            await self.start_agent(nursery)
            healthy = [self.want(f"healthy{n}", 1, probes=("readiness",)) for n in range(HEALTHY)]
            await self.publish()
            await trio.sleep(10)
            before = self._running(healthy)
            assert len(before) == HEALTHY
            absurd = {f"p{n}": self._draw(f"p{n}") for n in range(TOGETHER)}
            self.desired |= absurd
            late = self.want("late", 1)
            await self.publish()
            await trio.sleep(1)
            assert self._running([late]), "a healthy pod is late"
            await trio.sleep(SETTLES)
            for name in absurd:
                del self.desired[name]
            await self.publish()
            graces = {p.metadata.uid: p.spec.termination_grace_period_seconds or 0 for p in absurd.values()}
            uids = {uid for uid, grace in graces.items() if grace <= LONGEST_GRACE}
            with trio.move_on_after(max(graces[uid] for uid in uids) + ENDS):
                while self._of(uids):  # noqa: ASYNC110 - simulated time
                    await trio.sleep(1)
            assert self._of(uids) == set(), "does not end"
            with trio.move_on_after(60):
                while uids & self._known():  # noqa: ASYNC110 - simulated time
                    await trio.sleep(1)
            assert uids & self._known() == set(), "is not cleaned up"
            assert self._running(healthy) == before
            self.kill_agent()

    def _draw(self, name: str) -> v1.Pod:
        return Absurd(self.random, self.random.choice([0.03, 0.06, 0.1, 0.15, 0.2])).pod(name)

    def _known(self) -> set[str]:
        assert self.agent is not None
        return set(self.agent.room.workers.known()) | {path.name for path in self._pods.iterdir()}

    def _of(self, uids: Collection[str]) -> set[str]:
        """Containers of these pods that run."""
        return {c.id for c in self.running_containers() if self.uid_of(c) in uids}

    def _running(self, pods: Sequence[v1.Pod]) -> set[str]:
        return self._of({pod.metadata.uid for pod in pods})


def survive(seed: int, base: Path) -> None:
    said = io.StringIO()
    log.configure(stream=said)
    try:
        simulate(seed, RealFiles(seed, base).others)
    finally:
        log.configure()
        for mount in mounts_below(str(base)):  # of pods that still have their years of grace
            unmount(mount.path)
    unexpected = [line for line in said.getvalue().splitlines() if UNEXPECTED.search(line)]
    assert not unexpected, "\n".join(unexpected)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_absurd_pods_are_their_own_affair(seed: int, tmp_path: Path) -> None:
    survive(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_PARTS))
def test_many_absurd_pods_are_their_own_affair(part: int, tmp_path: Path) -> None:
    """100,000 of them, or TRIO_KUBELET_HOSTILE_PODS."""
    runs = -(-SOAK_PODS // TOGETHER // SOAK_PARTS)
    for seed in range(SEEDS + part * runs, SEEDS + (part + 1) * runs):
        (base := tmp_path / str(seed)).mkdir()
        survive(seed, base)
        shutil.rmtree(base)

"""What befalls D-Bus, systemd and slices while a whole agent lives with them: the tree becomes what the plan
for its pods says, and nothing is left over. Runs in the machine of `make test-node`.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from tests.cgroups.machine import has_systemd, shell
from tests.cgroups.planned import planned_tree
from tests.containerd.conftest import CHOSEN, NewNode
from tests.containerd.harness import Node, container, pod, running_node, wait_until
from trio_kubelet.api import v1
from trio_kubelet.cgroups.files import CgroupTree, find_hierarchies
from trio_kubelet.cgroups.limits import Limits
from trio_kubelet.cgroups.plan import cgroup_settings
from trio_kubelet.cgroups.units import unit_name, with_whole_percents
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.dbus.bus import SYSTEM_BUS
from trio_kubelet.machine.facts import read_machine
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.standalone.node import Provisions

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(
        not has_systemd() or "" not in find_hierarchies(), reason="needs systemd and cgroup v2"
    ),
]
CONFIG = {"podPidsLimit": 99, "syncFrequency": "5s"}
SIZES = {
    "full": ({"cpu": "125m", "memory": "64Mi"}, {"cpu": "125m", "memory": "64Mi"}),
    "half": ({"cpu": "200m", "memory": "96Mi"}, {"cpu": "100m", "memory": "32Mi"}),
    "free": ({}, {}),
}


@pytest.fixture
def systemd_node(provisions: Callable[[str], Provisions], tmp_path: Path) -> NewNode:
    made = provisions(CHOSEN)
    return lambda: running_node(made, tmp_path, systemd=True)


def add(node: Node, name: str, kind: str) -> None:
    limits, requests = SIZES[kind]
    node.write(pod(name, container(resources={"limits": limits, "requests": requests})))


class Slices:
    """The slices of a node, and what they should be."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._context = NodeContext(
            node_name=node.name, cgroup_root=node.layout.cgroup_root, cgroup_driver="systemd", cgroup_v2=True
        )
        config = KubeletConfiguration(pod_pids_limit=99)
        self._settings = msgspec.structs.replace(cgroup_settings(config, read_machine("/")), node_cpus="")
        self._tree = CgroupTree(find_hierarchies())

    async def _pods(self) -> list[v1.Pod]:
        return [msgspec.convert(item, v1.Pod) for item in await self._node.pods()]

    async def plan(self) -> dict[str, Limits]:
        return planned_tree(await self._pods(), self._context, self._settings)

    async def unit(self, name: str) -> str:
        """The slice of a pod."""
        [uid] = [
            each.metadata.uid
            for each in await self._pods()
            if each.metadata.name == f"{name}-{self._node.name}"
        ]
        return next(unit_name(path) for path in await self.plan() if uid.replace("-", "_") in path)

    async def unit_of_class(self, name: str) -> str:
        return next(unit_name(path) for path in await self.plan() if path.endswith(f"-{name}.slice"))

    async def wrong(self) -> list[str]:
        """What is not as planned: limits, slices that are missing, slices and units left over."""
        plan, found = await self.plan(), []
        for path, limits in plan.items():
            if not self._tree.exists(path):
                found.append(f"{path} is missing")
            elif (off := self._tree.differing(path, with_whole_percents(limits))) != Limits():
                found.append(f"{path}: {off}")
        root = next(iter(plan))
        found += [f"{path} is left over" for path in self._there(root) if path not in plan]
        listed = await shell(
            "systemctl list-units --all --plain --no-legend --type=slice | cut -d' ' -f1 | "
            f"grep '^{unit_name(root).removesuffix('.slice')}' || true"
        )
        for unit in set(listed.split()) - {unit_name(path) for path in plan}:
            state = await shell(f"systemctl show -p ActiveState,SubState,Job,SliceOf,DropInPaths {unit}")
            found.append(f"unit {unit} is left over: {' '.join(state.split())}")
        return found

    @staticmethod
    def _there(root: str) -> list[str]:
        top = "/sys/fs/cgroup"
        return [
            f"{directory}/{name}".removeprefix(top)
            for directory, names, _ in os.walk(f"{top}{root}")
            for name in names
            if name.endswith(".slice")
        ]

    async def become_right(self, *running: str) -> None:
        """Until these pods run and the tree is that of the plan for them."""
        for name in running:
            await self._node.wait_running(name, timeout=60)

        async def right() -> bool:
            pods = {each.metadata.name.removesuffix(f"-{self._node.name}") for each in await self._pods()}
            return pods == set(running) and not await self.wrong()

        try:
            await wait_until(right, 90, "the tree is as planned", interval=0.3)
        except AssertionError:
            raise AssertionError("\n".join(await self.wrong())) from None


async def end_bus() -> None:
    """Its process; the next who connects to its socket has it started again."""
    await shell("systemctl kill -s KILL dbus.service || true")


@asynccontextmanager
async def no_bus() -> AsyncIterator[None]:
    """The system bus is away, and nobody who wants it has it started."""
    away = f"{SYSTEM_BUS}-away"
    await shell(f"mv {SYSTEM_BUS} {away}")
    try:
        await end_bus()
        yield
    finally:
        with trio.CancelScope(shield=True):
            await shell(f"mv {away} {SYSTEM_BUS}")


async def test_the_bus_is_away_when_the_agent_starts(systemd_node: NewNode) -> None:
    async with systemd_node() as node:
        slices = Slices(node)
        async with no_bus():
            await node.start_agent(config=CONFIG)
            for name in SIZES:
                add(node, name, name)
            await slices.become_right(*SIZES)
        add(node, "later", "half")
        await slices.become_right(*SIZES, "later")
        async with no_bus():
            node.remove("half")
            add(node, "last", "full")
            await slices.become_right("full", "free", "later", "last")


async def test_the_bus_ends_and_systemd_is_reloaded_while_pods_come_and_go(systemd_node: NewNode) -> None:
    async with systemd_node() as node:
        slices = Slices(node)
        await node.start_agent(config=CONFIG)
        add(node, "steady", "half")
        [before] = await node.wait_running("steady")
        kinds = list(SIZES)
        for number, fault in enumerate(("bus", "daemon-reload", "bus", "daemon-reexec")):
            add(node, f"pod-{number}", kinds[number % 3])
            if number >= 2:
                node.remove(f"pod-{number - 2}")
            await trio.sleep(random.uniform(0, 1))
            await (end_bus() if fault == "bus" else shell(f"systemctl {fault}"))
        await slices.become_right("steady", "pod-2", "pod-3")
        assert [each.id for each in await node.running("steady")] == [before.id]


async def test_slices_that_somebody_changed_or_stopped(systemd_node: NewNode) -> None:
    async with systemd_node() as node:
        slices = Slices(node)
        await node.start_agent(config=CONFIG)
        for name in SIZES:
            add(node, name, name)
        await slices.become_right(*SIZES)
        before = {name: (await node.running(name))[0].id for name in SIZES}
        full, half = await slices.unit("full"), await slices.unit("half")
        burstable = await slices.unit_of_class("burstable")
        await shell(f"systemctl set-property --runtime {full} MemoryMax=1G TasksMax=7 CPUQuota=5%")
        await shell(f"systemctl set-property --runtime {burstable} CPUWeight=9000")
        assert await slices.wrong()
        await slices.become_right(*SIZES)
        assert {name: (await node.running(name))[0].id for name in SIZES} == before

        for unit in (half, burstable):  # the second takes the pod with its class
            [old] = await node.running("half")
            await shell(f"systemctl stop {unit}")
            await node.wait_running("half", besides=[old.id], timeout=60)
            await slices.become_right(*SIZES)
        assert {name: (await node.running(name))[0].id for name in ("full", "free")} == {
            name: before[name] for name in ("full", "free")
        }


async def test_an_agent_that_is_killed_at_any_moment(systemd_node: NewNode) -> None:
    async with systemd_node() as node:
        slices = Slices(node)
        await node.start_agent(config=CONFIG)
        add(node, "steady", "half")
        [before] = await node.wait_running("steady")
        await node.kill_agent()
        there: list[str] = []
        for number in range(8):
            await node.start_agent(config=CONFIG, wait=False)
            await trio.sleep(random.uniform(0.5, 4))
            name = f"pod-{number}"
            add(node, name, random.choice(list(SIZES)))
            there.append(name)
            if number % 3 == 2:
                node.remove(there.pop(random.randrange(len(there))))
            await trio.sleep(random.uniform(0, 2))
            await node.kill_agent()
        await node.start_agent(config=CONFIG)
        await slices.become_right("steady", *there)
        assert [each.id for each in await node.running("steady")] == [before.id]
        for name in ("steady", *there):
            node.remove(name)
        await slices.become_right()

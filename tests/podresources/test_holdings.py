"""What the agent's CPU manager has given, as the service asks for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tests.placement import test_memory_manager
from tests.placement.giving import give
from tests.placement.test_cpu_manager import Node, manager
from tests.placement.test_cpu_policy import container, pod
from tests.placement.test_memory_policy import GIB
from tests.placement.test_memory_policy import container as memory_container
from tests.placement.test_memory_policy import pod as memory_pod
from trio_kubelet.common.cpusets import NONE, parse_cpus
from trio_kubelet.holdings import NodeHoldings
from trio_kubelet.placement.cpu_manager import CPUManager
from trio_kubelet.placement.hints import Hint
from trio_kubelet.placement.memory_manager import MemoryManager
from trio_kubelet.plugged import Plugged
from trio_kubelet.podresources.doors import HeldMemory


def holdings(cpus: CPUManager | None = None, memory: MemoryManager | None = None) -> NodeHoldings:
    return NodeHoldings(cast(Plugged, SimpleNamespace(cpus=cpus, memory=memory)))


async def test_memory_is_told_with_its_nodes(tmp_path: Path) -> None:
    node = Node()
    memory = test_memory_manager.manager(node, tmp_path)
    await memory.load()
    main = memory_container("main", "1Gi")
    node.pods = [memory_pod(main)]
    await give(memory, node.pods[0], main, Hint(2, True))
    held = holdings(memory=memory)
    assert list(held.memory(node.pods[0], main)) == [HeldMemory("memory", GIB, (1,))]
    assert sorted(held.allocatable_memory()) == [
        HeldMemory("hugepages-2Mi", GIB, (0,)),
        HeldMemory("memory", 2 * GIB, (0,)),
        HeldMemory("memory", 4 * GIB, (1,)),
    ]
    assert list(holdings().memory(node.pods[0], main)) == []
    assert list(holdings().allocatable_memory()) == []


async def test_only_cpus_that_nobody_else_runs_on_are_told(tmp_path: Path) -> None:
    node = Node()
    cpus = manager(node, tmp_path)
    await cpus.load()
    alone, shares = container("main", "2"), container("aside", "1500m")
    node.pods = [pod(alone, shares)]
    await give(cpus, node.pods[0], alone, None)
    await give(cpus, node.pods[0], shares, None)
    held = holdings(cpus)
    assert held.cpus(node.pods[0], alone) == parse_cpus("1,9")
    assert held.cpus(node.pods[0], shares) == NONE
    assert held.allocatable_cpus() == parse_cpus("1-7,9-15"), "whoever has them; 0 and 8 are reserved"


def test_without_a_policy_there_are_none() -> None:
    main = container("main", "2")
    assert holdings(None).cpus(pod(main), main) == NONE
    assert holdings(None).allocatable_cpus() == NONE

"""What the agent's CPU manager has given, as the service asks for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tests.placement.test_cpu_manager import Node, manager
from tests.placement.test_cpu_policy import container, pod
from trio_kubelet.holdings import NodeHoldings
from trio_kubelet.placement.cpu_manager import CPUManager
from trio_kubelet.placement.cpusets import NONE, parse_cpus
from trio_kubelet.plugged import Plugged


def holdings(cpus: CPUManager | None) -> NodeHoldings:
    return NodeHoldings(cast(Plugged, SimpleNamespace(cpus=cpus)))


async def test_only_cpus_that_nobody_else_runs_on_are_told(tmp_path: Path) -> None:
    node = Node()
    cpus = manager(node, tmp_path)
    await cpus.load()
    alone, shares = container("main", "2"), container("aside", "1500m")
    node.pods = [pod(alone, shares)]
    await cpus.allocate(node.pods[0], alone, None)
    await cpus.allocate(node.pods[0], shares, None)
    held = holdings(cpus)
    assert held.cpus(node.pods[0], alone) == parse_cpus("1,9")
    assert held.cpus(node.pods[0], shares) == NONE
    assert held.allocatable_cpus() == parse_cpus("1-7,9-15"), "whoever has them; 0 and 8 are reserved"


def test_without_a_policy_there_are_none() -> None:
    main = container("main", "2")
    assert holdings(None).cpus(pod(main), main) == NONE
    assert holdings(None).allocatable_cpus() == NONE

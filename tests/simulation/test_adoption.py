"""What an agent that finds its pods running asks of the runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import trio

from tests.simulation.deterministic import simulate
from tests.simulation.world import Node
from trio_kubelet.sim.faults import Fault, Kind

PODS = 100  # more than are looked at at once
SECONDS = 10.0


def test_pods_that_run_are_listed_by_relists_alone_and_read_once(tmp_path: Path) -> None:
    node, calls = Node(1, tmp_path), Counter[str]()
    node.on_call = lambda method: calls.update([method])

    async def script() -> None:
        async with node.running() as nursery:
            for number in range(PODS):
                node.want(f"p{number}", 1)
            await node.start_agent(nursery)
            await trio.sleep(30)
            assert len(node.running_containers()) == PODS
            node.kill_agent()
            node.service.faults.add(Fault(Kind.SLOW, "ContainerStatus", seconds=0.1))
            calls.clear()
            await node.start_agent(nursery)
            await trio.sleep(SECONDS)
            assert not node.told()

    simulate(1, script)
    assert calls["ContainerStatus"] == calls["PodSandboxStatus"] == PODS
    assert calls["ListPodSandbox"] <= SECONDS + 1
    assert calls["ListContainers"] <= SECONDS + 2  # one is by the garbage collection of containers

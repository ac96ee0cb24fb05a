"""What observing a node for eviction costs, in percent of a core: calm, and with limits on every pod.

Signals are this machine's own, read as the agent reads them; the runtime is the simulated one with recorded
answers, cgroups of the pods are files in memory (see `bench_stats`). The last line is JSON.

    python -m bench.bench_eviction [pods]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import trio
from prometheus_client import CollectorRegistry

from bench.bench_stats import Machine, Recorded
from tests.node.world import Said
from trio_kubelet.api import v1
from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.services import ImageService
from trio_kubelet.eviction.manager import PERIOD, EvictionManager, EvictionSettings
from trio_kubelet.eviction.metrics import EvictionMetrics
from trio_kubelet.eviction.monitor import PressureMonitor, PressureSettings
from trio_kubelet.eviction.signals import SignalPlaces, read_signals
from trio_kubelet.eviction.thresholds import CALM, thresholds_of
from trio_kubelet.machine.cgroup_reader import cgroup_reader
from trio_kubelet.machine.facts import read_machine
from trio_kubelet.sim.door import SimCaller
from trio_kubelet.sim.service import SimService
from trio_kubelet.stats.pods import PodFigures

ROUNDS = 100
LEAST = {"memory.available": "1Mi", "nodefs.available": "1Mi", "pid.available": "1"}


class Pods:
    """Pods that stay; `limited` says whether they have limits of local storage."""

    def __init__(self, machine: Machine, limited: bool) -> None:
        limits = {"ephemeral-storage": "1Gi"} if limited else None
        spec = v1.PodSpec(
            containers=[v1.Container(name="c0", resources=v1.ResourceRequirements(limits=limits))]
        )
        found = [sandbox.config.metadata for sandbox in machine.runtime.sandboxes.values()]
        self._pods = [
            v1.Pod(metadata=v1.ObjectMeta(name=each.name, namespace=each.namespace, uid=each.uid), spec=spec)
            for each in found
        ]

    def candidates(self) -> list[v1.Pod]:
        return list(self._pods)

    def evict(
        self,
        pod: v1.Pod,
        *,
        grace: int,
        message: str,
        disruption: bool,
        annotations: Mapping[str, str],
        why: str,
    ) -> trio.Event:
        raise AssertionError(f"{pod.metadata.name} was evicted: {message}")

    async def wait_stopped(self, pod: v1.Pod, stopped: trio.Event, grace: int) -> bool:
        return True

    def is_finished(self, uid: str) -> bool:
        return False


class Nothing:
    """There is nothing to reclaim."""

    async def dead_containers(self) -> None:
        return

    async def unused_images(self) -> None:
        return


async def once(manager: EvictionManager) -> None:
    """A round with all that follows from it."""
    async with trio.open_nursery() as nursery:
        await manager.round(nursery)


async def measure(pods: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        machine = Machine(Path(directory), pods, 1)
        service = SimService(machine.runtime, machine.clock)
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            caller = Recorded(SimCaller(service))
            room = machine.room(nursery, caller, 3600)
            reader = cgroup_reader(find_hierarchies(), machine.clock)
            places = SignalPlaces(memory=read_machine("/").memory, root_dir="/", pods_cgroup="/kubepods")
            settings = PressureSettings(
                places=places, thresholds=thresholds_of(KubeletConfiguration(eviction_hard=LEAST))
            )
            for limited in (False, True):
                monitor = PressureMonitor(
                    settings,
                    ImageService(caller, use_streaming=False),
                    lambda places: read_signals(places, reader, machine.clock),
                    Said(),
                )
                manager = EvictionManager(
                    EvictionSettings(),
                    monitor=monitor,
                    pods=Pods(machine, limited),
                    stats=PodFigures(room.collector, room.meter, machine.clock),
                    reclaim=Nothing(),
                    events=Said(),
                    metrics=EvictionMetrics(CollectorRegistry()),
                    clock=machine.clock,
                )
                await once(manager)
                began = time.process_time()
                for _ in range(ROUNDS):
                    await once(manager)
                look = (time.process_time() - began) / ROUNDS
                if not limited:
                    figures["look_ms"] = look * 1e3
                    figures["calm_percent"] = 100 * look / CALM
                    continue
                costs = []
                for _ in range(4):
                    await trio.sleep(PERIOD)
                    began = time.process_time()
                    await once(manager)
                    costs.append(time.process_time() - began)
                figures["limits_ms"] = min(costs) * 1e3
                figures["limits_percent"] = 100 * (look / CALM + min(costs) / PERIOD)
            nursery.cancel_scope.cancel()
    return figures


def main() -> None:
    pods = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    figures = trio.run(measure, pods)
    print(json.dumps({"pods": pods} | {name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()

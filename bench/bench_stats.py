"""What the stats pages of a node cost: CPU of a collection and of each page, and how long the loop is held.

The runtime is the simulated one, the cgroups are files on a temporary file system laid out as the kernel's
(version 1, the dearer one). Baselines in the same run: the same cgroup files read with `open`, the same page
from prometheus-client's registry, the same summary from dictionaries with `json`. The last line is JSON.

    python -m bench.bench_stats [pods] [containers]
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import trio
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from tests.stats.trees import V1_FILES, hierarchies, write_cgroup, write_machine, write_process
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.caller import M
from trio_kubelet.cri.doors import Caller, ContainerEvent
from trio_kubelet.cri.services import ImageService, RuntimeService
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.sim.door import SimCaller
from trio_kubelet.sim.populate import Population
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.service import SimService
from trio_kubelet.stats.cadvisor_metrics import MachineLabels
from trio_kubelet.stats.cadvisor_tables import FAMILIES, SETTINGS
from trio_kubelet.stats.collector import StatsSettings
from trio_kubelet.stats.room import StatsRoom
from trio_kubelet.stats.summary import pod_stats
from trio_kubelet.stats.volumes import VolumeMeter

MIB = 1 << 20
AGE = 2.0
"""Seconds for which a collection holds, where later ones are measured."""


class Steps(trio.abc.Instrument):
    """The most CPU the loop's thread used between two turns; other programs on the machine do not count."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._began = time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)


class Recorded(Caller):
    """Carries calls as a runtime would that needs no time: an answer is made once, then given as bytes.

    What is left of a call is decoding its answer, which is the agent's own cost.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._answers: dict[str, Sequence[bytes]] = {}

    def connection(self) -> int:
        return 0

    async def unary(
        self, method: str, request: Message, response: type[M], timeout: float, enough: int | None = None
    ) -> M:
        (answer,) = await self.raw(method, request, timeout)
        return response.FromString(answer)

    async def raw(self, method: str, request: Message, timeout: float) -> Sequence[bytes]:
        if method not in self._answers:
            self._answers[method] = await self._caller.raw(method, request, timeout)
        await trio.lowlevel.checkpoint()
        return self._answers[method]

    def events(self, capacity: int) -> AbstractAsyncContextManager[AsyncIterator[ContainerEvent]]:
        return self._caller.events(capacity)


class Machine:
    """A simulated runtime full of pods, and a tree of cgroups for them."""

    def __init__(self, base: Path, pods: int, containers: int) -> None:
        self.clock = SystemClock()
        self.runtime = SimRuntime()
        Population(self.runtime).add_pods(pods, containers, self.clock.now_ns() - 10**12)
        self.cgroups, self.proc = base / "cgroup", base / "proc"
        self.paths: list[str] = []
        write_machine(self.proc)
        for number, sandbox in enumerate(self.runtime.sandboxes.values()):
            pod = f"/kubepods/besteffort/pod{sandbox.config.metadata.uid}"
            self._add(pod, 0)
            self._add(f"{pod}/{sandbox.id}", 10 + number)
            logs = sandbox.config.metadata
            self.logs = base / "logs"
            self._write_logs(f"{logs.namespace}_{logs.name}_{logs.uid}", containers)
        for number, container in enumerate(self.runtime.containers.values()):
            uid = self.runtime.sandboxes[container.sandbox_id].config.metadata.uid
            self._add(f"/kubepods/besteffort/pod{uid}/{container.id}", 100_000 + number)
        for path in ("/", "/kubepods", "/kubepods/besteffort", "/kubepods/burstable"):
            self._add(path, 0)

    def _add(self, path: str, pid: int) -> None:
        self.paths.append(path)
        write_cgroup(self.cgroups, path, 1, pid)
        if pid:
            write_process(self.proc, pid)

    def _write_logs(self, name: str, containers: int) -> None:
        for index in range(containers):
            directory = self.logs / name / f"c{index}"
            directory.mkdir(parents=True)
            (directory / "0.log").write_text("hello\n" * 100)

    def room(self, nursery: trio.Nursery, caller: Caller, max_age: float) -> StatsRoom:
        settings = StatsSettings(
            node_name="bench",
            root_dir=str(self.logs),
            pod_logs_dir=str(self.logs),
            names=CgroupNames(),
            memory_capacity=1 << 34,
            max_age=max_age,
            disk_max_age=max_age,
            details_max_age=max_age,
            proc=str(self.proc),
        )
        machine = MachineLabels(cores=2, physical_cores=2, sockets=1, memory=1 << 34, swap=0)
        meter = VolumeMeter(lambda: (), str(self.logs), self.clock, 0)
        room = StatsRoom(
            RuntimeService(caller, use_streaming=False),
            ImageService(caller, use_streaming=False),
            hierarchies(self.cgroups, 1),
            self.clock,
            settings,
            machine,
            meter,
        )
        nursery.start_soon(room.run)
        return room


async def size_of(page: AsyncIterator[bytes]) -> int:
    return sum([len(piece) async for piece in page])


def read_plainly(machine: Machine) -> int:
    """The baseline of a collection: every file of every cgroup with `open`, each line split."""
    count = 0
    for path in machine.paths:
        for controller, files in V1_FILES.items():
            for name in files:
                with open(f"{machine.cgroups}/{controller}{path}/{name}", encoding="ascii") as file:
                    count += len(dict(line.split()[:2] for line in file if " " in line))
    return count


async def registry_page(room: StatsRoom) -> int:
    """The baseline of the cAdvisor page: prometheus-client's families and writer."""
    details = await room.details.get()

    class Collector:
        def collect(self) -> Iterator[Metric]:
            names = ["container", "id", "image", "name", "namespace", "pod"]
            tables = [(name, meaning, value) for name, _, meaning, value in FAMILIES]
            for name, meaning, value in (*tables, *SETTINGS):
                found = GaugeMetricFamily(name, meaning, labels=names)
                for row in details.rows:
                    labels = [row.container, row.cgroup, row.image, row.name, row.namespace, row.pod]
                    if (number := value(row)) is not None:
                        found.add_metric(labels, number, row.use.at_ns / 10**9)
                yield found

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return len(generate_latest(registry))


async def json_page(room: StatsRoom) -> int:
    """The baseline of the summary: plain dictionaries through `json`."""
    snapshot = await room.collector.everything()
    stats = [pod_stats(pod, snapshot.node, snapshot.at_ns, True) for pod in snapshot.pods]
    return len(json.dumps(msgspec.to_builtins(stats)))


async def measure(pods: int, containers: int, rounds: int = 5) -> dict[str, float]:
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        machine = Machine(Path(directory), pods, containers)
        service = SimService(machine.runtime, machine.clock)
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            caller = Recorded(SimCaller(service))
            await size_of(machine.room(nursery, caller, 3600).pages.summary_page())
            # What was made by now (modules, the simulated runtime) is no garbage: not to be looked at again.
            gc.collect()
            gc.freeze()
            steps = Steps()
            trio.lowlevel.add_instrument(steps)
            for name in ("summary_page", "resource_metrics_page", "cadvisor_page"):
                costs, renders = [], []
                for _ in range(rounds):
                    room = machine.room(nursery, caller, 3600)
                    steps.longest, began = 0.0, time.process_time()
                    await size_of(getattr(room.pages, name)())
                    costs.append(time.process_time() - began)
                    held = steps.longest
                    steps.longest, began = 0.0, time.process_time()
                    size = await size_of(getattr(room.pages, name)())
                    renders.append(time.process_time() - began)
                    key = f"{name}_longest_step_ms"
                    figures[key] = max(figures.get(key, 0.0), held * 1e3, steps.longest * 1e3)
                figures[f"{name}_with_collection_cpu_ms"] = min(costs) * 1e3
                figures[f"{name}_cpu_ms"] = min(renders) * 1e3
                figures[f"{name}_mib"] = size / MIB
            for name in ("summary_page", "cadvisor_page"):
                room, costs = machine.room(nursery, caller, AGE), []
                await size_of(getattr(room.pages, name)())
                for _ in range(rounds):
                    await trio.sleep(AGE)
                    began = time.process_time()
                    await size_of(getattr(room.pages, name)())
                    costs.append(time.process_time() - began)
                figures[f"{name}_with_next_collection_cpu_ms"] = min(costs) * 1e3
            room = machine.room(nursery, caller, 3600)
            await size_of(room.pages.cadvisor_page())
            began = time.process_time()
            read_plainly(machine)
            figures["baseline_reading_cpu_ms"] = (time.process_time() - began) * 1e3
            began = time.process_time()
            await registry_page(room)
            figures["baseline_registry_cpu_ms"] = (time.process_time() - began) * 1e3
            await room.collector.everything()
            began = time.process_time()
            await json_page(room)
            figures["baseline_json_cpu_ms"] = (time.process_time() - began) * 1e3
            trio.lowlevel.remove_instrument(steps)
            nursery.cancel_scope.cancel()
    return figures


def main() -> None:
    pods, containers = (int(word) for word in (*sys.argv[1:], *("500", "2")[len(sys.argv) - 1 :]))
    with contextlib.suppress(KeyboardInterrupt):
        figures = trio.run(measure, pods, containers)
        for name, value in figures.items():
            print(f"{name:45} {value:8.1f}")
        print(json.dumps({"pods": pods, "containers": containers, **figures}))


if __name__ == "__main__":
    main()

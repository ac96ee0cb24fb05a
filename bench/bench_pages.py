"""What a scrape costs over TLS: each long page of the node's server with 500 pods, to a client in a thread.

CPU of the agent's side alone, authentication and encryption included (the caches of who may do what are warm,
as between scrapes), and the longest turn of the event loop. The last line is JSON.

    python -m bench.bench_pages [pods] [containers]
"""

from __future__ import annotations

import gc
import http.client
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from bench.bench_server import busy_agent, pods, probed
from bench.bench_stats import Machine, Recorded, Steps
from tests.server.node import Node
from trio_kubelet.server.node_server import ServerPages
from trio_kubelet.server.pages.local import metrics_page
from trio_kubelet.server.pages.metrics_pages import stats_handlers
from trio_kubelet.server.pages.small import pod_list
from trio_kubelet.sim.door import SimCaller
from trio_kubelet.sim.service import SimService
from trio_kubelet.stats.pages import StatsPages

PAGES = ("/pods", "/metrics", "/metrics/probes", "/metrics/resource", "/stats/summary", "/metrics/cadvisor")
ROUNDS = 5


class FullNode(Node):
    """A node's server whose pages are those of a node full of pods."""

    def __init__(self, directory: Path, stats: StatsPages) -> None:
        super().__init__(directory)
        self._stats = stats_handlers(stats)
        self._pods, self._registry = pods(), busy_agent()
        self._probes = probed(self._pods)

    def pages(self) -> ServerPages:
        given = super().pages()
        full = msgspec.structs.replace(
            given.read_only,
            pods=pod_list(lambda: self._pods),
            stats_summary=self._stats.summary,
            metrics=metrics_page(self._registry),
            metrics_cadvisor=self._stats.cadvisor,
            metrics_resource=self._stats.resource,
            metrics_probes=metrics_page(self._probes.registry),
        )
        return msgspec.structs.replace(given, read_only=full)


@asynccontextmanager
async def full_node(base: Path, shown: int, containers: int) -> AsyncIterator[FullNode]:
    """A node's server with `shown` pods on recorded answers of a runtime."""
    machine = Machine(base, shown, containers)
    service = SimService(machine.runtime, machine.clock)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        node = FullNode(base, machine.room(nursery, Recorded(SimCaller(service)), 3600).pages)
        async with node.serving():
            yield node
        nursery.cancel_scope.cancel()


def scrape(node: Node, path: str) -> tuple[int, float]:
    """Bytes of a page, and the CPU this thread needed to fetch it. Blocking."""
    began = time.thread_time()
    client = http.client.HTTPSConnection("127.0.0.1", node.port, context=node.context(), timeout=60)
    try:
        client.request("GET", path, headers={"Authorization": "Bearer good"})
        answer = client.getresponse()
        size = 0
        while piece := answer.read(1 << 20):
            size += len(piece)
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status}")
    finally:
        client.close()
    return size, time.thread_time() - began


async def measure(shown: int, containers: int) -> dict[str, float]:
    """All figures: least CPU and longest turn of some rounds in milliseconds, sizes in MiB."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as base:
        async with full_node(Path(base), shown, containers) as node:
            for path in PAGES:  # what there is to be collected is collected, and who asks is known
                await trio.to_thread.run_sync(scrape, node, path)
            gc.collect()
            gc.freeze()
            steps = Steps()
            trio.lowlevel.add_instrument(steps)
            for path in PAGES:
                costs, held = [], []
                for _ in range(ROUNDS):
                    steps.longest, began = 0.0, time.process_time()
                    size, others = await trio.to_thread.run_sync(scrape, node, path)
                    costs.append(time.process_time() - began - others)
                    held.append(steps.longest)
                figures[f"{path}_cpu_ms"] = min(costs) * 1e3
                figures[f"{path}_longest_turn_ms"] = max(held) * 1e3
                figures[f"{path}_mib"] = size / (1 << 20)
            trio.lowlevel.remove_instrument(steps)
    return figures


def main() -> None:
    shown, containers = (int(word) for word in (*sys.argv[1:], *("500", "2")[len(sys.argv) - 1 :]))
    figures = trio.run(measure, shown, containers)
    for name, value in figures.items():
        print(f"{name:40} {value:8.2f}")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()

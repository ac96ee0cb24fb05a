"""The pages: `/stats/summary`, `/metrics/resource`, `/metrics/cadvisor`, written in slices.

Each is an asynchronous iterator of bytes. Between two slices other tasks have their turn, so that a page of
hundreds of pods holds the event loop for a few milliseconds at most.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
import trio

from trio_kubelet.machine.values import ContainerSample, PodSample
from trio_kubelet.stats.cadvisor_metrics import MachineLabels, cadvisor_families
from trio_kubelet.stats.cgroup_details import DetailsCollector
from trio_kubelet.stats.collector import StatsCollector
from trio_kubelet.stats.exposition import head, label, sample
from trio_kubelet.stats.resource_metrics import resource_families
from trio_kubelet.stats.summary import node_stats, pod_stats

SLICE = 16
"""Pods that are rendered before others have their turn."""
LOGS_DEADLINE = 5.0
"""Seconds after which `/metrics` goes without the sizes of logs: whoever scrapes it has no more patience."""

_encode = msgspec.json.Encoder().encode


def _log_labels(pod: PodSample, container: ContainerSample) -> str:
    values = {"container": container.name, "namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
    return ",".join(label(name, value) for name, value in values.items())


class StatsPages:
    """The three pages over one collector. `pressure`: the kernel measures pressure of each cgroup;
    `hidden`: metrics that will go away are shown (`showHiddenMetricsForVersion`).
    """

    def __init__(
        self,
        collector: StatsCollector,
        details: DetailsCollector,
        machine: MachineLabels,
        pressure: bool,
        *,
        hidden: bool = False,
    ) -> None:
        self._collector = collector
        self._details = details
        self._machine = machine
        self._pressure = pressure
        self._hidden = hidden

    async def summary_page(self, only_cpu_and_memory: bool = False) -> AsyncGenerator[bytes, None]:
        """`/stats/summary`: JSON; with `?only_cpu_and_memory=true` the short one."""
        disks = not only_cpu_and_memory
        snapshot = await (self._collector.everything() if disks else self._collector.usage())
        node = snapshot.node
        yield b'{"node":' + _encode(node_stats(node, disks)) + b',"pods":['
        comma = b""
        for start in range(0, len(snapshot.pods), SLICE):
            await trio.lowlevel.checkpoint()
            some = snapshot.pods[start : start + SLICE]
            stats = [found for pod in some if (found := pod_stats(pod, node, snapshot.at_ns, disks))]
            if stats:
                yield comma + b",".join(map(_encode, stats))
                comma = b","
        yield b"]}"

    async def resource_metrics_page(self) -> AsyncGenerator[bytes, None]:
        """`/metrics/resource`: Prometheus text."""
        snapshot = await self._collector.usage()
        for piece in resource_families(snapshot, hidden=self._hidden):
            await trio.lowlevel.checkpoint()
            if piece:
                yield piece

    async def log_metrics(self) -> AsyncGenerator[bytes, None]:
        """What containers' logs take, a family of `/metrics`; nothing if that cannot be had soon."""
        pods: tuple[PodSample, ...] = ()
        with trio.move_on_after(LOGS_DEADLINE):
            pods = await self._collector.disks()
        name, first = "kubelet_container_log_filesystem_used_bytes", True
        for start in range(0, len(pods), SLICE):
            await trio.lowlevel.checkpoint()
            lines = [
                sample(name, _log_labels(pod, container), container.logs.used)
                for pod in pods[start : start + SLICE]
                for container in pod.containers
                if container.logs is not None
            ]
            if lines and first:
                lines.insert(0, head(name, "gauge", "[ALPHA] Bytes that the logs of a container take."))
                first = False
            yield "".join(lines).encode()

    async def cadvisor_page(self) -> AsyncGenerator[bytes, None]:
        """`/metrics/cadvisor`: Prometheus text."""
        details = await self._details.get()
        for piece in cadvisor_families(details, self._machine, self._pressure):
            await trio.lowlevel.checkpoint()
            if piece:
                yield piece

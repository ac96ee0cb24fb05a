"""The metric of the plugin watcher, by the kubelet's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class PluginCounts(Collector):
    """`plugin_manager_total_plugins`: each socket, in the state it is in."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        desired: Callable[[], Iterable[str]],
        actual: Callable[[], Iterable[str]],
    ) -> None:
        self._states = {"actual_state_of_world": actual, "desired_state_of_world": desired}
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "plugin_manager_total_plugins",
            "Number of plugins in Plugin Manager",
            labels=["socket_path", "state"],
        )
        for state, sockets in self._states.items():
            for path in sockets():
                family.add_metric([path, state], 1)
        yield family

"""Metrics of the node's registration, by the kubelet's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.metrics import MetricMaker


class NodeMetrics:
    """The node's name, and how long its way was from the machine's boot to ready.

    The durations are those of a node that registered anew; a restarted agent leaves them at 0, as the
    kubelet does. `booted_ns` is 0 if the time of boot is not known.
    """

    def __init__(self, registry: CollectorRegistry, clock: Clock, booted_ns: int = 0) -> None:
        make = MetricMaker(registry)
        self._clock = clock
        self._booted_ns = booted_ns
        self._started_ns = clock.now_ns()
        self._attempted_ns = self._registered_ns = self._ready_ns = 0
        self._name = make.gauge("kubelet_node_name", "The node's name; always 1.", ["node"])
        self._until_start, self._until_attempt, self._registering, self._until_ready, self._all = (
            make.gauge(f"kubelet_node_startup_{name}duration_seconds", f"Seconds {text}.")
            for name, text in (
                ("pre_kubelet_", "from boot to the agent's start"),
                ("pre_registration_", "from the agent's start to the first try to register"),
                ("registration_", "from the first try to register to success"),
                ("post_registration_", "from registration to ready"),
                ("", "from boot to ready"),
            )
        )

    def named(self, name: str) -> None:
        """Says what the node is called."""
        self._name.labels(node=name).set(1)

    def attempting(self) -> None:
        """The node tries to register."""
        self._attempted_ns = self._attempted_ns or self._clock.now_ns()

    def registered_new(self) -> None:
        """The node has made its Node object."""
        if self._registered_ns or not self._attempted_ns:
            return
        self._registered_ns = self._clock.now_ns()
        if self._booted_ns:
            self._until_start.set((self._started_ns - self._booted_ns) / NANOSECONDS)
        self._until_attempt.set((self._attempted_ns - self._started_ns) / NANOSECONDS)
        self._registering.set((self._registered_ns - self._attempted_ns) / NANOSECONDS)

    def ready(self) -> None:
        """The Node object says that the node is ready."""
        if self._ready_ns or not self._registered_ns:
            return
        self._ready_ns = self._clock.now_ns()
        self._until_ready.set((self._ready_ns - self._registered_ns) / NANOSECONDS)
        if self._booted_ns:
            self._all.set((self._ready_ns - self._booted_ns) / NANOSECONDS)

"""The page's charts: what the agent did in the last seconds, out of its own metrics and turns of the event
loop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import trio
from prometheus_client import CollectorRegistry

_HISTOGRAMS: Final = {
    "relist": "kubelet_pleg_relist_duration_seconds",
    "look": "kubelet_pleg_pod_relist_duration_seconds",
    "event": "kubelet_evented_pleg_connection_latency_seconds",
    "runtime": "kubelet_runtime_operations_duration_seconds",
    "api": "rest_client_request_duration_seconds",
}
"""What is charted, and the histogram whose sum and count tell it."""


class Tally(NamedTuple):
    """A histogram without its buckets, over all of its labels."""

    times: float = 0.0
    seconds: float = 0.0


class Turns(trio.abc.Instrument):
    """How long the event loop was busy before it looked at its sockets again; one turn holds up all tasks."""

    def __init__(self) -> None:
        self._began = 0.0
        self.longest = 0.0
        self.tally = Tally()
        self._count, self._busy = 0, 0.0

    def after_io_wait(self, timeout: float) -> None:
        self._began = time.perf_counter()

    def before_io_wait(self, timeout: float) -> None:
        if self._began:
            busy = time.perf_counter() - self._began
            self._count += 1
            self._busy += busy
            if busy > self.longest:
                self.longest = busy

    def take(self) -> tuple[Tally, float]:
        """Turns so far, and the longest since the last call."""
        longest, self.longest = self.longest, 0.0
        return Tally(self._count, self._busy), longest


class Charts:
    """Takes a point of each chart when it is asked to."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.turns = Turns()
        self._before: dict[str, Tally] | None = None
        self._at = 0.0

    def point(self, now_ns: int) -> dict[str, float] | None:
        """What happened since the last point; None the first time. Seconds become milliseconds."""
        now = time.monotonic()
        turns, longest = self.turns.take()
        tallies = {**self._tallies(), "turn": turns}
        before, self._before = self._before, tallies
        passed, self._at = now - self._at, now
        if before is None or passed <= 0:
            return None
        return {
            "at": now_ns // 1_000_000,
            "longest": _round(longest * 1000),
            **rates(before, tallies, passed),
        }

    def _tallies(self) -> dict[str, Tally]:
        samples = {
            f"{name}_{part}": (key, part) for key, name in _HISTOGRAMS.items() for part in ("count", "sum")
        }
        sums: dict[tuple[str, str], float] = dict.fromkeys(samples.values(), 0.0)
        for metric in self._registry.restricted_registry(list(samples)).collect():
            for sample in metric.samples:
                if (place := samples.get(sample.name)) is not None:
                    sums[place] += sample.value
        return {key: Tally(sums[key, "count"], sums[key, "sum"]) for key in _HISTOGRAMS}


def rates(before: Mapping[str, Tally], now: Mapping[str, Tally], seconds: float) -> dict[str, float]:
    """Per chart how often a second (`name`) and how many milliseconds each took (`name_ms`). Pure."""
    said: dict[str, float] = {}
    for name, tally in now.items():
        count = tally.times - before[name].times
        if count > 0:
            said[name] = _round(count / seconds)
            said[f"{name}_ms"] = _round((tally.seconds - before[name].seconds) / count * 1000)
    return said


def _round(value: float) -> float:
    """Three digits are more than a chart shows."""
    return float(f"{value:.3g}")

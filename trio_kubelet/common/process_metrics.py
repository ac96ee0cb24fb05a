"""Figures of this process that Go's client library shows and `prometheus_client` does not."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

_UNLIMITED: Final = 2**64 - 1


class ProcessExtras(Collector):
    """The limit of memory, and the bytes of the process's network; what cannot be read is left out."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        value = _UNLIMITED if limit == resource.RLIM_INFINITY else limit
        meaning = "Most virtual memory the process may have, in bytes."
        yield GaugeMetricFamily("process_virtual_memory_max_bytes", meaning, value)
        with suppress(OSError, ValueError, KeyError):
            octets = self._octets()
            for name, done, field in (("receive", "received", "InOctets"), ("transmit", "sent", "OutOctets")):
                meaning = f"Bytes {done} over the network the process is in."
                yield CounterMetricFamily(f"process_network_{name}_bytes", meaning, octets[field])

    def _octets(self) -> dict[str, int]:
        with open(f"{self._proc}/self/net/netstat", encoding="ascii") as file:
            names, values = (line.split()[1:] for line in file if line.startswith("IpExt:"))
        return dict(zip(names, map(int, values), strict=True))

"""What metrics of all rooms share. Every metric has the kubelet's name: dashboards and alerts rely on it.

An agent has one registry of its own rather than prometheus-client's global one, so that tests can run several
agents in one process. Each room has a class of its metrics, which is given the registry.
"""

from __future__ import annotations

from prometheus_client import Gauge

# The bucket layout the kubelet uses for most of its histograms.
DEFAULT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class PlainCounter(Gauge):
    """A counter whose name does not end in `_total`, as some of the kubelet's do not.

    prometheus-client would add the suffix; `server.http.exposition` writes the name as it is.
    """

    _type = "counter"

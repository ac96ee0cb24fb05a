"""When probes run: spread over their period, so that a restart of the agent makes no burst.

The kubelet starts each probe at a random point after a restart; five hundred of them still bunch
(kubernetes/kubernetes 52154). Here the point follows from the container's id, the same after every
restart, and a pace keeps any crowd of probes that fall due together apart.
"""

from __future__ import annotations

import hashlib
import math

from trio_kubelet.probes.types import ProbeKey

PACE_FACTOR = 2.0
"""How much faster than the mean rate probes may be started when many are due at once."""
LONGEST_GAP = 0.02  # seconds; below 25 probes a second nothing is held apart


def phase(key: ProbeKey, container_id: str, period: float) -> float:
    """Where in its period a probe runs, in [0, period): a hash of what it is about."""
    text = f"{container_id}/{key.container}/{key.kind}".encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 * period


def first_due(offset: float, period: float, now: float) -> float:
    """The next moment ≥ `now` that lies at `offset` in a grid of `period`."""
    return offset + math.ceil((now - offset) / period) * period


def next_due(due: float, period: float, now: float) -> float:
    """The moment after `due`; one that is already past is now, and later ones keep the period from there."""
    return max(due + period, now)


def gap(rate: float) -> float:
    """Seconds between two starts, at a mean of `rate` probes a second."""
    return min(LONGEST_GAP, 1 / (PACE_FACTOR * rate)) if rate > 0 else 0.0

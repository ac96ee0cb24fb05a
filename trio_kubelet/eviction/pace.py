"""How soon to look again: seldom while all is calm, soon where something runs out fast. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trio_kubelet.eviction.thresholds import Signal, Threshold
from trio_kubelet.machine.facts import threshold_amount

CALM: Final = 0.5
"""Seconds between looks at a calm node. From the crossing of a threshold to the SIGTERM of the pod that goes
it is to take a second at most, and not everything that runs out can be told by the kernel.
"""

SHORTEST: Final = 0.05


def pause_before_next(
    thresholds: Sequence[Threshold],
    signals: Mapping[str, Signal],
    before: Mapping[str, Signal],
    elapsed: float,
) -> float:
    """Seconds until the next look: half of what is left until some threshold is crossed at the rate since
    `before`, which is `elapsed` seconds ago.
    """
    pause = CALM
    for threshold in thresholds:
        now, then = signals.get(threshold.signal), before.get(threshold.signal)
        if now is None or then is None or elapsed <= 0:
            continue
        room = now.available - threshold_amount(threshold.least, now.capacity)
        taken = then.available - now.available
        if room > 0 and taken > 0:
            pause = min(pause, max(SHORTEST, room * elapsed / taken / 2))
    return pause

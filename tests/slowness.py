"""How much slower this machine is, just now, than the one for which limits of CPU time in tests were set."""

from __future__ import annotations

import time
from typing import Final

_USUAL: Final = 0.05
"""Seconds of CPU that a million steps of a plain loop take there."""


def slowness() -> float:
    """What a limit is multiplied by, at least 1. A virtual CPU that others take counts as used."""
    began, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return max(1.0, (time.process_time() - began) / _USUAL)

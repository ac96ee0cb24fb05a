"""How much slower this machine is, just now, than the one for which limits of CPU time in tests were set."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest

_USUAL: Final = 0.05
"""Seconds of CPU that a million steps of a plain loop take there."""

_ROUNDS: Final = 3
"""A machine that stands still for a second in one of them does not in each."""


def slowness() -> float:
    """What a limit is multiplied by, at least 1. A virtual CPU that others take counts as used."""
    began, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return max(1.0, (time.process_time() - began) / _USUAL)


def within_cpu(seconds: float) -> Iterator[None]:
    """Have the body of a loop done until it takes less than so many seconds of CPU, on the usual machine.

    Fails after three rounds, of which none did.
    """
    taken = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        yield
        taken.append(time.process_time() - began)
        if taken[-1] < seconds * slowness():
            return
    pytest.fail(f"{min(taken):.3f} seconds of CPU, of {seconds} on a machine {slowness():.1f} times as fast")

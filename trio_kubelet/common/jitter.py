"""Generators of jitter."""

from __future__ import annotations

import random


def generator(given: random.Random | None) -> random.Random:
    """`given`, else a generator of the caller's own. Its seed is drawn from the process's generator, not from
    the kernel: who seeds that one, as the tests do, sees the same jitter again.
    """
    return given or random.Random(random.random())

"""The interpreter's settings."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

from trio_kubelet.common.interpreter import COMPLETE_SECONDS, KEPT_MORE, Survivors

ASK = """
import gc, sys
from trio_kubelet.common.interpreter import keep_for_good, share_with_threads, start_without_collector
start_without_collector()
print(gc.isenabled())
share_with_threads()
keep_for_good()
started = gc.get_freeze_count()
print(round(sys.getswitchinterval(), 6), started > 1_000, gc.isenabled())
pods = [[] for _ in range(1_000)]
gc.collect()
print(gc.get_freeze_count() > started + 1_000)
"""


def test_threads_hand_over_soon_and_what_is_there_is_not_walked_over_again() -> None:
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "0.0001", "True", "True", "True"]


class Node:
    """One of a cycle."""

    def __init__(self) -> None:
        self.other = self


def test_cycles_that_die_after_a_full_pass_are_found_within_the_hour() -> None:
    now = 0.0
    survivors = Survivors(lambda: now)
    gc.callbacks.append(survivors)
    try:
        cycle = Node()
        left = weakref.ref(cycle)
        gc.collect()  # outlived
        del cycle
        gc.collect()
        assert left() is not None, "it is not walked over again"
        now = COMPLETE_SECONDS
        gc.collect()  # from here on everything is looked through once
        gc.collect()
        assert left() is None
        assert gc.get_freeze_count() > 0, "then the rest is left alone again"
    finally:
        gc.callbacks.remove(survivors)
        gc.unfreeze()


def test_cycles_that_somebody_makes_without_end_are_found_before_the_hour_is_over() -> None:
    gc.collect()
    gc.freeze()
    survivors = Survivors(lambda: 0.0)
    started = gc.get_freeze_count()
    gc.callbacks.append(survivors)
    most = 0
    try:
        for _ in range(2 * (started + KEPT_MORE) // 10_000):
            cycles = [Node() for _ in range(10_000)]  # each with its dictionary
            gc.collect()  # outlived
            del cycles
            most = max(most, gc.get_freeze_count())
        assert most < 2 * started + KEPT_MORE + 100_000
    finally:
        gc.callbacks.remove(survivors)
        gc.unfreeze()

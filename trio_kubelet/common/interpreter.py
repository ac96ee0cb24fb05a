"""The Python interpreter set up for an event loop that shares it with worker threads.

* Who computes hands the interpreter over after a tenth of a millisecond, not after five: each system call
  lets go of it, and while others compute each could cost its thread that long, the loop's or a worker's. A
  pod's directories are a dozen system calls: at a millisecond each they took the time of a dozen turns.
* What is there once the agent has started (modules, types, tables) lives as long as it does. The collector
  does not walk over it again and again: a full pass over it alone holds the loop for 20 ms.
* Collections are rarer: the agent makes many objects when a pod starts, and next to none of them are cycles.
  They are smaller too, for no turn of the loop should take 20 ms.
* What has outlived a full pass (the pods) is not walked over by the next, which would take longer the more
  pods there are. Cycles among it are found by a complete pass, hourly, or when so much has been added that a
  peer may be making them: streams of gRPC that are opened and reset at once, without end.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

SWITCH_SECONDS: Final = 0.0001
YOUNG_OBJECTS: Final = 1_000
YOUNG_PASSES: Final = 1
MIDDLE_PASSES: Final = 0
"""Objects more before a pass over the young, and passes over one generation that are not yet followed by one
over the next. So every third pass is over the middle ones too and every sixth is full, over at most 6,000
objects; each of them takes up to a microsecond of the loop where others have emptied the caches."""
COMPLETE_SECONDS: Final = 3600.0
KEPT_MORE: Final = 400_000
"""Objects that may be added to those kept before a complete pass: some 160 MB. A pod has five hundred, and a
complete pass over those of 500 pods, in the middle of their start, would hold up the loop for 50 ms."""


def share_with_threads() -> None:
    """For a process that begins."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_PASSES, MIDDLE_PASSES)


def start_without_collector() -> None:
    """Until `keep_for_good`: what a start makes stays, and looking through it takes a sixth of the time."""
    gc.disable()


def keep_for_good() -> None:
    """What exists now is taken to live as long as the process. It is not looked through before: two in a
    hundred objects that a start makes are garbage, and to find them would hold the loop for as long as a
    hundred milliseconds beside pods that are found running.
    """
    gc.freeze()
    gc.callbacks.append(Survivors(time.monotonic))
    gc.enable()


class Survivors:
    """Keeps what outlives a full pass out of the passes that follow. Told of each pass by the collector."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._complete = False  # whether the next full pass is over everything
        self._next = 0.0
        self._most = 0
        self._completed()

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        if phase != "stop" or info["generation"] != 2:
            return
        if self._complete:
            gc.freeze()
            self._completed()
        elif self._clock() < self._next and not self._are_too_many():
            gc.freeze()
        else:
            self._complete = True
            gc.unfreeze()

    def _completed(self) -> None:
        kept = gc.get_freeze_count()
        self._complete = False
        self._next = self._clock() + COMPLETE_SECONDS
        self._most = kept + max(kept, KEPT_MORE)
        self._until_counted = self._most - kept

    def _are_too_many(self) -> bool:
        """Whether more are kept than may be. To count them is to walk over them (6 ms for 200,000), so it
        is done once as many have been added as could be too many.
        """
        self._until_counted -= len(gc.get_objects(generation=2))
        if self._until_counted > 0:
            return False
        kept = gc.get_freeze_count()
        self._until_counted = max(self._most - kept, KEPT_MORE // 10)
        return kept >= self._most

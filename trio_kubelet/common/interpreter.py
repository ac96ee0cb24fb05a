"""The Python interpreter set up for an event loop that shares it with worker threads.

* A thread that computes hands the interpreter over after a millisecond, not five: each system call of the
  loop lets go of it, and with threads at work every one of them could cost the loop that long.
* What is there once the agent has started (modules, types, tables) lives as long as it does. The collector
  does not walk over it again and again: a full pass over it alone holds the loop for 20 ms.
* Collections are rarer: the agent makes many objects when a pod starts, and next to none of them are cycles.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

SWITCH_SECONDS: Final = 0.001
YOUNG_OBJECTS: Final = 5_000


def share_with_threads() -> None:
    """For a process that begins."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)


def start_without_collector() -> None:
    """Until `keep_for_good`: what a start makes stays, and looking through it takes a sixth of the time."""
    gc.disable()


def keep_for_good() -> None:
    """What exists now is taken to live as long as the process. It is not looked through before: two in a
    hundred objects that a start makes are garbage, and to find them would hold the loop for as long as a
    hundred milliseconds beside pods that are found running.
    """
    gc.freeze()
    gc.enable()

"""The interpreter's settings."""

from __future__ import annotations

import subprocess
import sys

ASK = """
import gc, sys
from trio_kubelet.common.interpreter import keep_for_good, share_with_threads, start_without_collector
start_without_collector()
print(gc.isenabled())
share_with_threads()
keep_for_good()
print(sys.getswitchinterval(), gc.get_freeze_count() > 1_000, gc.isenabled())
"""


def test_threads_hand_over_soon_and_what_is_there_is_not_walked_over_again() -> None:
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "0.001", "True", "True"]

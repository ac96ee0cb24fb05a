"""The event loop's thread comes before other processes, for a moment at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest

ASK = """
import os, resource, signal, subprocess, sys, threading, time
import trio
from trio_kubelet.common import priority

def policy():
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK

def first():
    return policy() == os.SCHED_RR

def standing():
    return policy(), resource.getrlimit(resource.RLIMIT_RTTIME), signal.getsignal(signal.SIGXCPU)

async def until(wanted):
    with trio.fail_after(20):
        while first() != wanted:
            await trio.sleep(0.01)

def compute(seconds, enough=lambda: False):
    # CPU time: a machine with much else to do is no reason for the limit.
    began = time.thread_time()
    while time.thread_time() - began < seconds and not enough():
        pass

async def main():
    before = standing()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(priority.come_first)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        print("first", first())
        WHAT
        nursery.cancel_scope.cancel()
    print("as before", standing() == before)

trio.run(main)
"""


def asked(what: str, *before: str) -> list[str]:
    """The lines that a process says whose loop comes first, and does `what` then."""
    program = ASK.replace("WHAT", "\n        ".join(what.strip().splitlines()))
    done = subprocess.run(
        [*before, sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@cache
def may() -> bool:
    return subprocess.run(["chrt", "--rr", "1", "true"], capture_output=True, timeout=60).returncode == 0


needs_right = pytest.mark.skipif(not may(), reason="no real-time priorities for this process")


@needs_right
def test_only_the_loops_thread_comes_first_and_as_long_as_it_runs() -> None:
    lines = asked("""
found = []
thread = threading.Thread(target=lambda: found.append(policy()))
thread.start()
thread.join()
print("a thread", found == [os.SCHED_OTHER])
ask = "import os; print('a program', os.sched_getscheduler(0) == os.SCHED_OTHER)"
print(subprocess.run([sys.executable, "-c", ask], stdout=subprocess.PIPE, text=True).stdout.strip())
""")
    assert lines == ["first True", "a thread True", "a program True", "as before True"]


@needs_right
def test_one_turn_that_does_not_end_gives_its_place_away_meanwhile() -> None:
    """Twice: the kernel raises the limit by a second with each signal."""
    lines = asked("""
for _ in range(2):
    compute(10, lambda: not first())
    print("still first", first())
    await until(True)
""")
    assert lines == ["first True", "still first False", "still first False", "as before True"]


@needs_right
def test_many_turns_without_a_rest_are_like_one() -> None:
    lines = asked("""
for _ in range(1000):
    compute(0.01)
    await trio.lowlevel.checkpoint()
    if not first():
        break
print("still first", first())
""")
    assert lines == ["first True", "still first False", "as before True"]


@needs_right
def test_who_rests_in_between_stays_first() -> None:
    lines = asked("""
for _ in range(20):
    compute(0.05)
    await trio.sleep(0.01)
    if not first():
        break
print("still first", first())
""")
    assert lines == ["first True", "still first True", "as before True"]


@needs_right
def test_a_limit_that_would_end_the_agent_is_not_reached() -> None:
    lines = asked("compute(10, lambda: not first())", "prlimit", "--rttime=100000:100000")
    assert lines == ["first True", "as before True"]


@needs_right
def test_what_whoever_started_it_chose_stays() -> None:
    lines = asked("print(os.sched_getscheduler(0) == os.SCHED_BATCH)", "chrt", "--batch", "0")
    assert lines == ["first False", "True", "as before True"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give the right away")
def test_without_the_right_to_it_goes_on_like_all_others() -> None:
    lines = asked("await trio.sleep(0.1)", "setpriv", "--bounding-set=-sys_nice", "prlimit", "--rtprio=0:0")
    assert lines == ["first False", "as before True"]

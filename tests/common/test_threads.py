"""Threads that are kept, and started without anybody waiting for it."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from outcome import Error, Outcome, Value

from tests.slow_library import TURNS, numbers_with_library
from trio_kubelet.common.threads import THREADS, Threads, start_thread

LONG = 10.0
"""Seconds until a test fails."""


class Work:
    """Some work in threads, and what comes of it."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self.found: SimpleQueue[Outcome[Any]] = SimpleQueue()

    def begin(self, work: Callable[[], object]) -> None:
        self._threads.start_soon(work, self.found.put)

    def result(self) -> object:
        found = self.found.get(timeout=LONG)
        assert isinstance(found, Value)
        return found.value

    def do(self, work: Callable[[], object]) -> object:
        self.begin(work)
        return self.result()


def test_what_work_returns_or_raises_is_delivered() -> None:
    work = Work(Threads())
    assert work.do(lambda: 3) == 3
    work.begin(lambda: [][0])
    found = work.found.get(timeout=LONG)
    assert isinstance(found, Error)
    assert isinstance(found.error, IndexError)
    assert work.do(threading.get_ident) != threading.get_ident()


def test_a_forked_process_has_threads_of_its_own() -> None:
    Work(THREADS).do(threading.get_ident)
    child = multiprocessing.get_context("fork").Process(target=lambda: Work(THREADS).do(threading.get_ident))
    child.start()
    child.join(LONG)
    assert child.exitcode == 0


def test_a_thread_outlives_what_cannot_be_told(capfd: pytest.CaptureFixture[str]) -> None:
    threads = Threads()
    threads.start_soon(lambda: 3, lambda found: [][0])
    assert Work(threads).do(lambda: "done") == "done"
    assert "Cannot tell what work in a thread came to" in capfd.readouterr().err


def test_a_thread_is_used_again_and_others_are_started_as_they_are_needed() -> None:
    work, go = Work(Threads()), threading.Event()
    first = work.do(threading.get_ident)
    for _ in range(20):
        assert work.do(threading.get_ident) == first
    running = SimpleQueue[int]()

    def wait() -> None:
        running.put(threading.get_ident())
        go.wait(LONG)

    for _ in range(20):
        work.begin(wait)
    assert len({running.get(timeout=LONG) for _ in range(20)}) == 20
    go.set()


def test_a_thread_that_takes_long_to_start_holds_up_nobody() -> None:
    """Work that waits for it goes to the first thread that is idle."""
    may_start, first = threading.Event(), [True]

    def start(run: Callable[[], None]) -> None:
        if not first:
            may_start.wait(LONG)
        first.clear()
        start_thread(run)

    threads = Threads(start=start)
    work, other = Work(threads), Work(threads)
    begun, end = threading.Event(), threading.Event()

    def wait() -> int:
        begun.set()
        end.wait(LONG)
        return threading.get_ident()

    work.begin(wait)
    assert begun.wait(LONG)
    before = time.monotonic()
    other.begin(threading.get_ident)
    assert time.monotonic() - before < LONG / 2
    assert other.found.empty()
    end.set()
    assert other.result() == work.result()
    may_start.set()


SLOW_KERNEL = """
#include <pthread.h>
static int begun;
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    real = dlsym(RTLD_NEXT, "pthread_create");
    if (begun++) /* the first is the one that starts the others */
        wait_for_the_loop();
    return real(thread, attr, run, arg);
}
"""
LOOP = """
import time
from queue import SimpleQueue
from trio_kubelet.common.threads import Threads
done, threads = SimpleQueue(), Threads()
hold()
threads.start_soon(lambda: 1, done.put)
while done.empty():
    time.sleep(0.001)
    turn()
print(turns)
"""


def test_while_the_kernel_lets_no_thread_begin_the_loop_goes_on(tmp_path: Path) -> None:
    """The kernel lets it only after so many turns of the loop."""
    (turns,) = numbers_with_library(tmp_path, SLOW_KERNEL, LOOP)
    assert turns >= TURNS


def test_a_thread_that_cannot_be_started_is_tried_again(capfd: pytest.CaptureFixture[str]) -> None:
    failures = [1, 2]

    def start(run: Callable[[], None]) -> None:
        if failures:
            failures.pop()
            raise OSError("as many as there may be")
        start_thread(run)

    assert Work(Threads(start=start)).do(lambda: "done") == "done"
    assert capfd.readouterr().err.count("Cannot start a thread, will try again") == 2


def test_as_many_threads_as_there_may_be_is_an_error_and_no_more() -> None:
    code = """
import resource, threading
from trio_kubelet.common.threads import start_thread
resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
begun, end = threading.Semaphore(0), threading.Event()
def run():
    begun.release()
    end.wait()
started = 0
try:
    while True:
        start_thread(run)
        started += 1
except OSError as exc:
    print(exc)
for _ in range(started):
    begun.acquire()
end.set()
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "cannot start a thread" in said.stdout
    assert said.stderr == ""


def test_threads_that_are_idle_for_long_end_but_for_some() -> None:
    threads, go = Threads(kept=2, idle_seconds=0.05), threading.Event()
    work, running = Work(threads), SimpleQueue[int]()

    def wait() -> None:
        running.put(threading.get_native_id())
        go.wait(LONG)

    for _ in range(6):
        work.begin(wait)
    began = [Path(f"/proc/self/task/{running.get(timeout=LONG)}") for _ in range(6)]
    assert all(thread.exists() for thread in began)
    go.set()
    until = time.monotonic() + LONG
    while sum(thread.exists() for thread in began) > 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.5)  # longer than an idle one stays
    assert sum(thread.exists() for thread in began) == 2

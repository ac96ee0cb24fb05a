"""Threads that are kept, and started without anybody waiting for it."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
from outcome import Error, Outcome, Value

from trio_kubelet.common.threads import THREADS, Threads

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


def test_a_thread_that_takes_long_to_start_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that waits for it goes to the first thread that is idle."""
    threads, may_start = Threads(), threading.Event()
    work, other = Work(threads), Work(threads)
    begun, end = threading.Event(), threading.Event()

    def wait() -> int:
        begun.set()
        end.wait(LONG)
        return threading.get_ident()

    work.begin(wait)
    assert begun.wait(LONG)
    start = threading.Thread.start

    def slow(thread: threading.Thread) -> None:
        may_start.wait(LONG)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow)
    before = time.monotonic()
    other.begin(threading.get_ident)
    assert time.monotonic() - before < LONG / 2
    assert other.found.empty()
    end.set()
    assert other.result() == work.result()
    may_start.set()


def test_a_thread_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    start, failures = threading.Thread.start, [1, 2]

    def failing(thread: threading.Thread) -> None:
        if thread.name == "worker" and failures:
            failures.pop()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    assert Work(Threads()).do(lambda: "done") == "done"
    assert capfd.readouterr().err.count("Cannot start a thread, will try again") == 2


def test_threads_that_are_idle_for_long_end_but_for_some() -> None:
    threads, go = Threads(kept=2, idle_seconds=0.05), threading.Event()
    work, running = Work(threads), SimpleQueue[threading.Thread]()

    def wait() -> None:
        running.put(threading.current_thread())
        go.wait(LONG)

    for _ in range(6):
        work.begin(wait)
    began = [running.get(timeout=LONG) for _ in range(6)]
    go.set()
    until = time.monotonic() + LONG
    while sum(thread.is_alive() for thread in began) > 2:
        assert time.monotonic() < until
        began[0].join(0.01)
    for thread in began:
        thread.join(0.1)  # longer than an idle one stays
    assert sum(thread.is_alive() for thread in began) == 2

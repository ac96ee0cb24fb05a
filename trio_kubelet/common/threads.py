"""The threads of all lanes: kept for the next work, and started by a thread of their own.

To start a thread may take long. The kernel lets no thread or process begin while another is moved between
cgroups, which a runtime does for every container that it starts or enters (`cgroup_threadgroup_rwsem`): on a
node with far more of that than it had CPUs for, one took 7.6 seconds. The event loop is not to wait for that,
nor for a CPU for the new thread: it hands over work, to a thread that is idle or to the next that will be.
The interpreter starts a thread without letting others go on meanwhile, so the C library is asked instead.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from outcome import Outcome, capture

from trio_kubelet.common.log import get_logger

T = TypeVar("T")

log = get_logger(__name__)

KEPT: Final = 8
"""Threads that stay although there is nothing to do."""
IDLE_SECONDS: Final = 60.0
"""After which others end."""
_AGAIN: Final = 0.2  # seconds until a thread that could not be started is tried again
_STACK: Final = 8 << 20  # bytes of addresses; what is not used takes no memory
_DETACHED: Final = 1  # PTHREAD_CREATE_DETACHED: nobody waits for its end
_ATTRIBUTES: Final = 256  # bytes, more than a pthread_attr_t has anywhere

_Job: TypeAlias = tuple[Callable[[], Any], Callable[[Outcome[Any]], object]]
"""Work, and who is told what it came to."""


_starting: Final = deque[Callable[[], None]]()  # what the threads that are being started are to do


def _begin(_: object) -> None:
    """What a new thread does first."""
    _starting.popleft()()


_BEGIN: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_begin)


def start_thread(run: Callable[[], None]) -> None:
    """Has a new thread call `run`, which ends with the process at the latest. Waits for the kernel, maybe
    long, while other threads go on: `threading` would keep the interpreter from them.

    Raises OSError if there are as many threads as there may be.
    """
    library = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(_ATTRIBUTES)
    library.pthread_attr_init(attributes)
    library.pthread_attr_setdetachstate(attributes, _DETACHED)
    library.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK))
    _starting.append(run)
    code = library.pthread_create(ctypes.byref(ctypes.c_void_p()), attributes, _BEGIN, None)
    library.pthread_attr_destroy(attributes)
    if code:
        _starting.remove(run)
        raise OSError(code, f"cannot start a thread: {os.strerror(code)}")


class _Idle:
    """A thread that waits for a job."""

    __slots__ = ("job", "wake")

    def __init__(self) -> None:
        self.job: _Job | None = None
        self.wake = threading.Lock()
        self.wake.acquire()


class Threads:
    """As many threads as there is work at once; the lanes see to it that this is not too much."""

    def __init__(
        self,
        kept: int = KEPT,
        idle_seconds: float = IDLE_SECONDS,
        start: Callable[[Callable[[], None]], None] = start_thread,
    ) -> None:
        self._kept = kept
        self._idle_seconds = idle_seconds
        self._start = start
        self.begin_anew()

    def begin_anew(self) -> None:
        """Without any thread, as in a process just forked, which has none of those of its parent."""
        self._lock = threading.Lock()  # of the two that follow, one of which is empty
        self._idle: list[_Idle] = []  # the one used last is the next to be
        self._jobs: deque[_Job] = deque()
        self._wanted: SimpleQueue[None] = SimpleQueue()  # a word for each job that found no thread
        self._starter: threading.Thread | None = None

    def start_soon(self, work: Callable[[], T], deliver: Callable[[Outcome[T]], object]) -> None:
        """Has `work` done in a thread, which gives what it returned or raised to `deliver`. Never waits."""
        with self._lock:
            if idle := self._idle.pop() if self._idle else None:
                idle.job = work, deliver
            else:
                self._jobs.append((work, deliver))
        if idle:
            idle.wake.release()
            return
        self._wanted.put(None)
        if self._starter is None:
            starter = threading.Thread(target=self._start_threads, name="starts threads", daemon=True)
            starter.start()
            self._starter = starter

    def _start_threads(self) -> None:
        """Starts a thread for each job that none has taken meanwhile, for ever."""
        while True:
            self._wanted.get()
            while self._jobs:
                try:
                    self._start(self._run)
                    break
                except (OSError, MemoryError) as exc:  # there are as many as there may be
                    log.error("Cannot start a thread, will try again", err=exc)
                    time.sleep(_AGAIN)

    def _run(self) -> None:
        """One thread."""
        me = _Idle()
        job = self._next(me)
        while job or (job := self._wait(me)):
            work, deliver = job
            found = capture(work)
            del work  # and what it holds
            job = self._next(me)  # before it is told: what follows from it is to find this thread
            try:
                deliver(found)
            except Exception as exc:
                log.error("Cannot tell what work in a thread came to", err=exc)
            del found, deliver

    def _next(self, me: _Idle) -> _Job | None:
        """A job that waits for a thread; if there is none, this one is idle."""
        with self._lock:
            if self._jobs:
                return self._jobs.popleft()
            self._idle.append(me)
            return None

    def _wait(self, me: _Idle) -> _Job | None:
        """The job that an idle thread is given; None if it is none for long, and others are idle as well."""
        while not me.wake.acquire(timeout=self._idle_seconds):
            with self._lock:
                if me.job is None and len(self._idle) > self._kept:
                    self._idle.remove(me)
                    return None
        job, me.job = me.job, None
        return job


THREADS: Final = Threads()
os.register_at_fork(after_in_child=THREADS.begin_anew)
os.register_at_fork(after_in_child=_starting.clear)

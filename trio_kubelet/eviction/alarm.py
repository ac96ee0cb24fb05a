"""The kernel's word that memory runs short, heard at once instead of at the next look.

Three sources, each where the machine has it: pressure stall information of the machine, the events of the
cgroup above all pods (cgroup v2), and thresholds of the v1 memory controller, which are asked for
(`kernelMemcgNotification`) because the kernel walks its list of them with every charge.
"""

from __future__ import annotations

import math
import os
import select
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

import msgspec
import trio

from trio_kubelet.common.log import get_logger
from trio_kubelet.eviction.signals import SignalPlaces
from trio_kubelet.eviction.thresholds import ALLOCATABLE_MEMORY, MEMORY_AVAILABLE, Threshold
from trio_kubelet.machine.cgroup_reader import CgroupReader
from trio_kubelet.machine.facts import threshold_amount

log = get_logger(__name__)

PSI: Final = "/proc/pressure/memory"
STALLED: Final = b"some 100000 1000000"
"""Tell when tasks waited for memory for 100 of 1,000 ms."""

REST: Final = 0.2
"""Seconds between two alarms at least: under pressure the kernel has a lot to say."""

REFRESH: Final = 10.0
"""Seconds for which a v1 threshold is good (kubelet: `notifierRefreshInterval`)."""


class UsageThreshold(msgspec.Struct, frozen=True):
    """A cgroup of the v1 memory controller (its directory), and bytes of usage that call for a look."""

    directory: str
    usage: int


def usage_thresholds(
    thresholds: Sequence[Threshold], places: SignalPlaces, cgroups: CgroupReader, hierarchy: str
) -> list[UsageThreshold]:
    """The usages at which as little is left as may be; `hierarchy` is where the v1 memory controller is.
    Blocking.

    Pages that can be dropped do not count as used, and how many there are changes.
    """
    found = []
    for each in thresholds:
        cgroup = {MEMORY_AVAILABLE: "/", ALLOCATABLE_MEMORY: places.pods_cgroup}.get(each.signal)
        use = cgroups.use(cgroup) if cgroup is not None else None
        if cgroup is None or use is None or use.memory is None:
            continue
        capacity = places.memory if cgroup == "/" else use.memory_limit
        least = threshold_amount(each.least, capacity)
        usage = max(0, capacity - least + use.memory - use.working_set)
        found.append(UsageThreshold(os.path.join(hierarchy, cgroup.lstrip("/")), usage))
    return found


class KernelAlarm:
    """Waits for the kernel; to be used as a context manager, again if need be. `thresholds` tells those of v1
    and is asked now and then.
    """

    def __init__(
        self,
        *,
        events_file: str | None = None,
        thresholds: Callable[[], Sequence[UsageThreshold]] = lambda: (),
        psi: str = PSI,
    ) -> None:
        self._events_file = events_file
        self._thresholds = thresholds
        self._psi = psi
        self._eventfds: list[int] = []
        self._heard_at = -math.inf

    def __enter__(self) -> Self:
        self._epoll = select.epoll()
        self._events, self._refresh_due = -1, -math.inf
        self._stalls = self._open(self._psi, os.O_RDWR, select.EPOLLPRI, STALLED)
        if self._events_file is not None:
            self._events = self._open(self._events_file, os.O_RDONLY, select.EPOLLPRI)
            self._rearm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop_thresholds()
        for number in (self._stalls, self._events):
            if number >= 0:
                os.close(number)
        self._epoll.close()

    async def wait(self) -> None:
        """Returns when the kernel says that memory runs short."""
        await trio.sleep_until(self._heard_at + REST)
        while True:
            if trio.current_time() >= self._refresh_due:
                self._set_thresholds()
                self._refresh_due = trio.current_time() + REFRESH
            with trio.move_on_at(self._refresh_due):
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._take()
                self._heard_at = trio.current_time()
                return

    def _open(self, path: str, flags: int, events: int, ask: bytes = b"") -> int:
        """A file that tells; -1 where there is none, or it cannot be had."""
        try:
            number = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            log.v(2).info("No word of the kernel about memory from this file", path=path, err=error)
            return -1
        try:
            if ask:
                os.write(number, ask)
            self._epoll.register(number, events)
        except OSError as error:
            log.v(2).info("No word of the kernel about memory from this file", path=path, err=error)
            os.close(number)
            return -1
        return number

    def _take(self) -> None:
        """Takes what was told, so that only news wakes us again."""
        for number, _ in self._epoll.poll(0):
            if number in self._eventfds:
                os.eventfd_read(number)
        self._rearm()

    def _rearm(self) -> None:
        if self._events >= 0:
            try:
                os.pread(self._events, 4096, 0)
            except OSError as error:  # the cgroup is gone
                log.v(2).info("No more words of the kernel about the pods' memory", err=error)
                os.close(self._events)
                self._events = -1

    def _set_thresholds(self) -> None:
        """Puts the v1 thresholds where they belong now."""
        self._drop_thresholds()
        for each in self._thresholds():
            try:
                self._eventfds.append(_notify(each))
            except OSError as error:
                log.v(2).info("failed to create memory threshold notifier", path=each.directory, err=error)
                continue
            self._epoll.register(self._eventfds[-1], select.EPOLLIN)

    def _drop_thresholds(self) -> None:
        for number in self._eventfds:
            os.close(number)
        self._eventfds.clear()


def _notify(threshold: UsageThreshold) -> int:
    """An eventfd that tells when the usage of a v1 cgroup crosses a threshold. Raises OSError."""
    told = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    usage = -1
    try:
        usage = os.open(f"{threshold.directory}/memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
        control = os.open(f"{threshold.directory}/cgroup.event_control", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(control, f"{told} {usage} {threshold.usage}".encode())
        finally:
            os.close(control)
    except OSError:
        os.close(told)
        raise
    finally:
        if usage >= 0:
            os.close(usage)  # the kernel holds the cgroup by the eventfd
    return told

"""Tells of processes that the kernel ended because the machine as a whole had no memory left (kubelet:
`oom.Watcher`). Those of a cgroup that met its own limit are told by the runtime and counted by the cgroup.
"""

from __future__ import annotations

import errno
import os
from typing import Final

import trio
import trio.lowlevel

from trio_kubelet.common.log import get_logger
from trio_kubelet.machine.kmsg import OOMReport, kernel_text, read_line
from trio_kubelet.node.events import NodeEvents

log = get_logger(__name__)

KMSG: Final = "/dev/kmsg"
_LARGEST: Final = 16 * 1024
"""Bytes of a record; the kernel writes no larger ones."""
_AT_ONCE: Final = 200
"""Records that are read before others have their turn: whoever may write here can write much."""


class OOMWatcher:
    """Follows the kernel's log from now on."""

    def __init__(self, events: NodeEvents, path: str = KMSG) -> None:
        self._events = events
        self._path = path
        self._report: OOMReport | None = None

    async def run(self) -> None:
        """Reads until it is cancelled. Without the right to, it says so once and is over."""
        try:
            log_file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            log.warning("The kernel's log cannot be read: no events will tell of its OOM killer", err=error)
            return
        with os.fdopen(log_file, "rb", buffering=0):
            await self._follow(log_file)

    async def _follow(self, log_file: int) -> None:
        try:
            os.lseek(log_file, 0, os.SEEK_END)
            while True:
                await trio.lowlevel.wait_readable(log_file)
                self._read_some(log_file)
                await trio.lowlevel.checkpoint()
        except OSError as error:
            log.error("Unexpectedly stopped receiving OOM notifications", err=error)

    def _read_some(self, log_file: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                record = os.read(log_file, _LARGEST)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EINVAL):
                    raise
                self._report = None  # records were overwritten before they were read
                log.warning("Some of the kernel's log was missed", err=error)
                continue
            self.take(record)

    def take(self, record: bytes) -> None:
        """One record of the log."""
        text = kernel_text(record)
        if text is None:
            return
        self._report, kill = read_line(self._report, text)
        if kill is None:
            return
        log.v(1).info("The OOM killer ended a process", cgroup=kill.cgroup, process=kill.name, pid=kill.pid)
        if kill.cgroup == "/":
            message = f"System OOM encountered, victim process: {kill.name}, pid: {kill.pid}"
            self._events.record_node("Warning", "SystemOOM", message)

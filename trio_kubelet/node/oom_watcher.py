"""Tells of processes that the kernel ended because the machine as a whole had no memory left (kubelet:
`oom.Watcher`), and knows the containers whose processes were ended so, whatever limit was met: runtimes do
not always say it. The cgroups count them.
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
_HISTORY: Final = 20_000
"""Records of before its start at most that it reads; the kernel keeps fewer, unless it was told otherwise."""
_CONTAINERS: Final = 10_000
"""Containers it remembers."""


class OOMWatcher:
    """Follows the kernel's log. What was there at the start is no news, but names containers, too."""

    def __init__(self, events: NodeEvents, path: str = KMSG) -> None:
        self._events = events
        self._path = path
        self._report: OOMReport | None = None
        self._ended: dict[str, None] = {}  # IDs of containers, the latest last

    def ended(self, container_id: str) -> bool:
        """Whether the OOM killer ended a process of that container."""
        return container_id in self._ended

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reads until it is cancelled, and has started once it has read what is there. Without the right to,
        it says so once and is over.
        """
        try:
            log_file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            log.warning("The kernel's log cannot be read: no events will tell of its OOM killer", err=error)
            task_status.started()
            return
        with os.fdopen(log_file, "rb", buffering=0):
            await self._follow(log_file, task_status)

    async def _follow(self, log_file: int, task_status: trio.TaskStatus[None]) -> None:
        try:
            for _ in range(_HISTORY // _AT_ONCE):
                if self._read_some(log_file, news=False):
                    break
                await trio.lowlevel.checkpoint()
            else:
                os.lseek(log_file, 0, os.SEEK_END)
            task_status.started()
            while True:
                await trio.lowlevel.wait_readable(log_file)
                self._read_some(log_file, news=True)
                await trio.lowlevel.checkpoint()
        except OSError as error:
            log.error("Unexpectedly stopped receiving OOM notifications", err=error)

    def _read_some(self, log_file: int, *, news: bool) -> bool:
        """Takes some records; whether there are no more."""
        for _ in range(_AT_ONCE):
            try:
                record = os.read(log_file, _LARGEST)
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EINVAL):
                    raise
                self._report = None  # records were overwritten before they were read
                if news:
                    log.warning("Some of the kernel's log was missed", err=error)
                continue
            self.take(record, news=news)
        return False

    def take(self, record: bytes, *, news: bool = True) -> None:
        """One record of the log."""
        text = kernel_text(record)
        if text is None:
            return
        self._report, kill = read_line(self._report, text)
        if kill is None:
            return
        if container := kill.container:
            self._ended.pop(container, None)
            self._ended[container] = None
            if len(self._ended) > _CONTAINERS:
                del self._ended[next(iter(self._ended))]
        if not news:
            return
        log.v(1).info("The OOM killer ended a process", cgroup=kill.cgroup, process=kill.name, pid=kill.pid)
        if kill.cgroup == "/":
            message = f"System OOM encountered, victim process: {kill.name}, pid: {kill.pid}"
            self._events.record_node("Warning", "SystemOOM", message)

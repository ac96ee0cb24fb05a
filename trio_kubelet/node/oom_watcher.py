"""Tells of processes that the kernel ended because the machine as a whole had no memory left (kubelet:
`oom.Watcher`), and knows the containers whose processes were ended so, whatever limit was met: runtimes do
not always say it. The cgroups count them.

Names of processes are what their programs made of them, so nothing here trusts more of a line of `/dev/kmsg`
than its form; records that a program has written itself are not the kernel's and do not count.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Final

import msgspec
import trio
import trio.lowlevel

from trio_kubelet.common.log import get_logger
from trio_kubelet.podinfo.doors import NodeRecorderDoor

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
REST: Final = 0.5
"""Seconds between two looks. The network of a pod that starts is a dozen records, each of which would wake
the event loop; who asks for a container looks at once.
"""


class OOMWatcher:
    """Follows the kernel's log. What was there at the start is no news, but names containers, too."""

    def __init__(self, events: NodeRecorderDoor, path: str = KMSG) -> None:
        self._events = events
        self._path = path
        self._log_file: int | None = None
        self._report: OOMReport | None = None
        self._ended: dict[str, None] = {}  # IDs of containers, the latest last

    def ended(self, container_id: str) -> bool:
        """Whether the OOM killer ended a process of that container, as far as the log tells by now."""
        if self._log_file is not None and container_id not in self._ended:
            try:
                self._read_some(self._log_file, news=True)
            except OSError as error:
                log.v(2).warning("The kernel's log could not be read", err=error)  # its follower will tell
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
            self._log_file = log_file
            task_status.started()
            while True:
                await trio.lowlevel.wait_readable(log_file)
                read_all = self._read_some(log_file, news=True)
                await trio.sleep(REST if read_all else 0)
        except OSError as error:
            log.error("Unexpectedly stopped receiving OOM notifications", err=error)
        finally:
            self._log_file = None

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
        if self._report is None and _START_BYTES not in record:
            return  # as nearly all are: an agent that starts reads thousands
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


_FACILITY: Final = 3  # bits of the priority that are the level; the rest says who wrote it, 0 is the kernel
_START: Final = " invoked oom-killer: "
_START_BYTES: Final = _START.encode()
_IN_CGROUP: Final = re.compile(
    r"oom-kill:constraint=\w+,.*,(?:oom_memcg=(?P<cgroup>[^,]*)|global_oom),task_memcg=(?P<victim>[^,]*),"
    r"task=(?P<name>.*),pid=(?P<pid>\d{1,10}),uid=\d+$"
)
_CONTAINER: Final = re.compile(r"[/-]([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_KILLED: Final = re.compile(r"Killed process (?P<pid>\d{1,10}) \((?P<name>.*?)\)(?:,| total-vm:|$)")
_IN_CGROUP_BEFORE_5_0: Final = re.compile(r"^Task in .* killed as a result of limit of (?P<cgroup>.*)$")


class OOMKill(msgspec.Struct, frozen=True):
    """A process that the OOM killer ended; `cgroup` is that whose limit was met, "/" for the machine,
    `victim` that of the process, "" if the kernel is too old to say.
    """

    cgroup: str
    name: str
    pid: int
    victim: str = ""

    @property
    def container(self) -> str:
        """The ID of the container whose process it was, as runtimes name cgroups; "" for none."""
        found = _CONTAINER.search(self.victim)
        return found[1] if found is not None else ""


class OOMReport(msgspec.Struct, frozen=True):
    """How far the kernel's report of one kill has been read: the cgroup, as far as it was named."""

    cgroup: str = "/"


def kernel_text(record: bytes) -> str | None:
    """The first line of a record that the kernel itself has written; None for others, and for no record."""
    head, semicolon, rest = record.partition(b";")
    priority = head.partition(b",")[0]
    if not semicolon or not priority.isdigit() or len(priority) > 9 or int(priority) >> _FACILITY:
        return None
    return rest.partition(b"\n")[0].decode("utf-8", "replace")


def read_line(report: OOMReport | None, text: str) -> tuple[OOMReport | None, OOMKill | None]:
    """One line more of the log: what of a report is read by now, and the kill once that is told."""
    if _START in text:
        return OOMReport(), None
    if report is None:
        return None, None
    if (found := _IN_CGROUP.match(text)) is not None:
        return None, OOMKill(found["cgroup"] or "/", found["name"], int(found["pid"]), found["victim"])
    if (found := _IN_CGROUP_BEFORE_5_0.match(text)) is not None:
        return OOMReport(found["cgroup"]), None
    if (found := _KILLED.search(text)) is not None:
        return None, OOMKill(report.cgroup, found["name"], int(found["pid"]))
    return report, None

"""The kernel's log, `/dev/kmsg`: its records, and what they say of the OOM killer. Pure.

Names of processes are what their programs made of them, so nothing here trusts more of a line than its form;
records that a program has written itself are not the kernel's and do not count.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_FACILITY: Final = 3  # bits of the priority that are the level; the rest says who wrote it, 0 is the kernel
_START: Final = " invoked oom-killer: "
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

"""Reads what cgroups have used, version 1 and 2. Blocking: to be called in a thread.

A file that is missing, or a cgroup that vanishes in between, gives zeros or None and never an error. What
counts as memory in use, working set and so on is cAdvisor's rule (`container/libcontainer`), so that figures
stay comparable when a node changes its agent. What is read of many cgroups is read in one call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from trio_kubelet.common.clock import Clock
from trio_kubelet.machine import text
from trio_kubelet.machine.values import CgroupDetail, CgroupUse
from trio_kubelet.native.pure_figures import read_file

if TYPE_CHECKING:
    from trio_kubelet.machine.cgroup_v1 import Version1
    from trio_kubelet.machine.cgroup_v2 import Version2


def read_number(path: str) -> int | None:
    """A file that holds one number."""
    return text.number(read_file(path))


class CgroupReader:
    """The cgroups of a machine."""

    def __init__(self, tree: Version1 | Version2) -> None:
        self._tree = tree

    def use(self, cgroup: str) -> CgroupUse | None:
        """What it has used; None if there is no such cgroup."""
        return self.uses([cgroup])[0]

    def uses(self, cgroups: Sequence[str], processes: bool = True) -> list[CgroupUse | None]:
        """The same of many, in order. Without `processes` those are not counted."""
        return self._tree.uses(cgroups, processes)

    def detail(self, cgroup: str) -> CgroupDetail:
        """What else is known of it."""
        return self.details([cgroup], [None])[0]

    def details(self, cgroups: Sequence[str], known: Sequence[CgroupDetail | None]) -> list[CgroupDetail]:
        """The same of many. What one is set to is taken from `known`, if given, and not read again."""
        unknown = [cgroup for cgroup, each in zip(cgroups, known, strict=True) if each is None]
        read = iter(self._tree.settings(unknown))
        return self._tree.details(cgroups, [each or next(read) for each in known])

    def children(self, cgroup: str) -> list[str]:
        """Names of the cgroups right below."""
        try:
            with os.scandir(self._tree.directory(cgroup)) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def processes(self, cgroups: Sequence[str]) -> list[list[int]]:
        """Processes right in each of them."""
        return [list(_pids(listing)) for listing in self._tree.process_lists(cgroups)]


def cgroup_reader(hierarchies: Mapping[str, str], clock: Clock) -> CgroupReader:
    """The reader for the hierarchies that `find_hierarchies` found. A machine has one version of the two."""
    if "" in hierarchies:
        from trio_kubelet.machine.cgroup_v2 import Version2

        return CgroupReader(Version2(hierarchies[""], clock))
    from trio_kubelet.machine.cgroup_v1 import Version1

    return CgroupReader(Version1(hierarchies, clock))


def container_id(directory: str) -> str:
    """The container whose cgroup has this last path component (`ID`, `cri-containerd-ID.scope`)."""
    if directory.endswith(".scope"):
        return directory.removesuffix(".scope").rpartition("-")[2]
    return directory


def _pids(listing: bytes) -> Iterator[int]:
    for line in listing.splitlines():
        if pid := text.number(line):
            yield pid

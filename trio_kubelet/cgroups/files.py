"""The kernel's cgroup hierarchies as directories and files, version 1 and 2. Blocking.

Version 1 has a tree for each controller, version 2 one for all. A cgroup here is a path below those trees'
roots (`/kubepods/burstable/podUID`) and is made and removed in all of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from trio_kubelet.cgroups.limits import Limits, cpu_shares, cpu_weight
from trio_kubelet.common.mountinfo import mounts_of
from trio_kubelet.common.small_files import read_small

_CPU_PERIOD = "cpu.cfs_period_us"
_CPU_QUOTA = "cpu.cfs_quota_us"
_DEFAULT_PERIOD_US = 100_000
_LIFTED = ("-1", "max")
# A cgroup is there when it is in these trees: a Go kubelet does not make it in every other one.
_DECISIVE = frozenset({"", "cpu", "cpuacct", "cpuset", "memory", "hugetlb", "pids", "name=systemd"})
_SYSTEMD_TREE = "name=systemd"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def find_hierarchies() -> dict[str, str]:
    """Controllers and where their trees are mounted; `""` is version 2, `name=…` a tree without any.

    A tree mounted twice counts where its path is shorter. A version 2 tree next to version 1 ones has no
    controllers, but runtimes put their containers there too; it is called `unified`.
    """
    found: dict[str, str] = {}
    unified, trees = "", mounts_of("cgroup")
    # A kernel without version 1 has no list of controllers.
    controllers = _controllers() if any(mount.fs_type == "cgroup" for mount in trees) else set[str]()
    for mount in trees:
        if mount.fs_type == "cgroup2" and not unified:
            unified = mount.path
        elif mount.fs_type == "cgroup":
            for controller in mount.options.split(","):
                is_tree = controller.startswith("name=") or controller in controllers
                if is_tree and (controller not in found or len(mount.path) < len(found[controller])):
                    found[controller] = mount.path
    if not unified:
        return found
    return {**found, "unified": unified} if found else {"": unified}


def _controllers() -> set[str]:
    with open("/proc/cgroups", encoding="ascii") as file:
        return {line.split("\t")[0] for line in file if not line.startswith("#")}


class CgroupTree:
    """All hierarchies of the machine. Methods raise OSError."""

    def __init__(self, hierarchies: Mapping[str, str]) -> None:
        self._hierarchies = dict(hierarchies)
        self._roots = tuple(dict.fromkeys(hierarchies.values()))  # a tree may have several controllers

    @property
    def is_v2(self) -> bool:
        """Whether the machine has the one tree of version 2."""
        return "" in self._hierarchies

    def missing(self, controllers: Iterable[str]) -> list[str]:
        """Those of them that have no tree of version 1 here."""
        return [] if self.is_v2 else sorted(set(controllers) - self._hierarchies.keys())

    def exists(self, cgroup: str) -> bool:
        """Whether the cgroup is there, in all hierarchies that count."""
        roots = (root for controller, root in self._hierarchies.items() if controller in _DECISIVE)
        return all(os.path.isdir(f"{root}{cgroup}") for root in roots)

    def exists_somewhere(self, cgroup: str) -> bool:
        """Whether the cgroup is there in any hierarchy."""
        return any(os.path.isdir(path) for path in self._paths(cgroup))

    def create(self, cgroup: str, *, besides: Collection[str] = ()) -> None:
        """Makes the cgroup and those above it; those have all controllers of version 2 but `besides`."""
        for root in self._roots:
            self._create(root, cgroup, besides)

    def _create(self, root: str, cgroup: str, besides: Collection[str]) -> None:
        _make(f"{root}{cgroup}")
        if self.is_v2:
            _delegate(root, cgroup, besides)
        elif root == self._hierarchies.get("cpuset"):
            _fill_cpuset(f"{root}{cgroup}")

    def create_for_processes(self, cgroup: str) -> None:
        """Makes the cgroup in the trees that `move` is about."""
        for root in self._roots_of_processes():
            self._create(root, cgroup, ())

    def processes(self, cgroup: str, most: int) -> list[int]:
        """The first so many processes right in the cgroup; on version 1 in the device controller's tree, as
        for the kubelet.
        """
        root = self._hierarchies[""] if self.is_v2 else self._hierarchies.get("devices", self._roots[0])
        with open(f"{root}{cgroup}/cgroup.procs", encoding="ascii") as file:
            found = [int(line) for line in islice(file, most)]
        return [process for process in found if process]  # 0 stands for one this process cannot see

    def move(self, process: int, cgroup: str) -> None:
        """Moves a process, with all its threads, in every tree; one that has ended is no error. One tree that
        does not take it keeps it out of no other.
        """
        failure: OSError | None = None
        for root in self._roots_of_processes():
            path = f"{root}{cgroup}/cgroup.procs"
            try:
                _write(path, str(process))
            except ProcessLookupError:
                return
            except OSError as error:
                failure = failure or OSError(error.errno, os.strerror(error.errno or 0), path)
        if failure is not None:
            raise failure

    def _roots_of_processes(self) -> list[str]:
        """Not those of version 1 that somebody gave a name of his own, nor version 2's next to version 1's:
        systemd keeps count of its services there.
        """
        return list(
            dict.fromkeys(
                root
                for controller, root in self._hierarchies.items()
                if controller != "unified" and (controller == _SYSTEMD_TREE or "=" not in controller)
            )
        )

    def apply(self, cgroup: str, limits: Limits) -> None:
        """Sets the limits that are given. Without their controller only huge pages are left out, as by the
        kubelet: any other limit would be believed to be in force.
        """
        settings = version_2_files(limits) if self.is_v2 else version_1_files(limits)
        for controller, name, value in settings:
            root = self._hierarchies.get("" if self.is_v2 else controller)
            if root is None:
                if controller == "hugetlb" or value in _LIFTED:
                    continue
                raise OSError(f"cannot set {name} to {value}: cgroup controller {controller} is not mounted")
            path = f"{root}{cgroup}/{name}"
            if name == _CPU_PERIOD and limits.cpu_quota:
                # The kernel checks quota against period at each write, so one order may not do.
                with contextlib.suppress(OSError):
                    _write(f"{root}{cgroup}/{_CPU_QUOTA}", str(limits.cpu_quota))
            if controller == "hugetlb" and not os.path.exists(path):
                continue
            _write(path, value)

    def differing(self, cgroup: str, limits: Limits) -> Limits:
        """Those of the limits that are not in force, `Limits()` if all are."""
        single = {
            "cpu_shares": Limits(cpu_shares=limits.cpu_shares),
            "memory": Limits(memory=limits.memory),
            "pids": Limits(pids=limits.pids),
            "cpuset": Limits(cpuset=limits.cpuset),
        }
        changed = {name: getattr(limits, name) for name, one in single.items() if self._differs(cgroup, one)}
        if self._differs(cgroup, Limits(cpu_quota=limits.cpu_quota, cpu_period=limits.cpu_period)):
            changed |= {"cpu_quota": limits.cpu_quota, "cpu_period": limits.cpu_period}
        pages = {
            size: limit
            for size, limit in limits.huge_pages.items()
            if self._differs(cgroup, Limits(huge_pages={size: limit}))
        }
        unified = {
            name: value
            for name, value in limits.unified.items()
            if self._differs(cgroup, Limits(unified={name: value}))
        }
        return Limits(**changed, huge_pages=pages, unified=unified)

    def _differs(self, cgroup: str, limits: Limits) -> bool:
        settings = version_2_files(limits) if self.is_v2 else version_1_files(limits)
        for controller, name, value in settings:
            root = self._hierarchies.get("" if self.is_v2 else controller)
            if root is None:
                continue
            try:
                if not _same(name, _value(f"{root}{cgroup}/{name}"), value):
                    return True
            except FileNotFoundError:
                if self.is_v2 and controller != "hugetlb":
                    return True  # somebody took the controller from this cgroup
        return False

    def limits(self, cgroup: str) -> Limits:
        """CPU and memory the cgroup is limited to, -1 for no limit. Version 1 shows no limit of memory as one
        of nearly 2^63 bytes.
        """
        if self.is_v2:
            quota, period = self._read("", cgroup, "cpu.max").split()
            return Limits(
                cpu_shares=cpu_shares(int(self._read("", cgroup, "cpu.weight"))),
                cpu_quota=_or_unlimited(quota),
                cpu_period=int(period),
                memory=_or_unlimited(self._read("", cgroup, "memory.max")),
            )
        return Limits(
            cpu_shares=int(self._read("cpu", cgroup, "cpu.shares")),
            cpu_quota=int(self._read("cpu", cgroup, _CPU_QUOTA)),
            cpu_period=int(self._read("cpu", cgroup, _CPU_PERIOD)),
            memory=int(self._read("memory", cgroup, "memory.limit_in_bytes")),
        )

    def protected(self, cgroup: str, name: str) -> int:
        """Bytes of memory that a file of version 2 keeps from being reclaimed."""
        value = self._read("", cgroup, name)
        return 0 if value == "max" else int(value)

    def memory_in_use(self, cgroup: str) -> int:
        """Bytes of memory in use in the cgroup and below."""
        if self.is_v2:
            return int(self._read("", cgroup, "memory.current"))
        return int(self._read("memory", cgroup, "memory.usage_in_bytes"))

    def _read(self, controller: str, cgroup: str, name: str) -> str:
        return _value(f"{self._hierarchies[controller]}{cgroup}/{name}")

    def children(self, cgroup: str) -> set[str]:
        """Names of the cgroups right below, in any hierarchy."""
        names: set[str] = set()
        for path in self._paths(cgroup):
            with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
                names.update(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        return names

    def kill(self, cgroup: str) -> int:
        """Kills every process in the cgroup and below; returns how many were found."""
        found: set[int] = set()
        for path in self._paths(cgroup):
            for directory, name in _walk(path):
                found.update(_processes(directory, name))
                # A frozen process takes no signal.
                with contextlib.suppress(OSError):
                    _write(f"{name}/freezer.state", "THAWED", directory)
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return len(found)

    def remove(self, cgroup: str) -> bool:
        """Removes the cgroup and those below it; whether all of it is gone. False while it has processes."""
        gone = True
        for path in self._paths(cgroup):
            for directory, name in _walk(path):
                try:
                    os.rmdir(name, dir_fd=directory)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                        raise
                    gone = False
        return gone

    def _paths(self, cgroup: str) -> Iterator[str]:
        return (f"{root}{cgroup}" for root in self._roots)


def _make(path: str) -> None:
    """Makes a cgroup; most of the time those above it are there. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        try:
            os.mkdir(path, 0o755)
        except FileNotFoundError:
            os.makedirs(path, 0o755)


def version_1_files(limits: Limits) -> Iterator[tuple[str, str, str]]:
    if limits.cpu_shares is not None:
        yield "cpu", "cpu.shares", str(limits.cpu_shares)
    if limits.cpu_period:
        yield "cpu", _CPU_PERIOD, str(limits.cpu_period)
    if limits.cpu_quota:
        yield "cpu", _CPU_QUOTA, str(limits.cpu_quota)
    if limits.memory:
        yield "memory", "memory.limit_in_bytes", str(limits.memory)
    if limits.pids is not None:
        yield "pids", "pids.max", _or_max(limits.pids)
    for size, limit in limits.huge_pages.items():
        yield "hugetlb", f"hugetlb.{size}.limit_in_bytes", str(limit)
        yield "hugetlb", f"hugetlb.{size}.rsvd.limit_in_bytes", str(limit)
    if limits.cpuset:
        yield "cpuset", "cpuset.cpus", limits.cpuset


def version_2_files(limits: Limits) -> Iterator[tuple[str, str, str]]:
    if limits.cpu_shares is not None:
        yield "cpu", "cpu.weight", str(cpu_weight(limits.cpu_shares))
    if limits.cpu_quota:
        period = limits.cpu_period or _DEFAULT_PERIOD_US
        yield "cpu", "cpu.max", f"{_or_max(limits.cpu_quota)} {period}"
    if limits.memory:
        yield "memory", "memory.max", _or_max(limits.memory)
    if limits.pids is not None:
        yield "pids", "pids.max", _or_max(limits.pids)
    for size, limit in limits.huge_pages.items():
        yield "hugetlb", f"hugetlb.{size}.max", str(limit)
        yield "hugetlb", f"hugetlb.{size}.rsvd.max", str(limit)
    if limits.cpuset:
        yield "cpuset", "cpuset.cpus", limits.cpuset
    for name, value in limits.unified.items():
        yield "", name, value


def _same(name: str, shown: str, wanted: str) -> bool:
    """Whether a file shows what was written to it: sizes are rounded down to whole pages."""
    if shown == wanted:
        return True
    if not name.startswith(("memory.", "hugetlb.")) or not (shown.isdigit() and wanted.isdigit()):
        # Version 1 shows no limit of memory as a very large one.
        return wanted == "-1" and shown.isdigit() and int(shown) > 1 << 62
    page = 4096 if name.startswith("memory.") else 1 << 30
    return 0 <= int(wanted) - int(shown) < page


def _or_max(limit: int) -> str:
    return "max" if limit <= 0 else str(limit)


def _or_unlimited(text: str) -> int:
    return -1 if text == "max" else int(text)


def _delegate(root: str, cgroup: str, besides: Collection[str]) -> None:
    """Lets the cgroup have all controllers of the tree but `besides`, which stay as they are above it.

    It has what those above it let it have: only where that is not all of them each of those is looked at.
    """
    if _words(f"{root}/cgroup.controllers") - _words(f"{root}{cgroup}/cgroup.controllers") <= set(besides):
        return
    parent = root
    for part in cgroup.strip("/").split("/"):
        given = _words(f"{parent}/cgroup.subtree_control")
        for controller in sorted(_words(f"{parent}/cgroup.controllers") - given - set(besides)):
            with contextlib.suppress(OSError):  # one that cannot be delegated must not keep the others back
                _write(f"{parent}/cgroup.subtree_control", f"+{controller}")
        parent = f"{parent}/{part}"


def _fill_cpuset(path: str) -> None:
    """A new cpuset of version 1 has no CPUs and no memory, and takes no process until it has: it gets what
    the one above it has. The tree's root has some.

    Those made below it get theirs from the kernel (`clone_children`): one that is written to costs as much as
    a change of the machine's CPUs, more than all the rest of a pod's cgroup.
    """
    empty = [name for name in ("cpuset.cpus", "cpuset.mems") if not _value(f"{path}/{name}")]
    if not empty:
        return
    parent = os.path.dirname(path)
    _fill_cpuset(parent)
    for name in empty:
        _write(f"{path}/{name}", _value(f"{parent}/{name}"))
    _write(f"{path}/cgroup.clone_children", "1")


def _words(path: str) -> set[str]:
    return set(_value(path).split())


def _value(path: str) -> str:
    return read_small(path).decode("ascii").strip()


def _walk(path: str) -> Iterator[tuple[int, str]]:
    """The cgroup and all below it, each after those below it, as the descriptor of the one above it and its
    name there; none if it is not there. Raises OSError.

    A container may nest its cgroups deeper than a path can be long: each is opened in the one above it, and
    left for that before the next, so that neither descriptors nor calls pile up.
    """
    top, name = os.path.split(path)
    try:
        directory = os.open(top, _DIRECTORY)
    except FileNotFoundError:
        return
    way: list[str] = []
    waiting = [[name]]  # names that are still to be gone into, of each level
    try:
        while True:
            if waiting[-1]:
                name = waiting[-1].pop()
                with contextlib.suppress(FileNotFoundError):
                    directory = _left_for(directory, name)
                    way.append(name)
                    waiting.append(_names_below(directory))
            elif way:
                waiting.pop()
                directory = _left_for(directory, "..")
                yield directory, way.pop()
            else:
                return
    finally:
        os.close(directory)


def _left_for(directory: int, name: str) -> int:
    """Opens another one from an open directory, which is closed then. Raises OSError."""
    other = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    os.close(directory)
    return other


def _names_below(directory: int) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:  # it was removed meanwhile
        return []


def _processes(directory: int, name: str) -> list[int]:
    """Processes in one cgroup; 0 stands for one this process cannot see."""
    try:
        descriptor = os.open(f"{name}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return []
    with contextlib.suppress(OSError), open(descriptor, encoding="ascii") as file:
        return [int(line) for line in file if line.strip() not in ("", "0")]
    return []


def _write(path: str, value: str, directory: int | None = None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)

"""How large filesystems are; the machine's block devices and filesystems, as `/metrics/cadvisor` shows them.

As with cAdvisor a filesystem is named after what is mounted, one in memory after where it is mounted. Those
that pods and containers have mounted are left out: cAdvisor shows the ones that were there when it began.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
import trio

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.lanes import FILESYSTEMS, STATS, WorkHangs
from trio_kubelet.common.mountinfo import Mount, parse_mounts
from trio_kubelet.machine import text
from trio_kubelet.machine.node_reader import filesystem_of
from trio_kubelet.machine.values import DeviceIO, Filesystem
from trio_kubelet.native.pure_figures import read_file

_IN_MEMORY = "tmpfs"
_ON_DEVICES = re.compile(
    "ext.*|btrfs|exfat|f2fs|fat|hfs|hfsplus|iso9660|jfs|msdos|ntfs|reiserfs|squashfs|udf|vfat|xfs"
)
_OF_CONTAINER = re.compile(r"/[0-9a-f]{64}(/|$)")


class MountedFilesystem(msgspec.Struct, frozen=True, gc=False):
    """A filesystem of the machine: its name, its device (`major:minor`), sizes, what the device has done."""

    name: str
    device: str
    size: Filesystem
    io: DeviceIO


async def sizes_of(paths: Iterable[str], clock: Clock) -> dict[str, Filesystem]:
    """The filesystems with these paths, but those that cannot be read, or hang: each is asked by itself and
    waited for only shortly.
    """
    found: dict[str, Filesystem] = {}

    async def ask(path: str) -> None:
        with suppress(WorkHangs):
            size = await FILESYSTEMS.run(filesystem_of, path, clock, owner=path)
            if size is not None:
                found[path] = size

    async with trio.open_nursery() as nursery:
        for path in set(paths):
            nursery.start_soon(ask, path)
    return found


async def mounted_filesystems(
    root_dir: str, clock: Clock, proc: str = "/proc"
) -> tuple[MountedFilesystem, ...]:
    """All of the machine whose sizes can be had."""
    mounts, counters = await STATS.run(_mounts_and_counters, root_dir, proc)
    sizes = await sizes_of((mount.path for _, mount in mounts), clock)
    return tuple(
        MountedFilesystem(
            name, mount.device, sizes[mount.path], text.device_io(counters, mount.device) or DeviceIO()
        )
        for name, mount in mounts
        if mount.path in sizes
    )


def _mounts_and_counters(root_dir: str, proc: str) -> tuple[list[tuple[str, Mount]], bytes | None]:
    listed = (read_file(f"{proc}/self/mountinfo") or b"").decode("utf-8", "surrogateescape")
    return list(machine_mounts(parse_mounts(listed), root_dir)), read_file(f"{proc}/diskstats")


def machine_mounts(mounts: Iterable[Mount], root_dir: str) -> Iterator[tuple[str, Mount]]:
    """The first mount of each filesystem, with its name; those that pods and containers have are left out."""
    seen: set[str] = set()
    for mount in mounts:
        in_memory = mount.fs_type == _IN_MEMORY
        if not in_memory and _ON_DEVICES.fullmatch(mount.fs_type) is None:
            continue
        name = mount.path if in_memory else mount.source
        of_pod = mount.path.startswith(f"{root_dir}/") or _OF_CONTAINER.search(mount.path)
        if name in seen or of_pod:
            continue
        seen.add(name)
        yield name, mount


def block_devices(proc: str = "/proc") -> dict[str, str]:
    """Device files by `major:minor`. Blocking."""
    found = {}
    for line in (read_file(f"{proc}/partitions") or b"").decode("utf-8", "replace").splitlines():
        words = line.split()
        if len(words) == 4 and words[0].isdigit():
            found[f"{words[0]}:{words[1]}"] = f"/dev/{words[3]}"
    return found

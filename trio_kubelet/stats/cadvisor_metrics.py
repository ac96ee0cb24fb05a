"""`/metrics/cadvisor`: what every cgroup of node, pods and containers uses, and what the machine has. Pure.

Names, labels and units are those of cAdvisor as the kubelet configures it, so that dashboards and rules for a
kubelet hold. A node of hundreds of pods has tens of thousands of samples: a family is one slice, and a row's
labels are escaped and put together once.

Different is little: times of disks are in seconds, as their names say (cAdvisor divides milliseconds by 10⁹),
and filesystems that pods have mounted are not among the machine's. Versions of cAdvisor itself are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.machine.values import Interface
from trio_kubelet.stats.cadvisor_tables import (
    CONSTANTS,
    DEVICE,
    DISK,
    FAMILIES,
    NETWORK,
    PRESSURES,
    SETTINGS,
    SIZES,
    Value,
    seconds,
)
from trio_kubelet.stats.cgroup_details import CgroupRow, Details
from trio_kubelet.stats.exposition import COUNTER, GAUGE, family, label, sample
from trio_kubelet.stats.filesystems import MountedFilesystem

MILLISECOND = 1_000_000
ROOT_TRANSFERS = ("container_fs_reads_total", "container_fs_writes_total")


class MachineLabels(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine is; identities are labels of the machine's families."""

    cores: int
    physical_cores: int
    sockets: int
    memory: int
    swap: int
    machine_id: str = ""
    system_uuid: str = ""
    boot_id: str = ""
    kernel: str = ""
    os_image: str = ""


class _Line(msgspec.Struct, frozen=True, gc=False):
    """A row with its labels written out, in three parts between which other labels go, and its moment."""

    row: CgroupRow
    first: str  # container
    second: str  # id, image
    third: str  # name, namespace, pod
    labels: str  # all of them
    stamp: str


def cadvisor_families(details: Details, machine: MachineLabels, pressure: bool) -> Iterator[bytes]:
    """The page, a slice at a time. `pressure`: the kernel measures it for each cgroup."""
    lines = []
    for row in details.rows:
        lines.append(_line(row))
        if not len(lines) % 256:
            yield b""
    yield version_family(machine)
    for name, kind, meaning, value in FAMILIES:
        yield family(name, kind, meaning, _samples(name, lines, value))
    if pressure:
        for name, meaning, value in PRESSURES:
            yield family(name, COUNTER, meaning, _samples(name, lines, value))
    for name, meaning, value in SETTINGS:
        yield family(name, GAUGE, meaning, _samples(name, lines, value, moment=False))
    yield from _constants(lines)
    yield from _labelled_families(details, lines)
    yield from _filesystems(details, lines)
    failed = [sample("container_scrape_error", "", int(details.failed))]
    yield family("container_scrape_error", GAUGE, "1 if the runtime did not answer, 0 otherwise.", failed)
    yield from machine_families(machine)


def _line(row: CgroupRow) -> _Line:
    first = label("container", row.container)
    second = f"{label('id', row.cgroup)},{label('image', row.image)}"
    third = f"{label('name', row.name)},{label('namespace', row.namespace)},{label('pod', row.pod)}"
    stamp = str(row.use.at_ns // MILLISECOND)
    return _Line(row, first, second, third, f"{first},{second},{third}", stamp)


def _samples(name: str, lines: Sequence[_Line], value: Value, moment: bool = True) -> list[str]:
    if moment:
        return [
            f"{name}{{{each.labels}}} {n} {each.stamp}\n"
            for each in lines
            if (n := value(each.row)) is not None
        ]
    return [f"{name}{{{each.labels}}} {n}\n" for each in lines if (n := value(each.row)) is not None]


def _constants(lines: Sequence[_Line]) -> Iterator[bytes]:
    written = ""
    for name, state, meaning, value in CONSTANTS:
        more = f',state="{state}"' if state else ""
        text = [f"{name}{{{each.labels}{more}}} {value} {each.stamp}\n" for each in lines]
        if name == written:
            yield "".join(text).encode()
        else:
            yield family(name, GAUGE, meaning, text)
        written = name


def _labelled_families(details: Details, lines: Sequence[_Line]) -> Iterator[bytes]:
    name = "container_cpu_usage_seconds_total"
    text = [
        f'{name}{{{each.first},cpu="total",{each.second},{each.third}}}'
        f" {seconds(each.row.use.cpu)} {each.stamp}\n"
        for each in lines
        if each.row.use.cpu
    ]
    yield family(name, COUNTER, "CPU time used.", text)
    yield b""
    name, now = "container_last_seen", details.at_ns
    last = f"{now // NANOSECONDS} {now // MILLISECOND}\n"
    text = [f"{name}{{{each.labels}}} {last}" for each in lines]
    yield family(name, GAUGE, "When the cgroup was seen last, in seconds since the epoch.", text)
    name = "container_memory_failures_total"
    yield from _in_slices(name, "Page faults, minor ones too.", lines, _page_faults)
    name = "container_ulimits_soft"
    text = [
        f'{name}{{{each.labels},ulimit="max_open_files"}} {each.row.files.limit} {each.stamp}\n'
        for each in lines
        if each.row.files.limit is not None
    ]
    yield family(name, GAUGE, "Soft limits of the first process, -1 for none.", text)
    for kind, meaning, count in NETWORK:
        yield _network_family(f"container_network_{kind}_total", meaning, count, lines)
    name = "container_blkio_device_usage_total"
    of_root = _devices_of_root(details)
    yield from _in_slices(name, "Bytes moved.", lines, partial(_block_transfers, details.devices, of_root))
    for name, meaning, moved in DISK:
        # The root cgroup may count no transfers of its own; the machine's devices have all of them.
        known = {each.device for each in details.filesystems} if name in ROOT_TRANSFERS else set()
        text = [
            f"{name}{{{each.first},{label('device', device)},{each.second},{each.third}}}"
            f" {moved(io)} {each.stamp}\n"
            for each in lines
            for io in each.row.detail.io
            if (device := (of_root if each.row.cgroup == "/" else details.devices).get(io.device, ""))
            and not (each.row.cgroup == "/" and io.device in known)
        ]
        if name in ROOT_TRANSFERS:
            text += _root_transfers(name, details, lines)
        yield family(name, COUNTER, meaning, text)


def _in_slices(
    name: str, meaning: str, lines: Sequence[_Line], samples: Callable[[Sequence[_Line]], list[str]]
) -> Iterator[bytes]:
    """A family of counters with several samples a row: some rows at a time."""
    begun = False
    for start in range(0, len(lines), 512):
        if text := samples(lines[start : start + 512]):
            yield "".join(text).encode() if begun else family(name, COUNTER, meaning, text)
            begun = True


def _page_faults(lines: Sequence[_Line]) -> list[str]:
    text = []
    for each in lines:
        use, stamp = each.row.use, each.stamp
        for kind, count in (("pgfault", use.page_faults), ("pgmajfault", use.major_page_faults)):
            labels = f'{each.first},failure_type="{kind}",{each.second},{each.third}'
            start = f"container_memory_failures_total{{{labels}"
            text.append(f'{start},scope="container"}} {count} {stamp}\n')
            text.append(f'{start},scope="hierarchy"}} {count} {stamp}\n')
    return text


def _block_transfers(
    names: Mapping[str, str], of_root: Mapping[str, str], lines: Sequence[_Line]
) -> list[str]:
    """Bytes by device and kind of transfer, in the order of the labels' names."""
    text = []
    devices: dict[str, tuple[str, str]] = {}
    for each in lines:
        for io in each.row.detail.io:
            if (found := devices.get(io.device)) is None:
                major, _, minor = io.device.partition(":")
                device = label("device", names.get(io.device, ""))
                found = devices[io.device] = device, f'major="{major}",minor="{minor}"'
            if each.row.cgroup == "/":
                found = label("device", of_root.get(io.device, "")), found[1]
            device, numbers = found
            labels = f"{each.first},{device},{each.second},{numbers},{each.third}"
            start = f"container_blkio_device_usage_total{{{labels}"
            kinds = sorted((("Read", io.read_bytes), ("Write", io.write_bytes), *io.other_bytes))
            text += [f'{start},operation="{kind}"}} {count} {each.stamp}\n' for kind, count in kinds]
    return text


def _devices_of_root(details: Details) -> dict[str, str]:
    """What the devices of the root cgroup are called: as what is mounted of them, like its filesystems
    (cAdvisor: `fsNamer`), which of a volume group is another name than the kernel's.
    """
    mounted = {each.device: each.name for each in reversed(details.filesystems)}
    return details.devices | mounted


def _root_transfers(name: str, details: Details, lines: Sequence[_Line]) -> Iterator[str]:
    for labels, each in _of_root(details, lines):
        yield sample(name, labels, each.io.reads if "reads" in name else each.io.writes, each.size.at_ns)


def _of_root(details: Details, lines: Sequence[_Line]) -> list[tuple[str, MountedFilesystem]]:
    """The machine's filesystems with their labels, which are those of the root cgroup."""
    root = next((each for each in lines if each.row.cgroup == "/"), None)
    if root is None:
        return []
    return [
        (f"{root.first},{label('device', each.name)},{root.second},{root.third}", each)
        for each in details.filesystems
    ]


def _network_family(
    name: str, meaning: str, count: Callable[[Interface], int | None], lines: Sequence[_Line]
) -> bytes:
    text = [
        f"{name}{{{each.first},{each.second},{label('interface', interface.name)},{each.third}}}"
        f" {number} {each.stamp}\n"
        for each in lines
        if each.row.network is not None
        for interface in each.row.network.interfaces
        if (number := count(interface)) is not None
    ]
    return family(name, COUNTER, meaning, text)


def _filesystems(details: Details, lines: Sequence[_Line]) -> Iterator[bytes]:
    found = _of_root(details, lines)
    if not found:
        return
    for name, meaning, value in SIZES:
        samples = [sample(name, labels, value(each.size), each.size.at_ns) for labels, each in found]
        yield family(name, GAUGE, meaning, samples)
    for name, kind, meaning, count in DEVICE:
        samples = [sample(name, labels, count(each.io), each.size.at_ns) for labels, each in found]
        yield family(name, kind, meaning, samples)


def version_family(machine: MachineLabels) -> bytes:
    """Kernel and operating system, as labels of a constant."""
    name = "cadvisor_version_info"
    values = {
        "cadvisorRevision": "",
        "cadvisorVersion": "",
        "dockerVersion": "",
        "kernelVersion": machine.kernel,
        "osVersion": machine.os_image,
    }
    labels = ",".join(label(key, value) for key, value in values.items())
    return family(
        name, GAUGE, "Versions of kernel and operating system, as labels.", [sample(name, labels, 1)]
    )


def machine_families(machine: MachineLabels) -> Iterator[bytes]:
    """What the machine has."""
    labels = ",".join(label(key, getattr(machine, key)) for key in ("boot_id", "machine_id", "system_uuid"))
    for name, meaning, value in (
        ("machine_cpu_books", "Books of CPUs, on machines that have them.", 0),
        ("machine_cpu_drawers", "Drawers of CPUs, on machines that have them.", 0),
        ("machine_cpu_cores", "Logical CPUs.", machine.cores),
        ("machine_cpu_physical_cores", "Physical cores.", machine.physical_cores),
        ("machine_cpu_sockets", "Sockets with a CPU.", machine.sockets),
        ("machine_memory_bytes", "Memory in bytes.", machine.memory),
        ("machine_nvm_avg_power_budget_watts", "Not looked for.", 0),
        ("machine_swap_bytes", "Swap in bytes.", machine.swap),
    ):
        yield family(name, GAUGE, meaning, [sample(name, labels, value)])
    name = "machine_nvm_capacity"
    first, _, last = labels.rpartition(",")
    modes = [f'{first},mode="{mode}",{last}' for mode in ("app_direct_mode", "memory_mode")]
    yield family(name, GAUGE, "Not looked for.", [sample(name, each, 0) for each in modes])
    name = "machine_scrape_error"
    yield family(name, GAUGE, "1 if the machine could not be read, 0 otherwise.", [sample(name, "", 0)])

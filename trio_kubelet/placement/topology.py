"""How a machine's CPUs hang together: cores, sockets, NUMA nodes, caches; read from sysfs.

Identities are those cAdvisor gives the kubelet: a core is named after its lowest CPU, on a machine without
NUMA each socket is a node, and a last-level cache counts where a NUMA node has several: else its CPUs share
that of their socket. CPUs that are offline are not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from trio_kubelet.common.cpusets import CPUSet, parse_cpus


class CPU(msgspec.Struct, frozen=True):
    """Where a logical CPU is."""

    core: int
    socket: int
    numa: int
    cache: int  # the last-level cache it shares


class Topology(msgspec.Struct, frozen=True):
    """All CPUs of a machine that are online. `distances`: from each NUMA node to each, in their order."""

    cpus: Mapping[int, CPU]
    distances: Mapping[int, tuple[int, ...]] = {}

    def all(self) -> CPUSet:
        return frozenset(self.cpus)

    def numa_nodes(self) -> list[int]:
        return self.groups(self.cpus, lambda cpu: cpu.numa)

    def groups(self, among: Iterable[int], of: Callable[[CPU], int]) -> list[int]:
        """The cores, sockets … that `among` belong to, in order."""
        return sorted({of(self.cpus[cpu]) for cpu in among})

    def having(self, ids: Iterable[int], of: Callable[[CPU], int]) -> CPUSet:
        """All CPUs of these cores, sockets …."""
        wanted = frozenset(ids)
        return frozenset(cpu for cpu, where in self.cpus.items() if of(where) in wanted)

    def per(self, of: Callable[[CPU], int]) -> int:
        """How many CPUs a core, socket … has; on an uneven machine the mean, rounded down."""
        return len(self.cpus) // max(1, len({of(cpu) for cpu in self.cpus.values()}))


def core_of(cpu: CPU) -> int:
    return cpu.core


def socket_of(cpu: CPU) -> int:
    return cpu.socket


def numa_of(cpu: CPU) -> int:
    return cpu.numa


def cache_of(cpu: CPU) -> int:
    return cpu.cache


def read_topology(sysfs: str = "/sys") -> Topology:
    """Reads the machine's topology. Blocking. Raises OSError, ValueError when the kernel does not tell it."""
    system = Path(sysfs) / "devices" / "system"
    online = _cpus(system / "cpu" / "online")
    nodes: dict[int, CPUSet] = {}
    distances: dict[int, tuple[int, ...]] = {}
    for directory in sorted(system.glob("node/node[0-9]*")):
        number = int(directory.name.removeprefix("node"))
        nodes[number] = _cpus(directory / "cpulist") & online
        distances[number] = tuple(map(int, (directory / "distance").read_text().split()))
    places: dict[int, tuple[int, int, int]] = {}  # core, socket, node
    for cpu in sorted(online):
        here = system / "cpu" / f"cpu{cpu}" / "topology"
        siblings = _cpus(here / "thread_siblings_list") & online
        socket = max(0, int((here / "physical_package_id").read_text()))
        node = next((number for number, members in nodes.items() if cpu in members), 0 if nodes else socket)
        places[cpu] = min(siblings | {cpu}), socket, node
    if not places:
        raise ValueError(f"{system}/cpu/online names no CPU")
    threads = Counter(core for core, _, _ in places.values())
    cores = Counter(node for _, node in {(core, node) for core, _, node in places.values()})
    cpus = {}
    for cpu, (core, socket, node) in places.items():
        cache = _cache(system / "cpu" / f"cpu{cpu}" / "cache", cores[node] * threads[core])
        cpus[cpu] = CPU(core, socket, node, socket if cache is None else cache)
    numbers = sorted(cores)
    return Topology(cpus, distances or {n: tuple(10 if n == m else 20 for m in numbers) for n in numbers})


def _cpus(file: Path) -> CPUSet:
    return parse_cpus(file.read_text().strip())


def _cache(caches: Path, of_node: int) -> int | None:
    """The id of the last-level cache that a CPU shares with some of its NUMA node, which would have
    `of_node` CPUs were all its cores alike; None where it shares it with all of them, or has none.
    """
    for index in sorted(caches.glob("index[0-9]*")):
        try:
            if int((index / "level").read_text()) > 2:
                sharing = _cpus(index / "shared_cpu_list")
                if len(sharing) != of_node:
                    return int((index / "id").read_text())
        except (OSError, ValueError):
            return None
    return None

"""The machine's topology out of a tree of files like sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from trio_kubelet.placement.cpusets import cpus_text
from trio_kubelet.placement.topology import CPU, core_of, read_topology, socket_of


def write(root: Path, path: str, text: str) -> None:
    file = root / "devices" / "system" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def machine(root: Path, *, sockets: int, cores: int, threads: int, online: str = "") -> Path:
    """`sockets` with a NUMA node and a cache each; CPU n and n + all cores are threads of one core."""
    total = sockets * cores
    write(root, "cpu/online", online or f"0-{total * threads - 1}")
    for cpu in range(total * threads):
        core = cpu % total
        socket = core // cores
        siblings = cpus_text(core + total * thread for thread in range(threads))
        write(root, f"cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
        write(root, f"cpu/cpu{cpu}/topology/physical_package_id", str(socket))
        write(root, f"cpu/cpu{cpu}/cache/index3/level", "3")
        write(root, f"cpu/cpu{cpu}/cache/index3/id", str(10 + socket))
    for socket in range(sockets):
        first = [
            core + total * thread
            for thread in range(threads)
            for core in range(socket * cores, (socket + 1) * cores)
        ]
        write(root, f"node/node{socket}/cpulist", cpus_text(first))
        write(
            root,
            f"node/node{socket}/distance",
            " ".join("10" if s == socket else "21" for s in range(sockets)),
        )
    return root


def test_two_sockets_with_threads(tmp_path: Path) -> None:
    topology = read_topology(str(machine(tmp_path, sockets=2, cores=4, threads=2)))
    assert topology.cpus[13] == CPU(core=5, socket=1, numa=1, cache=11)
    assert topology.numa_nodes() == [0, 1]
    assert topology.distances == {0: (10, 21), 1: (21, 10)}
    assert (topology.per(core_of), topology.per(socket_of)) == (2, 8)


def test_offline_cpus_are_not_there(tmp_path: Path) -> None:
    topology = read_topology(str(machine(tmp_path, sockets=1, cores=4, threads=2, online="1-7")))
    assert cpus_text(topology.all()) == "1-7"
    assert topology.cpus[4].core == 4, "its sibling, CPU 0, is off"


def test_256_cpus(tmp_path: Path) -> None:
    topology = read_topology(str(machine(tmp_path, sockets=2, cores=64, threads=2)))
    assert len(topology.cpus) == 256


def test_a_machine_without_numa_and_cache_ids(tmp_path: Path) -> None:
    write(tmp_path, "cpu/online", "0-1")
    for cpu in (0, 1):
        write(tmp_path, f"cpu/cpu{cpu}/topology/thread_siblings_list", str(cpu))
        write(tmp_path, f"cpu/cpu{cpu}/topology/physical_package_id", "-1")
    topology = read_topology(str(tmp_path))
    assert topology.cpus == {0: CPU(0, 0, 0, 0), 1: CPU(1, 0, 0, 0)}
    assert topology.distances == {0: (10,)}


def test_this_machine() -> None:
    assert read_topology().all()


def test_a_tree_that_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="online"):
        read_topology(str(tmp_path))

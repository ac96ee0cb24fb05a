"""The machine's topology out of a tree of files like sysfs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from trio_kubelet.common.cpusets import cpus_text, parse_cpus
from trio_kubelet.placement.taking import CPUPolicyOptions, take
from trio_kubelet.placement.topology import CPU, Topology, core_of, read_topology, socket_of

GOLDEN = Path(__file__).parents[1] / "golden" / "machines.json"


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
        mine = (each for each in range(total * threads) if each % total // cores == socket)
        write(root, f"cpu/cpu{cpu}/cache/index3/shared_cpu_list", cpus_text(mine))
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
    assert topology.cpus[13] == CPU(core=5, socket=1, numa=1, cache=1)
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


def recorded() -> Any:
    return json.loads(GOLDEN.read_text())


def tree_of(root: Path, machine: Any) -> Path:
    """The recorded machine as the kernel would show it."""
    cpus = {int(cpu): each for cpu, each in machine["cpus"].items()}
    online = [cpu for cpu, each in cpus.items() if not each["Off"]]
    write(root, "cpu/online", cpus_text(online))
    for cpu in online:
        mine = cpus[cpu]
        core = [each for each in online if _same(cpus[each], mine, "Core", "Package", "Node")]
        write(root, f"cpu/cpu{cpu}/topology/core_id", str(mine["Core"]))
        write(root, f"cpu/cpu{cpu}/topology/thread_siblings_list", cpus_text(core))
        write(root, f"cpu/cpu{cpu}/topology/physical_package_id", str(mine["Package"]))
        for place, (number, level) in enumerate(mine["Caches"]):
            index = f"cpu/cpu{cpu}/cache/index{place}"
            sharing = [
                each for each in online if cpus[each]["Caches"][place : place + 1] == [[number, level]]
            ]
            write(root, f"{index}/id", str(number))
            write(root, f"{index}/level", str(level))
            write(root, f"{index}/shared_cpu_list", cpus_text(sharing))
    if not machine["no_numa"]:
        for node in {each["Node"] for each in cpus.values()}:
            members = [cpu for cpu in online if cpus[cpu]["Node"] == node]
            write(root, f"node/node{node}/cpulist", cpus_text(members))
            write(root, f"node/node{node}/distance", "10 " * 8)
    return root


def _same(one: Any, other: Any, *keys: str) -> bool:
    return all(one[key] == other[key] for key in keys)


@pytest.mark.parametrize("machine", recorded(), ids=lambda machine: machine["what"])
def test_machines_are_seen_as_by_the_kubelet(machine: Any, tmp_path: Path) -> None:
    """Hybrid ones, with CPUs that are off, without NUMA, with 256 CPUs; and CPUs are taken of them alike."""
    topology = read_topology(str(tree_of(tmp_path, machine)))
    assert topology.cpus == {int(cpu): CPU(*where) for cpu, where in machine["found"].items()}
    assert topology.per(core_of) == machine["per_core"]
    for free, count, options, taken, error in machine["takes"]:
        chosen_names = options or ()
        chosen = CPUPolicyOptions(**dict.fromkeys(chosen_names, True))
        assert not error
        found = cpus_text(take(topology, parse_cpus(free), count, chosen))
        if not parse_cpus(taken) <= parse_cpus(free):
            # Where cores or sockets differ, the kubelet's choice has CPUs in it that are another's.
            assert parse_cpus(found) <= parse_cpus(free)
            assert len(parse_cpus(found)) == count
            continue
        if "distribute_cpus_across_numa" in chosen_names and len(topology.numa_nodes()) > 4:
            # The kubelet's search goes on to write where it keeps the best of five nodes and more.
            sizes = (_per_node(topology, each) for each in (found, taken))
            assert len(set(sizes)) == 1, (free, count)
            continue
        assert found == taken, (free, count, options)


def _per_node(topology: Topology, cpus: str) -> tuple[int, ...]:
    """How many of the CPUs each NUMA node has, whichever it is."""
    return tuple(sorted(Counter(topology.cpus[cpu].numa for cpu in parse_cpus(cpus)).values()))


def test_this_machine() -> None:
    assert read_topology().all()


def test_a_tree_that_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="online"):
        read_topology(str(tmp_path))

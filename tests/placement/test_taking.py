"""Which CPUs are taken: as recorded from the kubelet, and what holds for any machine."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.common.cpusets import cpus_text, parse_cpus
from trio_kubelet.placement.taking import CPUPolicyOptions, NotEnoughCPUs, take
from trio_kubelet.placement.topology import CPU, Topology, core_of, numa_of

GOLDEN = Path(__file__).parents[1] / "golden" / "cpu-taking.json"


@cache
def golden() -> Any:
    return json.loads(GOLDEN.read_text())


@cache
def machines() -> list[Topology]:
    return [
        Topology({cpu: CPU(*where) for cpu, where in enumerate(machine)}) for machine in golden()["machines"]
    ]


def test_recorded_choices() -> None:
    assert len(golden()["cases"]) == 450
    for machine, available, count, options, taken, error in golden()["cases"]:
        chosen = CPUPolicyOptions(**dict.fromkeys(options, True))
        what = (machine, available, count, options)
        if error:
            with pytest.raises(NotEnoughCPUs) as refused:
                take(machines()[machine], parse_cpus(available), count, chosen)
            assert str(refused.value) == error, what
        else:
            assert cpus_text(take(machines()[machine], parse_cpus(available), count, chosen)) == taken, what


OPTIONS = st.sampled_from(
    [
        CPUPolicyOptions(),
        CPUPolicyOptions(full_pcpus_only=True, distribute_cpus_across_numa=True),
        CPUPolicyOptions(distribute_cpus_across_numa=True),
        CPUPolicyOptions(distribute_cpus_across_cores=True),
        CPUPolicyOptions(prefer_align_cpus_by_uncorecache=True),
    ]
)


@st.composite
def uneven(draw: st.DrawFn) -> Topology:
    """A machine whose cores have one thread or two, and whose sockets any number of NUMA nodes and cores."""
    cpus: list[CPU] = []
    core = 0
    for numa, socket in enumerate(sorted(draw(st.lists(st.integers(0, 2), min_size=1, max_size=3)))):
        for threads in draw(st.lists(st.integers(1, 2), min_size=1, max_size=5)):
            cpus += [CPU(core, socket, numa, numa)] * threads
            core += 1
    return Topology(dict(enumerate(cpus)))


@given(st.data(), OPTIONS)
def test_what_is_taken_was_free_and_is_as_much_as_was_asked_for(
    data: st.DataObject, options: CPUPolicyOptions
) -> None:
    machine = data.draw(st.one_of(st.sampled_from(machines()), uneven()))
    free = frozenset(data.draw(st.sets(st.sampled_from(sorted(machine.all())), min_size=1)))
    count = data.draw(st.integers(0, len(free)))
    taken = take(machine, free, count, options)
    assert taken <= free
    assert len(taken) == count


@given(st.data())
def test_whole_cores_are_taken_while_there_are_any(data: st.DataObject) -> None:
    machine = data.draw(st.sampled_from(machines()))
    per_core = machine.per(core_of)
    cores = data.draw(st.integers(1, len(machine.all()) // per_core))
    taken = take(machine, machine.all(), cores * per_core, CPUPolicyOptions())
    assert taken == machine.having(machine.groups(taken, core_of), core_of)


def test_spread_evenly_over_the_numa_nodes() -> None:
    machine = Topology({cpu: CPU(cpu, cpu // 8, cpu // 8, cpu // 8) for cpu in range(16)})
    taken = take(machine, machine.all(), 10, CPUPolicyOptions(distribute_cpus_across_numa=True))
    assert sorted(len(taken & machine.having([node], numa_of)) for node in (0, 1)) == [5, 5]


@pytest.mark.parametrize("text", ["0", "0-3", "0-3,8", "1,3,5-7", ""])
def test_texts_of_sets(text: str) -> None:
    assert cpus_text(parse_cpus(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", 'strconv.Atoi: parsing "x": invalid syntax'),
        ("3-1", 'invalid range "3-1" (3 > 1)'),
        ("1-", 'strconv.Atoi: parsing "": invalid syntax'),
        ("-1", 'strconv.Atoi: parsing "": invalid syntax'),
        ("1,,2", 'strconv.Atoi: parsing "": invalid syntax'),
        ("0-999999999", '"0-999999999" is no range of CPUs'),
        ("1 ", 'strconv.Atoi: parsing "1 ": invalid syntax'),
        (" ", 'strconv.Atoi: parsing " ": invalid syntax'),
        ("1 2", 'strconv.Atoi: parsing "1 2": invalid syntax'),
    ],
)
def test_texts_that_are_no_sets(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        parse_cpus(text)

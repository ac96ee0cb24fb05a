"""The kernel's word about memory: real files of this machine where it has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.eviction.alarm import KernelAlarm, UsageThreshold, usage_thresholds
from trio_kubelet.eviction.signals import SignalPlaces
from trio_kubelet.eviction.thresholds import Threshold
from trio_kubelet.machine.cgroup_reader import cgroup_reader

MIB = 1024**2


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of the v1 memory controller for the test alone."""
    memory = find_hierarchies().get("memory")
    if memory is None or os.geteuid() != 0:
        pytest.skip("no memory controller of cgroup v1 here")
    path = Path(memory) / f"tk-alarm-{os.getpid()}"
    path.mkdir()
    yield path
    path.rmdir()


async def test_a_v1_threshold_is_told_at_once(cgroup: Path) -> None:
    alarm = KernelAlarm(thresholds=lambda: [UsageThreshold(str(cgroup), 20 * MIB)], psi="/none")
    with alarm:
        with trio.move_on_after(0.5) as calm:
            await alarm.wait()
        assert calm.cancelled_caught
        script = f"echo $$ > {cgroup}/cgroup.procs; head -c 40m /dev/zero | tail; sleep 0.5"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.run_process, ["sh", "-c", script])
            with trio.fail_after(20):
                await alarm.wait()


async def test_where_a_threshold_lies(cgroup: Path) -> None:
    reader = cgroup_reader(find_hierarchies(), SystemClock())
    (cgroup / "memory.limit_in_bytes").write_text(str(100 * MIB))
    places = SignalPlaces(memory=1000 * MIB, root_dir="/", pods_cgroup=f"/{cgroup.name}")
    thresholds = (
        Threshold("allocatableMemory.available", "25%"),
        Threshold("nodefs.available", "10%"),
        Threshold("memory.available", "100Mi"),
    )
    of_pods, of_machine = usage_thresholds(thresholds, places, reader, str(cgroup.parent))
    assert of_pods == UsageThreshold(str(cgroup), 75 * MIB)
    assert of_machine.directory.rstrip("/") == str(cgroup.parent)
    assert of_machine.usage >= 900 * MIB  # and what can be dropped


async def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    alarm = KernelAlarm(
        events_file=str(tmp_path / "none"),
        thresholds=lambda: [UsageThreshold(str(tmp_path), 1)],
        psi=str(tmp_path / "none"),
    )
    for _ in range(2):  # and once more, as a task that is started again does
        with alarm, trio.move_on_after(0.4) as waited:
            await alarm.wait()
        assert waited.cancelled_caught


async def test_files_that_cannot_tell_are_left_alone(tmp_path: Path) -> None:
    """Plain files cannot be waited for."""
    for name in ("events", "psi"):
        (tmp_path / name).write_text("")
    with KernelAlarm(events_file=str(tmp_path / "events"), psi=str(tmp_path / "psi")) as alarm:
        with trio.move_on_after(0.4) as waited:
            await alarm.wait()
        assert waited.cancelled_caught


@pytest.fixture
def v2_cgroup() -> Iterator[Path]:
    """A cgroup of version 2 for the test alone."""
    hierarchies = find_hierarchies()
    if "memory" in hierarchies or "" not in hierarchies or os.geteuid() != 0:
        pytest.skip("no memory controller of cgroup v2 here")
    path = Path(hierarchies[""]) / f"tk-alarm-{os.getpid()}"
    path.mkdir()
    yield path
    path.rmdir()


async def told_while_all_is_taken(alarm: KernelAlarm, cgroup: Path) -> None:
    """Waits for the kernel's word while a process of the cgroup takes all the memory it gets."""
    script = f"echo $$ > {cgroup}/cgroup.procs; exec tail /dev/zero"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.run_process, ["sh", "-c", script], check=False))
        with trio.fail_after(20):
            await alarm.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.node
async def test_a_v2_cgroup_at_its_limit_is_told_at_once(v2_cgroup: Path) -> None:
    (v2_cgroup / "memory.max").write_text(str(20 * MIB))
    with KernelAlarm(events_file=str(v2_cgroup / "memory.events"), psi="/none") as alarm:
        with trio.move_on_after(0.5) as calm:
            await alarm.wait()
        assert calm.cancelled_caught
        await told_while_all_is_taken(alarm, v2_cgroup)


@pytest.mark.node
@pytest.mark.skipif(not os.path.exists("/proc/pressure/memory"), reason="no pressure stall information here")
async def test_stalls_are_told_where_the_machine_knows_them(v2_cgroup: Path) -> None:
    (v2_cgroup / "memory.high").write_text(str(4 * MIB))  # beyond it the process has to wait
    (v2_cgroup / "memory.max").write_text(str(20 * MIB))
    with KernelAlarm() as alarm:
        await told_while_all_is_taken(alarm, v2_cgroup)

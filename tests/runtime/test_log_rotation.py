"""Logs are rotated: when, into what, and what remains after a crash in between."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from trio.testing import MockClock

from tests.runtime.pods import container, pod
from tests.runtime.world import World, world
from tests.shapes import SHAPES
from trio_kubelet.common import lanes
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.observed.types import ContainerState, PodStatus
from trio_kubelet.runtime import log_rotation
from trio_kubelet.runtime.log_rotation import (
    LogRotator,
    RotationPlan,
    RotationSettings,
    compress,
    plan_rotation,
    tidy_rotated,
)
from trio_kubelet.sim.faults import Kind

SMALL = RotationSettings(max_size=100, max_files=3, workers=2, interval=10)


@pytest.mark.parametrize(
    ("rotated", "max_files", "remove", "compress_these"),
    [
        ([], 5, [], []),
        (["0.log.1"], 5, [], ["0.log.1"]),
        (["0.log.1.gz", "0.log.2"], 5, [], ["0.log.2"]),
        (["0.log.1.gz", "0.log.2.gz", "0.log.3"], 3, ["0.log.1.gz", "0.log.2.gz"], ["0.log.3"]),
        (["0.log.1", "0.log.1.gz", "0.log.2.tmp"], 5, ["0.log.1", "0.log.2.tmp"], []),
        (["0.log.1"], 2, ["0.log.1"], []),
        (["0.log.1"], 1, ["0.log.1"], []),
    ],
)
def test_what_happens_to_rotated_files(
    rotated: list[str], max_files: int, remove: list[str], compress_these: list[str]
) -> None:
    assert plan_rotation(rotated, max_files) == RotationPlan(tuple(remove), tuple(compress_these))


@given(
    st.sets(st.tuples(st.integers(1, 9), st.sampled_from(("", ".gz", ".tmp"))), max_size=12),
    st.integers(2, 6),
)
def test_never_more_files_than_allowed(parts: set[tuple[int, str]], max_files: int) -> None:
    names = [f"0.log.{n}{suffix}" for n, suffix in parts]
    plan = plan_rotation(names, max_files)
    left = set(names) - set(plan.remove)
    assert len(left) + 2 <= max_files
    assert set(plan.compress) <= left
    assert not any(name.endswith(".tmp") for name in left)


async def running(here: World) -> Path:
    """A pod with a log; the log's path."""
    await here.sync_ok(pod(container("web", command=["sh", "-c", "echo hello; sleep 100000"])))
    return Path(here.container("web").log_path)


async def too_large(here: World) -> Path:
    """The log of such a pod, which is to be rotated."""
    log = await running(here)
    log.write_text("x" * 1000)
    return log


async def observed(here: World) -> list[PodStatus]:
    """What a look at every pod shows."""
    pods = await here.runtime.get_pods()
    return [await here.runtime.get_pod_status(each.uid, each.name, each.namespace) for each in pods]


async def rounds(here: World, seconds: float) -> None:
    pods = await observed(here)
    with trio.move_on_after(seconds):
        await here.runtime.rotate_logs(lambda: pods)


async def test_a_large_log_is_rotated_and_compressed_the_next_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path, rotation=SMALL) as here:
        log = await running(here)
        for letter in "abcd":
            with log.open("a") as file:
                file.write(letter * 200)
            log.chmod(0o640)
            await rounds(here, 5)
            assert log.stat().st_size < 100
            await trio.sleep(2)
        names = sorted(os.listdir(log.parent))
        assert len(names) == 3
        assert names[0] == "0.log"
        assert names[1].endswith(".gz")
        with gzip.open(log.parent / names[1]) as archive:
            assert archive.read().endswith(b"c" * 200)
        assert (log.parent / names[1]).stat().st_mode & 0o777 == 0o640
        assert (log.parent / names[2]).read_text().endswith("d" * 200)


async def test_a_small_log_is_left_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path, rotation=SMALL) as here:
        log = await running(here)
        await rounds(here, 100)
        assert os.listdir(log.parent) == ["0.log"]
        assert "ReopenContainerLog" not in here.service.calls


async def test_the_runtime_is_not_asked_about_small_logs(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path, rotation=SMALL) as here:
        await running(here)
        pods = await observed(here)
        here.service.calls.clear()
        with trio.move_on_after(100):
            await here.runtime.rotate_logs(lambda: pods)
        assert not here.service.calls


async def test_the_log_of_a_container_that_has_ended_meanwhile_is_left_alone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path, rotation=SMALL) as here:
        log = await too_large(here)
        pods = await observed(here)
        here.service.runtime.kill(here.container("web").id, here.clock.now_ns())
        with trio.move_on_after(5):
            await here.runtime.rotate_logs(lambda: pods)
        assert os.listdir(log.parent) == ["0.log"]
        assert "ReopenContainerLog" not in here.service.calls


async def test_the_runtime_is_not_asked_about_logs_that_nobody_writes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path, rotation=SMALL) as here:
        await too_large(here)
        here.service.runtime.kill(here.container("web").id, here.clock.now_ns())
        ended = await observed(here)
        without = [
            replace(each, containers=[replace(c, state=ContainerState.RUNNING, log_path="")])
            for each in ended
            for c in each.containers
        ]
        here.service.calls.clear()
        with trio.move_on_after(100):
            await here.runtime.rotate_logs(lambda: [*ended, *without])
        assert not here.service.calls


async def test_rotation_can_be_off(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path, rotation=RotationSettings(max_size=-1)) as here:
        log = await too_large(here)
        await here.runtime.rotate_logs(list)
        assert os.listdir(log.parent) == ["0.log"]


async def test_a_log_that_cannot_be_reopened_keeps_its_name(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path, rotation=SMALL) as here:
        log = await too_large(here)
        here.fail("ReopenContainerLog")
        await rounds(here, 5)
        assert os.listdir(log.parent) == ["0.log"]
        assert log.stat().st_size == 1000
        await rounds(here, 5)
        assert len(os.listdir(log.parent)) == 2


async def test_a_new_log_is_not_overwritten_when_the_reopening_only_seemed_to_fail(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path, rotation=SMALL) as here:
        log = await too_large(here)
        here.fail("ReopenContainerLog", Kind.AMBIGUOUS, code="DEADLINE_EXCEEDED")
        await rounds(here, 5)
        assert len(os.listdir(log.parent)) == 2
        assert log.stat().st_size == 0


async def test_a_log_lost_in_a_crash_is_opened_anew(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path, rotation=SMALL) as here:
        log = await running(here)
        log.rename(log.with_name("0.log.20260101-000000"))
        await rounds(here, 5)
        assert sorted(os.listdir(log.parent)) == ["0.log", "0.log.20260101-000000"]


async def test_one_bad_container_does_not_keep_the_others(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path, rotation=SMALL) as here:
        await running(here)
        other = pod(container("web", command=["sh", "-c", "echo hi; sleep 99999"]), name="other", uid="uid-2")
        await here.sync_ok(other)
        logs = [Path(each.log_path) for each in here.containers]
        for log in logs:
            log.write_text("x" * 1000)
        pods = await observed(here)
        here.fail("ContainerStatus")
        with trio.move_on_after(5):
            await here.runtime.rotate_logs(lambda: pods)
        assert sorted(len(os.listdir(log.parent)) for log in logs) == [1, 2]


@pytest.mark.parametrize("method", ["ContainerStatus", "ReopenContainerLog"])
async def test_a_log_that_hangs_in_the_runtime_holds_up_no_other(
    method: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Not in this round, nor in those after it: the log of a container that writes much fills the disk."""
    rotation = RotationSettings(max_size=100, max_files=9, workers=1, interval=10)
    async with world(tmp_path, rotation=rotation) as here:
        await running(here)
        other = pod(container("web", command=["sh", "-c", "echo hi; sleep 99999"]), name="other", uid="uid-2")
        await here.sync_ok(other)
        hung, healthy = sorted(Path(each.log_path) for each in here.containers)
        pods = await observed(here)
        here.fail(method, Kind.HANG, count=1)
        hung.write_text("x" * 1000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.runtime.rotate_logs, lambda: pods)
            await trio.sleep(1)
            for rotated in range(1, 4):
                healthy.write_text("x" * 1000)
                await trio.sleep(10)
                assert len(os.listdir(healthy.parent)) == 1 + rotated
            assert here.service.calls[method] >= 4
            await trio.sleep(150)
            assert len(os.listdir(hung.parent)) == 2, "its turn comes again"
            nursery.cancel_scope.cancel()


async def test_a_disk_that_takes_its_time_to_rename_a_log_holds_up_no_other_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, loop, names = tmp_path / "0.log", threading.get_ident(), dict[str, int]()
    log.write_text("x" * 1000)

    class Reopening(Running):
        async def reopen_container_log(self, container_id: str) -> None:
            log.touch()

    rename = os.rename

    def slow(old: str, new: str) -> None:
        names[old] = threading.get_ident()
        rename(old, new)

    monkeypatch.setattr(os, "rename", slow)
    runtime: Any = Reopening()
    await LogRotator(runtime, SystemClock(), SMALL)._rotate("c", str(log))
    assert len(os.listdir(tmp_path)) == 2
    assert names[str(log)] != loop


async def test_of_a_log_that_hangs_one_rotation_is_under_way(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path, rotation=SMALL) as here:
        await too_large(here)
        pods = await observed(here)
        here.fail("ContainerStatus", Kind.HANG)
        here.service.calls.clear()
        with trio.move_on_after(60):
            await here.runtime.rotate_logs(lambda: pods)
        assert here.service.calls == {"ContainerStatus": 1}


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_one_log_raises_the_others_are_rotated(
    shape: str, tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, rotation=SMALL) as here:
        await running(here)
        other = pod(container("web", command=["sh", "-c", "echo hi; sleep 99999"]), name="other", uid="uid-2")
        await here.sync_ok(other)
        logs = [Path(each.log_path) for each in here.containers]
        for log in logs:
            log.write_text("x" * 1000)
        real = LogRotator._rotate

        async def rotate(self: LogRotator, container_id: str, path: str) -> None:
            if path == str(logs[0]):
                raise SHAPES[shape]()
            await real(self, container_id, path)

        monkeypatch.setattr(LogRotator, "_rotate", rotate)
        await rounds(here, 5)
        assert [len(os.listdir(log.parent)) for log in logs] == [1, 2]


def test_compressing_is_all_or_nothing(tmp_path: Path) -> None:
    log = tmp_path / "0.log.1"
    with pytest.raises(FileNotFoundError):
        compress(str(log))
    log.write_text("hello")
    (tmp_path / "0.log.1.gz").mkdir()
    with pytest.raises(OSError):
        compress(str(log))
    assert sorted(os.listdir(tmp_path)) == ["0.log.1", "0.log.1.gz"]


@pytest.mark.parametrize(("max_size", "most"), [(1000, 2 << 30), (1 << 31, 1 << 32)])
def test_a_rotated_file_that_is_far_too_large_is_not_compressed(
    tmp_path: Path, max_size: int, most: int
) -> None:
    huge, large = tmp_path / "0.log.1", tmp_path / "0.log.2"
    huge.touch()
    os.truncate(huge, most + 1)
    large.write_bytes(b"x" * 10_000)
    tidy_rotated(str(tmp_path / "0.log"), RotationSettings(max_size=max_size))
    assert os.listdir(tmp_path) == ["0.log.2.gz"]


class Running:
    """A runtime whose containers run."""

    async def container_status(self, container_id: str) -> cri.ContainerStatusResponse:
        return cri.ContainerStatusResponse(status=cri.ContainerStatus(state=cri.CONTAINER_RUNNING))


async def test_a_log_that_takes_too_long_is_compressed_once_and_holds_no_thread_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, end, begun = lanes.Lane("logs", threads=2, deadline=0.05), threading.Event(), []

    def tidy(path: str, *_: int) -> None:
        begun.append(path)
        end.wait()

    monkeypatch.setattr(lanes, "PATIENCE", 0.05)
    monkeypatch.setattr(log_rotation, "LOGS", lane)
    monkeypatch.setattr(log_rotation, "tidy_rotated", tidy)
    log = tmp_path / "0.log"
    log.write_text("x" * 1000)
    runtime: Any = Running()
    rotator = LogRotator(runtime, SystemClock(), SMALL)
    try:
        for _ in range(3):
            with pytest.raises(lanes.WorkHangs):
                await rotator._rotate("c", str(log))
        assert begun == [str(log)]
        assert lane.busy == 0
    finally:
        end.set()

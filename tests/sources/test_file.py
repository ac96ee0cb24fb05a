"""The file source on a real directory with real inotify, on a clock that runs faster than the wall's."""

from __future__ import annotations

import os
import pathlib
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.cancelling import descriptors
from tests.shapes import SHAPES
from trio_kubelet.api import v1
from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.inotify import DirectoryWatch
from trio_kubelet.common.lanes import MANIFESTS
from trio_kubelet.podinfo.updates import PodOperation, PodUpdate
from trio_kubelet.sources import file as file_module
from trio_kubelet.sources import manifest as manifest_module
from trio_kubelet.sources.file import FileSource, list_manifests
from trio_kubelet.sources.manifest import Origin, static_pod
from trio_kubelet.sources.manifest_files import FIRST_SET_WITHIN, DirectorySnapshot

SPEED = 8.0
PERIOD = 20.0
NEVER = 1e6
QUIET = 4.0
"""Seconds (of the fast clock) after which everything has settled."""


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """Threads and inotify take real time, so this clock does not jump; it only runs fast."""
    return trio.testing.MockClock(rate=SPEED)


def manifest(name: str, image: str = "busybox:1") -> str:
    return (
        "apiVersion: v1\nkind: Pod\n"
        f"metadata: {{name: {name}}}\nspec:\n  containers:\n  - name: c\n    image: {image}\n"
    )


class Sets:
    """The sets a source delivers, as image by pod name."""

    def __init__(self, receive: trio.MemoryReceiveChannel[PodUpdate]) -> None:
        self._receive = receive

    async def next(self) -> dict[str, str]:
        with trio.fail_after(15 * SPEED):
            update = await self._receive.receive()
        assert (update.op, update.source) == (PodOperation.SET, "file")
        return {p.metadata.name: (p.spec.containers or [])[0].image for p in update.pods}

    async def none(self) -> None:
        with trio.move_on_after(QUIET):
            pytest.fail(f"delivered {await self._receive.receive()}")


@asynccontextmanager
async def source(path: pathlib.Path, period: float = PERIOD, given: str = "") -> AsyncIterator[Sets]:
    send, receive = trio.open_memory_channel[PodUpdate](0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(FileSource(given or str(path), "node-a", period, send).run)
        yield Sets(receive)
        nursery.cancel_scope.cancel()


async def test_manifests_come_change_and_go(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    (tmp_path / "a.yaml").write_text(manifest("web"))
    (tmp_path / ".hidden.yaml").write_text(manifest("hidden"))
    async with source(tmp_path) as sets:
        assert await sets.next() == {"web-node-a": "busybox:1"}
        (tmp_path / "b.json").write_text(
            '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"db"},'
            '"spec":{"containers":[{"name":"c","image":"b"}]}}'
        )
        assert await sets.next() == {"web-node-a": "busybox:1", "db-node-a": "b"}
        (tmp_path / "a.yaml").write_text(manifest("web", "busybox:2"))
        assert (await sets.next())["web-node-a"] == "busybox:2"
        (tmp_path / "a.yaml").unlink()
        assert await sets.next() == {"db-node-a": "b"}


async def test_a_manifest_removed_and_put_back_at_once_goes_and_comes(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(manifest("web"))
    async with source(tmp_path, period=NEVER) as sets:
        assert await sets.next() == {"web-node-a": "busybox:1"}
        path.unlink()
        path.write_text(manifest("web"))
        assert await sets.next() == {}
        assert await sets.next() == {"web-node-a": "busybox:1"}
        await sets.none()
        path.rename(tmp_path.parent / "aside")
        (tmp_path.parent / "aside").rename(path)
        await sets.none()


async def test_three_chunks_into_one_open_file(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    # Cut where the beginning is a valid manifest of its own.
    whole = manifest("web") + "  - name: d\n    image: other\n" + "  - name: e\n    image: third\n"
    first, second, third = whole.partition("  - name: d\n    image: other\n")
    async with source(tmp_path) as sets:
        assert await sets.next() == {}
        autojump_clock.rate = 1.0  # the writer pauses for far less than a file takes to settle
        with (tmp_path / "a.yaml").open("w") as file:
            for chunk in (first, second):
                file.write(chunk)
                file.flush()
                await trio.sleep(0.2)
            file.write(third)
        update = await sets._receive.receive()
        autojump_clock.rate = SPEED
        assert [c.name for c in update.pods[0].spec.containers or ()] == ["c", "d", "e"]
        await sets.none()


async def test_a_directory_that_comes_later_goes_and_returns(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, aside = tmp_path / "manifests", tmp_path / "aside"
    async with source(path, period=NEVER) as sets:
        assert await sets.next() == {}
        path.mkdir()
        await trio.sleep(QUIET)  # the new directory is watched, not only found once
        (path / "a.yaml").write_text(manifest("web"))
        assert await sets.next() == {"web-node-a": "busybox:1"}
        path.rename(aside)
        assert await sets.next() == {}
        aside.rename(path)
        assert await sets.next() == {"web-node-a": "busybox:1"}
        # The watch is on the new directory: an event is enough, without the period.
        (path / "b.yaml").write_text(manifest("db"))
        assert sorted(await sets.next()) == ["db-node-a", "web-node-a"]


async def test_a_link_to_another_directory_is_noticed_by_the_period(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(manifest(name))
    link = tmp_path / "manifests"
    link.symlink_to("one")
    async with source(link, period=2) as sets:
        assert list(await sets.next()) == ["one-node-a"]
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").rename(link)
        assert list(await sets.next()) == ["two-node-a"]


async def test_one_file_instead_of_a_directory(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(manifest("web"))
    (tmp_path / "other.yaml").write_text(manifest("other"))
    async with source(path) as sets:
        assert await sets.next() == {"web-node-a": "busybox:1"}
        (tmp_path / "new").write_text(manifest("web", "busybox:2"))
        (tmp_path / "new").rename(path)
        assert await sets.next() == {"web-node-a": "busybox:2"}
        path.write_text("not a manifest")
        await sets.none()


@pytest.mark.parametrize(
    ("given", "location"),
    [
        ("manifests", "manifests/a.yaml"),
        ("./manifests//", "manifests/a.yaml"),
        ("manifests/../manifests", "manifests/a.yaml"),
        ("manifests/a.yaml", "manifests/a.yaml"),
        ("./manifests/a.yaml", "./manifests/a.yaml"),
    ],
)
async def test_the_uid_is_made_from_the_path_as_it_was_given(
    tmp_path: pathlib.Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    location: str,
) -> None:
    """A relative path of the command line stays relative, as under the kubelet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "a.yaml").write_text(manifest("web"))
    async with source(pathlib.Path("unused"), given=given) as sets:
        with trio.fail_after(15 * SPEED):
            update = await sets._receive.receive()
    wanted = static_pod(manifest("web").encode(), Origin("node-a", "file", location))
    assert [pod.metadata.uid for pod in update.pods] == [wanted.metadata.uid]


COPIED = """apiVersion: v1
kind: Pod
metadata:
  name: web
  uid: 0c8f6a3e-7d6b-4a51-9f26-3d2a1b0c9e8d
  labels: {a: b}
  creationTimestamp: "2026-01-01T00:00:00Z"
  deletionTimestamp: "2026-01-01T00:01:00Z"
  deletionGracePeriodSeconds: 30
  finalizers: [batch.kubernetes.io/job-tracking]
  generation: 2
  resourceVersion: "4711"
spec:
  restartPolicy: Never
  containers: [{name: c, image: "busybox:1"}]
status:
  phase: Succeeded
  conditions: [{type: Ready, status: "False", reason: PodCompleted}]
  containerStatuses:
  - {name: c, image: "busybox:1", imageID: x, restartCount: 3, state: {terminated: {exitCode: 0}}}
"""


async def test_what_a_server_wrote_into_a_pod_that_was_copied_from_there_is_passed_over(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Deleted or over as it was, it never started."""
    (tmp_path / "a.yaml").write_text(COPIED)
    async with source(tmp_path) as sets:
        with trio.fail_after(15 * SPEED):
            [pod] = (await sets._receive.receive()).pods
    assert (pod.metadata.uid, pod.metadata.labels) == ("0c8f6a3e-7d6b-4a51-9f26-3d2a1b0c9e8d", {"a": "b"})
    assert pod.status == v1.PodStatus(phase="Pending")
    meta = pod.metadata
    times = (meta.creation_timestamp, meta.deletion_timestamp, meta.deletion_grace_period_seconds)
    assert (*times, meta.finalizers, meta.generation, meta.resource_version) == (
        None,
        None,
        None,
        None,
        0,
        "",
    )


async def test_a_name_of_any_bytes_is_part_of_the_uid(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_of: list[bytes] = []

    def uid(text: bytes) -> str:
        made_of.append(text)
        return "0" * 32

    monkeypatch.setattr(manifest_module, "static_pod_uid", uid)
    (tmp_path / os.fsdecode(b"\xff.yaml")).write_text(manifest("web"))
    async with source(tmp_path) as sets:
        assert await sets.next() == {"web-node-a": "busybox:1"}
    assert made_of[0].endswith(b"/\xff.yaml")


async def test_what_is_no_file_or_too_large_is_told_once(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(manifest("web"))
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "big.yaml").write_bytes(b"#" * (10 * 1024 * 1024 + 1))
    (tmp_path / "bad.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {}\n")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        async with source(tmp_path, period=1) as sets:
            assert await sets.next() == {"web-node-a": "busybox:1"}
            await sets.none()
    log = capfd.readouterr().err.splitlines()
    for name in ("directory", "fifo", "loop", "socket", "big.yaml", "bad.yaml"):
        assert sum(f'{name}"' in line for line in log) == 1, name
    assert any(
        "bad.yaml" in line and "invalid pod: [spec.containers: Required value]" in line for line in log
    )
    assert not any("dangling" in line for line in log)


async def test_a_storm_of_events_ends_in_the_right_set(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with source(tmp_path) as sets:
        assert await sets.next() == {}
        for number in range(300):
            (tmp_path / f"m{number % 30}.yaml").write_text(manifest(f"p{number % 30}"))
            (tmp_path / f"tmp{number}").write_text("x")
            (tmp_path / f"tmp{number}").unlink()
        seen: dict[str, str] = {}
        while len(seen) < 30:
            seen = await sets.next()
        await sets.none()


async def test_a_file_system_that_hangs_does_not_hold_the_source(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the wall's clock: with another one work is done inline. The hung look ends after the test only."""
    before = descriptors()
    (tmp_path / "a.yaml").write_text(manifest("web"))
    hung, going = threading.Event(), threading.Event()
    real, hang = list_manifests, [False]

    def listing(path: str) -> DirectorySnapshot:
        if hang[0]:
            hung.set()
            going.wait()
        return real(path)

    monkeypatch.setattr(file_module, "list_manifests", listing)
    monkeypatch.setattr(MANIFESTS, "deadline", 1.5)
    try:
        async with source(tmp_path, period=0.1) as sets:
            assert await sets.next() == {"web-node-a": "busybox:1"}
            hang[0] = True
            with trio.fail_after(30):
                while not hung.is_set():  # noqa: ASYNC110 (threads set no Trio event)
                    await trio.sleep(0.01)
            hang[0] = False
            (tmp_path / "b.yaml").write_text(manifest("db"))
            with trio.fail_after(30):
                assert sorted(await sets.next()) == ["db-node-a", "web-node-a"]
            assert MANIFESTS.left_behind == 1
    finally:
        going.set()
    with trio.fail_after(30):
        while MANIFESTS.left_behind or descriptors() != before:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_a_watch_that_is_made_too_late_is_closed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, going, hung = descriptors(), threading.Event(), threading.Event()

    def listing(path: str) -> DirectorySnapshot:
        hung.set()
        going.wait()
        return DirectorySnapshot()

    monkeypatch.setattr(file_module, "list_manifests", listing)
    async with source(tmp_path):
        with trio.fail_after(30):
            while not hung.is_set():  # noqa: ASYNC110
                await trio.sleep(0.01)
    going.set()
    with trio.fail_after(30):
        while MANIFESTS.left_behind or descriptors() != before:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_the_watch_tells_moves_and_unfinished_writes(tmp_path: pathlib.Path) -> None:
    watch = DirectoryWatch(str(tmp_path))
    try:
        with (tmp_path / "a").open("w") as file:
            file.write("x")
            file.flush()
            await watch.wait()
            assert watch.take().unfinished == {str(tmp_path / "a")}
        assert watch.take().unfinished == frozenset()
        (tmp_path / "a").rename(tmp_path / "b")
        assert watch.take().moved_in == {str(tmp_path / "b")}
        assert not watch.take().any
        assert watch.is_current()
        (tmp_path / "b").rename(tmp_path.parent / "c")
        assert not watch.take().deleted
        (tmp_path.parent / "c").rename(tmp_path / "b")
        (tmp_path / "b").unlink()
        os.rmdir(tmp_path)
        last = watch.take()
        assert last.lost
        assert last.deleted == {str(tmp_path / "b")}
        assert not watch.is_current()
    finally:
        watch.close()


@pytest.mark.parametrize("content", ["not a manifest", None])
async def test_of_one_file_that_is_bad_from_the_start_nothing_is_said(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock, content: str | None
) -> None:
    """An empty set would end what an earlier agent runs from that file; the kubelet sends none."""
    path = tmp_path / "pod.yaml"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_text(content)
    async with source(path) as sets:
        with trio.move_on_after(2 * FIRST_SET_WITHIN * SPEED):
            pytest.fail(f"delivered {await sets.next()}")
        (tmp_path / "new").write_text(manifest("web"))
        (tmp_path / "new").rename(path)
        assert await sets.next() == {"web-node-a": "busybox:1"}
        path.unlink()
        assert await sets.next() == {}


async def test_a_path_that_is_missing_is_told_once_and_when_it_appears(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "manifests"
    async with source(path, period=1) as sets:
        assert await sets.next() == {}
        await trio.sleep(20)
        path.mkdir()
        (path / "a.yaml").write_text(manifest("web"))
        assert await sets.next() == {"web-node-a": "busybox:1"}
    told = [line for line in capfd.readouterr().err.splitlines() if "Manifests of static pods" in line]
    assert ["do not exist" in line for line in told] == [True, False]
    assert all(str(path) in line for line in told)


async def test_a_manifest_that_makes_the_code_raise_keeps_back_no_other(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    (tmp_path / "a.yaml").write_text("[" * 100_000)
    (tmp_path / "b.yaml").write_text("x: " + "{a: " * 5_000 + "}" * 5_000)
    (tmp_path / "c.yaml").write_text(manifest("web"))
    async with source(tmp_path) as sets:
        assert await sets.next() == {"web-node-a": "busybox:1"}


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_a_manifest_raises_the_others_are_read(
    tmp_path: pathlib.Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
) -> None:
    """It counts as a bad one until it is changed."""

    def reads(data: bytes, origin: Origin) -> Pod:
        if b"name: bad" in data:
            raise SHAPES[shape]()
        return static_pod(data, origin)

    monkeypatch.setattr(manifest_module, "static_pod", reads)
    (tmp_path / "a.yaml").write_text(manifest("bad"))
    (tmp_path / "b.yaml").write_text(manifest("web"))
    async with source(tmp_path, period=1) as sets:
        assert await sets.next() == {"web-node-a": "busybox:1"}
        (tmp_path / "a.yaml").write_text(manifest("good"))
        assert sorted(await sets.next()) == ["good-node-a", "web-node-a"]

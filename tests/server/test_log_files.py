"""Reading and following log files: tails, growth, rotation, the end."""

from __future__ import annotations

import errno
import os
import pathlib
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from unittest import mock

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cancelling import descriptors
from trio_kubelet.native.pure_crilog import LogOptions
from trio_kubelet.server.logs import file as log_file
from trio_kubelet.server.logs.file import LogError, LogFile, tail_start
from trio_kubelet.server.logs.reader import follow_log, read_log
from trio_kubelet.server.logs.watch import LogWatch

HEAD = b"2016-10-06T00:17:09.669794202Z stdout F "


def record(*words: str) -> bytes:
    return b"".join(HEAD + word.encode() + b"\n" for word in words)


def put(path: pathlib.Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "0.log"


def opened(path: pathlib.Path, tail: int | None = None, **options: object) -> LogFile:
    return LogFile(str(path), LogOptions(**options), tail)  # type: ignore[arg-type]


async def drained(file: LogFile) -> bytes:
    try:
        return b"".join([piece async for piece in read_log(file, "u")])
    finally:
        file.close()


async def test_whole_and_tail(path: pathlib.Path) -> None:
    put(path, record("a", "b", "c") + HEAD + b"incomplete")
    assert await drained(opened(path)) == b"a\nb\nc\nincomplete"
    assert await drained(opened(path, 2, lines=2)) == b"b\nc\n"
    assert await drained(opened(path, 0, lines=0)) == b""
    assert await drained(opened(path, 9, lines=9)) == b"a\nb\nc\nincomplete"


@pytest.mark.parametrize("tail", [None, 1])
async def test_what_cannot_be_read_is_an_error_and_is_closed(
    path: pathlib.Path, tail: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, record("a"))

    def broken(*args: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    before = descriptors()
    with pytest.raises(LogError, match=r"failed to read log file .* input/output error"):
        await drained(opened(path, tail))
    assert descriptors() == before


async def test_lines_longer_than_a_piece(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "PIECE", 64)
    words = ["x" * size for size in (1, 200, 3, 64, 500)]
    put(path, record(*words))
    assert await drained(opened(path)) == "".join(word + "\n" for word in words).encode()


async def test_errors_in_the_kubelets_words(path: pathlib.Path) -> None:
    with pytest.raises(LogError) as caught:
        opened(path)
    assert str(caught.value) == (
        f'failed to try resolving symlinks in path "{path}": lstat {path}: no such file or directory'
    )
    put(path, b"no log\n")
    file = opened(path)
    with pytest.raises(LogError, match="failed to get parse function: unsupported log format"):
        file.read()
    file.close()


@settings(max_examples=60)
@given(st.lists(st.integers(0, 70), max_size=30), st.integers(0, 35), st.booleans(), st.integers(1, 90))
def test_tail_start(sizes: list[int], lines: int, complete: bool, block: int) -> None:
    """As counted from the front."""
    data = b"\n".join(b"x" * size for size in sizes) + (b"\n" if complete else b"")
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    wanted = 0 if len(ends) <= lines else ends[len(ends) - lines - 1]
    with tempfile.TemporaryFile() as file, mock.patch.object(log_file, "_TAIL_BLOCK", block):
        file.write(data)
        file.flush()
        assert tail_start(file.fileno(), lines) == wanted


@pytest.mark.parametrize("tail", [None, 0, 1])
async def test_a_file_of_terabytes_with_nothing_in_it_is_soon_given_up(
    path: pathlib.Path, tail: int | None
) -> None:
    put(path, record("a"))
    os.truncate(path, 1 << 43)
    before = descriptors()
    with trio.fail_after(20), pytest.raises(LogError, match=f'line too long in log file "{path}"'):
        await drained(opened(path, tail))
    assert descriptors() == before


class Follower:
    """A follower in a task, and what it has said."""

    def __init__(self, file: LogFile, watch: LogWatch) -> None:
        self.file = file
        self.watch = watch
        self.running = True
        self.said = b""
        self.ended = trio.Event()

    async def run(self) -> None:
        async def is_running() -> bool:
            return self.running

        pieces: AsyncGenerator[bytes, None] = follow_log(self.file, "u", self.watch, is_running)
        async for piece in pieces:
            self.said += piece
        self.file.close()
        self.ended.set()

    async def until(self, said: bytes) -> None:
        with trio.fail_after(5):
            while self.said != said:  # noqa: ASYNC110
                await trio.sleep(0.05)

    async def end(self, seconds: float = 5) -> None:
        """Its container has ended, and so does it."""
        self.running = False
        with trio.fail_after(seconds):
            await self.ended.wait()


@asynccontextmanager
async def following(file: LogFile) -> AsyncIterator[Follower]:
    """A follower of the file at work."""
    watch = LogWatch()
    follower = Follower(file, watch)
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        nursery.start_soon(follower.run)
        yield follower
        nursery.cancel_scope.cancel()


async def test_growth_rotation_and_the_end(
    path: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A line half written is not shown; a rotation loses nothing, not even what is written late."""
    put(path, record("a"))
    async with following(opened(path)) as follower:
        await follower.until(b"a\n")
        with path.open("ab") as log:
            line = record("b")
            log.write(line[:30])
            log.flush()
            await trio.sleep(1)
            assert follower.said == b"a\n"
            log.write(line[30:])
            log.flush()
            await follower.until(b"a\nb\n")
            os.rename(path, f"{path}.20260101-000000")
            log.write(record("c"))
            log.flush()
            await trio.sleep(1)
            put(path, record("e"))
            await trio.sleep(0.15)
            log.write(record("d"))
            log.flush()
        await follower.until(b"a\nb\nc\nd\ne\n")
        await follower.end()


async def test_a_log_of_whole_pieces_is_said_once(
    path: pathlib.Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is seen by a read that gives nothing, as is that it was emptied."""
    monkeypatch.setattr(log_file, "PIECE", len(record("a")))
    put(path, record("a", "b"))
    async with following(opened(path)) as follower:
        await follower.until(b"a\nb\n")
        await trio.sleep(1)
        await follower.end()
    assert follower.said == b"a\nb\n"


async def test_two_rotations_while_nobody_reads(
    path: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A follower goes through the files in the order they were written in, and holds none longer."""
    before = descriptors()
    put(path, record("a"))
    file = opened(path)
    os.rename(path, f"{path}.20260101-000000")
    put(path, record("b"))
    os.rename(path, f"{path}.20260102-000000")
    put(path, record("c"))
    async with following(file) as follower:
        await follower.end(60)
    assert follower.said == b"a\nb\nc\n"
    assert descriptors() == before


async def test_a_log_emptied_in_place(path: pathlib.Path, autojump_clock: trio.testing.MockClock) -> None:
    put(path, record("a", "b"))
    async with following(opened(path)) as follower:
        await follower.until(b"a\nb\n")
        put(path, record("c"))
        await follower.until(b"a\nb\nc\n")
    follower.file.close()


@pytest.mark.parametrize("kind", ["fifo", "device", "directory"])
def test_a_log_that_is_no_file_is_not_read(tmp_path: pathlib.Path, kind: str) -> None:
    path = tmp_path / "0.log"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.mkdir()
    with pytest.raises(LogError, match="failed to open log file"):
        LogFile(str(path), LogOptions())

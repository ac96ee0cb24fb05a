"""Small files, read and written whole."""

from __future__ import annotations

import builtins
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trio_kubelet.common.small_files import SMALL, TooLarge, read_small, replace_small, write_small


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the kernel that follow, as far as `os` makes them; `open()` makes more and is refused."""
    made: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            made.append(name)
            return call(*args, **kwargs)

        return wrapped

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("open() asks the kernel more than is needed")

    for name in ("open", "read", "write", "fchmod", "fsync", "close"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    monkeypatch.setattr(builtins, "open", refused)
    return made


def test_reading_is_opening_reading_to_the_end_and_closing(tmp_path: Path, calls: list[str]) -> None:
    path = f"{tmp_path}/file"
    write_small(path, b"content", mode=0o644)
    assert calls == ["open", "fchmod", "write", "close"]
    calls.clear()
    assert read_small(path) == b"content"
    assert calls == ["open", "read", "read", "close"]
    assert read_small("/proc/self/comm"), "a file of the kernel, which says that it is empty"


@pytest.mark.parametrize("size", [0, 1, SMALL - 1, SMALL, SMALL + 1, 3 * SMALL + 7])
def test_the_limit_is_the_last_size_that_is_read(tmp_path: Path, size: int) -> None:
    path, content = tmp_path / "file", os.urandom(size)
    path.write_bytes(content)
    assert read_small(str(path), size) == content
    path.write_bytes(content + b"x")
    with pytest.raises(TooLarge, match=f"larger than {size} bytes"):
        read_small(str(path), size)


def test_what_is_written_replaces_all_that_was_there_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"something longer")
    path.chmod(0o600)
    before = path.stat().st_ino
    umask = os.umask(0o077)
    try:
        write_small(str(path), b"short", mode=0o666, sync=True)
        write_small(f"{tmp_path}/new", b"", mode=0o644)
    finally:
        os.umask(umask)
    assert path.read_bytes() == b"short"
    assert path.stat().st_ino == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o644


def test_what_the_kernel_takes_in_parts_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:3]))
    write_small(f"{tmp_path}/file", b"0123456789", mode=0o644)
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_an_error_names_the_file_and_leaves_nothing_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError, match=r"'.*/none'"):
        read_small(f"{tmp_path}/none")
    with pytest.raises(FileNotFoundError, match=r"'.*/none/file'"):
        write_small(f"{tmp_path}/none/file", b"", mode=0o644)
    with pytest.raises(IsADirectoryError):
        read_small(str(tmp_path))
    with pytest.raises(OSError, match="No space left"):
        write_small("/dev/full", b"content", mode=0o666)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_whole_or_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    path = tmp_path / "file"
    replace_small(str(path), b"old", mode=0o600, sync=sync)
    with path.open("rb") as reader:
        replace_small(str(path), b"something new", mode=0o644, sync=sync)
        assert reader.read() == b"old"
    assert path.read_bytes() == b"something new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644

    def full(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        replace_small(str(path), b"newer", mode=0o600, sync=sync)
    assert path.read_bytes() == b"something new"
    assert os.listdir(tmp_path) == ["file"]

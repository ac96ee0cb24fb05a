"""Files of a volume change all at once, and nothing is left of attempts that failed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trio_kubelet.volumes.atomic_writer import write_files
from trio_kubelet.volumes.linux import mount_tmpfs, unmount
from trio_kubelet.volumes.payload import FileProjection

NOW_NS = 1_763_700_000_000_000_000


def write(directory: Path, own: Callable[[], None] = lambda: None, **files: bytes) -> bool:
    """`a__b` is the path `a/b`."""
    wanted = {name.replace("__", "/"): FileProjection(data, 0o640) for name, data in files.items()}
    return write_files(str(directory), wanted, NOW_NS, own)


def entries(directory: Path) -> set[str]:
    return set(os.listdir(directory))


def test_at_no_moment_is_a_file_missing_or_the_files_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, a=b"1", sub__b=b"1")
    seen: set[tuple[bytes, ...]] = set()

    def look() -> None:
        try:
            seen.add(((tmp_path / "a").read_bytes(), (tmp_path / "sub" / "b").read_bytes()))
        except FileNotFoundError as exc:
            seen.add((str(exc).encode(),))

    def watched(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            look()
            return result

        monkeypatch.setattr(os, name, call)

    for name in ("symlink", "rename", "replace", "unlink", "rmdir", "chmod", "mkdir"):
        watched(name)
    assert write(tmp_path, a=b"2", sub__b=b"2")
    monkeypatch.undo()
    assert seen == {(b"1", b"1"), (b"2", b"2")}


def test_a_file_becomes_a_directory_and_a_directory_a_file(tmp_path: Path) -> None:
    write(tmp_path, a=b"1", sub__b=b"1", sub__c__d=b"1")
    for files in (
        {"a__b": b"2", "sub": b"2"},
        {"a__b__c": b"3", "sub__b": b"3"},
        {"a": b"4", "sub__b__c": b"4"},
    ):
        assert write(tmp_path, lambda: None, **files)
        for name, data in files.items():
            assert (tmp_path / name.replace("__", "/")).read_bytes() == data
        assert entries(tmp_path) == {"a", "sub", "..data", os.readlink(tmp_path / "..data")}


def test_a_link_left_by_a_writer_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    write(tmp_path, a=b"1")
    os.symlink("nowhere", tmp_path / "..data_tmp")
    assert write(tmp_path, a=b"2")
    assert (tmp_path / "a").read_bytes() == b"2"
    assert entries(tmp_path) == {"a", "..data", os.readlink(tmp_path / "..data")}


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("last", [b"1", b"2", b"3"])
def test_a_writer_that_is_killed_anywhere_leaves_nothing_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: bytes
) -> None:
    """What was to be written is the same when another comes, is what it was before, or has changed again."""
    left = 0

    def deadly(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for step in range(1, 100):
        directory = tmp_path / str(step)
        directory.mkdir()
        (directory / "..other").mkdir()
        (directory / "nested").mkdir()
        before = {"a": b"1", "gone": b"1", "sub__b": b"1", "sub__gone": b"1"}
        write(directory, lambda: None, **before)
        with monkeypatch.context():
            for name in ("open", "mkdir", "chmod", "symlink", "rename", "unlink", "rmdir"):
                deadly(name)
            left = step
            try:
                write(directory, a=b"2", sub__b=b"2", new=b"2")
                break
            except Killed:
                left = -1
            finally:
                monkeypatch.undo()
        after = before if last == b"1" else {"a": last, "sub__b": last, "new": last}
        write(directory, lambda: None, **after)
        shown = {name.partition("__")[0] for name in after}
        assert entries(directory) == shown | {
            "..data",
            os.readlink(directory / "..data"),
            "nested",
            "..other",
        }
        assert entries(directory / "sub") == {name[5:] for name in after if name.startswith("sub__")}
        assert {(directory / name.replace("__", "/")).read_bytes() for name in after} == {last}
    assert step > 15


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_files_without_room_do_not_take_that_of_those_that_fit(tmp_path: Path) -> None:
    mount_tmpfs(str(tmp_path), 1 << 20)
    try:
        write(tmp_path, a=b"1" * (600 << 10))
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                write(tmp_path, a=b"2" * (600 << 10))
        assert write(tmp_path, a=b"3" * (300 << 10))
        assert (tmp_path / "a").read_bytes()[:1] == b"3"
    finally:
        unmount(str(tmp_path))


def test_what_failed_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path, a=b"1")
    before = entries(tmp_path)

    def fail() -> None:
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        write(tmp_path, fail, a=b"2")
    assert entries(tmp_path) == before
    assert (tmp_path / "a").read_bytes() == b"1"


def test_modes_do_not_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write(tmp_path, sub__b=b"1", a=b"1")
    finally:
        os.umask(before)
    for path, mode in (("..data", 0o755), ("sub", 0o755), ("sub/b", 0o640), ("a", 0o640)):
        assert stat.S_IMODE(os.stat(tmp_path / path).st_mode) == mode


def test_the_same_again_writes_nothing(tmp_path: Path) -> None:
    assert write(tmp_path, a=b"1")
    current = os.readlink(tmp_path / "..data")
    assert not write(tmp_path, a=b"1")
    assert os.readlink(tmp_path / "..data") == current
    assert write(tmp_path, b=b"1")
    assert entries(tmp_path) == {"b", "..data", os.readlink(tmp_path / "..data")}

"""Volumes are given to the pod's group, whatever containers put into them."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from trio_kubelet.volumes import ownership
from trio_kubelet.volumes.files import remove_tree
from trio_kubelet.volumes.local import set_up_empty_dir
from trio_kubelet.volumes.ownership import Progress, give_volume
from trio_kubelet.volumes.plan import EmptyDir, Medium


def test_ownership_follows_no_link_and_stops_where_the_root_is_right(tmp_path: Path) -> None:
    outside, volume = tmp_path / "outside", tmp_path / "volume"
    outside.mkdir()
    (outside / "secret").write_text("")
    (volume / "deep/er").mkdir(parents=True)
    (volume / "deep/er/file").write_text("")
    (volume / "link").symlink_to(outside)
    (volume / "file-link").symlink_to(outside / "secret")
    before = (outside / "secret").stat().st_mode
    progress = Progress()
    give_volume(str(volume), 1234, read_only=False, on_mismatch=True, progress=progress)
    assert progress.files == 6
    assert (volume / "deep/er/file").stat().st_gid == 1234
    assert (volume / "deep/er").stat().st_mode & 0o7777 == 0o2775
    assert (volume / "link").lstat().st_gid == 1234
    assert outside.stat().st_gid == (outside / "secret").stat().st_gid == 0
    assert (outside / "secret").stat().st_mode == before
    again = Progress()
    give_volume(str(volume), 1234, read_only=False, on_mismatch=True, progress=again)
    assert again.files == 0
    give_volume(str(volume), 1234, read_only=False, on_mismatch=False, progress=again)
    assert again.files == 6


def test_programs_that_run_as_their_owner_still_do(tmp_path: Path) -> None:
    (tmp_path / "program").touch()
    (tmp_path / "program").chmod(0o6755)
    give_volume(str(tmp_path), 1234, read_only=False)
    found = (tmp_path / "program").stat()
    assert (found.st_gid, found.st_mode & 0o7777) == (1234, 0o6775)


def test_directories_nested_too_deeply_are_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath(*"d" * 20).mkdir(parents=True)
    before, progress = os.listdir("/proc/self/fd"), Progress()
    monkeypatch.setattr(ownership, "_DEEPEST", 21)
    give_volume(str(tmp_path), os.getegid(), read_only=False, on_mismatch=False, progress=progress)
    assert progress.files == 21
    monkeypatch.setattr(ownership, "_DEEPEST", 20)
    with pytest.raises(OSError, match="deeper than 20 levels"):
        give_volume(str(tmp_path), os.getegid(), read_only=False, on_mismatch=False, progress=progress)
    assert os.listdir("/proc/self/fd") == before


def test_a_large_directory_is_given_away_with_few_names_in_memory(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"{number:0255}").touch()
    progress = Progress()
    tracemalloc.start()
    try:
        give_volume(str(tmp_path), os.getegid(), read_only=False, on_mismatch=False, progress=progress)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert progress.files == 501
    assert peak < 80_000


def test_an_empty_dir_that_was_never_finished_is_given_away_without_recursion(tmp_path: Path) -> None:
    """However deeply somebody nested directories in it, that ends in an error that one can name."""
    volume = tmp_path / "pod/volumes/plugin/v"
    volume.mkdir(parents=True)
    deep = os.open(volume, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=deep)
        above, deep = deep, os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(above)
    os.close(deep)
    plan = EmptyDir("v", str(volume), str(tmp_path / "pod/plugins/v"), Medium.DISK)
    with pytest.raises(OSError, match="nested deeper"):
        set_up_empty_dir(plan, os.getegid())
    remove_tree(str(volume))

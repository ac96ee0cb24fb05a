"""Files that containers have written, opened so that reading them neither waits nor leads anywhere else."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trio_kubelet.common.container_files import open_below, open_regular
from trio_kubelet.common.small_files import TooLarge, read_capped


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("of the node")
    (tmp_path / "volume" / "a" / "b").mkdir(parents=True)
    (tmp_path / "volume" / "a" / "file").write_text("text")
    return tmp_path / "volume"


def read(directory: Path, path: str, *, links: bool = False, limit: int = 100) -> bytes:
    return read_capped(open_below(str(directory), path, links=links), limit)


def code(directory: Path, path: str, *, links: bool = False) -> int | None:
    with pytest.raises(OSError) as caught:
        read(directory, path, links=links)
    return caught.value.errno


@pytest.mark.parametrize("path", ["a/file", "/a//./file", "a/b/../file", "../../a/file"])
def test_a_file_is_found_below_its_directory(volume: Path, path: str) -> None:
    assert read(volume, path) == b"text"


@pytest.mark.parametrize("target", ["../secret", "/secret", "../../../etc/passwd", "loop", "a/b"])
def test_no_link_leads_out(volume: Path, target: str) -> None:
    (volume / "loop").symlink_to("loop")
    (volume / "link").symlink_to(target)
    assert code(volume, "link") == errno.ELOOP
    assert code(volume, "link", links=True) in (errno.ENOENT, errno.ELOOP, errno.EISDIR)
    (volume / "a" / "up").symlink_to("../..")
    assert code(volume, "a/up/secret", links=True) == errno.ENOENT


def test_links_inside_are_followed_where_asked_for(volume: Path) -> None:
    (volume / "relative").symlink_to("a/file")
    (volume / "a" / "b" / "absolute").symlink_to("/a/file")
    (volume / "directory").symlink_to("a/b")
    assert read(volume, "relative", links=True) == b"text"
    assert read(volume, "directory/absolute", links=True) == b"text"
    assert code(volume, "directory/absolute") == errno.ELOOP


def test_what_is_no_file_is_refused_at_once(volume: Path) -> None:
    os.mkfifo(volume / "fifo")
    for path in ("fifo", "a", ""):
        assert code(volume, path) in (errno.EINVAL, errno.EISDIR)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(str(volume / "fifo"))
    with pytest.raises(OSError, match="not a regular file"):
        open_regular("/dev/zero")


def test_a_file_of_terabytes_costs_no_memory(volume: Path) -> None:
    with (volume / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TooLarge, match="larger than 100 bytes"):
        read(volume, "huge")


def test_nothing_stays_open(volume: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (volume / "loop").symlink_to("loop")
    os.mkfifo(volume / "fifo")
    for path in ("a/file", "loop", "fifo", "a/b/none", "none/none", "a", "a/b/../file"):
        for links in (False, True):
            try:
                read(volume, path, links=links)
            except OSError:
                continue
    assert len(os.listdir("/proc/self/fd")) == before

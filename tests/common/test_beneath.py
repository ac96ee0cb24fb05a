"""Names and links that lead somewhere below a directory, or would lead out of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cancelling import descriptors
from trio_kubelet.common.beneath import OutsideRoot, look_beneath, open_beneath


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "root"
    (directory / "sub").mkdir(parents=True)
    (directory / "file").write_text("hi")
    (tmp_path / "secret").write_text("secret")
    os.mkfifo(directory / "pipe")
    (directory / "out").symlink_to("../secret")
    (directory / "inside").symlink_to(directory / "file")
    (directory / "sub" / "relative").symlink_to("../file")
    (directory / "loop").symlink_to("loop")
    return directory


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("out", "path escapes from parent"),
        ("inside", "path escapes from parent"),
        ("../root/file", "path escapes from parent"),
        ("sub/../../secret", "path escapes from parent"),
        ("/file", "path escapes from parent"),
        ("loop", "Too many levels of symbolic links"),
        ("file/", "Not a directory"),
        ("file/x", "Not a directory"),
        ("file/..", "Not a directory"),
        ("nothing", "No such file or directory"),
        ("a\0b", "Invalid argument"),
    ],
)
def test_what_is_refused(root: Path, name: str, words: str) -> None:
    """As Go 1.26's `os.Root` refuses it."""
    before = descriptors()
    with pytest.raises(OSError, match=words):
        look_beneath(str(root), name)
    assert descriptors() == before


@pytest.mark.parametrize("name", ["file", "sub/../file", "sub/relative", "./file"])
def test_files(root: Path, name: str) -> None:
    with os.fdopen(open_beneath(str(root), name)) as file:
        assert file.read() == "hi"


def test_a_fifo_is_only_looked_at(root: Path) -> None:
    opened = open_beneath(str(root), "pipe")
    assert stat.S_ISFIFO(os.fstat(opened).st_mode)
    with pytest.raises(OSError, match="No such device or address"):
        os.open(root / "pipe", os.O_WRONLY | os.O_NONBLOCK)
    os.close(opened)


NAMES = st.lists(st.sampled_from(["a", "b", "..", ".", "", "l"]), max_size=6).map("/".join)


@settings(max_examples=100, deadline=None)
@given(NAMES, NAMES.filter(bool))
def test_nothing_above_is_ever_found(tmp_path_factory: pytest.TempPathFactory, name: str, link: str) -> None:
    """Whatever is found is what the kernel finds by that name, and stands below."""
    top = tmp_path_factory.mktemp("t")
    (top / "root" / "a" / "b").mkdir(parents=True)
    (top / "root" / "a" / "l").symlink_to(link)
    root = top / "root"
    try:
        found = look_beneath(str(root), name)
    except OutsideRoot:
        return
    except OSError:
        assert not os.path.exists(root / name)
        return
    where = os.readlink(f"/proc/self/fd/{found}")
    os.close(found)
    assert where == os.path.realpath(root / name)
    assert where == str(root) or where.startswith(f"{root}/")

"""Filesystems of a test's own, each in a file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20


@contextmanager
def disk(at: Path, image: Path, mebibytes: int, make: Sequence[str], options: str = "loop") -> Iterator[None]:
    """A filesystem that `make` has made in a new file `image`, mounted there until the end of the block.

    Needs root. Raises OSError or CalledProcessError where there can be no such filesystem.
    """
    with image.open("wb") as file:
        file.truncate(mebibytes * MIB)
    subprocess.run([*make, image], check=True, capture_output=True)
    at.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-o", options, image, at], check=True, capture_output=True)
    try:
        yield
    finally:
        # After a failure a node may have been taken down already, with what was mounted below it.
        if os.path.ismount(at):
            subprocess.run(["umount", "-l", at], check=True)


COUNTING = {"xfs": ["mkfs.xfs", "-q"], "ext4": ["mkfs.ext4", "-q", "-O", "quota,project"]}
"""How to make a filesystem that can count what projects have."""


@contextmanager
def counting_disk(kind: str, at: Path, scratch: Path) -> Iterator[None]:
    """A filesystem that counts what projects have, mounted there."""
    with disk(at, scratch / "disk.img", 320, COUNTING[kind], "loop,prjquota"):
        yield

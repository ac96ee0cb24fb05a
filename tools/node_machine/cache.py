"""What is built is kept by a hash of what it is made of; it is there whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trio_kubelet.common.mountinfo import mounts_from
from trio_kubelet.standalone.packages import cache_dir

_UNUSED_SECONDS = 14 * 24 * 3600


class Unavailable(Exception):
    """The machine cannot be built or started here; the text says why."""


def say(text: str) -> None:
    print(f"node machine: {text}", file=sys.stderr, flush=True)


def root() -> Path:
    """Where all of it is kept."""
    directory = cache_dir() / "node-machine"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def hash_of(*parts: str | bytes | Path) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part
        digest.update(data if isinstance(data, bytes) else data.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def run(command: Sequence[str | Path], *, seconds: float = 3600, **options: object) -> str:
    """Runs a command; its output. Raises Unavailable with the end of what it said."""
    try:
        done = subprocess.run(  # type: ignore[call-overload]
            [str(word) for word in command],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            **options,
        )
    except FileNotFoundError as error:
        raise Unavailable(f"{command[0]}: not installed") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]}: not done after {seconds:g} s") from error
    except subprocess.CalledProcessError as error:
        said = error.stdout.decode(errors="replace").strip().splitlines()[-12:]
        raise Unavailable("\n".join([f"{command[0]} failed ({error.returncode}):", *said])) from error
    return str(done.stdout.decode(errors="replace"))


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time."""
    with (root() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove(left: Path) -> None:
    """Removes a directory, and from it first what is mounted there: that is not ours to remove."""
    directory = str(left.resolve())
    for mount in reversed(mounts_from(directory)):
        subprocess.run(["umount", "--lazy", mount.path], check=False)
    if not mounts_from(directory):
        shutil.rmtree(left, ignore_errors=True)


def kept(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    """The directory with what `make` makes; others of the kind that nobody used for two weeks are removed."""
    directory = root() / f"{kind}-{key}"
    if directory.exists():
        os.utime(directory)
        return directory
    with locked(kind):
        if directory.exists():  # another process was faster
            return directory
        started = time.monotonic()
        for left in root().glob(f"new-{kind}-*"):  # by one that was killed at it
            _remove(left)
        with tempfile.TemporaryDirectory(
            prefix=f"new-{kind}-", dir=root(), ignore_cleanup_errors=True
        ) as work:
            fresh = Path(work) / "result"
            fresh.mkdir()
            make(fresh)
            fresh.rename(directory)
        for old in root().glob(f"{kind}-*"):
            if old.is_dir() and time.time() - old.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
        say(f"{kind} built in {time.monotonic() - started:.0f} s")
    return directory

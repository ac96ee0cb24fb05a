"""Settings of the kernel that a node is to have (kubelet: `setupKernelTunables`).

Whoever writes them changes the whole machine, so the directory they are in is the caller's to name.
"""

from __future__ import annotations

import os
from typing import Final

from trio_kubelet.common.go_words import os_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.small_files import read_small

log = get_logger(__name__)

_KEYS: Final = 1_000_000
_BYTES_PER_KEY: Final = 25

WANTED: Final = {
    "vm/overcommit_memory": 1,  # what is asked for is given; who takes too much meets the OOM killer
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,  # seconds until a machine that panicked starts anew
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": _KEYS,  # runtimes make a key for each container
    "kernel/keys/root_maxbytes": _KEYS * _BYTES_PER_KEY,
}


class TunablesError(Exception):
    """Settings that are not as they should be, or cannot be read or written: all of them."""


def settle_tunables(proc_sys: str, *, protect: bool, may_fail: bool) -> None:
    """Writes what differs from `WANTED` below `proc_sys`; with `protect` that is an error instead.

    With `may_fail` what cannot be written stays as it is. Raises TunablesError. Blocking.
    """
    problems = []
    for name, wanted in WANTED.items():
        path = os.path.join(proc_sys, name)
        try:
            actual = int(read_small(path))
        except OSError as exc:
            problems.append(_words(path, exc, "read"))
            continue
        except ValueError as exc:
            problems.append(f"{path}: {exc}")
            continue
        if actual == wanted:
            continue
        if protect:
            problems.append(f"invalid kernel flag: {name}, expected value: {wanted}, actual value: {actual}")
            continue
        log.info("Updating kernel flag", flag=name, expectedValue=wanted, actualValue=actual)
        try:
            _write(path, wanted)
        except OSError as exc:
            if may_fail:
                log.info("Updating kernel flag failed (running in UserNS, ignoring)", flag=name, err=exc)
            else:
                problems.append(_words(path, exc, "write"))
    if problems:
        raise TunablesError(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")


def _write(path: str, value: int) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(str(value))


def _words(path: str, error: OSError, step: str) -> str:
    """The error as Go says it; only one of opening has a file name."""
    return f"{step if error.filename is None else 'open'} {path}: {os_words(error)}"


def in_user_namespace(uid_map: str = "/proc/self/uid_map") -> bool:
    """Whether this process has not all the user ids of the machine. Blocking."""
    try:
        return read_small(uid_map).split() != [b"0", b"0", b"4294967295"]
    except OSError:  # a kernel without user namespaces
        return False

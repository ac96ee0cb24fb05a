"""The kernel's list of mounts, proc_pid_mountinfo(5)."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from typing import Final

import msgspec

_LIST = "/proc/self/mountinfo"
_OWN_LABEL: Final = "/proc/self/attr/current"
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(msgspec.Struct, frozen=True):
    """One mount: where it is, the kind of filesystem, whether mounts below it are told to its peers, the
    options of the filesystem, its device (`major:minor`), what was mounted (a device file, mostly), and which
    directory of the filesystem.
    """

    path: str
    fs_type: str
    shared: bool = False
    options: str = ""
    device: str = ""
    source: str = ""
    root: str = ""


def parse_mounts(text: str) -> list[Mount]:
    """The mounts of a list, in the order they were made."""
    found = []
    for line in text.split("\n"):
        fields, separator, rest = line.partition(" - ")
        if not separator:
            continue
        words, (fs_type, source, options) = fields.split(" "), rest.split(" ", 2)
        shared = any(word.startswith("shared:") for word in words[6:])
        found.append(
            Mount(_plain(words[4]), fs_type, shared, options, words[2], _plain(source), _plain(words[3]))
        )
    return found


def _plain(word: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), word) if "\\" in word else word


def mounts() -> list[Mount]:
    """All mounts this process sees, in the order they were made. Blocking; raises OSError."""
    return parse_mounts(_read())


def mounts_of(kind: str) -> list[Mount]:
    """Those of filesystems whose kind begins with `kind`. Blocking; raises OSError."""
    return [mount for mount in _naming(f" - {kind}") if mount.fs_type.startswith(kind)]


@functools.cache
def selinux_enabled() -> bool:
    """Whether processes and files have SELinux labels here: the kernel's files about them are mounted and can
    be written, and a policy is loaded (go-selinux: `GetEnabled`). Asked once. Blocking.
    """
    try:
        writable = [m for m in mounts_of("selinuxfs") if not os.statvfs(m.path).f_flag & os.ST_RDONLY]
        with open(_OWN_LABEL, encoding="utf-8", errors="surrogateescape") as file:
            return bool(writable) and file.read().rstrip("\0\n") != "kernel"
    except OSError:
        return False


def mount_point(path: str) -> Mount | None:
    """The topmost mount at a path without links, None if there is none. Blocking; raises OSError."""
    return next((found for found in reversed(_naming(f" {_escaped(path)} ")) if found.path == path), None)


def mounts_from(path: str) -> list[Mount]:
    """The mounts at or below a path without links, in the order they were made. Blocking; raises OSError."""
    return [m for m in _naming(f" {_escaped(path)}") if m.path.startswith(f"{path}/") or m.path == path]


def _naming(words: str) -> list[Mount]:
    """Mounts whose lines have these words; only those are parsed, for there may be thousands of others."""
    text = _read()
    return (
        parse_mounts("\n".join(line for line in text.split("\n") if words in line)) if words in text else []
    )


def mounted_elsewhere(path: str) -> list[str]:
    """Where what is at a path without links, a mount or a directory in one, is mounted as well (kubelet:
    `SearchMountPoints`). Blocking; raises OSError.
    """
    lines = _read().split("\n")
    holding = _holding(lines, path)
    if holding is None:
        return []
    (found,) = parse_mounts(holding)
    below = path.removeprefix(found.path).strip("/")
    root = os.path.join(found.root, below) if below else found.root
    device = f" {found.device} "
    same = parse_mounts("\n".join(line for line in lines if line is not holding and device in line))
    return [each.path for each in same if (each.device, each.root) == (found.device, root)]


def mount_holding(path: str) -> Mount | None:
    """The mount that what is at a path without links is on. Blocking; raises OSError."""
    holding = _holding(_read().split("\n"), path)
    return parse_mounts(holding)[0] if holding is not None else None


def _holding(lines: Sequence[str], path: str) -> str | None:
    return next((line for line in reversed(lines) if _holds(line, path)), None)


def _holds(line: str, path: str) -> bool:
    words = line.split(" ", 5)
    if len(words) < 6:
        return False
    where = _plain(words[4])
    return path == where or path.startswith(where.rstrip("/") + "/")


def _read() -> str:
    with open(_LIST, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _escaped(path: str) -> str:
    return "".join(f"\\{ord(each):03o}" if each in " \t\n\\" else each for each in path)

"""What lies in the registration directory: one look at a tree of directories. Blocking, for a thread."""

from __future__ import annotations

import os
import stat
from typing import Final, NamedTuple

from trio_kubelet.common.go_words import os_words
from trio_kubelet.plugins.states import SocketIdentity

MAX_ENTRIES: Final = 4096
MAX_DIRECTORIES: Final = 128
"""What is looked at: a plugin with the run of the directory must not keep the agent busy for ever."""


class Found(NamedTuple):
    """Sockets by path, directories in the order they were met; `problem`: what could not be looked at."""

    sockets: dict[str, SocketIdentity]
    directories: tuple[str, ...]
    problem: str = ""


def list_sockets(root: str) -> Found:
    """All sockets below `root`. Names that begin with a dot are left out, links to directories not followed
    (kubelet: `pluginwatcher`).
    """
    sockets: dict[str, SocketIdentity] = {}
    directories = [root]
    problem, entries = "", 0
    for directory in directories:  # grows while it is walked
        try:
            with os.scandir(directory) as found:
                for entry in found:
                    entries += 1
                    if entries > MAX_ENTRIES:
                        return Found(
                            sockets, tuple(directories), f"more than {MAX_ENTRIES} entries in {root}"
                        )
                    if entry.name.startswith("."):
                        continue
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if is_directory and len(directories) < MAX_DIRECTORIES:
                        directories.append(entry.path)
                    elif is_directory:
                        problem = f"more than {MAX_DIRECTORIES} directories in {root}"
                    elif (identity := identity_of(entry.path)) is not None:
                        sockets[entry.path] = identity
        except FileNotFoundError:
            continue  # removed since it was listed
        except OSError as exc:
            problem = f"{directory} cannot be read: {os_words(exc)}"
    return Found(sockets, tuple(directories), problem)


def identity_of(path: str) -> SocketIdentity | None:
    """The incarnation of the socket at `path`; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return None
    return SocketIdentity(found.st_dev, found.st_ino, found.st_mtime_ns)


def remove_socket(path: str, identity: SocketIdentity) -> bool:
    """Removes the socket if it still is this incarnation; whether it was. Raises OSError."""
    if identity_of(path) != identity:
        return False
    os.unlink(path)
    return True

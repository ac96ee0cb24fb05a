"""Writes the files of a volume so that a container sees either the old ones or the new ones.

The files are in a directory named after the time, `..data` links to it, and what containers open are links
through `..data`; renaming a new `..data` over the old one changes all of them at once. Programs watch for
exactly this (kubelet: `AtomicWriter`), so the layout is part of the contract. Blocking.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping

from trio_kubelet.common.small_files import write_small
from trio_kubelet.volumes.files import remove_tree
from trio_kubelet.volumes.payload import FileProjection

DATA = "..data"
_NEW_DATA = "..data_tmp"
_STAMPED = re.compile(r"\.\.\d{4}(_\d\d){5}\.")


def write_files(
    directory: str, files: Mapping[str, FileProjection], now_ns: int, own: Callable[[], None]
) -> bool:
    """Makes `directory` show exactly `files`; returns whether anything was written.

    `own` is called to set owners once the new files are written, before they are shown. What a writer left
    that was killed, or had no room for its files, goes. Raises OSError.
    """
    old, names = _current(directory), os.listdir(directory)
    for name in names:
        if name != old and _STAMPED.match(name):
            remove_tree(os.path.join(directory, name))
        elif name == _NEW_DATA:
            os.unlink(os.path.join(directory, name))
    stale = _paths_in(os.path.join(directory, old)) - _with_parents(files) if old else set()
    changed = not old or bool(stale) or not _same(os.path.join(directory, old), files)
    if changed:
        _publish(directory, _write_new(directory, files, now_ns), own)
    for path, wanted in files.items():
        name = path.split("/")[0]
        link = os.path.join(directory, name)
        try:
            os.symlink(os.path.join(DATA, name), link)
        except FileExistsError:
            continue
        if wanted.user is not None:
            os.lchown(link, wanted.user, -1)
    kept = {path.split("/")[0] for path in files}
    for name in set(names) - kept:
        if _is_shown(directory, name):
            os.unlink(os.path.join(directory, name))
    if changed and old:
        remove_tree(os.path.join(directory, old))
    return changed


def has_files(directory: str) -> bool:
    """Whether files were ever shown in `directory`."""
    return bool(_current(directory))


def _is_shown(directory: str, name: str) -> bool:
    """Whether a name is a link of the writer's own, and no directory for another mount."""
    try:
        return os.readlink(os.path.join(directory, name)) == os.path.join(DATA, name)
    except OSError:
        return False


def _current(directory: str) -> str:
    """The directory `..data` links to, "" if there is none yet."""
    try:
        return os.path.basename(os.readlink(os.path.join(directory, DATA)))
    except FileNotFoundError:
        return ""


def _paths_in(directory: str) -> set[str]:
    return {
        os.path.relpath(os.path.join(parent, name), directory)
        for parent, directories, files in os.walk(directory)
        for name in (*directories, *files)
    }


def _with_parents(files: Mapping[str, FileProjection]) -> set[str]:
    paths = set(files)
    for path in files:
        while path := os.path.dirname(path):
            paths.add(path)
    return paths


def _same(directory: str, files: Mapping[str, FileProjection]) -> bool:
    """Whether the content is the same; modes are not compared, as with the kubelet."""
    for path, wanted in files.items():
        try:
            with open(os.path.join(directory, path), "rb") as file:
                if file.read(len(wanted.data) + 1) != wanted.data:
                    return False
        except (FileNotFoundError, NotADirectoryError):  # a file may have been where a directory is to be
            return False
    return True


def _write_new(directory: str, files: Mapping[str, FileProjection], now_ns: int) -> str:
    stamp = time.strftime("..%Y_%m_%d_%H_%M_%S.", time.gmtime(now_ns // 1_000_000_000))
    made = tempfile.mkdtemp(prefix=stamp, dir=directory)
    os.chmod(made, 0o755)
    for path, wanted in files.items():
        full = os.path.join(made, path)
        parent = os.path.dirname(full)
        missing = []
        while not os.path.isdir(parent):
            missing.append(parent)
            parent = os.path.dirname(parent)
        for new in reversed(missing):
            os.mkdir(new)
            os.chmod(new, 0o755)
        write_small(full, wanted.data, mode=wanted.mode)
        if wanted.user is not None:
            os.lchown(full, wanted.user, -1)
    return made


def _publish(directory: str, made: str, own: Callable[[], None]) -> None:
    link = os.path.join(directory, _NEW_DATA)
    try:
        own()
        os.symlink(os.path.basename(made), link)
        os.rename(link, os.path.join(directory, DATA))
    except OSError:
        remove_tree(made)
        raise

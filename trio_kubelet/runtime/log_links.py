"""Names in `/var/log/containers`: links to container logs, by which log collectors tell whose a log is.

The name is `POD_NAMESPACE_CONTAINER-ID.log`. Functions that touch files are blocking and short.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from trio_kubelet.runtime.configs.labels import MOST_RESTARTS

_NAME_MAX = 255
_SUFFIX = ".log"
_ID_MIN = 6


def link_name(pod_name: str, namespace: str, container: str, container_id: str) -> str:
    """The link's file name; one too long for ext4 is cut before the suffix, as the kubelet does."""
    return f"{pod_name}_{namespace}_{container}-{container_id}"[: _NAME_MAX - len(_SUFFIX)] + _SUFFIX


def container_id_of(link: str) -> str:
    """The container id in a link's name, "" if there is none (a name that was cut, a file of
    somebody else).
    """
    container_id = link.removesuffix(_SUFFIX).rpartition("-")[2]
    return container_id if link.endswith(_SUFFIX) and len(container_id) >= _ID_MIN else ""


class LogLink(NamedTuple):
    """The link that a container's log is to have, by its name in the directory of links."""

    name: str
    log_path: str
    container_id: str


def make_links(directory: str, links: Sequence[LogLink]) -> list[tuple[LogLink, OSError]]:
    """Links logs; what failed. A log that is not there (another log driver) gets none: it would dangle."""
    failed = []
    for link in links:
        try:
            _make_link(os.path.join(directory, link.name), link.log_path)
        except OSError as error:
            failed.append((link, error))
    return failed


def _make_link(link: str, log_path: str) -> None:
    if not os.path.exists(log_path):
        return
    try:
        _symlink(log_path, link)
    except FileExistsError:
        if os.path.islink(link) and os.readlink(link) == log_path:
            return
        raise


def _symlink(target: str, link: str) -> None:
    """Makes a link; its directory is made where it is not there. Raises OSError."""
    try:
        os.symlink(target, link)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(link), mode=0o755, exist_ok=True)
        os.symlink(target, link)


def remove_link(directory: str, name: str) -> None:
    """Removes a link if it is there. Raises OSError."""
    try:
        os.unlink(os.path.join(directory, name))
    except FileNotFoundError:
        return


def dead_links(directory: str) -> list[str]:
    """Names of the links whose log is gone."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [
        name
        for name in sorted(names)
        if name.endswith(_SUFFIX) and not os.path.exists(os.path.join(directory, name))
    ]


def remove_logs(log_path: str) -> None:
    """Removes a container's log and what was rotated out of it. Raises OSError."""
    directory, name = os.path.split(log_path)
    if not name:
        return
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    for other in names:
        if other.startswith(name):
            remove_link(directory, other)


_ATTEMPT = re.compile(r"([0-9]+)\.log(?:\..*)?")


def restart_count_after(log_names: list[str]) -> int:
    """One more than the highest attempt that has left a log, 0 without logs. Pure.

    After a reboot the runtime may know nothing of a pod's containers; going on from the logs keeps
    a new container from writing into the log of an old one.
    """
    attempts = [int(match[1]) + 1 for name in log_names if (match := _ATTEMPT.match(name))]
    return max((attempt for attempt in attempts if attempt <= MOST_RESTARTS), default=0)


def read_restart_count(directory: str) -> int:
    """`restart_count_after` for a container's log directory; 0 if it cannot be read."""
    try:
        with os.scandir(directory) as entries:
            return restart_count_after([entry.name for entry in entries if not entry.is_dir()])
    except OSError:
        return 0

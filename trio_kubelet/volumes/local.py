"""Sets up the kinds of volumes that need nothing but this machine. Blocking."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial

from trio_kubelet.api import v1
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.volumes import project_quotas
from trio_kubelet.volumes.atomic_writer import write_files
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.files import make_dirs, make_volume_dir
from trio_kubelet.volumes.linux import has_own_filesystem, mount_huge_pages, mount_tmpfs
from trio_kubelet.volumes.ownership import Timed, give_volume
from trio_kubelet.volumes.payload import FileProjection
from trio_kubelet.volumes.plan import EMPTY_DIR, EmptyDir, HostPath, Medium, Projection

log = get_logger(__name__)

_READY = "ready"
_KINDS = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


def set_up_empty_dir(plan: EmptyDir, fs_group: int | None, timed: Timed = nullcontext) -> None:
    """An empty directory on disk or in memory. One that is ready is left as it is, for it may be full.
    Raises VolumeError for one that cannot be made.
    """
    if plan.problem:
        raise VolumeError(plan.problem)
    marker = os.path.join(plan.ready_dir, _READY)
    mounted = plan.medium is not Medium.DISK and has_own_filesystem(plan.path)
    is_there = mounted if plan.medium is not Medium.DISK else os.path.isdir(plan.path)
    if is_there and os.path.isfile(marker):
        return
    make_volume_dir(plan.path)
    if plan.medium is Medium.MEMORY and not mounted:
        mount_tmpfs(plan.path, plan.size)
    if plan.medium is Medium.HUGE_PAGES and not mounted:
        mount_huge_pages(plan.path, plan.page_size)
    if plan.counted:
        try:
            project_quotas.assign(plan.path)
        except (OSError, ValueError) as error:
            log.warning("A volume has no project quota, its files are looked at", path=plan.path, err=error)
    if fs_group is not None:
        give_volume(plan.path, fs_group, read_only=False, timed=partial(timed, EMPTY_DIR))
    make_dirs(plan.ready_dir)
    with open(marker, "wb"):
        os.chmod(marker, 0o644)


def set_up_projection(
    plan: Projection,
    files: Mapping[str, FileProjection],
    fs_group: int | None,
    now_ns: int,
    plugin: str,
    timed: Timed,
) -> None:
    """Files in a directory of the agent's own; called again it brings them up to date."""
    set_up_empty_dir(plan.directory, fs_group, timed)
    path = plan.directory.path
    for nested in plan.nested:
        make_dirs(os.path.join(path, nested), 0o755)

    def own() -> None:
        if fs_group is not None:
            give_volume(path, fs_group, read_only=True, timed=partial(timed, plugin))

    write_files(path, files, now_ns, own)


def check_host_path(plan: HostPath) -> None:
    """That what the volume says is there is there, or making it. Raises VolumeError."""
    path, kind = plan.path, plan.kind
    if not kind:
        return
    if kind in ("DirectoryOrCreate", "FileOrCreate") and not os.path.exists(path):
        try:
            if kind == "DirectoryOrCreate":
                _make_path(path)
            else:
                os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o644))
        except OSError as error:
            made = "mkdir" if kind == "DirectoryOrCreate" else "open"
            raise VolumeError(error_words(error, made)) from None
        return
    wanted = _KINDS.get(kind.removesuffix("OrCreate"))
    if wanted is None:
        raise VolumeError(f"{kind} is an invalid volume type")
    is_kind, words = wanted
    try:
        matches = is_kind(os.stat(path).st_mode)
    except OSError:
        matches = False
    if not matches:
        raise VolumeError(f"hostPath type check failed: {path} is not {words}")


def _make_path(path: str) -> None:
    """Makes what is missing of a directory of the node, all of it with the same mode, which the umask may
    narrow. Not one level within the other: a path has room for two thousand. Raises OSError.
    """
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(each, 0o755)


def fs_group_of(pod: v1.Pod) -> int | None:
    """The group volumes are given to."""
    context = pod.spec.security_context
    return None if context is None else context.fs_group

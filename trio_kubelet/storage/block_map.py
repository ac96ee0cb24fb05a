"""Where a pod finds its block devices: bound below the plugin's directory, linked in the pod's, held by a
loop device. The kubelet's layout (`volumepathhandler`). Blocking; raises OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from trio_kubelet.common.go_words import path_words
from trio_kubelet.storage import loop
from trio_kubelet.volumes.files import entries, make_dirs
from trio_kubelet.volumes.linux import MS_BIND, mount, mount_at, unmount


def find_device(path: str) -> None:
    """That there is something at a device's path (kubelet: `EvalHostSymlinks`)."""
    try:
        os.path.realpath(path, strict=True)
    except OSError as error:
        raise OSError(path_words("lstat", error)) from error


def map_device(device: str, global_map: str, pod_map: str, name: str, uid: str) -> str:
    """Binds a device for a pod, links it in the pod's directory, and holds it; the device itself."""
    real = os.path.realpath(device)
    if not _is_device(real):  # a driver has said otherwise
        raise OSError(errno.ENOTBLK, os.strerror(errno.ENOTBLK), real)
    bound, link = f"{global_map}/{uid}", f"{pod_map}/{name}"
    make_dirs(global_map)
    if not _is_device(bound):
        os.close(os.open(bound, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o750))
        mount(real, bound, flags=MS_BIND)
    make_dirs(pod_map)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(link)
    os.symlink(real, link)
    loop.attach(bound)
    return real


def unmap_device(global_map: str, pod_map: str, name: str, uid: str) -> None:
    """Undoes `map_device`, in its order, as far as there is something to undo."""
    bound, link = f"{global_map}/{uid}", f"{pod_map}/{name}"
    loop.detach(bound)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(link)
    with contextlib.suppress(OSError):
        os.rmdir(pod_map)
    while mount_at(bound) is not None:
        unmount(bound)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(bound)


def mapped_pods(global_map: str) -> list[str]:
    """UIDs of the pods for which a device is bound."""
    return [name for name in entries(global_map) if _is_device(f"{global_map}/{name}")]


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except FileNotFoundError:
        return False

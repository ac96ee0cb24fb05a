"""Whether the machine swaps, and whether secrets in memory are safe from that. Blocking."""

from __future__ import annotations

import re
import tempfile

from trio_kubelet.common.log import get_logger
from trio_kubelet.node.tunables import in_user_namespace
from trio_kubelet.volumes.linux import mount, unmount

log = get_logger(__name__)

_KNOWS_NOSWAP = (6, 4)


def swap_is_on(path: str = "/proc/swaps") -> bool:
    """Whether there is swap space in use."""
    try:
        with open(path, encoding="utf-8") as file:
            return len(file.read().splitlines()) > 1
    except OSError:
        return False


def tmpfs_stays_in_memory(root_dir: str, release: str, uid_map: str = "/proc/self/uid_map") -> bool:
    """Whether a tmpfs may be mounted that is never swapped (kubelet: `IsTmpfsNoswapOptionSupported`).
    `release` is the kernel's; one that is too old is asked by mounting one, as it may have been taught.
    """
    if in_user_namespace(uid_map):
        return False
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is not None and (int(found[1]), int(found[2])) >= _KNOWS_NOSWAP:
        return True
    try:
        with tempfile.TemporaryDirectory(prefix="tmpfs-noswap-test-", dir=root_dir) as place:
            mount("tmpfs", place, "tmpfs", options="noswap")
            unmount(place)
    except OSError as exc:
        log.info("error mounting tmpfs with the noswap option. Assuming not supported", error=exc)
        return False
    return True

"""What containers have written into their own layers, measured here and now.

Runtimes look at their layers every ten seconds or so. When a disk is full that is too long to wait, and by
older figures the container that fills it looks like the others. So the layer is looked for in the kernel's
list of mounts, as overlayfs has it, and walked over. Blocking.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.mountinfo import Mount, mounts
from trio_kubelet.machine.values import ContainerSample, DiskUse, PodSample
from trio_kubelet.stats.disk import TooManyFiles, tree_use

log = get_logger(__name__)

_UPPER = "upperdir="


def upper_directories(containers: Collection[str], found: Collection[Mount]) -> dict[str, str]:
    """Where the layers of containers (their IDs) are; those of which that is not known are left out. A mount
    is a container's when a directory of its path has its ID as name.
    """
    upper = {}
    for mount in found:
        if mount.fs_type != "overlay":
            continue
        path = next((each for each in mount.options.split(",") if each.startswith(_UPPER)), "")
        for word in mount.path.split("/"):
            if path and word in containers:
                upper[word] = path.removeprefix(_UPPER)
    return upper


def layer_paths(containers: Collection[str]) -> dict[str, str]:
    """The same for this machine. Raises OSError."""
    return upper_directories(containers, mounts())


def layer_use(directory: str, clock: Clock, most: int) -> DiskUse | None:
    """What a layer takes; None if it is not there or has more files than that."""
    try:
        return tree_use(directory, clock, most, pause=True)
    except TooManyFiles:
        log.warning("A container's layer has too many files to be measured", path=directory, most=most)
        return None


def with_layers(pods: Collection[PodSample], measured: dict[str, DiskUse]) -> Iterator[PodSample]:
    """The pods with what was measured of their layers, where the runtime's figures are older."""
    for pod in pods:
        yield msgspec.structs.replace(
            pod, containers=tuple(_with_layer(each, measured.get(each.id)) for each in pod.containers)
        )


def _with_layer(container: ContainerSample, use: DiskUse | None) -> ContainerSample:
    runtime = container.runtime
    if use is None or runtime is None or runtime.layer is None or runtime.layer.at_ns >= use.at_ns:
        return container
    layer = msgspec.structs.replace(runtime.layer, at_ns=use.at_ns, used=use.used, inodes=use.inodes)
    return msgspec.structs.replace(container, runtime=msgspec.structs.replace(runtime, layer=layer))

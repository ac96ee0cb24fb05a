"""A whole private node without its agent: directories, bridge, containerd, images, and their end.

The order of setting up is the reverse of taking down, and taking down is also the first step: what an earlier
run of the same node left behind after a crash is removed before anything new is made.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import ImageService
from trio_kubelet.standalone import cleanup, cni, images, packages
from trio_kubelet.standalone.containerd import PrivateContainerd, write_config
from trio_kubelet.standalone.layout import NodeLayout
from trio_kubelet.standalone.packages import Containerd, PackagesUnavailable
from trio_kubelet.standalone.run import CommandFailed

log = get_logger(__name__)

_TAKE_DOWN_SECONDS = 60.0
_IMAGES_SECONDS = 30.0


@dataclass(frozen=True)
class Provisions:
    """What a private node is made from; the same value serves any number of nodes."""

    containerd: Containerd
    cni_bin_dir: Path
    images_archive: bytes


async def provide(choice: str, say: Callable[[str], None]) -> Provisions:
    """Install what is missing and build the images. PackagesUnavailable says why no node can run here."""
    if os.geteuid() != 0:
        raise PackagesUnavailable("a private containerd needs root")
    await packages.ensure_system_packages(say)
    containerd = await packages.ensure_containerd(choice, say)
    busybox, plugins = packages.find_busybox(), packages.cni_bin_dir()
    if busybox is None or plugins is None:
        raise PackagesUnavailable("a static busybox or the CNI plugins are still missing after installation")
    return Provisions(containerd, plugins, await images.build_local_archive(busybox))


async def new_layout(name: str, base: Path, *, systemd: bool = False) -> NodeLayout:
    """A layout with pod addresses that nothing else on this machine uses."""
    return NodeLayout(name, base, await cni.free_subnet(name), systemd)


@asynccontextmanager
async def private_node(layout: NodeLayout, provisions: Provisions) -> AsyncIterator[PrivateContainerd]:
    """Run the node's containerd, images imported, for the length of the block; nothing is left afterwards.

    Raises CommandFailed when it does not come up. The agent must have ended before the block ends.
    """
    left = await cleanup.take_down(layout)
    if left:
        log.warning("An earlier run of this node left something behind", what=left)
    try:
        await cni.set_up(layout)
        snapshotter = await write_config(layout, provisions.containerd, provisions.cni_bin_dir)
        archive = trio.Path(layout.images_archive)
        await archive.write_bytes(provisions.images_archive)
        server = PrivateContainerd(layout, provisions.containerd)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            ctr = provisions.containerd.ctr
            await images.import_archive(ctr, layout.socket, layout.images_archive, snapshotter)
            await archive.unlink()
            await _images_known(layout)
            yield server
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _TAKE_DOWN_SECONDS):
            left = await cleanup.take_down(layout)
            if left:
                log.error("The private node left something behind", what=left)


async def _images_known(layout: NodeLayout) -> None:
    """Wait until the CRI services answer and list the images.

    containerd's CRI part learns of imported images by an event, a moment after `ctr` has ended.
    """
    with trio.move_on_after(_IMAGES_SECONDS):
        async with open_cri(layout.endpoint) as services:
            missing = list(images.REFERENCES)
            while missing:
                missing = [name for name in missing if not await _has_image(services.images, name)]
                await trio.sleep(0.02 if missing else 0)
        return
    raise CommandFailed(f"containerd does not list the imported images after {_IMAGES_SECONDS:g} s")


async def _has_image(service: ImageService, reference: str) -> bool:
    try:
        return (await service.image_status(cri.ImageSpec(image=reference))).HasField("image")
    except CRIError:
        return False

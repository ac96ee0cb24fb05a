"""Sees how the node is: what its status is made from, gathered from runtime, machine and name service.

Nothing here fails or takes long: what cannot be found out in time stays in the status as it was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.caching import LastGood
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.lanes import NAMES
from trio_kubelet.cri.services import ImageService
from trio_kubelet.devices.values import Counts
from trio_kubelet.node.addresses import NodeIPs, find_addresses
from trio_kubelet.node.conditions import NodeHealth
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.node.runtime_health import RuntimeHealth
from trio_kubelet.node.status import NodeObservation, shown_images

IMAGES_PERIOD = 30.0
IMAGES_TIMEOUT = 10.0
NAME_TIMEOUT = 5.0


async def look_up_addresses(name: str, flag: NodeIPs) -> tuple[str, ...]:
    """The node's addresses, found in a thread that a slow name server may hold up. Raises AddressError."""
    return await NAMES.run(find_addresses, name, flag)


class NodeLook:
    """Gathers a `NodeObservation`; `run` has to be running for images to be listed and addresses to be found.
    `errors` are further reasons why the node is not ready; `volumes_in_use` are the attachable volumes pods
    use.
    """

    def __init__(
        self,
        profile: NodeProfile,
        health: RuntimeHealth,
        images: ImageService,
        clock: Clock,
        *,
        pressures: Callable[[], frozenset[str]],
        errors: Callable[[], Sequence[str]] = lambda: (),
        volumes_in_use: Callable[[], Sequence[str] | None] = lambda: (),
        devices: Callable[[], Counts] = Counts,
        addresses: Callable[[str, NodeIPs], Awaitable[tuple[str, ...]]] = look_up_addresses,
    ) -> None:
        self._profile = profile
        self._health = health
        self._images = images
        self._clock = clock
        self._pressures = pressures
        self._errors = errors
        self._volumes_in_use = volumes_in_use
        self._devices = devices
        self._listed = LastGood("images of the node", self._list_images, IMAGES_TIMEOUT)
        find = partial(addresses, profile.name, profile.node_ips)
        self._found = LastGood("addresses of the node", find, NAME_TIMEOUT)

    async def run(self) -> None:
        """Asks the runtime for its images, and the name service, when they are wanted, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listed.run)
            nursery.start_soon(self._found.run)

    def is_well(self) -> bool:
        """Whether the node could be ready now; does not wait."""
        return not self._not_ready()

    async def __call__(self) -> NodeObservation:
        """Looks."""
        seen = NodeObservation(
            now_ns=0,
            addresses=await self._found.get(),
            images=await self._images_to_show(),
            volumes_in_use=self._volumes_in_use(),
        )
        health = self._health
        # Last, so that the conditions are those of the moment they are dated with.
        return msgspec.structs.replace(
            seen,
            now_ns=self._clock.now_ns(),
            devices=self._devices(),
            health=NodeHealth(not_ready=self._not_ready(), pressures=self._pressures()),
            runtime=health.shown,
            handlers=health.handlers,
            features=health.features,
        )

    def _not_ready(self) -> list[str]:
        return [*self._health.node_errors(), *self._errors()]

    async def _images_to_show(self) -> list[v1.ContainerImage] | None:
        """The images as listed now and then; the last list while the runtime gives none."""
        if not self._health.name:  # a runtime without a name does not answer
            return self._listed.last
        return await self._listed.get(IMAGES_PERIOD)

    async def _list_images(self) -> list[v1.ContainerImage]:
        return shown_images(await self._images.list_images(), self._profile.max_images)

"""The cluster's CSIDriver objects, followed at the API server: how volumes of a driver are to be used."""

from __future__ import annotations

from typing import Final

import trio

from trio_kubelet.api import v1
from trio_kubelet.kube.doors import APIDoor
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.kube.reflector_core import Timings
from trio_kubelet.podinfo.objects import ObjectError

TIMINGS: Final = Timings(ping_period=60.0)
FIRST_LIST_WAIT: Final = 10.0


class FollowedCSIDrivers:
    """Reads a driver's object; the first reader waits until the server has told which there are."""

    def __init__(self, door: APIDoor) -> None:
        self._reflector: Reflector[v1.CSIDriver] = Reflector(
            door, "/apis/storage.k8s.io/v1/csidrivers", v1.CSIDriver, timings=TIMINGS
        )

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._reflector.run()

    async def driver(self, name: str) -> v1.CSIDriver | None:
        """The driver's object, None if there is none. Raises ObjectError while nothing is known."""
        if not self._reflector.synced.is_set():
            with trio.move_on_after(FIRST_LIST_WAIT):
                await self._reflector.synced.wait()
            if not self._reflector.synced.is_set():
                raise ObjectError("timed out waiting for the list of CSIDriver objects")
        return self._reflector.find(name)

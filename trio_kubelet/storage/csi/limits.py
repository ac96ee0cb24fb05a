"""How many volumes of a driver this node takes: told anew now and then, and when attaching fails for it
(KEP-4876).
"""

from __future__ import annotations

import math
from typing import Final

import trio

from trio_kubelet.common.log import get_logger
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.plugins.doors import PluginError
from trio_kubelet.storage.csi.context import CSIContext
from trio_kubelet.storage.csi.registration import CSIDrivers
from trio_kubelet.storage.doors import NodeInfoWriter
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.specs import Spec

log = get_logger(__name__)

SHORTEST: Final = 10.0
"""Seconds between two questions at least: what `nodeAllocatableUpdatePeriodSeconds` has to be."""
LOOK: Final = 60.0
"""Seconds after which a driver's period is looked at again."""


class AttachLimits:
    """Implements what the module says."""

    def __init__(self, *, context: CSIContext, drivers: CSIDrivers, writer: NodeInfoWriter) -> None:
        self._context = context
        self._drivers = drivers
        self._writer = writer
        self._changed = trio.Event()
        drivers.changed.listen(lambda name: self._changed.set())

    async def exhausted(self, spec: Spec) -> bool:
        """Whether the volume is not attached because the node has too many; its limit is then told anew."""
        try:
            if spec.ephemeral or await self._period(spec.driver) is None:
                return False
            attachment = await self._context.attachment(spec)
        except OperationError as error:
            log.error("Cannot find out why a volume is not attached", volume=spec.name, err=error)
            return False
        failure = attachment.status.attach_error if attachment is not None else None
        if failure is None or failure.error_code != Code.RESOURCE_EXHAUSTED:
            return False
        await self._tell(spec.driver)
        return True

    async def run(self) -> None:
        """Tells the limits of those drivers that want it, each after its period, until cancelled."""
        followed: set[str] = set()
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                for name in set(self._drivers.names()) - followed:
                    followed.add(name)
                    nursery.start_soon(self._follow, name, followed)
                await self._changed.wait()

    async def _follow(self, name: str, followed: set[str]) -> None:
        """One driver, in a task of its own, for it may not answer, until it has gone."""
        due: float | None = None
        while self._drivers.find(name) is not None:
            try:
                period = await self._period(name)
            except OperationError:
                period = None
            now = trio.current_time()
            if period is None:
                due = None
            elif due is None:
                due = now + period
            elif due <= now:
                await self._tell(name)
                due = trio.current_time() + period
            # Who changes a driver's period tells nobody here: it is looked at each minute.
            await trio.sleep_until(min(now + LOOK, math.inf if due is None else due))
        followed.discard(name)

    async def _period(self, name: str) -> float | None:
        driver = await self._context.driver(name)
        seconds = driver.spec.node_allocatable_update_period_seconds if driver is not None else None
        return max(float(seconds), SHORTEST) if seconds else None

    async def _tell(self, name: str) -> None:
        driver = self._drivers.find(name)
        if driver is None:
            return
        try:
            info = await driver.info()
            if self._drivers.find(name) is driver:
                await self._writer.update(name, info)
        except (GrpcError, PluginError) as error:
            log.error("The limit of a driver's volumes cannot be told", driver=name, err=error)

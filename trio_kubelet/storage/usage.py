"""How much space claims and the like take, as their drivers or their filesystems say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.lanes import METER, WorkHangs
from trio_kubelet.common.log import get_logger
from trio_kubelet.grpc.errors import GrpcError
from trio_kubelet.machine.node_reader import filesystem_of
from trio_kubelet.machine.values import VolumeUse
from trio_kubelet.podinfo.doors import PodRecorderDoor
from trio_kubelet.storage.csi.registration import CSIDrivers
from trio_kubelet.storage.doors import BlockMapping, Mounting
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.specs import CSI, FC, HOST_PATH, Spec
from trio_kubelet.storage.steps import unmounted
from trio_kubelet.storage.world import Actual, Desired, WantedVolume

log = get_logger(__name__)

ABNORMAL: Final = "VolumeConditionAbnormal"
DEADLINE: Final = 10.0
_UNMEASURED: Final = (HOST_PATH, FC)
"""Plugins whose filesystems the kubelet does not measure."""
REST: Final = 300.0
"""Seconds for which a driver, or a server, that did not answer is not asked: others wait for their turn
meanwhile.
"""


class VolumeUsage:
    """Measures the volumes of pods that others than the agent made."""

    def __init__(
        self,
        *,
        desired: Desired,
        actual: Actual,
        mounting: Mapping[str, Mounting],
        mapping: Mapping[str, BlockMapping],
        drivers: CSIDrivers,
        clock: Clock,
        events: PodRecorderDoor,
        health: bool = False,
    ) -> None:
        """`health`: drivers are asked how their volumes are (gate CSIVolumeHealth)."""
        self._desired = desired
        self._actual = actual
        self._mounting = mounting
        self._mapping = mapping
        self._drivers = drivers
        self._clock = clock
        self._events = events
        self._health = health
        self._resting: dict[str, float] = {}  # drivers, and volumes without one, and until when

    async def of(
        self, pod: v1.Pod, took: Callable[[str, float], None] = lambda source, seconds: None
    ) -> Sequence[VolumeUse]:
        """The pod's mounted volumes; one that cannot be measured is left out. `took` hears how each was
        measured, as the kubelet's metric names it, and how many seconds that took.
        """
        uid = pod.metadata.uid
        found = []
        for outer, wanted in self._desired.pods.get(uid, {}).items():
            if unmounted(self._desired, self._actual, uid, [outer]):
                continue
            use, hangs, source = None, True, _source(wanted.spec)
            asked = wanted.spec.driver or wanted.spec.unique_name
            began = trio.current_time()
            if not source or self._resting.get(asked, 0) > began:
                continue
            with trio.move_on_after(DEADLINE):
                try:
                    use = await self._measure(wanted, pod)
                    hangs = False
                except (GrpcError, OperationError, OSError) as error:
                    hangs = isinstance(error, WorkHangs)
                    log.v(2).info("Volume cannot be measured", pod=pod, volume=outer, err=error)
            now = trio.current_time()
            took(source, now - began)
            if hangs:
                self._resting = {each: until for each, until in self._resting.items() if until > now}
                self._resting[asked] = now + REST
            if use is not None:
                found.append(use)
        return found

    async def _measure(self, wanted: WantedVolume, pod: v1.Pod) -> VolumeUse | None:
        spec, uid = wanted.spec, pod.metadata.uid
        if spec.block:
            path = f"{self._mapping[spec.plugin].global_map(spec)}/{uid}"
        else:
            path = self._mounting[spec.plugin].path(spec, uid)
        if spec.plugin == CSI:
            return await self._ask_driver(wanted, pod, path)
        if spec.block:
            size = await METER.run(_device_size, path, owner=path)
            return msgspec.structs.replace(self._unknown(wanted), capacity=size)
        seen = await METER.run(filesystem_of, path, self._clock, owner=path)
        if seen is None:
            return None
        return msgspec.structs.replace(
            self._unknown(wanted),
            at_ns=seen.at_ns,
            available=seen.available,
            capacity=seen.capacity,
            used=seen.used,
            inodes=seen.inodes,
            inodes_free=seen.inodes_free,
            inodes_used=seen.inodes - seen.inodes_free,
        )

    async def _ask_driver(self, wanted: WantedVolume, pod: v1.Pod, path: str) -> VolumeUse | None:
        from trio_kubelet.storage.csi import messages  # imported with the driver
        from trio_kubelet.storage.proto import csi_pb2 as csi

        spec, driver = wanted.spec, self._drivers.find(wanted.spec.driver)
        if driver is None or messages.STATS not in (abilities := await driver.abilities()):
            return None
        request = csi.NodeGetVolumeStatsRequest(volume_id=spec.handle, volume_path=path)
        answer = await driver.call(
            "NodeGetVolumeStats", request, csi.NodeGetVolumeStatsResponse, migrated=spec.migrated
        )
        abnormal: bool | None = None
        if self._health and messages.CONDITION in abilities:
            abnormal = answer.volume_condition.abnormal
            if abnormal:
                text = f"Volume {wanted.outer}: {answer.volume_condition.message}"
                self._events.record(pod, "Warning", ABNORMAL, text)
        elif not answer.usage:
            raise OperationError("failed to get usage from response. usage is nil")
        by_unit = {usage.unit: usage for usage in answer.usage}
        space = by_unit.get(csi.VolumeUsage.BYTES, csi.VolumeUsage())
        inodes = by_unit.get(csi.VolumeUsage.INODES, csi.VolumeUsage())
        return msgspec.structs.replace(
            self._unknown(wanted),
            available=space.available,
            capacity=space.total,
            used=space.used,
            inodes=inodes.total,
            inodes_free=inodes.available,
            inodes_used=inodes.used,
            abnormal=abnormal,
        )

    def _unknown(self, wanted: WantedVolume) -> VolumeUse:
        """A volume of which no figure is known."""
        claim = wanted.spec.claim
        return VolumeUse(
            name=wanted.outer,
            at_ns=self._clock.now_ns(),
            available=0,
            capacity=0,
            used=0,
            inodes=0,
            inodes_free=0,
            inodes_used=0,
            ephemeral=False,
            claim=claim.name if claim is not None else "",
            namespace=claim.namespace if claim is not None else "",
        )


def _source(spec: Spec) -> str:
    """How a volume is measured: by its driver, its device or its filesystem; "" for not at all."""
    if spec.plugin == CSI:
        return spec.driver
    if spec.block:
        return "block"
    return "statfs" if spec.measured and spec.plugin not in _UNMEASURED else ""


def _device_size(path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)

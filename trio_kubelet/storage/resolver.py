"""Finds out what the volumes of a pod are: reads claims, persistent volumes and drivers' objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.podinfo.doors import ObjectError
from trio_kubelet.storage.claims import check_claim, claim_name, claimed_spec, inline_spec
from trio_kubelet.storage.csi.context import attach_required
from trio_kubelet.storage.doors import StorageObjectsDoor
from trio_kubelet.storage.specs import CSI, FLEX, Spec
from trio_kubelet.volumes.errors import VolumeError

NO_CLIENT: Final = "because kube client is not configured"
AT_ONCE: Final = 16
"""Volumes whose claims are read at the same time: when many pods come at once, those of the first are mounted
while the others' are read, rather than all being read before any is mounted."""


class Resolver:
    """Implements what the module says; without `objects` (no API server) claims and CSI volumes fail.

    `flex` knows what a FlexVolume is by its driver, for the UID of a pod.
    """

    def __init__(
        self, objects: StorageObjectsDoor | None, flex: Callable[[Spec, str], Awaitable[Spec]]
    ) -> None:
        self._objects = objects
        self._flex = flex
        self._reading = trio.CapacityLimiter(AT_ONCE)

    async def resolve(self, pod: v1.Pod, volume: v1.Volume) -> Spec:
        """The volume as it is to be mounted. Raises VolumeError with the kubelet's text."""
        claim = claim_name(pod, volume)
        if claim is None:
            spec = inline_spec(pod, volume)
        else:
            async with self._reading:
                spec = await self._claimed(pod, volume, claim)
        if spec.plugin == FLEX:
            return await self._flex(spec, pod.metadata.uid)
        if spec.plugin != CSI:
            return spec
        if self._objects is None:
            raise VolumeError(f"cannot setup csi volume {volume.name} {NO_CLIENT}")
        if spec.ephemeral:
            return spec
        try:
            driver = await self._objects.driver(spec.driver)
        except ObjectError as error:
            raise VolumeError(f"failed to get CSIDriver {spec.driver}: {error}") from error
        return msgspec.structs.replace(spec, attachable=attach_required(driver))

    async def _claimed(self, pod: v1.Pod, volume: v1.Volume, name: str) -> Spec:
        namespace, objects = pod.metadata.namespace, self._objects
        where = f"error processing PVC {namespace}/{name}"
        if objects is None:
            raise VolumeError(f"{where}: cannot read it {NO_CLIENT}")
        try:
            claim, error = await objects.claim(namespace, name), f'persistentvolumeclaims "{name}" not found'
        except ObjectError as exc:
            claim, error = None, str(exc)
        if claim is None:
            raise VolumeError(f"{where}: failed to fetch PVC from API server: {error}")
        check_claim(pod, volume, claim)
        bound = claim.spec.volume_name
        try:
            found, error = await objects.volume(bound), f'persistentvolumes "{bound}" not found'
        except ObjectError as exc:
            found, error = None, str(exc)
        if found is None:
            raise VolumeError(f"{where}: failed to fetch PV {bound} from API server: {error}")
        return claimed_spec(pod, volume, claim, found)

"""What of the cluster volumes need: claims, persistent volumes and attachments, read one by one, as a node
may; CSIDriver objects, followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.doors import APIDoor
from trio_kubelet.kube.errors import APIFailure
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.kube.reflector_core import Timings
from trio_kubelet.kube.tokens import TokenStore
from trio_kubelet.podinfo.doors import GrantedToken, ObjectError

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


T = TypeVar("T")


class StorageObjects:
    """Implements `storage.doors.StorageObjectsDoor`."""

    def __init__(self, client: KubeClient, drivers: FollowedCSIDrivers, tokens: TokenStore) -> None:
        self._client = client
        self._drivers = drivers
        self._tokens = tokens

    async def claim(self, namespace: str, name: str) -> v1.PersistentVolumeClaim | None:
        return await self._get(_claim_path(namespace, name), v1.PersistentVolumeClaim)

    async def volume(self, name: str) -> v1.PersistentVolume | None:
        return await self._get(f"/api/v1/persistentvolumes/{name}", v1.PersistentVolume)

    async def attachment(self, name: str) -> v1.VolumeAttachment | None:
        return await self._get(f"/apis/storage.k8s.io/v1/volumeattachments/{name}", v1.VolumeAttachment)

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        return await self._get(f"/api/v1/namespaces/{namespace}/secrets/{name}", v1.Secret)

    async def driver(self, name: str) -> v1.CSIDriver | None:
        return await self._drivers.driver(name)

    async def token(self, pod: v1.Pod, audience: str, seconds: int | None) -> GrantedToken:
        return await self._tokens.granted(pod, audience, seconds)

    async def patch_claim_status(
        self, claim: v1.PersistentVolumeClaim, patch: Mapping[str, Any]
    ) -> v1.PersistentVolumeClaim:
        path = f"{_claim_path(claim.metadata.namespace, claim.metadata.name)}/status"
        try:
            return await self._client.patch(path, msgspec.json.encode(patch), v1.PersistentVolumeClaim)
        except APIFailure as error:
            raise ObjectError(str(error)) from error

    async def _get(self, path: str, kind: type[T]) -> T | None:
        try:
            return await self._client.find(path, kind)
        except APIFailure as error:
            raise ObjectError(str(error)) from error


def _claim_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"

"""Claims and slices at the API server (resource.k8s.io/v1)."""

from __future__ import annotations

from trio_kubelet.dra.claims import ClaimError, ResourceClaim
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.doors import APIRequest
from trio_kubelet.kube.errors import APIFailure

_GROUP = "/apis/resource.k8s.io/v1"


class ClusterClaims:
    """Implements `doors.ClaimObjects`."""

    def __init__(self, client: KubeClient, node_name: str) -> None:
        self._client = client
        self._node_name = node_name

    async def claim(self, namespace: str, name: str) -> ResourceClaim:
        """Raises ClaimError."""
        path = f"{_GROUP}/namespaces/{namespace}/resourceclaims/{name}"
        try:
            return await self._client.get(path, ResourceClaim)
        except APIFailure as exc:
            raise ClaimError(f"fetch ResourceClaim {name}: {exc}") from exc

    async def delete_slices(self, driver: str) -> None:
        """Deletes the ResourceSlices of this node, of all drivers for "". Raises ClaimError."""
        selector = f"spec.nodeName={self._node_name}"
        if driver:
            selector = f"spec.driver={driver},{selector}"
        try:
            await self._client.request(
                APIRequest("DELETE", f"{_GROUP}/resourceslices", {"fieldSelector": selector})
            )
        except APIFailure as exc:
            if not exc.not_found:
                raise ClaimError(str(exc)) from exc

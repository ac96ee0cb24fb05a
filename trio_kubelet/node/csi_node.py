"""The CSINode object beside the Node: it says that volumes of former in-tree plugins are left to CSI drivers.

The scheduler and the attach-detach controller go by it, so a node is not ready before it is there
(kubelet: `nodeinfomanager`).
"""

from __future__ import annotations

import random
from typing import Final

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.log import get_logger
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIError, APIFailure
from trio_kubelet.node.own_node import OwnNode

log = get_logger(__name__)

CSI_NODES: Final = "/apis/storage.k8s.io/v1/csinodes"
MIGRATED_ANNOTATION: Final = "storage.alpha.kubernetes.io/migrated-plugins"
MIGRATED: Final = (
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
)
PAUSES: Final = Pauses(0.1, 15.0, jitter=0.1)


def csi_node(base: v1.CSINode | None, name: str, node_uid: str) -> v1.CSINode:
    """The object as it should be; drivers that others registered on `base` stay."""
    owner = v1.OwnerReference(api_version="v1", kind="Node", name=name, uid=node_uid)
    if base is None:
        base = v1.CSINode(
            api_version="storage.k8s.io/v1",
            kind="CSINode",
            metadata=v1.ObjectMeta(name=name),
            spec=v1.CSINodeSpec(drivers=[]),
        )
    annotations = {**(base.metadata.annotations or {}), MIGRATED_ANNOTATION: ",".join(MIGRATED)}
    metadata = msgspec.structs.replace(base.metadata, annotations=annotations, owner_references=[owner])
    return msgspec.structs.replace(base, metadata=metadata)


def is_of(there: v1.CSINode, name: str, node_uid: str) -> bool:
    """Whether the object is the Node's that is there now, not that of one before it (kubelet:
    `nodeOwnsCSINode`).
    """
    owners = there.metadata.owner_references or ()
    return any((owner.kind, owner.name, owner.uid) == ("Node", name, node_uid) for owner in owners)


class CSINodeKeeper:
    """Makes the object once the Node is there. One that another Node has left, of another machine maybe, goes
    with the drivers it names; when the Node is made anew while this agent runs, they stay.
    """

    def __init__(self, client: KubeClient, own: OwnNode, name: str) -> None:
        self._client = client
        self._own = own
        self._name = name
        self._owner = ""
        self._error: str | None = "CSINode is not yet initialized"
        self._wanted = trio.Event()
        own.changed.listen(lambda: self._wanted.set())

    def errors(self) -> tuple[str, ...]:
        """Why the node is not ready."""
        return () if self._error is None else (self._error,)

    async def run(self) -> None:
        """Keeps the object until cancelled."""
        while True:
            self._wanted = trio.Event()
            uid = self._own.uid
            if uid and uid != self._owner:
                await self._keep_trying(uid)
            else:
                await self._wanted.wait()

    async def _keep_trying(self, uid: str) -> None:
        failures = 0
        while uid == self._own.uid:
            try:
                await self._ensure(uid)
            except APIFailure as exc:
                if self._error is not None:
                    self._error = f"failed to initialize CSINode: {exc}"
                log.v(2).error("CSINode cannot be written, will try again", node=self._name, err=exc)
            else:
                self._owner, self._error = uid, None
                return
            failures += 1
            await trio.sleep(PAUSES.after(failures, random.random()))

    async def _ensure(self, uid: str) -> None:
        path = f"{CSI_NODES}/{self._name}"
        try:
            there = await self._client.get(path, v1.CSINode)
        except APIError as exc:
            if not exc.not_found:
                raise
            await self._client.create(CSI_NODES, csi_node(None, self._name, uid), v1.CSINode)
            return
        if not self._owner and not is_of(there, self._name, uid):
            await self._client.delete(path)
            await self._client.create(CSI_NODES, csi_node(None, self._name, uid), v1.CSINode)
            return
        wanted = csi_node(there, self._name, uid)
        if wanted != there:
            await self._client.update(path, wanted, v1.CSINode)

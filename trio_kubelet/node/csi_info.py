"""What CSI drivers say of this node, written where scheduler and controllers look for it: CSINode with the
driver's id of the node, its topology keys and its limit of volumes; topology as labels of the Node and ids in
an annotation of it (kubelet: `nodeinfomanager`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIError, APIFailure, APIUnavailable
from trio_kubelet.node.csi_node import CSI_NODES, csi_node, is_of
from trio_kubelet.node.own_node import OwnNode
from trio_kubelet.plugins.doors import PluginError
from trio_kubelet.storage.doors import NodeInfo

ID_ANNOTATION: Final = "csi.volume.kubernetes.io/nodeid"
LARGEST_LIMIT: Final = 2**31 - 1
TRIES: Final = 4
PAUSES: Final = Pauses(0.01, 60.0, factor=5.0, jitter=0.1)
NODE_WAIT: Final = 30.0
_GAVE_UP: Final = "timed out waiting for the condition; caused by"


def with_driver(there: v1.CSINode, name: str, info: NodeInfo) -> v1.CSINode:
    """The object with what a driver says."""
    allocatable = None
    if info.limit > 0:
        allocatable = v1.VolumeNodeResources(count=min(info.limit, LARGEST_LIMIT))
    entry = v1.CSINodeDriver(
        name=name,
        node_id=info.node_id,
        topology_keys=sorted(info.topology) or None,
        allocatable=allocatable,
    )
    known = list(there.spec.drivers or ())
    if entry in known:
        return there
    drivers = [*(each for each in known if each.name != name), entry]
    return msgspec.structs.replace(there, spec=v1.CSINodeSpec(drivers=drivers))


def without_driver(there: v1.CSINode, name: str) -> v1.CSINode:
    """The object without a driver that has gone."""
    drivers = [each for each in there.spec.drivers or () if each.name != name]
    return msgspec.structs.replace(there, spec=v1.CSINodeSpec(drivers=drivers))


def node_metadata(node: v1.Node, name: str, info: NodeInfo) -> dict[str, Any]:
    """The patch of the Node, {} for none. Raises ValueError when the node is said to be somewhere else."""
    labels = node.metadata.labels or {}
    for key, value in info.topology.items():
        if labels.get(key, value) != value:
            raise ValueError(
                f'detected topology value collision: driver reported "{key}":"{value}" but existing label is '
                f'"{key}":"{labels[key]}"'
            )
    patch: dict[str, Any] = {}
    if fresh := {key: value for key, value in info.topology.items() if key not in labels}:
        patch["labels"] = fresh
    ids = known_ids(node)
    if ids.get(name) != info.node_id:
        patch["annotations"] = {ID_ANNOTATION: _text({**ids, name: info.node_id})}
    return {"metadata": patch} if patch else {}


def node_metadata_without(node: v1.Node, name: str) -> dict[str, Any]:
    """The patch of the Node after a driver has gone, {} for none."""
    ids = known_ids(node)
    if ids.pop(name, None) is None:
        return {}
    return {"metadata": {"annotations": {ID_ANNOTATION: _text(ids) if ids else None}}}


def known_ids(node: v1.Node) -> dict[str, str]:
    """The ids the Node's annotation has, by driver; one that cannot be read is written anew."""
    text = (node.metadata.annotations or {}).get(ID_ANNOTATION, "")
    try:
        return msgspec.json.decode(text, type=dict[str, str]) if text else {}
    except msgspec.DecodeError:
        return {}


def _text(ids: dict[str, str]) -> str:
    return json.dumps(ids, sort_keys=True, separators=(",", ":"))


class CSINodeInfo:
    """Implements `storage.doors.NodeInfoWriter`. One write at a time: drivers come in crowds."""

    def __init__(self, client: KubeClient, own: OwnNode, name: str) -> None:
        self._client = client
        self._own = own
        self._name = name
        self._turn = trio.Lock()
        self._wrote = False

    async def install(self, driver: str, info: NodeInfo) -> None:
        """Writes down what a driver says. Raises PluginError."""
        if not info.node_id:
            raise PluginError("error adding CSI driver node info: driverNodeID must not be empty")
        async with self._turn:
            await self._change_node(lambda node: node_metadata(node, driver, info))
            await self._change_csi_node(lambda there: with_driver(there, driver, info))

    async def update(self, driver: str, info: NodeInfo) -> None:
        """What a driver says later goes into CSINode only: labels may have been changed since (kubelet:
        `UpdateCSIDriver`). Raises PluginError.
        """
        async with self._turn:
            await self._change_csi_node(lambda there: with_driver(there, driver, info))

    async def uninstall(self, driver: str) -> None:
        """The driver has gone. Raises PluginError."""
        async with self._turn:
            await self._change_csi_node(lambda there: without_driver(there, driver))
            await self._change_node(lambda node: node_metadata_without(node, driver))

    async def _change_node(self, change: Callable[[v1.Node], dict[str, Any]]) -> None:
        try:
            node = await self._node()
            patch = change(node)
            if patch:
                path = f"{self._own.path}/status"
                self._own.wrote(await self._client.patch(path, msgspec.json.encode(patch), v1.Node))
        except (ValueError, APIError, APIUnavailable) as error:
            text = "error updating Node object with CSI driver node info: error updating node"
            raise PluginError(f"{text}: {_GAVE_UP}: {error}") from error

    async def _node(self) -> v1.Node:
        """The Node; a driver may be there before it is registered."""
        with trio.move_on_after(NODE_WAIT):
            await self._own.synced.wait()
        known = self._own.node
        return known if known is not None else await self._client.get(self._own.path, v1.Node)

    async def _change_csi_node(self, change: Callable[[v1.CSINode], v1.CSINode]) -> None:
        path = f"{CSI_NODES}/{self._name}"
        for attempt in range(TRIES):
            try:
                there = await self._csi_node(path)
                wanted = change(there)
                if wanted != there:
                    await self._client.update(path, wanted, v1.CSINode)
                self._wrote = True
            except APIFailure as error:
                if attempt == TRIES - 1:
                    text = "error updating CSINode object with CSI driver node info: error updating CSINode"
                    raise PluginError(f"{text}: {_GAVE_UP}: {error}") from error
            else:
                return
            await trio.sleep(PAUSES.after(attempt + 1, random.random()))

    async def _csi_node(self, path: str) -> v1.CSINode:
        """The object; one that another Node has left is replaced (see `CSINodeKeeper`)."""
        uid = self._own.uid
        try:
            there = await self._client.get(path, v1.CSINode)
            if self._wrote or not uid or is_of(there, self._name, uid):
                return there
            await self._client.delete(path)
        except APIError as error:
            if not error.not_found:
                raise
        return await self._client.create(CSI_NODES, csi_node(None, self._name, uid), v1.CSINode)

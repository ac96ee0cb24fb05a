"""The Node object of this node as the API server has it, followed by a watch.

Labels and taints on it decide about admission, its addresses are those of pods on the host's network, its
UID owns lease and mirror pods. Until the API server was heard, and without the object, the node goes by what
it would register (kubelet: `getNodeAnyWay`).
"""

from __future__ import annotations

import ipaddress

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.common.log import get_logger
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.doors import APIDoor
from trio_kubelet.kube.errors import APIFailure
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.pods.admission.fit import NodeFacts

log = get_logger(__name__)

NODES = "/api/v1/nodes"


class OwnNode:
    """The node's own Node object; `changed` is told after each change of it."""

    def __init__(self, door: APIDoor, profile: NodeProfile) -> None:
        self._profile = profile
        self.changed: Listeners[[]] = Listeners()
        self._answer: tuple[v1.Node | None, v1.Node] | None = None
        params = {"fieldSelector": f"metadata.name={profile.name}"}
        self._client = KubeClient(door)
        self._reflector = Reflector(door, NODES, v1.Node, params=params, changed=self._seen)

    @property
    def synced(self) -> trio.Event:
        """Set once the API server has told whether the object is there."""
        return self._reflector.synced

    @property
    def path(self) -> str:
        """The object's path in the API."""
        return f"{NODES}/{self._profile.name}"

    @property
    def node(self) -> v1.Node | None:
        """The object as last known; None if it is not there or nothing was heard yet."""
        seen = self._reflector.find(self._profile.name)
        if self._answer is not None and self._answer[0] is seen:
            return self._answer[1]  # what we wrote has not come back by the watch
        return seen

    @property
    def uid(self) -> str:
        """The object's UID, "" if it is not known."""
        return self.node.metadata.uid if self.node is not None else ""

    def hurry(self) -> None:
        """The server answers others again: after a failure, try soon."""
        self._reflector.hurry()

    def wrote(self, node: v1.Node) -> None:
        """Takes the answer to a request of ours: it is newer than what the watch has told so far."""
        self._answer = (self._reflector.find(self._profile.name), node)
        self.changed.tell()

    async def look(self) -> None:
        """Asks the API server, which may know more than the watch has told. Without an answer what is known
        stays.
        """
        seen, answer = self._reflector.find(self._profile.name), self._answer
        try:
            found = await self._client.get(self.path, v1.Node)
        except APIFailure as error:
            log.error("Failed to synchronously fetch node info", err=error)
            return
        if seen is self._reflector.find(self._profile.name) and answer is self._answer:
            self.wrote(found)

    def facts(self, base: NodeFacts) -> NodeFacts:
        """`base` with labels, taints and further resources of the live object."""
        node = self.node
        if node is None:
            return base
        return msgspec.structs.replace(
            base,
            labels=node.metadata.labels or {},
            taints=node.spec.taints or (),
            allocatable={**(node.status.allocatable or {}), **base.allocatable},
        )

    def host_ips(self, otherwise: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Addresses of the node by the object, the primary one first; `otherwise` without an object."""
        return otherwise if self.node is None else host_ips(self.node)

    async def run(self) -> None:
        """Follows the object until cancelled."""
        await self._reflector.run()

    def _seen(self) -> None:
        answer, self._answer = self._answer, None
        seen = self._reflector.find(self._profile.name)
        if answer is None or seen is None or _version(seen) != _version(answer[1]):
            self.changed.tell()


def host_ips(node: v1.Node | None) -> tuple[str, ...]:
    """The first address of a node and the first one of the other family, internal ones before external ones
    (kubelet: `GetNodeHostIPs`).
    """
    if node is None:
        return ()
    addresses = node.status.addresses or ()
    wanted = [a.address for kind in ("InternalIP", "ExternalIP") for a in addresses if a.type == kind]
    versions = {address: version for address in wanted if (version := _ip_version(address))}
    if not versions:
        return ()
    first, *others = versions
    second = next((address for address in others if versions[address] != versions[first]), None)
    return (first,) if second is None else (first, second)


def _version(node: v1.Node) -> str:
    return node.metadata.resource_version


def _ip_version(address: str) -> int:
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 0

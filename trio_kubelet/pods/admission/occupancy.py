"""What the active pods take of the node, kept up as they come and go (the scheduler's `NodeInfo`).

So that admission costs the same beside a thousand pods as beside ten: nothing here goes through all of them
but `Others.pods`, for whom others have to be ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.podinfo.amounts import add, counted
from trio_kubelet.podinfo.totals import pod_requests

ANYWHERE = "0.0.0.0"


class HostPort(NamedTuple):
    """A port of the node."""

    address: str
    protocol: str
    number: int


class _Taken(NamedTuple):
    pod: v1.Pod
    requests: dict[str, int]
    ports: frozenset[HostPort]


_NOTHING = _Taken(v1.Pod(), {}, frozenset())


def host_ports(pod: v1.Pod) -> frozenset[HostPort]:
    """The node's ports that the pod takes for all its life."""
    lasting = [c for c in pod.spec.init_containers or () if is_sidecar(c)]
    return frozenset(
        HostPort(port.host_ip or ANYWHERE, port.protocol or "TCP", port.host_port)
        for container in (*lasting, *(pod.spec.containers or ()))
        for port in container.ports or ()
        if port.host_port > 0
    )


class Occupancy:
    """Pods by UID, with the resources they were granted, and their sums."""

    def __init__(self, pods: Iterable[v1.Pod] = ()) -> None:
        self._taken: dict[str, _Taken] = {}
        self._requested: dict[str, int] = {}
        self._ports: dict[tuple[str, int], Counter[str]] = {}
        for pod in pods:
            self.put(pod)

    def __contains__(self, uid: object) -> bool:
        return uid in self._taken

    def put(self, pod: v1.Pod) -> None:
        """The pod is there, with these resources."""
        uid = pod.metadata.uid
        known = self._taken.get(uid)
        if known is not None:
            if known.pod is pod:
                return
            self._count(known, -1)
        requests = {name: counted(name, nanos) for name, nanos in pod_requests(pod).items()}
        self._taken[uid] = taken = _Taken(pod, requests, host_ports(pod))
        self._count(taken, 1)

    def drop(self, uid: str) -> None:
        """The pod takes nothing any more."""
        if (taken := self._taken.pop(uid, None)) is not None:
            self._count(taken, -1)

    def beside(self, uid: str) -> Others:
        """All but the pod of this UID, as they are at the moment of each question."""
        return Others(self, uid)

    def _count(self, taken: _Taken, sign: int) -> None:
        add(self._requested, {name: sign * amount for name, amount in taken.requests.items()})
        for address, protocol, number in taken.ports:
            addresses = self._ports.setdefault((protocol, number), Counter())
            addresses[address] += sign
            if not addresses[address]:
                del addresses[address]
            if not addresses:
                del self._ports[protocol, number]


class Others:
    """The active pods beside one."""

    def __init__(self, all_: Occupancy, uid: str) -> None:
        self._all = all_
        self._uid = uid

    def __len__(self) -> int:
        return len(self._all._taken) - (self._uid in self._all._taken)

    def pods(self) -> list[v1.Pod]:
        """The pods themselves."""
        return [taken.pod for uid, taken in self._all._taken.items() if uid != self._uid]

    def requested(self, resource: str) -> int:
        """What they request of a resource, each as nodes count it (`counted`)."""
        return self._all._requested.get(resource, 0) - self._own().requests.get(resource, 0)

    def have_port(self, port: HostPort) -> bool:
        """Whether one of them has the port; the address 0.0.0.0 stands for all."""
        addresses = self._all._ports.get((port.protocol, port.number))
        if addresses is None:
            return False
        own = self._own().ports
        rivals = addresses if port.address == ANYWHERE else (port.address, ANYWHERE)
        return any(addresses[each] > (port._replace(address=each) in own) for each in rivals)

    def _own(self) -> _Taken:
        return self._all._taken.get(self._uid, _NOTHING)

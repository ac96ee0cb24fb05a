"""Which container has which devices, and for which some are taken: it has them when their plugin has prepared
them. Changed only by the device manager; every question is a pure one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar


class Key(NamedTuple):
    """A container and one of the resources it asks for."""

    pod: str
    container: str
    resource: str


class Assignment(msgspec.Struct, frozen=True):
    """Devices of one container: ids under each NUMA node (-1: none), and its plugin's answer (protobuf)."""

    by_node: Mapping[int, list[str]]
    answer: bytes

    @property
    def devices(self) -> frozenset[str]:
        """The devices by id."""
        return frozenset(id for ids in self.by_node.values() for id in ids)


class Assignments:
    """All assignments of the node, by pod."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[Key, Assignment]] = {}
        self.taken: dict[Key, frozenset[str]] = {}

    def take(self, key: Key, devices: frozenset[str]) -> None:
        """These devices are for the container, instead of those that were before."""
        self.taken[key] = devices

    def let_go(self, pod: str) -> None:
        """What is taken for the pod is free."""
        for key in [key for key in self.taken if key.pod == pod]:
            del self.taken[key]

    def put(self, key: Key, assignment: Assignment) -> None:
        """A container has been given devices."""
        self.taken.pop(key, None)
        self._pods.setdefault(key.pod, {})[key] = assignment

    def pods(self) -> frozenset[str]:
        """Pods that have any."""
        return frozenset(self._pods)

    def take_back(self, pods: Iterable[str]) -> None:
        """What these pods have is free."""
        for uid in pods:
            del self._pods[uid]

    def get(self, key: Key) -> Assignment | None:
        """What a container has of a resource."""
        return self._pods.get(key.pod, {}).get(key)

    def items(self) -> Iterator[tuple[Key, Assignment]]:
        """Everything, in the order of pods, containers and resources."""
        for uid in sorted(self._pods):
            yield from sorted(self._pods[uid].items())

    def of_container(self, pod: str, container: str) -> dict[str, Assignment]:
        """What a container has, by resource."""
        its = sorted(self._pods.get(pod, {}).items())
        return {key.resource: each for key, each in its if key.container == container}

    def of_pod(self, pod: str, resource: str) -> frozenset[str]:
        """Devices of a resource that any container of the pod has."""
        its = self._pods.get(pod, {}).items()
        return frozenset(id for key, each in its if key.resource == resource for id in each.devices)

    def in_use(self, resource: str) -> frozenset[str]:
        """Devices of a resource that anybody has, or is to have."""
        taken = (devices for key, devices in self.taken.items() if key.resource == resource)
        return frozenset().union(*(self.of_pod(uid, resource) for uid in self._pods), *taken)

    def resources(self) -> frozenset[str]:
        """Resources of which anybody has devices."""
        return frozenset(key.resource for its in self._pods.values() for key in its)

    def has_pod(self, pod: str) -> bool:
        """Whether a container of the pod has devices."""
        return pod in self._pods

    def pods_with(self, resource: str, devices: Collection[str]) -> frozenset[str]:
        """Pods that have one of the devices."""
        return frozenset(uid for uid in self._pods if not self.of_pod(uid, resource).isdisjoint(devices))

    def reusable(self, pod: v1.Pod, container: str, resource: str) -> frozenset[str]:
        """Devices of init containers that have ended when `container` starts and that no container since
        them keeps (kubelet: `devicesToReuse`).
        """
        uid, free = pod.metadata.uid, frozenset[str]()
        init = pod.spec.init_containers or ()
        for each in (*init, *(pod.spec.containers or ())):
            if each.name == container:
                break
            devices = self._of(Key(uid, each.name, resource))
            if any(each is one for one in init) and not is_sidecar(each):
                free |= devices
            else:
                free -= devices
        return free

    def _of(self, key: Key) -> frozenset[str]:
        """What the container has of the resource, or is to have."""
        has = self.get(key)
        return self.taken.get(key, frozenset()) if has is None else has.devices

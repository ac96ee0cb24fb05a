"""Where the cgroups of pods and containers are: read off the tree, for the runtime chooses names itself.

Blocking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from trio_kubelet.machine.cgroup_reader import CgroupReader, container_id
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.qos import QOSClass


class CgroupMap(msgspec.Struct, frozen=True):
    """Paths of cgroups: of pods by UID, of containers and sandboxes by id."""

    pods: dict[str, str] = {}
    containers: dict[str, str] = {}


NOWHERE = CgroupMap()


def class_cgroups(names: CgroupNames) -> list[str]:
    """The cgroup of all pods and those of the QoS classes."""
    return list(dict.fromkeys(names.literal(names.qos(qos)) for qos in QOSClass))


def pod_cgroups(reader: CgroupReader, names: CgroupNames) -> dict[str, str]:
    """The cgroups of all pods, by UID; none without cgroups per QoS class."""
    if not names.per_qos:
        return {}
    found: dict[str, str] = {}
    for parent in class_cgroups(names):
        for directory in reader.children(parent):
            if (uid := names.pod_uid(directory)) is not None:
                found.setdefault(uid, f"{parent}/{directory}")
    return found


def map_cgroups(
    reader: CgroupReader, names: CgroupNames, pods: Mapping[str, Sequence[str]], known: CgroupMap = NOWHERE
) -> CgroupMap:
    """The cgroups of pods, given as the ids of what is in them by UID.

    What `known` has is taken from there: a container's cgroup never moves.
    """
    there = {uid: path for uid in pods if (path := known.pods.get(uid))}
    if len(there) < len(pods):
        everywhere = pod_cgroups(reader, names)
        there.update((uid, everywhere[uid]) for uid in pods if uid in everywhere)
    containers: dict[str, str] = {}
    for uid, path in there.items():
        if all(each in known.containers for each in pods[uid]):
            containers.update((each, known.containers[each]) for each in pods[uid])
            continue
        for directory in reader.children(path):
            containers[container_id(directory)] = f"{path}/{directory}"
    return CgroupMap(there, containers)

"""Names of the cgroups of pods and QoS classes, for both cgroup drivers.

A name is a tuple of parts (`("kubepods", "burstable", "podUID")`); its literal form is a path below a
cgroup hierarchy, which the systemd driver spells as nested slices
(`/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice`).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from trio_kubelet.podinfo.qos import QOSClass

CgroupName: TypeAlias = tuple[str, ...]

_NODE_ALLOCATABLE = "kubepods"
_POD = "pod"
_SLICE = ".slice"


class CgroupNames(msgspec.Struct, frozen=True):
    """Cgroup names of one node; everything is below `root`, the `cgroupRoot` of its configuration."""

    root: str = "/"
    driver: str = "cgroupfs"
    per_qos: bool = True

    def node(self) -> CgroupName:
        """The cgroup of all pods; without cgroups per QoS class that is the root itself."""
        parts = tuple(part for part in self.root.split("/") if part)
        return (*parts, _NODE_ALLOCATABLE) if self.per_qos else parts

    def qos(self, qos: QOSClass) -> CgroupName:
        """The cgroup of a QoS class; guaranteed pods are directly below the node's."""
        if qos is QOSClass.GUARANTEED or not self.per_qos:
            return self.node()
        return (*self.node(), qos.value.lower())

    def pod(self, uid: str, qos: QOSClass) -> CgroupName:
        """The cgroup of a pod, the parent of its containers'."""
        return (*self.qos(qos), _POD + uid) if self.per_qos else self.node()

    def literal(self, name: CgroupName) -> str:
        """The path the runtime is given and the kernel shows."""
        if self.driver != "systemd":
            return "/" + "/".join(name)
        escaped = [part.replace("-", "_") for part in name]
        slices = ["-".join(escaped[: depth + 1]) + _SLICE for depth in range(len(escaped))]
        return "/" + "/".join(slices)

    def parse(self, name: str) -> CgroupName:
        """The name of a cgroup that a configuration names by its path, or by its slice (`system.slice`)."""
        if self.driver != "systemd":
            return tuple(part for part in name.split("/") if part)
        base = name.rpartition("/")[2].removesuffix(_SLICE)
        return tuple(part.replace("_", "-") for part in base.split("-"))

    def pod_uid(self, directory: str) -> str | None:
        """The UID of the pod whose cgroup has this last path component, None if it is not a pod's."""
        base = directory
        if self.driver == "systemd":
            base = directory.removesuffix(_SLICE).rpartition("-")[2].replace("_", "-")
        if not base.startswith(_POD) or _POD in base[len(_POD) :] or base == _POD:
            return None
        return base.removeprefix(_POD)

"""Which volumes pods want, and which there are: two values, and what changes them. Pure.

`Actual` never forgets a volume of which anything may still be mounted: what was not seen to end is UNCERTAIN,
and uncertain things are undone like mounted ones, and done again before they are used.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.storage.specs import Spec


class MountState(enum.StrEnum):
    """Whether something is mounted."""

    NOT_MOUNTED = "not mounted"
    UNCERTAIN = "uncertain"
    MOUNTED = "mounted"


class WantedVolume(msgspec.Struct, frozen=True):
    """A volume of a pod that is to be there; `outer` is its name in the pod. `since` is Trio's clock."""

    pod: v1.Pod
    outer: str
    spec: Spec
    since: float = 0.0


class PodMount(msgspec.Struct, frozen=True, kw_only=True):
    """A volume as one pod has it.

    `found`: it was read back from the disk, so a failed attempt to mount it again says nothing about it.
    `remount`: it is to be published again. `spec` is how it was mounted.
    """

    uid: str
    spec: Spec
    outer: str = ""
    state: MountState = MountState.UNCERTAIN
    found: bool = False
    remount: bool = False


class NodeMount(msgspec.Struct, frozen=True, kw_only=True):
    """A volume as the node has it, before any pod."""

    state: MountState = MountState.NOT_MOUNTED
    found: bool = False


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A volume there is something of. `attached` False: the agent, which attaches by itself here, was about
    to, and it is not known what has come of that.

    `size` is how large the filesystem or device is known to be, in bytes; 0 if unknown. `not_yet`: by its
    claim, as it was last read, it is larger, but not this node's to expand. `mounts` by UID of the pod.
    """

    spec: Spec
    attached: bool = True
    device: NodeMount = NodeMount()
    mounts: Mapping[str, PodMount] = {}
    size: int = 0
    not_yet: bool = False


Actual = dict[str, Volume]
"""Volumes by their unique names."""


class Desired:
    """What pods want: by UID of the pod and the volume's name in it, and the pods that gave up theirs."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, WantedVolume]] = {}
        self.volumes: dict[str, dict[str, WantedVolume]] = {}  # the same by unique name and UID
        self.released: set[str] = set()

    def want(self, uid: str, volumes: Mapping[str, WantedVolume]) -> None:
        """These volumes are wanted for the pod, and no others."""
        self._drop(uid)
        self.pods[uid] = dict(volumes)
        for wanted in volumes.values():
            self.volumes.setdefault(wanted.spec.unique_name, {})[uid] = wanted
        self.released.discard(uid)

    def release(self, uid: str) -> None:
        """Nothing is wanted for the pod, and whatever it has may go."""
        self._drop(uid)
        self.released.add(uid)

    def find(self, uid: str, name: str) -> WantedVolume | None:
        """What the pod wants of a volume, by the volume's unique name."""
        return self.volumes.get(name, {}).get(uid)

    def _drop(self, uid: str) -> None:
        for wanted in self.pods.pop(uid, {}).values():
            name = wanted.spec.unique_name
            if (users := self.volumes.get(name)) is not None:
                users.pop(uid, None)
                if not users:
                    del self.volumes[name]


def with_mount(actual: Actual, name: str, mount: PodMount) -> None:
    """The pod's mount of a volume is now as given."""
    volume = actual[name]
    actual[name] = msgspec.structs.replace(volume, mounts={**volume.mounts, mount.uid: mount})


def without_mount(actual: Actual, name: str, uid: str) -> None:
    """Nothing of the volume is mounted for the pod any more."""
    volume = actual[name]
    mounts = {key: mount for key, mount in volume.mounts.items() if key != uid}
    actual[name] = msgspec.structs.replace(volume, mounts=mounts)


def with_device(actual: Actual, name: str, state: MountState) -> None:
    """The volume is now so mounted for the node, as this agent has seen itself."""
    found = actual[name].device.found and state is MountState.UNCERTAIN
    actual[name] = msgspec.structs.replace(actual[name], device=NodeMount(state=state, found=found))


def mount_failed(actual: Actual, name: str, uid: str, *, finished: bool) -> None:
    """An attempt to mount for the pod failed; `finished`: surely nothing of it goes on.

    What was mounted stays so. What was uncertain is then known not to be mounted, unless it was found on the
    disk: somebody may use that (kubelet: `markVolumeErrorState`).
    """
    mount = actual[name].mounts[uid]
    if mount.state is MountState.UNCERTAIN and finished and not mount.found:
        without_mount(actual, name, uid)


def device_failed(actual: Actual, name: str, *, finished: bool) -> None:
    """An attempt to mount for the node failed (kubelet: `markDeviceErrorState`)."""
    device = actual[name].device
    if device.state is MountState.UNCERTAIN and finished and not device.found:
        with_device(actual, name, MountState.NOT_MOUNTED)


def mounted_for_another(actual: Actual, name: str, uid: str) -> bool:
    """Whether another pod has, or may have, the volume."""
    volume = actual.get(name)
    return volume is not None and any(
        other != uid and mount.state is not MountState.NOT_MOUNTED for other, mount in volume.mounts.items()
    )


def in_use_as(desired: Desired, actual: Actual, name: str) -> frozenset[str]:
    """What the Node's status has to call the volume; nothing if it need not name it."""
    specs = [each.spec for each in desired.volumes.get(name, {}).values()]
    if (volume := actual.get(name)) is not None:
        specs.append(volume.spec)
    return frozenset(spec.reported_name for spec in specs if spec.attachable)


def volumes_in_use(desired: Desired, actual: Actual) -> list[str]:
    """What the Node's status has to name: it must not be detached (kubelet: `GetVolumesInUse`)."""
    names = (in_use_as(desired, actual, name) for name in {*desired.volumes, *actual})
    return sorted(frozenset().union(*names))

"""What has to be done next to bring volumes in line with what pods want. Pure.

One operation for a volume at a time; each volume stands for itself. The order within a volume follows from
what is there: what a pod gave up is unmounted first, then others get theirs, and a volume that nobody wants
and nobody has is unmounted from the node, and only then no longer called in use.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping

import msgspec

from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.world import Actual, Desired, MountState, Volume, WantedVolume


class OperationKind(enum.StrEnum):
    """The operations, by the names metrics and logs give them."""

    ATTACH = "volume_attach"
    DETACH = "volume_detach"
    MOUNT = "volume_mount"
    UNMOUNT = "volume_unmount"
    UNMOUNT_DEVICE = "unmount_device"
    MAP = "map_volume"
    UNMAP = "unmap_volume"
    UNMAP_DEVICE = "unmap_device"
    EXPAND = "volume_fs_resize"
    FORGET = "forget"


class Operation(msgspec.Struct, frozen=True):
    """One operation on a volume, for the pod `uid` where it is for one."""

    kind: OperationKind
    name: str
    uid: str = ""


class ReportedVolumes(msgspec.Struct, frozen=True):
    """What the Node says: volumes reported as in use, those attached with their device paths, its labels,
    whether a controller attaches volumes; otherwise the agent does.
    """

    in_use: Collection[str] = ()
    attached: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    controller: bool = True


def possible_steps(desired: Desired, actual: Actual, node: ReportedVolumes, name: str) -> list[Operation]:
    """What can be done now for a volume that has no operation under way, the best first.

    There is more than one only where several pods want something of it: one of them may be in a pause.
    """
    return list(_possible(name, actual.get(name), desired.volumes.get(name, {}), desired.released, node))


def is_attached(spec: Spec, volume: Volume | None, node: ReportedVolumes) -> bool:
    """Whether the volume may be mounted: it needs no attaching, or the Node's status says that it is both
    reported as in use and attached, or the agent has attached it.
    """
    if not spec.attachable:
        return True
    if node.controller:
        return spec.reported_name in node.in_use and spec.reported_name in node.attached
    return volume is not None and volume.attached


def _possible(
    name: str,
    volume: Volume | None,
    wanted: Mapping[str, WantedVolume],
    released: Collection[str],
    node: ReportedVolumes,
) -> Iterator[Operation]:
    for uid, mount in volume.mounts.items() if volume is not None else ():
        if uid in released:
            yield Operation(OperationKind.UNMAP if mount.spec.block else OperationKind.UNMOUNT, name, uid)
    for uid, each in wanted.items():
        if not _needs_mount(volume, uid):
            continue
        if is_attached(each.spec, volume, node):
            yield Operation(OperationKind.MAP if each.spec.block else OperationKind.MOUNT, name, uid)
        elif not node.controller:
            yield Operation(OperationKind.ATTACH, name, uid)
    if volume is None:
        return
    for uid, each in wanted.items():
        if _needs_expansion(volume, each.spec, uid):
            yield Operation(OperationKind.EXPAND, name, uid)
    if wanted or volume.mounts:
        return
    if volume.device.state is not MountState.NOT_MOUNTED:
        yield Operation(
            OperationKind.UNMAP_DEVICE if volume.spec.block else OperationKind.UNMOUNT_DEVICE, name
        )
    elif volume.spec.attachable and not node.controller:
        yield Operation(OperationKind.DETACH, name)
    else:
        yield Operation(OperationKind.FORGET, name)


def _needs_mount(volume: Volume | None, uid: str) -> bool:
    mount = volume.mounts.get(uid) if volume is not None else None
    return mount is None or mount.state is not MountState.MOUNTED or mount.remount


def _needs_expansion(volume: Volume, spec: Spec, uid: str) -> bool:
    mount = volume.mounts.get(uid)
    return (
        spec.claim is not None
        and not spec.read_only
        and mount is not None
        and mount.state is MountState.MOUNTED
        and 0 < volume.size < spec.capacity
        and not volume.not_yet
    )


def unmounted(desired: Desired, actual: Actual, uid: str, expected: Collection[str]) -> list[str]:
    """The pod's volumes (by their names in it) that are not ready for it, in order."""
    wanted = desired.pods.get(uid, {})
    return sorted(outer for outer in expected if not _is_mounted(wanted.get(outer), actual, uid))


def unattached(desired: Desired, actual: Actual, node: ReportedVolumes, uid: str) -> list[str]:
    """The pod's volumes that are not attached to the node."""
    wanted = desired.pods.get(uid, {})
    return sorted(
        outer
        for outer, each in wanted.items()
        if each.spec.attachable and not _is_there(each.spec, actual, node)
    )


def _is_there(spec: Spec, actual: Actual, node: ReportedVolumes) -> bool:
    if node.controller:
        return spec.reported_name in node.attached
    volume = actual.get(spec.unique_name)
    return volume is not None and volume.attached


def held(actual: Actual, uid: str) -> list[str]:
    """Unique names of the volumes of which something is, or may be, mounted for the pod."""
    return sorted(name for name, volume in actual.items() if uid in volume.mounts)


def _is_mounted(wanted: WantedVolume | None, actual: Actual, uid: str) -> bool:
    if wanted is None:
        return False
    volume = actual.get(wanted.spec.unique_name)
    mount = volume.mounts.get(uid) if volume is not None else None
    return mount is not None and mount.state is MountState.MOUNTED

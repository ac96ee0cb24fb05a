"""Reads back from the disk which volumes there are, after a restart. Blocking.

Everything found is UNCERTAIN: it is not known whether what made it had ended well. What has a data file, or
is in the table of mounts, is found; a directory without either is what an operation left that had not begun,
and is removed. Nothing that is mounted is touched: of a mount without a data file nobody knows what it is,
but a pod may still use it, so it stays until that has ended, or has it mounted anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from trio_kubelet.api import v1
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.mountinfo import mounts
from trio_kubelet.common.small_files import unfinished
from trio_kubelet.storage import data_file
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.metrics import ReadBackMetrics
from trio_kubelet.storage.names import (
    DATA_FILE,
    all_pods,
    block_root,
    csi_block_dir,
    csi_block_publish,
    csi_name,
    escape,
    plugin_dir,
    unique_name,
    unique_pod_name,
)
from trio_kubelet.storage.specs import CSI, Spec
from trio_kubelet.storage.world import Actual, MountState, NodeMount, PodMount, Volume
from trio_kubelet.volumes.files import entries
from trio_kubelet.volumes.linux import mount_at, real_path, unmount

log = get_logger(__name__)

OTHERS = Callable[[str, frozenset[str]], Iterable[tuple[Spec, str]]]
"""Another plugin's volumes below a root directory, given all mount points: specs with the UIDs of pods, ""
for one that is mounted for the node."""
_NO_DRIVERS: Final = ("volumeDevices", "pv")


class VolumesFound(NamedTuple):
    """The volumes there may be something of, and mount points without a data file by UID of the pod."""

    volumes: Actual
    lost: Mapping[str, Sequence[str]]


def read_back(root_dir: str, metrics: ReadBackMetrics, others: Iterable[OTHERS] = ()) -> VolumesFound:
    """What is on the disk. Raises OSError."""
    table = frozenset(mount.path for mount in mounts())
    actual: Actual = {}
    lost: dict[str, list[str]] = {}
    for spec in _staged(root_dir):
        _device(actual, spec)
    for uid, directory in _pod_volumes(root_dir):
        if (data := _data(directory)) is not None:
            _mount(actual, _published(uid, directory, data), uid)
        elif (target := real_path(f"{directory}/mount")) in table:
            log.warning("A volume has no data file, and stays mounted for its pod", podUID=uid, path=target)
            lost.setdefault(uid, []).append(target)
        else:
            _drop_empty(f"{directory}/mount", directory)
    for spec, uids in _block_volumes(root_dir):
        _device(actual, spec)
        for uid in uids:
            _mount(actual, spec, uid)
    for plugin in others:
        for spec, uid in plugin(root_dir, table):
            if uid:
                _mount(actual, spec, uid)
            else:
                _device(actual, spec)
    unknown = sum(map(len, lost.values()))
    metrics.found.inc(sum(len(volume.mounts) or 1 for volume in actual.values()) + unknown)
    metrics.unknown.inc(unknown)
    return VolumesFound(actual, lost)


def take_away(target: str, metrics: ReadBackMetrics) -> None:
    """Unmounts what nobody knows, now that its pod has ended. That it is staged is written down elsewhere."""
    if mount_at(target) is None:  # it was mounted anew, and taken away as what it is
        return
    log.warning("A volume without its data file is unmounted", path=target)
    try:
        unmount(target)
    except OSError as error:
        metrics.not_cleaned.inc()
        log.error("It cannot be unmounted", path=target, err=error)
    else:
        metrics.cleaned.inc()
        _drop_empty(target, os.path.dirname(target))


def _device(actual: Actual, spec: Spec) -> None:
    known = actual.get(spec.unique_name)
    mounted = {} if known is None else known.mounts
    device = NodeMount(state=MountState.UNCERTAIN, found=True)
    actual[spec.unique_name] = Volume(spec=spec, device=device, mounts=mounted)


def _mount(actual: Actual, spec: Spec, uid: str) -> None:
    """A volume of a pod; where it is staged for the node, that may have to be undone too."""
    known = actual.get(spec.unique_name)
    if known is None:
        if spec.device:
            _device(actual, spec)
        else:
            actual[spec.unique_name] = Volume(spec=spec)
        known = actual[spec.unique_name]
    mount = PodMount(uid=uid, spec=spec, state=MountState.UNCERTAIN, found=True)
    actual[spec.unique_name] = Volume(
        spec=spec,
        device=known.device,
        mounts={**known.mounts, uid: mount},
    )


def _staged(root_dir: str) -> Iterable[Spec]:
    """Volumes that drivers have, or may have, staged."""
    root = plugin_dir(root_dir, CSI)
    for driver in entries(root):
        if driver in _NO_DRIVERS:
            continue
        for digest in entries(f"{root}/{driver}"):
            directory = f"{root}/{driver}/{digest}"
            if (data := _data(directory)) is None:
                _drop_empty(f"{directory}/globalmount", directory)
            else:
                yield _persistent(data, "")


def _pod_volumes(root_dir: str) -> Iterable[tuple[str, str]]:
    """UIDs of pods and their directories of CSI volumes."""
    pods = all_pods(root_dir)
    for uid in entries(pods):
        volumes = f"{pods}/{uid}/volumes/{escape(CSI)}"
        for name in entries(volumes):
            yield uid, f"{volumes}/{name}"


def _published(uid: str, directory: str, data: dict[str, str]) -> Spec:
    name = os.path.basename(directory)
    if data.get(data_file.LIFECYCLE) != "Ephemeral":
        return _persistent(data, name)
    return Spec(
        unique_name=unique_pod_name(CSI, uid, name),
        name=name,
        plugin=CSI,
        source=v1.CSIVolumeSource(driver=data.get(data_file.DRIVER, "")),
        driver=data.get(data_file.DRIVER, ""),
        handle=data.get(data_file.HANDLE, ""),
        ephemeral=True,
    )


def _block_volumes(root_dir: str) -> Iterable[tuple[Spec, list[str]]]:
    """Block volumes and the pods that have, or may have, them."""
    for name in entries(block_root(root_dir, CSI)):
        if name in ("staging", "publish"):
            continue
        directory = csi_block_dir(root_dir, name)
        data = _data(f"{directory}/data")
        if data is None:
            _drop_empty(f"{directory}/dev", f"{directory}/data", directory)
            continue
        uids = {
            *entries(f"{directory}/dev"),
            *entries(os.path.dirname(csi_block_publish(root_dir, name, ""))),
        }
        uids.update(uid for uid in entries(all_pods(root_dir)) if _has_link(root_dir, uid, name))
        yield _persistent(data, name, block=True), sorted(uids)


def _has_link(root_dir: str, uid: str, name: str) -> bool:
    return os.path.lexists(f"{all_pods(root_dir)}/{uid}/volumeDevices/{escape(CSI)}/{name}")


def _persistent(data: dict[str, str], name: str, *, block: bool = False) -> Spec:
    driver, handle = data.get(data_file.DRIVER, ""), data.get(data_file.HANDLE, "")
    return Spec(
        unique_name=unique_name(CSI, csi_name(driver, handle)),
        name=data.get(data_file.SPEC_NAME, name),
        plugin=CSI,
        source=v1.CSIPersistentVolumeSource(driver=driver, volume_handle=handle),
        driver=driver,
        handle=handle,
        block=block,
        device=True,
        attachable=True,
        persistent=True,
    )


def _data(directory: str) -> dict[str, str] | None:
    """What a data file says; one that cannot be read says nothing, once a start."""
    try:
        data = data_file.load(directory)
    except OperationError as error:
        log.error("A volume's data file cannot be read", err=error)
        return None
    if data is not None and not (data.get(data_file.DRIVER) and data.get(data_file.HANDLE)):
        log.error("A volume's data file says nothing of its volume", path=directory)
        return None
    return data


def _drop_empty(*directories: str) -> None:
    """Removes directories that are empty; the kernel refuses all others."""
    for directory in directories:
        with contextlib.suppress(OSError):
            os.unlink(unfinished(f"{directory}/{DATA_FILE}"))
        with contextlib.suppress(OSError):
            os.rmdir(directory)

"""Disks of Fibre Channel: found among what the machine's hosts see, joined by the multipath daemon."""

from __future__ import annotations

import glob
from collections.abc import Iterable

from trio_kubelet.api import v1
from trio_kubelet.common.log import get_logger
from trio_kubelet.storage.disks.iscsi import Tool
from trio_kubelet.storage.disks.scsi import SCSI
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.names import fc_name, unique_name
from trio_kubelet.storage.specs import FC, Spec
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.volumes.files import entries

log = get_logger(__name__)


def ids_of(source: v1.FCVolumeSource) -> tuple[tuple[str, ...], str]:
    """World wide names of targets with the unit's number, or identifiers of the disk with "". Raises
    OperationError.
    """
    if source.target_wwns and source.lun is not None:
        names, lun = tuple(source.target_wwns), str(source.lun)
    elif source.wwids:
        names, lun = tuple(each.replace(" ", "_") for each in source.wwids), ""
    else:
        raise OperationError("fc: no fc disk information found. failed to make a new mounter")
    for name in names:
        if "/" in name or "\0" in name or name in (".", ".."):
            raise OperationError(f"fc: {name!r} is no name of a target or disk")
    return names, lun


def directory_of(source: v1.FCVolumeSource) -> str:
    """Where the disk is mounted, below the plugin's directory."""
    names, lun = ids_of(source)
    return f"{'-'.join(names)}-lun-{lun}" if lun else "-".join(names)


def source_of(directory: str) -> v1.FCVolumeSource | None:
    """What the directory's name says, None if it is no such name."""
    parts = directory.split("-")
    if len(parts) >= 2 and parts[-2] == "lun":
        if len(parts) == 2 or not parts[-1].isdigit():
            return None
        return v1.FCVolumeSource(target_wwns=parts[:-2], lun=int(parts[-1]))
    return v1.FCVolumeSource(wwids=parts) if directory else None


class FCDisks:
    """Implements `storage.doors.Disks`."""

    plugin = FC

    def __init__(self, *, tool: Tool, scsi: SCSI) -> None:
        self._tool = tool
        self._scsi = scsi

    def directory(self, spec: Spec) -> str:
        return directory_of(_source(spec))

    def fs_type(self, spec: Spec) -> str:
        return _source(spec).fs_type

    async def attach(self, spec: Spec, directory: str) -> str:
        names, lun = ids_of(_source(spec))
        found = await in_thread(spec.unique_name, self._search, names, lun)
        if not found.startswith("/dev/dm-"):  # there may be more paths to it
            await in_thread(spec.unique_name, self._scsi.scan_all)
            found = await in_thread(spec.unique_name, self._search, names, lun)
        if not found:
            raise OperationError("no fc disk found")
        return found

    async def detach(self, spec: Spec, directory: str) -> None:
        device = await in_thread(spec.unique_name, self._search, *ids_of(_source(spec)))
        if not device:
            return
        disks = [device]
        if joined := await in_thread(spec.unique_name, self._scsi.multipath_of, device):
            disks = await in_thread(spec.unique_name, self._scsi.paths_of, joined)
            code, output = await self._tool(["multipath", "-f", joined])
            if code:
                raise OperationError(
                    f"fc: failed to detach disk: {directory}\nError: failed to flush multipath device "
                    f"{joined}: exit status {code}\n{output}"
                )
        for disk in disks:
            code, output = await self._tool(["blockdev", "--flushbufs", disk])
            if code:
                log.warning("A disk could not be flushed", device=disk, status=code, output=output)
            await in_thread(spec.unique_name, self._scsi.delete, disk)

    def read_back(self, directory: str, block: bool) -> Iterable[tuple[str, Spec]]:
        for name in entries(directory):
            source = source_of(name) if name != "volumeDevices" else None
            if source is not None:
                yield f"{directory}/{name}", _found(name, source, block=block)

    def _search(self, names: tuple[str, ...], lun: str) -> str:
        """The disk, joined if it is; "" if the machine does not see it."""
        found = ""
        for name in map(glob.escape, names):
            if lun:
                links = [f"pci-*-fc-0x{name}-lun-{lun}", f"fc-0x{name}-lun-{lun}"]
                disks = self._scsi.links("by-path", links)
            else:
                disks = self._scsi.links("by-id", [f"scsi-{name}"])
            for disk in disks:
                found = disk
                if joined := self._scsi.multipath_of(disk):
                    return joined
        return found


def _source(spec: Spec) -> v1.FCVolumeSource:
    assert isinstance(spec.source, v1.FCVolumeSource)
    return spec.source


def _found(name: str, source: v1.FCVolumeSource, *, block: bool) -> Spec:
    return Spec(
        unique_name=unique_name(FC, fc_name(source)),
        name=name,
        plugin=FC,
        source=source,
        block=block,
        device=True,
        attachable=True,
        persistent=True,
    )

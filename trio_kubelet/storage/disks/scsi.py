"""Disks of SCSI hosts as the kernel shows them in sysfs and below /dev/disk. Blocking."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable

from trio_kubelet.volumes.files import entries


class SCSI:
    """Finds disks, has hosts look for new ones, and takes disks away. `root` is "" but in tests."""

    def __init__(self, root: str = "") -> None:
        self._block = f"{root}/sys/block"
        self._hosts = f"{root}/sys/class/scsi_host"
        self._sessions = f"{root}/sys/class/iscsi_host"
        self._disks = f"{root}/dev/disk"

    def multipath_of(self, device: str) -> str:
        """The device that joins all paths to a disk, "" if there is none."""
        name = _device_name(device)
        if name.startswith("dm-"):
            return f"/dev/{name}"
        for each in entries(self._block):
            if each.startswith("dm-") and os.path.lexists(f"{self._block}/{each}/slaves/{name}"):
                return f"/dev/{each}"
        return ""

    def paths_of(self, multipath: str) -> list[str]:
        """The disks that a multipath device joins."""
        return [f"/dev/{name}" for name in entries(f"{self._block}/{_device_name(multipath)}/slaves")]

    def delete(self, device: str) -> None:
        """The kernel forgets a disk. Raises OSError; one that is gone already is fine."""
        with contextlib.suppress(FileNotFoundError):
            _write(f"{self._block}/{_device_name(device)}/device/delete", "1")

    def scan(self, host: int, lun: int) -> None:
        """A host looks for one disk: others that its target has are not this node's. Raises OSError."""
        _write(f"{self._hosts}/host{host}/scan", f"0 0 {lun}")

    def scan_all(self) -> None:
        """All hosts look for new disks; one that cannot is left out."""
        for name in entries(self._hosts):
            with contextlib.suppress(OSError):
                _write(f"{self._hosts}/{name}/scan", "- - -")

    def links(self, kind: str, names: Iterable[str]) -> list[str]:
        """What links below `/dev/disk/KIND` lead to, for names that may be patterns."""
        found = []
        for name in names:
            for path in sorted(glob.glob(f"{self._disks}/{kind}/{name}")):
                if os.path.exists(path):
                    found.append(path)
        return found

    def portals(self, iqn: str) -> dict[str, int]:
        """The numbers of the hosts that are logged in to a target, by its portals."""
        found: dict[str, int] = {}
        for host, session in self._sessions_of(iqn):
            for name in entries(session):
                if not name.startswith("connection"):
                    continue
                path = f"{session}/{name}/iscsi_connection/{name}"
                with contextlib.suppress(OSError):
                    for address, port in (("address", "port"), ("persistent_address", "persistent_port")):
                        found[_joined(_read(f"{path}/{address}"), _read(f"{path}/{port}"))] = host
        return found

    def disks(self, iqn: str, lun: int) -> list[str]:
        """The names of the disks a target's unit shows as."""
        found = []
        for host, session in self._sessions_of(iqn):
            names = entries(f"{session}/target{host}:0:0/{host}:0:0:{lun}/block")
            found += names[:1]
        return found

    def _sessions_of(self, iqn: str) -> Iterable[tuple[int, str]]:
        for host in entries(self._sessions):
            number = host.removeprefix("host")
            if number == host or not number.isdigit():
                continue
            device = f"{self._sessions}/{host}/device"
            for name in entries(device):
                if not name.startswith("session"):
                    continue
                with contextlib.suppress(OSError):
                    if _read(f"{device}/{name}/iscsi_session/{name}/targetname") == iqn:
                        yield int(number), f"{device}/{name}"


def _device_name(device: str) -> str:
    return os.path.basename(os.path.realpath(device))


def _joined(address: str, port: str) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(4096).strip()


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)

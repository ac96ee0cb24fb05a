"""Disks of iSCSI targets: logged in to with the system's `iscsiadm`, joined by its multipath daemon."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final
from weakref import WeakValueDictionary

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.log import get_logger
from trio_kubelet.podinfo.doors import ObjectError
from trio_kubelet.storage.disks import iscsi_plan as plan
from trio_kubelet.storage.disks.scsi import SCSI
from trio_kubelet.storage.doors import StorageObjectsDoor
from trio_kubelet.storage.errors import Ending, NotBegun, OperationError
from trio_kubelet.storage.names import unique_name
from trio_kubelet.storage.specs import ISCSI, Spec
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.volumes.files import entries, make_dirs
from trio_kubelet.volumes.linux import mount_at
from trio_kubelet.volumes.mount_points import is_mount_point

log = get_logger(__name__)

Tool = Callable[[Sequence[str]], Awaitable[tuple[int, str]]]
"""Runs a program: exit status and output. Raises OperationError."""

_ENOUGH_PATHS: Final = 2
_FEWEST_ROUNDS: Final = 2
_ROUNDS: Final = 5
_DISK_SECONDS: Final = 30
_MULTIPATH_SECONDS: Final = 10
_LARGEST: Final = 64 << 10


class ISCSIDisks:
    """Implements `storage.doors.Disks`."""

    plugin = ISCSI

    def __init__(self, *, objects: StorageObjectsDoor | None, tool: Tool, scsi: SCSI) -> None:
        self._objects = objects
        self._tool = tool
        self._scsi = scsi
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()  # by target, while wanted

    def directory(self, spec: Spec) -> str:
        return plan.directory(plan.target_of(spec))

    def fs_type(self, spec: Spec) -> str:
        return _source(spec).fs_type

    async def attach(self, spec: Spec, directory: str) -> str:
        target, chap = plan.target_of(spec), await self._chap(spec)
        code, shown = await self._tool(plan.show_interface(target))
        if code:
            raise OperationError(f"exit status {code}")
        if target.initiator_name:
            await self._run(plan.make_interface(target, shown))
        async with self._locks.setdefault(target.iqn, trio.Lock()):
            paths = await self._paths(target, chap, plan.transport_of(shown))
            seconds = _MULTIPATH_SECONDS if len(target.portals) > 1 else 1
            joined = await self._joined(paths, seconds)
            try:
                await in_thread(spec.unique_name, _save, directory, target, spec.block)
            except OperationError as error:
                raise OperationError(str(error), Ending.UNCERTAIN) from error
        return joined or paths[0]

    async def detach(self, spec: Spec, directory: str) -> None:
        target = await in_thread(spec.unique_name, _load, directory) or plan.target_of(spec)
        disks = [
            f"/dev/{name}"
            for name in await in_thread(spec.unique_name, self._scsi.disks, target.iqn, int(target.lun))
        ]
        joined = [await in_thread(spec.unique_name, self._scsi.multipath_of, disk) for disk in disks]
        for multipath in sorted(set(joined) - {""}):
            await self._try(["multipath", "-f", multipath])
        for disk in disks:
            with contextlib.suppress(OperationError):
                await in_thread(spec.unique_name, self._scsi.delete, disk)
        async with self._locks.setdefault(target.iqn, trio.Lock()):
            plugin = os.path.dirname(os.path.dirname(directory))
            if await in_thread(spec.unique_name, _users, plugin, target) <= 1:
                await self._run(plan.log_out(target))

    def read_back(self, directory: str, block: bool) -> Iterable[tuple[str, Spec]]:
        for iface in entries(directory):
            for name in entries(f"{directory}/{iface}") if iface.startswith("iface-") else ():
                path = f"{directory}/{iface}/{name}"
                # What is mounted there hides the file. One in it is the pods', and its server may be away.
                saved = None if is_mount_point(path) else _load(path)
                target = saved or plan.target_of_directory(iface, name)
                if target is not None:
                    yield path, _found(target, block=block)

    async def _paths(self, target: plan.Target, chap: plan.Chap, transport: str) -> list[str]:
        """The disk by each portal it can be had by. Raises OperationError if that is none."""
        found: dict[str, str] = {}
        last = ""
        hosts = await in_thread(target.iqn, self._scsi.portals, target.iqn)
        for number in range(1, _ROUNDS + 1):
            for portal in target.portals:
                if portal in found:
                    continue
                try:
                    if portal not in hosts:
                        await self._run(plan.log_in(target, portal, chap))
                        hosts = await in_thread(target.iqn, self._scsi.portals, target.iqn)
                except OperationError as error:
                    last = str(error)
                    continue
                if portal not in hosts:
                    log.warning("No SCSI host for a portal after logging in", portal=portal)
                    continue
                await in_thread(target.iqn, self._scsi.scan, hosts[portal], int(target.lun))
                if not transport:
                    raise OperationError(f"could not parse iface file for {target.iface}")
                name = plan.by_path(target, portal, transport)
                if link := await self._link(name):
                    found[portal] = link
                else:
                    path = f"/dev/disk/by-path/{name}"
                    last = f"Timed out waiting for device at path {path} after {_DISK_SECONDS}s"
            if not found:
                await self._try(plan.delete_interface(target))
                raise OperationError(f"failed to get any path for iscsi disk, last err seen:\n{last}")
            if len(found) == len(set(target.portals)) or (
                len(found) >= _ENOUGH_PATHS and number >= _FEWEST_ROUNDS
            ):
                break
        return list(found.values())

    async def _link(self, name: str) -> str:
        for _ in range(_DISK_SECONDS):
            if found := await in_thread(name, self._scsi.links, "by-path", [name]):
                return found[0]
            await trio.sleep(1)
        return ""

    async def _joined(self, paths: Sequence[str], seconds: int) -> str:
        for number in range(seconds):
            for path in paths:
                if found := await in_thread(path, self._scsi.multipath_of, path):
                    return found
            if number + 1 < seconds:
                await trio.sleep(1)
        return ""

    async def _run(self, commands: Iterable[plan.Command]) -> None:
        """All of them, up to the first one whose failure matters. Raises OperationError."""
        for command in commands:
            code, output = await self._tool(command.arguments)
            if code == 0 or code in command.fine or command.failed is None:
                continue
            if command.undo:
                await self._try(command.undo)
            raise OperationError(command.failed(output, f"exit status {code}"))

    async def _try(self, command: Sequence[str]) -> None:
        """What need not succeed."""
        try:
            code, output = await self._tool(command)
        except OperationError as error:
            code, output = -1, str(error)
        if code:
            log.warning("A command failed", command=" ".join(command), status=code, output=output)

    async def _chap(self, spec: Spec) -> plan.Chap:
        source = _source(spec)
        ref, wanted = source.secret_ref, source.chap_auth_discovery or source.chap_auth_session
        secret: dict[str, str] = {}
        if wanted and ref is not None and ref.name and ref.namespace:
            where = f"couldn't get secret {ref.namespace}/{ref.name} error"
            if self._objects is None:
                raise NotBegun("cannot get kube client")
            try:
                found = await self._objects.secret(ref.namespace, ref.name)
            except ObjectError as error:
                raise NotBegun(f"{where}: {error}") from error
            if found is None:
                raise NotBegun(f'{where}: secrets "{ref.name}" not found')
            secret = {
                key: value.decode(errors="surrogateescape") for key, value in (found.data or {}).items()
            }
        return plan.Chap(source.chap_auth_discovery, source.chap_auth_session, secret)


def _source(spec: Spec) -> v1.ISCSIPersistentVolumeSource:
    assert isinstance(spec.source, v1.ISCSIPersistentVolumeSource)
    return spec.source


def _found(target: plan.Target, *, block: bool) -> Spec:
    portal = target.portals[0]
    source = v1.ISCSIPersistentVolumeSource(
        target_portal=portal,
        portals=list(target.portals[1:]),
        iqn=target.iqn,
        lun=int(target.lun),
        iscsi_interface=target.init_iface,
        initiator_name=target.initiator_name or None,
    )
    return Spec(
        unique_name=unique_name(ISCSI, f"{portal}:{target.iqn}:{target.lun}"),
        name=target.vol_name or plan.directory(target),
        plugin=ISCSI,
        source=source,
        block=block,
        device=True,
        attachable=True,
        persistent=True,
    )


def _save(directory: str, target: plan.Target, block: bool) -> None:
    """Beside a mount would be better; but this is where the kubelet looks, and what is mounted hides it."""
    make_dirs(directory)
    if block or mount_at(directory) is None:
        with open(f"{directory}/{plan.FILE}", "wb") as file:
            file.write(plan.saved(target))


def _load(directory: str) -> plan.Target | None:
    try:
        with open(f"{directory}/{plan.FILE}", "rb") as file:
            return plan.load(file.read(_LARGEST))
    except OSError:
        return None


def _users(plugin: str, target: plan.Target) -> int:
    """How many of the node's volumes are disks of the target, as filesystems and as devices."""
    prefix = f"{target.portals[0]}-{target.iqn}"
    root = plugin.removesuffix("/volumeDevices")
    return sum(
        name.startswith(prefix)
        for directory in (root, f"{root}/volumeDevices")
        for iface in entries(directory)
        if iface.startswith("iface-")
        for name in entries(f"{directory}/{iface}")
    )

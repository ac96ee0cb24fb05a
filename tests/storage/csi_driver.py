"""A CSI driver of the tests' own: a process on a unix socket that really formats and mounts loop devices.

    python -m tests.storage.csi_driver NAME DIRECTORY SOCKET [REGISTRATION_SOCKET]

DIRECTORY holds the volumes' images (`NAME.img`, made when they are first staged), the log of calls
(`calls.jsonl`, one line when a call begins and one when it ends), and `faults.json`, which is read at each
call: `{"NodeStageVolume": {"code": 13, "text": "…", "when": "before", "times": 1, "hang": 2}}`, `"crash"` or
`"garbage"` (of what is told `"after"`), with `"volume"` for one volume only. What hangs without a number of
times goes on when it is told to.
`settings.json` may say `capabilities` (names), `limit`, `topology`, `condition`, `size` (bytes of a new
image), `lie` (a volume that is published at another `target`, as a `file`, or not at all), and `fs`:
`tmpfs` instead of a disk, for ext4 does not grow without CAP_SYS_RESOURCE.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpclib.server
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from trio_kubelet.plugins.proto import registration_pb2 as registration
from trio_kubelet.storage import loop
from trio_kubelet.storage.proto import csi_pb2 as csi
from trio_kubelet.volumes.linux import MS_BIND, MS_REMOUNT, mount, mount_at, unmount

ALL = ("STAGE_UNSTAGE_VOLUME", "EXPAND_VOLUME", "GET_VOLUME_STATS")
SIZE = 16 << 20
_SET_CAPACITY = 0x4C07


class Refused(Exception):
    """A call that fails by the driver's own doing."""


class Garbage:
    """Writes something else than a message."""

    __content_subtype__ = "proto"

    def encode(self, message: object, kind: object) -> bytes:
        return b"\x0a\xff\xff\xff\xff\xffgarbage"


class Driver:
    """The services; the state is in the directory and in the kernel, so a new process goes on."""

    def __init__(self, name: str, directory: Path, socket: str) -> None:
        self.name = name
        self.directory = directory
        self.socket = socket
        self.locks: dict[str, asyncio.Lock] = {}

    def __mapping__(self) -> dict[str, Handler]:
        unary = Cardinality.UNARY_UNARY
        found = {}
        for method in (
            "NodeGetInfo",
            "NodeGetCapabilities",
            "NodeStageVolume",
            "NodeUnstageVolume",
            "NodePublishVolume",
            "NodeUnpublishVolume",
            "NodeExpandVolume",
            "NodeGetVolumeStats",
        ):
            request, answer = getattr(csi, f"{method}Request"), getattr(csi, f"{method}Response")
            handler = self._handler(method, getattr(self, _snake(method)))
            found[f"/csi.v1.Node/{method}"] = Handler(handler, unary, request, answer)
        for method, request, answer, work in (
            ("GetInfo", registration.InfoRequest, registration.PluginInfo, self.get_info),
            (
                "NotifyRegistrationStatus",
                registration.RegistrationStatus,
                registration.RegistrationStatusResponse,
                self.notify,
            ),
        ):
            path = f"/pluginregistration.Registration/{method}"
            found[path] = Handler(self._handler(method, work), unary, request, answer)
        return found

    # Faults and the log

    def _handler(self, method: str, work: Any) -> Any:
        async def handle(stream: Any) -> None:
            request = await stream.recv_message()
            key = getattr(request, "volume_id", "")
            async with self.locks.setdefault(key, asyncio.Lock()):
                self.log(method, "begin", request)
                try:
                    await self._fault(method, "before", key)
                    answer = await asyncio.to_thread(work, request)
                    garbage = await self._fault(method, "after", key)
                except GRPCError as error:
                    self.log(method, "error", request, error.message or "")
                    raise
                except (Refused, OSError, subprocess.CalledProcessError) as error:
                    self.log(method, "error", request, str(error))
                    raise GRPCError(Status.INTERNAL, str(error)) from error
                self.log(method, "end", request)
                if garbage:
                    stream._codec = Garbage()
                await stream.send_message(answer)

        return handle

    async def _fault(self, method: str, when: str, volume: str) -> bool:
        """Whether the answer is to be garbage, if it is given at all."""
        path, faults = self.directory / "faults.json", self.faults()
        fault = faults.get(method)
        if fault is None or fault.get("when", "before") != when or fault.get("volume", volume) != volume:
            return False
        if "times" in fault:
            fault["times"] -= 1
            if fault["times"] <= 0:
                del faults[method]
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(faults))
            fresh.rename(path)
        if "hang" in fault:
            until = time.monotonic() + fault["hang"]
            while time.monotonic() < until and ("times" in fault or method in self.faults()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)  # told through a file
        if fault.get("crash"):
            os._exit(3)
        if "code" in fault:
            raise GRPCError(Status(fault["code"]), fault.get("text", "told to fail"))
        return bool(fault.get("garbage"))

    def faults(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.directory / "faults.json").read_text())
        except (FileNotFoundError, ValueError):
            found = {}
        return found

    def log(self, method: str, what: str, request: Any, error: str = "") -> None:
        entry = {
            "at": time.time(),
            "method": method,
            "what": what,
            "volume": getattr(request, "volume_id", ""),
        }
        for field in ("staging_target_path", "target_path", "volume_path", "readonly"):
            if value := getattr(request, field, ""):
                entry[field] = value
        for field in ("publish_context", "volume_context", "secrets"):
            if value := dict(getattr(request, field, {})):
                entry[field] = value
        if what == "begin" and (wanted := getattr(request, "volume_capability", None)) is not None:
            entry["capability"] = str(wanted)
        if error:
            entry["error"] = error
        with (self.directory / "calls.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def settings(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.directory / "settings.json").read_text())
        except FileNotFoundError:
            found = {}
        return found

    # The services

    def get_info(self, _: registration.InfoRequest) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="CSIPlugin", name=self.name, endpoint=self.socket, supported_versions=["1.0.0"]
        )

    def notify(self, _: registration.RegistrationStatus) -> registration.RegistrationStatusResponse:
        return registration.RegistrationStatusResponse()

    def node_get_info(self, _: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        settings = self.settings()
        return csi.NodeGetInfoResponse(
            node_id=f"{self.name}-here",
            max_volumes_per_node=settings.get("limit", 0),
            accessible_topology=csi.Topology(segments=settings.get("topology", {})),
        )

    def node_get_capabilities(self, _: csi.NodeGetCapabilitiesRequest) -> csi.NodeGetCapabilitiesResponse:
        kind = csi.NodeServiceCapability.RPC
        names = self.settings().get("capabilities", ALL)
        return csi.NodeGetCapabilitiesResponse(
            capabilities=[csi.NodeServiceCapability(rpc=kind(type=kind.Type.Value(name))) for name in names]
        )

    def node_stage_volume(self, request: csi.NodeStageVolumeRequest) -> csi.NodeStageVolumeResponse:
        device = self._device(request.volume_id)
        staging = request.staging_target_path
        if not request.volume_capability.HasField("block"):
            self._mount_disk(device, staging, list(request.volume_capability.mount.mount_flags))
        return csi.NodeStageVolumeResponse()

    def node_unstage_volume(self, request: csi.NodeUnstageVolumeRequest) -> csi.NodeUnstageVolumeResponse:
        if mount_at(request.staging_target_path) is not None:
            unmount(request.staging_target_path)
        loop.detach(str(self._image(request.volume_id)))
        return csi.NodeUnstageVolumeResponse()

    def node_publish_volume(self, request: csi.NodePublishVolumeRequest) -> csi.NodePublishVolumeResponse:
        target, lie = request.target_path, self.settings().get("lie", {})
        if lie.get("volume") == request.volume_id:
            if "target" in lie:
                mount(request.staging_target_path, lie["target"], flags=MS_BIND)
            elif lie.get("file"):
                Path(target).touch()
            return csi.NodePublishVolumeResponse()
        if request.volume_capability.HasField("block"):
            if mount_at(target) is None:
                Path(target).touch()
                mount(self._device(request.volume_id), target, flags=MS_BIND)
            return csi.NodePublishVolumeResponse()
        Path(target).mkdir(exist_ok=True)
        if mount_at(target) is not None:
            return csi.NodePublishVolumeResponse()
        if not request.staging_target_path:
            self._mount_disk(self._device(request.volume_id), target, [])
        elif mount_at(request.staging_target_path) is None:
            raise GRPCError(Status.FAILED_PRECONDITION, "the volume is not staged")
        else:
            mount(request.staging_target_path, target, flags=MS_BIND)
            if request.readonly:
                mount("", target, flags=MS_BIND | 1 | 32)
        return csi.NodePublishVolumeResponse()

    def node_unpublish_volume(
        self, request: csi.NodeUnpublishVolumeRequest
    ) -> csi.NodeUnpublishVolumeResponse:
        target = Path(request.target_path)
        if mount_at(str(target)) is not None:
            unmount(str(target))
        if "STAGE_UNSTAGE_VOLUME" not in self.settings().get("capabilities", ALL):
            loop.detach(str(self._image(request.volume_id)))
        with contextlib.suppress(FileNotFoundError):
            target.rmdir() if target.is_dir() else target.unlink()
        return csi.NodeUnpublishVolumeResponse()

    def node_expand_volume(self, request: csi.NodeExpandVolumeRequest) -> csi.NodeExpandVolumeResponse:
        size, image = request.capacity_range.required_bytes, self._image(request.volume_id)
        if self._in_memory:
            mount("", request.staging_target_path, flags=MS_REMOUNT, options=f"size={size}")
            return csi.NodeExpandVolumeResponse(capacity_bytes=size)
        device = self._device(request.volume_id)
        if image.stat().st_size < size:
            os.truncate(image, size)
        with open(device, "rb") as file:
            fcntl.ioctl(file, _SET_CAPACITY)
        if not request.volume_capability.HasField("block"):
            subprocess.run(["resize2fs", device], check=True, capture_output=True)
        return csi.NodeExpandVolumeResponse(capacity_bytes=size)

    def node_get_volume_stats(self, request: csi.NodeGetVolumeStatsRequest) -> csi.NodeGetVolumeStatsResponse:
        usage = csi.VolumeUsage
        if Path(request.volume_path).is_block_device():
            total = self._image(request.volume_id).stat().st_size
            return csi.NodeGetVolumeStatsResponse(usage=[usage(unit=usage.BYTES, total=total)])
        found = os.statvfs(request.volume_path)
        size = found.f_frsize
        condition = csi.VolumeCondition(**self.settings().get("condition", {}))
        return csi.NodeGetVolumeStatsResponse(
            volume_condition=condition,
            usage=[
                usage(
                    unit=usage.BYTES,
                    total=found.f_blocks * size,
                    available=found.f_bavail * size,
                    used=(found.f_blocks - found.f_bfree) * size,
                ),
                usage(
                    unit=usage.INODES,
                    total=found.f_files,
                    available=found.f_favail,
                    used=found.f_files - found.f_ffree,
                ),
            ],
        )

    # Disks

    def _image(self, volume: str) -> Path:
        return self.directory / f"{volume}.img"

    @property
    def _in_memory(self) -> bool:
        return self.settings().get("fs") == "tmpfs"

    def _device(self, volume: str) -> str:
        if self._in_memory:
            return ""
        image = self._image(volume)
        if not image.exists():
            with image.open("wb") as file:
                file.truncate(self.settings().get("size", SIZE))
        return loop.attach(str(image))

    def _mount_disk(self, device: str, target: str, options: list[str]) -> None:
        if mount_at(target) is not None:
            return
        if self._in_memory:
            Path(target).mkdir(exist_ok=True)
            mount("tmpfs", target, "tmpfs", options=f"size={SIZE}")
            return
        # -p: what it saw on the device of this number two seconds ago was another disk.
        known = subprocess.run(["blkid", "-p", device], capture_output=True, check=False)
        if known.returncode != 0:
            subprocess.run(["mkfs.ext4", "-q", "-m0", device], check=True, capture_output=True)
        Path(target).mkdir(exist_ok=True)
        mount(device, target, "ext4", options=",".join(options))


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


async def main(name: str, directory: str, *sockets: str) -> None:
    """Serves until it is killed."""
    driver = Driver(name, Path(directory), sockets[0])
    servers = []
    for path in sockets:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        server = grpclib.server.Server([driver])
        await server.start(path=path)
        servers.append(server)
    await asyncio.gather(*(server.wait_closed() for server in servers))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

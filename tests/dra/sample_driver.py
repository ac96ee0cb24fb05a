"""A driver of dynamic resources of the tests, served over gRPC."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import trio
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message_factory import GetMessageClass

from trio_kubelet.dra.proto import health_pb2, v1_pb2
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.loop import AsyncioLoop
from trio_kubelet.grpc.server import Send, Service, serve
from trio_kubelet.plugins.proto import registration_pb2


def _older() -> FileDescriptor:
    """The service v1beta1: v1 under another name, without what came later."""
    new = descriptor_pb2.FileDescriptorProto()
    v1_pb2.DESCRIPTOR.CopyToProto(new)
    text = text_format.MessageToString(new).replace(".dra.v1", ".dra.v1beta1").replace("/v1.", "/v1beta1.")
    old = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    (device,) = (message for message in old.message_type if message.name == "Device")
    del device.field[-1], device.oneof_decl[:]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(old)
    return pool.FindFileByName(old.name)


PROTOCOLS = {"v1.DRAPlugin": v1_pb2.DESCRIPTOR, "v1beta1.DRAPlugin": _older()}


class SampleDriver:
    """Prepares one device for each claim; keeps a diary of what it was asked."""

    def __init__(self, name: str, endpoint: str, service: str = "v1.DRAPlugin") -> None:
        self.name, self.endpoint, self.service = name, endpoint, service
        self.diary: list[tuple[str, tuple[str, ...]]] = []
        self.told: list[tuple[bool, str]] = []
        self.refuse: Mapping[str, str] = {}  # by claim name
        self.mute: set[str] = set()  # claims that are left out of answers
        self.forget: set[str] = set()  # claims that are left out of answers when they are given back
        self.more: Collection[str] = ()  # claims, by UID, that nobody asked for
        self.broken = False
        self.hangs = False
        self.health: dict[str, int] = {}
        self.changed = trio.Event()

    def now(self, **health: int) -> None:
        self.health.update(health)
        self.changed.set()
        self.changed = trio.Event()

    async def prepare(self, request: Any) -> Any:
        self._ask("prepare", request)
        answer = self._message("NodePrepareResourcesResponse")
        for claim in request.claims:
            if claim.name in self.mute:
                continue
            if claim.name in self.refuse:
                answer.claims[claim.uid].error = self.refuse[claim.name]
                continue
            answer.claims[claim.uid].devices.add(
                pool_name="pool",
                device_name=f"{claim.name}-0",
                cdi_device_ids=[f"{self.name}/dev={claim.name}"],
                request_names=["gpu"],
            )
        for uid in self.more:
            answer.claims[uid].devices.add(pool_name="pool", device_name="stolen")
        return answer

    async def unprepare(self, request: Any) -> Any:
        self._ask("unprepare", request)
        if self.hangs:
            await trio.sleep_forever()
        answer = self._message("NodeUnprepareResourcesResponse")
        for claim in request.claims:
            if claim.name not in self.forget:
                answer.claims[claim.uid].error = self.refuse.get(claim.name, "")
        return answer

    def _message(self, name: str) -> Any:
        return GetMessageClass(PROTOCOLS[self.service].message_types_by_name[name])()

    def _ask(self, what: str, request: Any) -> None:
        self.diary.append((what, tuple(sorted(claim.name for claim in request.claims))))
        if self.broken:
            raise GrpcError(Code.INTERNAL, "broken")

    async def watch(self, _: Any, send: Send) -> None:
        while True:
            changed = self.changed
            devices = [
                health_pb2.DeviceHealth(
                    device=health_pb2.DeviceIdentifier(pool_name="pool", device_name=name),
                    health=health,  # type: ignore[arg-type]
                    message="as the driver says",
                    health_check_timeout_seconds=60,
                )
                for name, health in self.health.items()
            ]
            await send(health_pb2.NodeWatchResourcesResponse(devices=devices))
            await changed.wait()

    async def get_info(self, _: Any) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type="DRAPlugin", name=self.name, endpoint=self.endpoint, supported_versions=[self.service]
        )

    async def notify(self, status: registration_pb2.RegistrationStatus) -> Any:
        self.told.append((status.plugin_registered, status.error))
        return registration_pb2.RegistrationStatusResponse()

    async def serve(
        self,
        loop: AsyncioLoop,
        registration: str = "",
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves on `endpoint`, and the registration service on `registration` too."""
        answers = {"NodePrepareResources": self.prepare, "NodeUnprepareResources": self.unprepare}
        services = [
            Service(PROTOCOLS[self.service], "DRAPlugin", answers),
            Service(health_pb2.DESCRIPTOR, "DRAResourceHealth", {"NodeWatchResources": self.watch}),
        ]
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(serve, loop, self.endpoint, services))
            if registration:
                told = {"GetInfo": self.get_info, "NotifyRegistrationStatus": self.notify}
                service = Service(registration_pb2.DESCRIPTOR, "Registration", told)
                await nursery.start(partial(serve, loop, registration, [service]))
            task_status.started()

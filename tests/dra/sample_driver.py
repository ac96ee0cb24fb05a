"""A driver of dynamic resources of the tests, served over gRPC."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import trio

from trio_kubelet.dra.driver import MESSAGES
from trio_kubelet.dra.proto import health_pb2
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.loop import AsyncioLoop
from trio_kubelet.grpc.server import Send, Service, serve
from trio_kubelet.plugins.proto import registration_pb2


class SampleDriver:
    """Prepares one device for each claim; keeps a diary of what it was asked."""

    def __init__(self, name: str, endpoint: str, service: str = "v1.DRAPlugin") -> None:
        self.name, self.endpoint, self.service = name, endpoint, service
        self.diary: list[tuple[str, tuple[str, ...]]] = []
        self.told: list[tuple[bool, str]] = []
        self.refuse: Mapping[str, str] = {}  # by claim name
        self.mute: set[str] = set()  # claims that are left out of answers
        self.more: Collection[str] = ()  # claims, by UID, that nobody asked for
        self.broken = False
        self.health: dict[str, int] = {}
        self.changed = trio.Event()

    @property
    def messages(self) -> ModuleType:
        return MESSAGES[self.service]

    def now(self, **health: int) -> None:
        self.health.update(health)
        self.changed.set()
        self.changed = trio.Event()

    async def prepare(self, request: Any) -> Any:
        self._ask("prepare", request)
        m = self.messages
        answer = m.NodePrepareResourcesResponse()
        for claim in request.claims:
            if claim.name in self.mute:
                continue
            if claim.name in self.refuse:
                answer.claims[claim.uid].error = self.refuse[claim.name]
                continue
            device = m.Device(
                pool_name="pool",
                device_name=f"{claim.name}-0",
                cdi_device_ids=[f"{self.name}/dev={claim.name}"],
                request_names=["gpu"],
            )
            answer.claims[claim.uid].devices.append(device)
        for uid in self.more:
            answer.claims[uid].devices.append(m.Device(pool_name="pool", device_name="stolen"))
        return answer

    async def unprepare(self, request: Any) -> Any:
        self._ask("unprepare", request)
        answer = self.messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].error = self.refuse.get(claim.name, "")
        return answer

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
            Service(self.messages.DESCRIPTOR, "DRAPlugin", answers),
            Service(health_pb2.DESCRIPTOR, "DRAResourceHealth", {"NodeWatchResources": self.watch}),
        ]
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(serve, loop, self.endpoint, services))
            if registration:
                told = {"GetInfo": self.get_info, "NotifyRegistrationStatus": self.notify}
                service = Service(registration_pb2.DESCRIPTOR, "Registration", told)
                await nursery.start(partial(serve, loop, registration, [service]))
            task_status.started()

"""A device plugin over gRPC (`v1beta1.DevicePlugin`). `DevicePluginError` has the text of Go's client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

import trio
from google.protobuf.message import Message

from trio_kubelet.devices.doors import DevicePluginError, PluginLost
from trio_kubelet.devices.proto import plugin_pb2 as api
from trio_kubelet.devices.values import HEALTHY, Device, DevicePluginOptions
from trio_kubelet.grpc.channel import Channel
from trio_kubelet.grpc.errors import ConnectionLost, GrpcError, Unreachable
from trio_kubelet.grpc.pacing import rest

M = TypeVar("M", bound=Message)

DIAL_SECONDS: Final = 10.0
"""So long a plugin that has registered may take until it listens (kubelet: `dial`)."""
_DIAL_PAUSE: Final = 0.1
CALL_SECONDS: Final = 60.0
"""For what the kubelet sets no limit to: a plugin that hangs fails the pods that want its devices."""
PRE_START_SECONDS: Final = 30.0
"""Kubelet: `KubeletPreStartContainerRPCTimeoutInSecs`."""


class GrpcPlugin:
    """Implements `doors.DevicePlugin`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def options(self) -> DevicePluginOptions:
        """What it wants to be asked: the first call, for which a plugin that does not listen yet has time."""
        until = trio.current_time() + DIAL_SECONDS
        while True:
            try:
                found = await self._channel.unary(
                    _path("GetDevicePluginOptions"),
                    api.Empty(),
                    api.DevicePluginOptions,
                    deadline=DIAL_SECONDS,
                )
                return DevicePluginOptions(found.pre_start_required, found.get_preferred_allocation_available)
            except Unreachable as exc:
                if trio.current_time() >= until:
                    raise DevicePluginError(
                        "failed to dial device plugin: context deadline exceeded"
                    ) from exc
                await trio.sleep(_DIAL_PAUSE)
            except GrpcError as exc:
                raise DevicePluginError(f"failed to get device plugin options: {exc}") from exc

    async def watch(self, listed: Callable[[Sequence[Device]], None]) -> None:
        """Calls `listed` with each list; returns when the plugin ends its stream."""
        stream = self._channel.stream(
            _path("ListAndWatch"), api.Empty(), api.ListAndWatchResponse, opening=DIAL_SECONDS, capacity=1
        )
        try:
            async with stream as lists:
                async for each in lists:
                    began = trio.current_time()
                    listed([_device(device) for device in each.devices])
                    await rest(began)
        except GrpcError as exc:
            raise DevicePluginError(str(exc)) from exc

    async def preferred(
        self, available: Collection[str], must_include: Collection[str], size: int
    ) -> Sequence[str]:
        """Which devices it would rather give; none if it does not say."""
        one = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        request = api.PreferredAllocationRequest(container_requests=[one])
        answer = await self._call(
            "GetPreferredAllocation", request, api.PreferredAllocationResponse, CALL_SECONDS
        )
        return tuple(answer.container_responses[0].deviceIDs) if answer.container_responses else ()

    async def allocate(self, devices: Sequence[str]) -> bytes | None:
        """Its answer for one container, as it is kept in the checkpoint."""
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=devices)])
        answer = await self._call("Allocate", request, api.AllocateResponse, CALL_SECONDS)
        if not answer.container_responses:
            return None
        return answer.container_responses[0].SerializeToString(deterministic=True)

    async def pre_start(self, devices: Sequence[str]) -> None:
        """A container with the devices is about to start."""
        request = api.PreStartContainerRequest(devices_ids=devices)
        await self._call("PreStartContainer", request, api.PreStartContainerResponse, PRE_START_SECONDS)

    async def _call(self, method: str, request: Message, response: type[M], seconds: float) -> M:
        try:
            return await self._channel.unary(_path(method), request, response, deadline=seconds)
        except (Unreachable, ConnectionLost) as exc:
            raise PluginLost(str(exc)) from exc
        except GrpcError as exc:
            raise DevicePluginError(str(exc)) from exc


def _path(method: str) -> str:
    return f"/v1beta1.DevicePlugin/{method}"


def _device(device: api.Device) -> Device:
    nodes = sorted({node.ID for node in device.topology.nodes if node.ID >= 0})
    return Device(device.ID, device.health == HEALTHY, tuple(nodes))

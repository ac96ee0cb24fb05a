"""A driver of dynamic resources over gRPC, in either version of its service.

Their messages are alike on the wire, but for the `share_id` of a device, which v1beta1 does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import trio
from google.protobuf.message import Message

from trio_kubelet.dra.doors import DriverError
from trio_kubelet.dra.health import (
    DEFAULT_SECONDS,
    LONGEST_SECONDS,
    MOST_REPORTS,
    UNKNOWN,
    DeviceHealth,
    Key,
    shortened,
)
from trio_kubelet.dra.proto import health_pb2, v1_pb2
from trio_kubelet.dra.states import Claim, PreparedDevice
from trio_kubelet.grpc.channel import Channel
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.pacing import rest

M = TypeVar("M", bound=Message)

CALL_SECONDS: Final = 45.0
"""Half of the time after which the kubelet tries again."""
_OPENING_SECONDS: Final = 10.0
_TURN: Final = 500
"""Reports that are read before others have their turn."""
_HEALTH: Final = {health_pb2.HEALTHY: "Healthy", health_pb2.UNHEALTHY: "Unhealthy"}


class GrpcDriver:
    """Implements `doors.DraDriver`. `called` is told of each call: method, gRPC status and seconds."""

    def __init__(
        self, name: str, service: str, channel: Channel, called: Callable[[str, str, str, float], None]
    ) -> None:
        self.name = name
        self._service = f"k8s.io.kubelet.pkg.apis.dra.{service}"
        self._channel = channel
        self._called = called

    async def prepare(self, claims: Sequence[Claim]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """Devices by claim UID, or why a claim cannot be prepared."""
        request = v1_pb2.NodePrepareResourcesRequest(claims=_named(claims))
        answer = await self._call("NodePrepareResources", request, v1_pb2.NodePrepareResourcesResponse)
        return {
            uid: result.error
            or tuple(
                PreparedDevice(
                    pool=device.pool_name,
                    name=device.device_name,
                    share_id=device.share_id or None,
                    requests=tuple(device.request_names),
                    cdi_ids=tuple(device.cdi_device_ids),
                )
                for device in result.devices
            )
            for uid, result in answer.claims.items()
        }

    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        """By claim UID, "" or why it could not be undone."""
        request = v1_pb2.NodeUnprepareResourcesRequest(claims=_named(claims))
        answer = await self._call("NodeUnprepareResources", request, v1_pb2.NodeUnprepareResourcesResponse)
        return {uid: result.error for uid, result in answer.claims.items()}

    async def watch_health(self, told: Callable[[Mapping[Key, DeviceHealth]], None]) -> None:
        """Calls `told` with what it says of its devices, as long as it goes on. Raises DriverError, for one
        that says nothing of the kind, too.
        """
        stream = self._channel.stream(
            "/v1alpha1.DRAResourceHealth/NodeWatchResources",
            health_pb2.NodeWatchResourcesRequest(),
            health_pb2.NodeWatchResourcesResponse,
            opening=_OPENING_SECONDS,
            capacity=1,
        )
        try:
            async with stream as messages:
                async for message in messages:
                    began = trio.current_time()
                    told(await _reports(message, began))
                    await rest(began)
        except GrpcError as exc:
            raise DriverError(str(exc)) from exc

    async def _call(self, method: str, request: Message, response: type[M]) -> M:
        path = f"/{self._service}/{method}"
        began, code = trio.current_time(), Code.OK
        try:
            return await self._channel.unary(path, request, response, deadline=CALL_SECONDS)
        except GrpcError as exc:
            code = exc.code
            raise DriverError(f"{method}: {exc}") from exc
        finally:
            self._called(self.name, path, code.go_name, trio.current_time() - began)


def _named(claims: Sequence[Claim]) -> list[v1_pb2.Claim]:
    return [v1_pb2.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]


async def _reports(message: health_pb2.NodeWatchResourcesResponse, now: float) -> Mapping[Key, DeviceHealth]:
    """The latest that are kept. Others have their turns meanwhile: a message has room for ten thousands."""
    found = {}
    for number, each in enumerate(message.devices[-MOST_REPORTS:], 1):
        if not number % _TURN:
            await trio.lowlevel.checkpoint()
        seconds = float(each.health_check_timeout_seconds)
        seconds = min(seconds, LONGEST_SECONDS) if seconds > 0 else DEFAULT_SECONDS
        found[each.device.pool_name, each.device.device_name] = DeviceHealth(
            health=_HEALTH.get(each.health, UNKNOWN),
            message=shortened(each.message),
            seconds=seconds,
            until=now + seconds,
        )
    return found

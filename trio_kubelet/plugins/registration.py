"""The Registration service of a plugin, over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from trio_kubelet.grpc.channel import Channel, connect
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.loop import AsyncioLoop
from trio_kubelet.plugins.doors import NobodyListens, OpenRegistration, PluginError, RegistrationConnection
from trio_kubelet.plugins.proto import registration_pb2 as api
from trio_kubelet.plugins.states import PluginInfo

INFO_SECONDS: Final = 10.0
"""For the first call, which connects as well (kubelet: 10 s to connect, 1 s to answer)."""
NOTIFY_SECONDS: Final = 5.0
MAX_INFO: Final = 64 << 10
"""Bytes of what a plugin says of itself, some hundred mostly: a million versions take seconds to compare."""


def registrations(loop: AsyncioLoop) -> OpenRegistration:
    """How to speak with plugins."""

    @asynccontextmanager
    async def opened(path: str) -> AsyncIterator[RegistrationConnection]:
        with connect(loop, path, max_message=MAX_INFO) as channel:
            yield _Connection(channel)

    def open_registration(path: str) -> AbstractAsyncContextManager[RegistrationConnection]:
        return opened(path)

    return open_registration


class _Connection:
    """Implements `doors.RegistrationConnection`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def get_info(self) -> PluginInfo:
        """Type, name, versions."""
        path = self._channel.path
        try:
            info = await self._channel.unary(
                "/pluginregistration.Registration/GetInfo",
                api.InfoRequest(),
                api.PluginInfo,
                deadline=INFO_SECONDS,
            )
        except GrpcError as exc:
            text = f"RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {path}, "
            refused = exc.code is Code.UNAVAILABLE and "connection refused" in exc.message
            raise (NobodyListens if refused else PluginError)(f"{text}err: {exc}") from exc
        return PluginInfo(
            type=info.type,
            name=info.name,
            endpoint=info.endpoint,
            versions=tuple(info.supported_versions),
        )

    async def notify(self, registered: bool, error: str) -> None:
        """What has become of it."""
        status = api.RegistrationStatus(plugin_registered=registered, error=error)
        try:
            await self._channel.unary(
                "/pluginregistration.Registration/NotifyRegistrationStatus",
                status,
                api.RegistrationStatusResponse,
                deadline=NOTIFY_SECONDS,
            )
        except GrpcError as exc:
            raise PluginError(str(exc)) from exc

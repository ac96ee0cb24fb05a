"""Calls to drivers over their unix sockets: one connection for each socket."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self, TypeVar

from google.protobuf.message import Message

from trio_kubelet.grpc.channel import Channel, connect
from trio_kubelet.grpc.loop import AsyncioLoop

M = TypeVar("M", bound=Message)


class GrpcCalls:
    """Implements `doors.DriverCalls`; a context, which closes all connections."""

    def __init__(self, loop: AsyncioLoop) -> None:
        self._loop = loop
        self._stack = ExitStack()
        self._channels: dict[str, Channel] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def call(
        self, endpoint: str, method: str, request: Message, response: type[M], timeout: float
    ) -> M:
        channel = self._channels.get(endpoint)
        if channel is None:
            made = connect(self._loop, endpoint.removeprefix("unix://"))
            channel = self._channels[endpoint] = self._stack.enter_context(made)
        return await channel.unary(method, request, response, deadline=timeout)

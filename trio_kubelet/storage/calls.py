"""Calls to drivers over their unix sockets: one connection for each socket."""

from __future__ import annotations

from typing import Final, Self, TypeVar

from google.protobuf.message import Message

from trio_kubelet.grpc.channel import MAX_MESSAGE, Channel
from trio_kubelet.grpc.loop import AsyncioLoop

M = TypeVar("M", bound=Message)

MAX_ANSWER: Final = 64 << 10
"""Bytes of an answer that are accepted. Those of the Node service have some hundred at most, and four
megabytes of capabilities or topology, which Go's gRPC would take, hold everything else up for seconds."""


class GrpcCalls:
    """Implements `doors.DriverCalls`; a context, which closes all connections."""

    def __init__(self, loop: AsyncioLoop) -> None:
        self._loop = loop
        self._channels: dict[str, Channel] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for endpoint in list(self._channels):
            self.forget(endpoint)

    async def call(
        self, endpoint: str, method: str, request: Message, response: type[M], timeout: float
    ) -> M:
        channel = self._channels.get(endpoint)
        if channel is None:
            path = endpoint.removeprefix("unix://")
            channel = Channel(self._loop, path, window=MAX_MESSAGE, max_message=MAX_ANSWER)
            self._channels[endpoint] = channel
        return await channel.unary(method, request, response, deadline=timeout)

    def forget(self, endpoint: str) -> None:
        if (channel := self._channels.pop(endpoint, None)) is not None:
            channel.close()

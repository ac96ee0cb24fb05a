"""Calls to a gRPC server on a unix socket: the one door to plugins and drivers, and below `cri`.

    with connect(loop, path) as channel:
        info = await channel.unary("/v1.Service/GetInfo", Request(), Info, deadline=1.0)
        async with channel.stream("/v1.Service/Watch", Request(), News, opening=1.0) as news:
            async for each in news: ...

Whatever goes wrong comes out as GrpcError. A channel connects at its first call, and anew at the next one
after its connection was lost; back-off is its user's matter. grpclib and asyncio are imported with the first
call: they are a tenth of what an agent that starts would import, and many never need them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import Message

from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.grpc.doors import Sink
from trio_kubelet.grpc.loop import AsyncioLoop

if TYPE_CHECKING:
    from trio_kubelet.grpc.grpclib_calls import GrpclibCalls

M = TypeVar("M", bound=Message)

MAX_MESSAGE: Final = 4 << 20
"""Bytes of a message that are accepted: the default of Go's gRPC, which plugins are written against."""


class Channel:
    """One HTTP/2 connection to the server at a path, while there are calls. See `connect`."""

    def __init__(self, loop: AsyncioLoop, path: str, *, window: int, max_message: int) -> None:
        self.path = path
        self._loop = loop
        self._window = window
        self._max_message = max_message
        self._made: GrpclibCalls | None = None

    def close(self) -> None:
        """Ends the connection; calls in flight fail with UNAVAILABLE."""
        if self._made is not None:
            self._made.close()

    @property
    def connections(self) -> int:
        """How many connections there have been."""
        return self._made.connections if self._made is not None else 0

    @property
    def open_streams(self) -> int:
        """How many calls are under way on the wire."""
        return self._made.open_streams if self._made is not None else 0

    async def reach(self, deadline: float) -> None:
        """Connects within `deadline` seconds, unless it is connected. Raises GrpcError."""
        calls = await self._imported()
        await calls.reach(deadline)

    async def unary(
        self,
        method: str,
        request: Message,
        response: type[M],
        *,
        deadline: float,
        metadata: Mapping[str, str] | None = None,
    ) -> M:
        """The answer to one request within `deadline` seconds, which the server is told, as it is `metadata`.
        Raises GrpcError.
        """
        calls = await self._imported()
        return await calls.unary(method, request, response, deadline=deadline, metadata=metadata)

    async def raw(
        self,
        method: str,
        request: Message,
        *,
        streaming: bool,
        deadline: float,
        metadata: Mapping[str, str] | None = None,
    ) -> Sequence[bytes]:
        """All messages of an answer as they came, within `deadline` seconds. Raises GrpcError."""
        calls = await self._imported()
        return await calls.raw(method, request, streaming=streaming, deadline=deadline, metadata=metadata)

    @asynccontextmanager
    async def stream(
        self, method: str, request: Message, response: type[M], *, opening: float, capacity: int = 16
    ) -> AsyncIterator[AsyncIterator[M]]:
        """The messages of a call that the server answers for as long as it likes; leaving ends the call.

        It has to be sent within `opening` seconds. Raises GrpcError for a call that could not be begun; how
        the server ends it is told by the messages.
        """
        calls = await self._imported()
        async with calls.stream(method, request, response, opening=opening, capacity=capacity) as messages:
            yield messages

    @asynccontextmanager
    async def pour(
        self,
        method: str,
        request: Message,
        response: type[M],
        sink: Sink[M],
        *,
        opening: float,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[None]:
        """As `stream`, into a sink of the caller's own."""
        calls = await self._imported()
        async with calls.pour(method, request, response, sink, opening=opening, metadata=metadata):
            yield

    async def _imported(self) -> GrpclibCalls:
        """The connection. What it needs is imported in a thread: that would be 30 ms in one turn of the loop,
        and in the agent the first call that comes here is often one of a burst.
        """
        if self._made is None:
            await NODE_FILES.run(import_module, "trio_kubelet.grpc.grpclib_calls")
        if self._made is None:  # nor has another call made it meanwhile
            from trio_kubelet.grpc.grpclib_calls import GrpclibCalls

            sizes = {"window": self._window, "max_message": self._max_message}
            self._made = GrpclibCalls(self._loop, self.path, **sizes)
        return self._made


@contextmanager
def connect(
    loop: AsyncioLoop, path: str, *, window: int = MAX_MESSAGE, max_message: int = MAX_MESSAGE
) -> Iterator[Channel]:
    """A channel to the server at a unix socket, closed with the context.

    `window`: bytes the server may send before they are read; `max_message`: bytes of a message at most.
    """
    channel = Channel(loop, path, window=window, max_message=max_message)
    try:
        yield channel
    finally:
        channel.close()

"""The simulated runtime behind a real unix socket: gRPC, as containerd serves it.

grpclib's server runs on the asyncio loop inside Trio. A call becomes a Trio task of the service, whose end
resolves the asyncio future that the handler waits for; an event stream is fed synchronously through a bounded
queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import trio
from google.protobuf.message import Message
from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server

from trio_kubelet.cri.caller import PATHS
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.grpc import RawCodec, silence_data_frames
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.loop import AsyncioLoop, open_asyncio_loop
from trio_kubelet.sim.faults import EVENTS
from trio_kubelet.sim.service import STREAMING_LISTS, SimService

# containerd keeps as many for a slow subscriber.
_EVENT_BACKLOG: Final = 1000
_WINDOW: Final = 16 << 20
_CLOSE_SECONDS: Final = 5.0


class ServerCodec(RawCodec):
    """Requests are decoded; answers may be messages or the bytes of one."""

    def encode(self, message: Message | bytes, message_type: Any) -> bytes:
        return message if isinstance(message, bytes) else message.SerializeToString()

    def decode(self, data: bytes, message_type: Any) -> Any:
        return message_type.FromString(data)


class _Stream:
    """One client's event stream."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[cri.ContainerEventResponse | None] = asyncio.Queue(_EVENT_BACKLOG)
        self.error: CRIError | None = None

    def put(self, event: cri.ContainerEventResponse) -> None:
        """Drops the event when the client is too slow, as containerd does."""
        with contextlib.suppress(asyncio.QueueFull):
            self.queue.put_nowait(event)

    def close(self, error: CRIError | None = None) -> None:
        self.error = error
        while self.queue.full():
            self.queue.get_nowait()
        self.queue.put_nowait(None)


class _CRI:
    """Both CRI services as grpclib wants them: a mapping from paths to handlers."""

    def __init__(self, service: SimService, loop: AsyncioLoop) -> None:
        self._service = service
        self._loop = loop

    def __mapping__(self) -> dict[str, Handler]:
        handlers = {}
        for method, path in PATHS.items():
            service = cri.DESCRIPTOR.services_by_name[path.split("/")[1].rpartition(".")[2]]
            types = service.methods_by_name[method]
            streaming = types.server_streaming
            handlers[path] = Handler(
                self._handler(method),
                Cardinality.UNARY_STREAM if streaming else Cardinality.UNARY_UNARY,
                getattr(cri, types.input_type.name),
                getattr(cri, types.output_type.name),
            )
        return handlers

    def _handler(self, method: str) -> Callable[[Any], Awaitable[None]]:
        async def unary(stream: Any) -> None:
            request = await stream.recv_message()
            await stream.send_message(await self._call(self._service.call, method, request))

        async def streaming(stream: Any) -> None:
            request = await stream.recv_message()
            for message in await self._call(self._service.call_streaming, method, request):
                await stream.send_message(message)

        if method == EVENTS:
            return self._events
        return streaming if method in STREAMING_LISTS else unary

    async def _call(self, call: Callable[[str, Any], Awaitable[Any]], method: str, request: Any) -> Any:
        try:
            return await self._loop.call_trio(call, method, request)
        except CRIError as exc:
            raise GRPCError(Status(exc.code), exc.message) from None

    async def _events(self, stream: Any) -> None:
        await stream.recv_message()
        client = _Stream()
        try:
            self._service.subscribe(client)
            while (event := await client.queue.get()) is not None:
                await stream.send_message(event)
            if client.error is not None:
                raise client.error
        except CRIError as exc:
            raise GRPCError(Status(exc.code), exc.message) from None
        finally:
            self._service.events.unsubscribe(client)


class _HangingUpServer(Server):
    """A server that can also end its connections, as a process that goes away does."""

    def __init__(self, service: SimService, loop: AsyncioLoop) -> None:
        config = Configuration(http2_connection_window_size=_WINDOW, http2_stream_window_size=_WINDOW)
        super().__init__([_CRI(service, loop)], codec=ServerCodec(), config=config)
        self._protocols: weakref.WeakSet[H2Protocol] = weakref.WeakSet()

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        self._protocols.add(protocol)
        return protocol

    async def hang_up(self) -> None:
        """Ends everything."""
        self.close()
        for protocol in tuple(self._protocols):
            if hasattr(protocol, "connection"):  # absent until a client has connected
                protocol.connection.close()
        await self.wait_closed()


async def _started(service: SimService, loop: AsyncioLoop, path: str) -> _HangingUpServer:
    server = _HangingUpServer(service, loop)
    await server.start(path=path)
    return server


async def _serve(
    service: SimService,
    path: str,
    loop: AsyncioLoop,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves while the runtime is up, and anew after each restart, for ever."""
    started = False
    while True:
        server = await loop.run(_started(service, loop, path))
        if not started:
            task_status.started()
            started = True
        try:
            await service.turned()
        finally:
            with trio.move_on_after(_CLOSE_SECONDS) as scope:
                scope.shield = True
                await loop.run(server.hang_up())
            _remove(path)
        if not service.is_up:
            await service.turned()


def _remove(path: str) -> None:
    pathlib.Path(path).unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def serve(service: SimService, path: str) -> AsyncIterator[None]:
    """Serves on a unix socket until the context is left; `service.run` has to be running.

    A socket that an earlier process left behind is replaced. Raises OSError if the socket cannot be made.
    """
    silence_data_frames()
    _remove(path)
    async with open_asyncio_loop() as loop, trio.open_nursery() as nursery:
        await nursery.start(_serve, service, path, loop)
        yield
        nursery.cancel_scope.cancel()

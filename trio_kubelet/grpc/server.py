"""Small gRPC services on a unix socket: what plugins call, and the plugins and drivers of tests.

    registration = Service(api_pb2.DESCRIPTOR, "Registration", {"Register": self.register})
    await nursery.start(serve, loop, path, [registration])

What answers a method takes the request and returns the answer; one that answers with a stream takes the
request and `send`, and returns when the stream is to end. They run as Trio tasks and are cancelled when their
caller gives up. GrpcError is what the caller is told; any other error is told as UNKNOWN, as Go does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import trio
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server

from trio_kubelet.common.log import get_logger
from trio_kubelet.common.unix_socket import listen_at
from trio_kubelet.grpc.connection import MAX_MESSAGE, MessageCodec, prepare, tune_h2
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.loop import AsyncioLoop

log = get_logger(__name__)

_CLOSE_SECONDS: Final = 5.0


Send = Callable[[Message | bytes], Awaitable[None]]
"""Sends one message of a stream; waits until the peer has room for it."""

Answer = Callable[..., Awaitable[Any]]
"""`(request) -> answer`, or `(request, send) -> None`; an answer may be the bytes of a message."""


class Service(msgspec.Struct, frozen=True):
    """A service of a protocol, and what answers its methods; those without an answer are UNIMPLEMENTED."""

    protocol: FileDescriptor
    name: str
    answers: Mapping[str, Answer]

    def handlers(self, loop: AsyncioLoop) -> dict[str, Handler]:
        """As grpclib wants them: from paths to handlers."""
        handlers = {}
        for method in self.protocol.services_by_name[self.name].methods:
            answer = self.answers.get(method.name) or _unimplemented(method)
            streaming = method.server_streaming
            handlers[f"/{method.containing_service.full_name}/{method.name}"] = Handler(
                partial(_answer_stream if streaming else _answer, loop, answer, method.full_name),
                Cardinality.UNARY_STREAM if streaming else Cardinality.UNARY_UNARY,
                GetMessageClass(method.input_type),
                GetMessageClass(method.output_type),
            )
        return handlers


def _unimplemented(method: MethodDescriptor) -> Answer:
    async def refuse(*_: object) -> Message:
        text = f"unknown method {method.name} for service {method.containing_service.full_name}"
        raise GrpcError(Code.UNIMPLEMENTED, text)

    return refuse


async def _answer(loop: AsyncioLoop, answer: Answer, method: str, stream: Any) -> None:
    request = await stream.recv_message()
    await stream.send_message(await _call(loop, answer, method, request))


async def _answer_stream(loop: AsyncioLoop, answer: Answer, method: str, stream: Any) -> None:
    async def send(message: Message | bytes) -> None:
        await loop.run(stream.send_message(message))

    await _call(loop, answer, method, await stream.recv_message(), send)


async def _call(loop: AsyncioLoop, answer: Answer, method: str, *args: object) -> Any:
    try:
        return await loop.call_trio(answer, *args)
    except GrpcError as exc:
        raise GRPCError(Status(exc.code), exc.message) from None
    except Exception as exc:
        log.error("A call failed", method=method, err=exc)
        raise GRPCError(Status.UNKNOWN, str(exc)) from exc


class _Handlers:
    """What grpclib's server asks its services for."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers

    def __mapping__(self) -> dict[str, Handler]:
        return self._handlers


class _HangingUpServer(Server):
    """A server that can also end its connections, as a process that goes away does."""

    def __init__(self, handlers: _Handlers, config: Configuration, max_message: int) -> None:
        super().__init__([handlers], codec=MessageCodec(), config=config)
        self._max_message = max_message
        self._protocols: weakref.WeakSet[_Protocol] = weakref.WeakSet()

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        protocol = _Protocol(made.handler, made.config, made.h2_config, self._max_message)
        self._protocols.add(protocol)
        return protocol

    async def hang_up(self) -> None:
        """Ends everything."""
        self.close()
        for protocol in tuple(self._protocols):
            if hasattr(protocol, "connection"):  # absent until a client has connected
                protocol.connection.close()
        await self.wait_closed()


class _Protocol(H2Protocol):
    def __init__(self, handler: Any, config: Configuration, h2_config: Any, max_message: int) -> None:
        super().__init__(handler, config, h2_config)
        self._max_message = max_message

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        prepare(self.processor, self._max_message)


async def serve(
    loop: AsyncioLoop,
    path: str,
    services: Sequence[Service],
    *,
    mode: int = 0o600,
    window: int = MAX_MESSAGE,
    max_message: int = MAX_MESSAGE,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves on a unix socket until cancelled; the socket has gone then.

    What is at the path is replaced in one step. Raises OSError if the socket cannot be made.
    """
    tune_h2()
    config = Configuration(http2_connection_window_size=window, http2_stream_window_size=window)

    async def start(listening: socket.socket) -> _HangingUpServer:
        handlers = {path: handler for each in services for path, handler in each.handlers(loop).items()}
        server = _HangingUpServer(_Handlers(handlers), config, max_message)
        await server.start(sock=listening)
        return server

    listening = listen_at(path, mode)
    try:
        server = await loop.run(start(listening))
    except BaseException:
        listening.close()
        raise
    try:
        task_status.started()
        await trio.sleep_forever()
    finally:
        with trio.move_on_after(_CLOSE_SECONDS) as scope:
            scope.shield = True
            await loop.run(server.hang_up())
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

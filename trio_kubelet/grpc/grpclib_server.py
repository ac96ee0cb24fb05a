"""How `server.serve` serves: by grpclib, on the asyncio loop. Imported with the first server."""

from __future__ import annotations

import socket
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server

from trio_kubelet.common.log import get_logger
from trio_kubelet.grpc.connection import MessageCodec, PacedProtocol, prepare, tune_h2
from trio_kubelet.grpc.errors import Code, GrpcError, told
from trio_kubelet.grpc.loop import AsyncioLoop
from trio_kubelet.grpc.server import Answer, Service

log = get_logger(__name__)


def handlers(service: Service, loop: AsyncioLoop) -> dict[str, Handler]:
    """As grpclib wants them: from paths to handlers."""
    made = {}
    for method in service.protocol.services_by_name[service.name].methods:
        answer = service.answers.get(method.name) or _unimplemented(method)
        streaming = method.server_streaming
        made[f"/{method.containing_service.full_name}/{method.name}"] = Handler(
            partial(_answer_stream if streaming else _answer, loop, answer, method.full_name),
            Cardinality.UNARY_STREAM if streaming else Cardinality.UNARY_UNARY,
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
        )
    return made


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
        raise GRPCError(Status(exc.code), told(exc.message)) from None
    except Exception as exc:
        log.error("A call failed", method=method, err=exc)
        raise GRPCError(Status.UNKNOWN, told(str(exc))) from exc


class _Handlers:
    """What grpclib's server asks its services for."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers

    def __mapping__(self) -> dict[str, Handler]:
        return self._handlers


class HangingUpServer(Server):
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


class _Protocol(PacedProtocol):
    def __init__(self, handler: Any, config: Configuration, h2_config: Any, max_message: int) -> None:
        super().__init__(handler, config, h2_config)
        self._max_message = max_message

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        prepare(self.processor, self._max_message)


async def begin(
    listening: socket.socket,
    loop: AsyncioLoop,
    services: Sequence[Service],
    *,
    window: int,
    max_message: int,
) -> HangingUpServer:
    """A server that serves on a socket. To be run on the loop, as `hang_up` of what it returns."""
    tune_h2()
    config = Configuration(http2_connection_window_size=window, http2_stream_window_size=window)
    paths = {path: handler for each in services for path, handler in handlers(each, loop).items()}
    server = HangingUpServer(_Handlers(paths), config, max_message)
    await server.start(sock=listening, backlog=socket.SOMAXCONN)  # as Go listens
    return server

"""Small gRPC services on a unix socket: what plugins call, and the plugins and drivers of tests.

    registration = Service(api_pb2.DESCRIPTOR, "Registration", {"Register": self.register})
    await nursery.start(serve, loop, path, [registration])

What answers a method takes the request and returns the answer; one that answers with a stream takes the
request and `send`, and returns when the stream is to end. They run as Trio tasks and are cancelled when their
caller gives up. GrpcError is what the caller is told; any other error is told as UNKNOWN, as Go does.
The socket is there at once; what answers on it, grpclib and asyncio, is imported when somebody connects.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import msgspec
import trio
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message

from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.unix_socket import listen_at
from trio_kubelet.grpc.channel import MAX_MESSAGE
from trio_kubelet.grpc.loop import AsyncioLoop

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
    with contextlib.closing(listen_at(path, mode)) as listening:
        try:
            task_status.started()
            await trio.lowlevel.wait_readable(listening)
            await NODE_FILES.run(import_module, "trio_kubelet.grpc.grpclib_server")
            await _answer(listening, loop, services, window, max_message)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


async def _answer(
    listening: socket.socket, loop: AsyncioLoop, services: Sequence[Service], window: int, max_message: int
) -> None:
    """Serves until cancelled."""
    from trio_kubelet.grpc.grpclib_server import begin

    server = await loop.run(begin(listening, loop, services, window=window, max_message=max_message))
    try:
        await trio.sleep_forever()
    finally:
        with trio.move_on_after(_CLOSE_SECONDS) as scope:
            scope.shield = True
            await loop.run(server.hang_up())

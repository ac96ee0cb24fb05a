"""HTTP/1.1 for the tests' API server, by the shortest way.

It shares its machine with the agent that asks it, where a cluster's is elsewhere, so what it costs is in what
the agent is measured with. It answers well-behaved clients alone and knows no bounds: the agent's own server
(`trio_kubelet.server.http.serve`) takes about twice as much for a request.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import trio

from trio_kubelet.common.bare_socket import BareSocket
from trio_kubelet.common.log import get_logger
from trio_kubelet.server.http.messages import REASONS, Handler, Hijack, Request, Response, parse_target, text

log = get_logger(__name__)

_PIECE = 1 << 16


class QuickStream(trio.abc.Stream):
    """A connection whose socket, of TLS or plain, does not block. TLS begins with the first bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.bare = BareSocket(sock)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            await self.bare.send(data)
        except OSError as exc:
            raise trio.BrokenResourceError from exc

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.wait_writable(self.bare.sock)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            return await self.bare.receive(max_bytes or _PIECE)
        except OSError as exc:
            raise trio.BrokenResourceError from exc

    async def aclose(self) -> None:
        self.bare.close()
        await trio.lowlevel.checkpoint()


async def serve_quickly(
    listeners: Sequence[trio.SocketListener],
    handler: Handler,
    tls: ssl.SSLContext | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; closes the listeners."""

    async def accept(listener: trio.SocketListener) -> None:
        async with listener:
            while True:
                accepted = await listener.accept()
                sock = socket.socket(fileno=accepted.socket.detach())
                sock.setblocking(False)
                nursery.start_soon(one, sock)

    async def one(sock: socket.socket) -> None:
        try:
            if tls is not None:
                sock = tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            stream = QuickStream(sock)
            try:
                await _Connection(stream, handler).run()
            except* trio.BrokenResourceError as group:
                log.v(4).info("Connection ended", err=group)
        finally:
            sock.close()

    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(accept, listener)
        task_status.started()


class _Connection:
    def __init__(self, stream: QuickStream, handler: Handler) -> None:
        self._stream = stream
        self._handler = handler
        self._received = bytearray()
        self._certificate: bytes | None = None

    async def run(self) -> None:
        """Request after request, until the client goes or is asked to."""
        while (request := await self._request()) is not None:
            answer = await self._answer(request)
            if isinstance(answer, Hijack):
                await answer.take(self._stream, bytes(self._received))
                return
            if isinstance(answer.body, bytes):
                await self._stream.send_all(_head(answer, len(answer.body)) + answer.body)
            else:
                await self._send_pieces(answer, answer.body)

    async def _answer(self, request: Request) -> Response | Hijack:
        try:
            return await self._handler(request)
        except Exception as exc:  # as the agent's own server does
            log.error("Request failed", method=request.method, path=request.path, err=exc)
            return text(500, "Internal Server Error\n")

    async def _request(self) -> Request | None:
        """None at the end of the connection."""
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if not (data := await self._stream.receive_some(_PIECE)):
                return None
            self._received += data
        first, *lines = self._received[:end].decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = tuple((name.lower(), value.strip()) for name, _, value in pairs)
        length = int(next((value for name, value in headers if name == "content-length"), 0))
        while len(self._received) < end + 4 + length:
            if not (data := await self._stream.receive_some(_PIECE)):
                return None
            self._received += data
        body = bytes(self._received[end + 4 : end + 4 + length])
        del self._received[: end + 4 + length]
        method, target, _ = first.split(" ")
        path, query = parse_target(target)
        sock = self._stream.bare.sock
        if self._certificate is None and isinstance(sock, ssl.SSLSocket):
            self._certificate = sock.getpeercert(binary_form=True) or b""
        return Request(
            method=method,
            path=path,
            target=target,
            query=query,
            headers=headers,
            body=body,
            peer_certificate=self._certificate or None,
        )

    async def _send_pieces(self, answer: Response, body: AsyncIterator[bytes]) -> None:
        """Sends them as they come, until the client leaves."""
        async with trio.open_nursery() as nursery:

            async def until_gone() -> None:
                while await self._stream.receive_some(_PIECE):
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_gone)
            try:
                await self._stream.send_all(_head(answer, None))
                async for piece in body:
                    await self._stream.send_all(b"%x\r\n%b\r\n" % (len(piece), piece))
                await self._stream.send_all(b"0\r\n\r\n")
            finally:
                if isinstance(body, AsyncGenerator):
                    await body.aclose()
            nursery.cancel_scope.cancel()


def _head(answer: Response, length: int | None) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, '')}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    lines.append("Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}")
    return "\r\n".join((*lines, "\r\n")).encode("latin-1")

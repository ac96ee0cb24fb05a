"""Servers that do to a client what goes wrong in the field, each by a name, for probes and hooks."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import trio

from tests.kube.certs import CA

Behaviour = Callable[[trio.SocketStream], Awaitable[None]]


async def reset(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await trio.aclose_forcefully(stream)


async def close(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def silence(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def read_then_reset(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await reset(stream)


async def read_then_close(stream: trio.SocketStream) -> None:
    await stream.receive_some()


def says(answer: bytes, after: Behaviour = close) -> Behaviour:
    """Reads something, says `answer`, then `after`."""

    async def behave(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)
        await trio.sleep(0.05)
        await after(stream)

    return behave


def alert(number: int) -> Behaviour:
    """A fatal TLS alert."""
    return says(b"\x15\x03\x03\x00\x02\x02" + bytes([number]))


OK = b"HTTP/1.1 200 OK\r\n"
PLAIN: dict[str, Behaviour] = {
    "closed at once": close,
    "reset at once": reset,
    "silent": silence,
    "closed after the request": read_then_close,
    "reset after the request": read_then_reset,
    "no HTTP": says(b"hello\n"),
    "no HTTP and more": says(b"hello world, this is SSH or the like\r\nmore\r\n\r\n"),
    "a status that is no number": says(b"HTTP/1.1 abc OK\r\n\r\n"),
    "a version that is none": says(b"HTTP/9.9 200 OK\r\n\r\n"),
    "a line cut short": says(b"HTTP/1.1 200"),
    "a head cut short": says(OK + b"Content-Le"),
    "a head that is reset": says(OK + b"Content-Le", reset),
    "a head that does not end": says(OK + b"Content-Le", silence),
    "a header that is none": says(OK + b"no colon here\r\n\r\n"),
    "a body cut short": says(OK + b"Content-Length: 10\r\n\r\nabc"),
    "a body that is reset": says(OK + b"Content-Length: 10\r\n\r\nabc", reset),
    "a body that does not end": says(OK + b"Content-Length: 10\r\n\r\nabc", silence),
    "a chunk that is none": says(OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n"),
    "a chunk cut short": says(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"),
    "a length that is none": says(OK + b"Content-Length: x\r\n\r\n"),
    "two lengths": says(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "an encoding that is none": says(OK + b"Transfer-Encoding: other\r\n\r\n"),
    "long headers": says(OK + b"X-Long: " + b"x" * 100_000 + b"\r\nContent-Length: 0\r\n\r\n"),
    "TLS answers": says(b"\x15\x03\x01\x00\x02\x02\x16"),
    "an HTTP error": says(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
}
ALERTS = (
    0,
    10,
    20,
    22,
    40,
    42,
    43,
    44,
    45,
    46,
    47,
    48,
    49,
    50,
    51,
    70,
    71,
    80,
    86,
    90,
    109,
    110,
    112,
    115,
    116,
    120,
)
SECURE: dict[str, Behaviour] = {
    "closed at once": close,
    "reset at once": reset,
    "silent": silence,
    "closed after the hello": read_then_close,
    "reset after the hello": read_then_reset,
    "HTTP": says(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "other HTTP": says(b"HTTP/1.0 200 OK\r\n\r\n"),
    "no TLS": says(b"hello world\r\n"),
    "no TLS, short": says(b"hi"),
    "a record cut short": says(b"\x16\x03\x03\x00\x50abc"),
    **{f"alert {number}": alert(number) for number in ALERTS},
}


Secure = trio.SSLStream[trio.SocketStream]


def _over(context: ssl.SSLContext, behave: Callable[[Secure], Awaitable[None]]) -> Behaviour:
    async def serve(stream: trio.SocketStream) -> None:
        secure = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        await secure.do_handshake()
        await behave(secure)

    return serve


async def _reset_below(stream: Secure) -> None:
    await stream.receive_some()
    await reset(stream.transport_stream)


async def _drop_below(stream: Secure) -> None:
    await stream.receive_some()
    await stream.transport_stream.aclose()


async def _closes(stream: Secure) -> None:
    await stream.receive_some()
    await stream.aclose()


async def _answers(stream: Secure) -> None:
    await stream.receive_some()
    await stream.send_all(OK + b"Content-Length: 2\r\n\r\nok")


async def _no_http(stream: Secure) -> None:
    await stream.receive_some()
    await stream.send_all(b"hello\n")
    await stream.aclose()


async def _silent(stream: Secure) -> None:
    await trio.sleep_forever()


def tls_servers(directory: Path) -> dict[str, Behaviour]:
    """Servers whose handshake succeeds, or fails for what they ask."""
    ca = CA()
    certificate, key = ca.pair("server", hosts=("127.0.0.1",))
    path = directory / "tls.pem"
    path.write_bytes(certificate + key)

    def context(**given: object) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(path)
        for name, value in given.items():
            setattr(made, name, value)
        return made

    v12 = {"maximum_version": ssl.TLSVersion.TLSv1_2}
    wants = {"verify_mode": ssl.CERT_REQUIRED}
    return {
        "fine": _over(context(), _answers),
        "reset after the handshake": _over(context(), _reset_below),
        "dropped after the handshake": _over(context(), _drop_below),
        "closed after the handshake": _over(context(), _closes),
        "no HTTP inside": _over(context(), _no_http),
        "silent after the handshake": _over(context(), _silent),
        "silent after the handshake, 1.2": _over(context(**v12), _silent),
        "wants a certificate": _over(context(**wants), _answers),
        "wants a certificate, 1.2": _over(context(**wants, **v12), _answers),
    }


@asynccontextmanager
async def serving(behaviours: dict[str, Behaviour]) -> AsyncIterator[dict[str, int]]:
    """The ports of the servers, by name."""

    def guarded(behave: Behaviour) -> Behaviour:
        async def one(stream: trio.SocketStream) -> None:
            try:
                await behave(stream)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            finally:
                await trio.aclose_forcefully(stream)

        return one

    ports = {}
    async with trio.open_nursery() as nursery:
        for name, behave in behaviours.items():
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            ports[name] = listener.socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, guarded(behave), [listener])
        yield ports
        nursery.cancel_scope.cancel()


async def refused_port() -> int:
    """A port on which nobody listens."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listener.socket.getsockname()[1]
    await listener.aclose()
    return port


@asynccontextmanager
async def full_port() -> AsyncIterator[int]:
    """A port whose connections are not taken: what is sent to it is dropped."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        held = [socket.socket() for _ in range(4)]
        for each in held:
            each.setblocking(False)
            each.connect_ex(listening.getsockname())
        try:
            yield listening.getsockname()[1]
        finally:
            for each in held:
                each.close()


def grpc_server(headers: list[tuple[str, str]] | None, body: bytes = b"", then: str = "") -> Behaviour:
    """A server of HTTP/2 that answers the first call with `headers` and `body`; `then` is how it goes on:
    "trailers K=V", "rst N", "goaway", "close", "reset", or nothing.
    """

    async def behave(stream: trio.SocketStream) -> None:
        http = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        http.initiate_connection()
        await stream.send_all(http.data_to_send())
        call = 0
        while not call:
            data = await stream.receive_some()
            if not data:
                return
            for event in http.receive_data(data):
                if isinstance(event, h2.events.StreamEnded):
                    call = event.stream_id
            await stream.send_all(http.data_to_send())
        if headers is not None:
            http.send_headers(call, headers, end_stream=not body and not then)
        if body:
            http.send_data(call, body, end_stream=not then)
        what, _, how = then.partition(" ")
        if what == "trailers":
            name, _, value = how.partition("=")
            http.send_headers(call, [(name, value)], end_stream=True)
        elif what == "rst":
            http.reset_stream(call, int(how))
        elif what == "goaway":
            http.close_connection(int(how))
        await stream.send_all(http.data_to_send())
        with trio.move_on_after(0.1):  # unread bytes would make a reset of every close
            while await stream.receive_some():
                pass
        if what == "reset":
            await reset(stream)
        elif what != "close":
            await trio.sleep_forever()

    return behave


_SAID = [(":status", "200"), ("content-type", "application/grpc")]
GRPC: dict[str, Behaviour] = {
    "serving": grpc_server(_SAID, b"\0\0\0\0\2\x08\1", "trailers grpc-status=0"),
    "not serving": grpc_server(_SAID, b"\0\0\0\0\2\x08\2", "trailers grpc-status=0"),
    "another status": grpc_server(_SAID, b"\0\0\0\0\2\x08\x09", "trailers grpc-status=0"),
    "unknown service": grpc_server([*_SAID, ("grpc-status", "5"), ("grpc-message", "unknown%20service")]),
    "no health service": grpc_server([*_SAID, ("grpc-status", "12"), ("grpc-message", "unknown service x")]),
    "code 16": grpc_server([*_SAID, ("grpc-status", "16")]),
    "code 99": grpc_server([*_SAID, ("grpc-status", "99"), ("grpc-message", "odd")]),
    "a status that is no number": grpc_server([*_SAID, ("grpc-status", "x")]),
    "no status": grpc_server(_SAID, b"\0\0\0\0\2\x08\1"),
    "HTTP 404": grpc_server([(":status", "404"), ("content-type", "text/plain")], b"not here"),
    "HTTP 503": grpc_server([(":status", "503"), ("content-type", "text/html")], b"busy"),
    "HTTP 200 of a page": grpc_server([(":status", "200"), ("content-type", "text/html")], b"<html>"),
    "no message": grpc_server(_SAID, then="trailers grpc-status=0"),
    "a message that is none": grpc_server(_SAID, b"\0\0\0\0\2\xff\xff", "trailers grpc-status=0"),
    "a message cut short": grpc_server(_SAID, b"\0\0\0\0\x09\x08", "trailers grpc-status=0"),
    "a stream reset": grpc_server(None, then="rst 2"),
    "a stream refused": grpc_server(None, then="rst 7"),
    "a stream cancelled": grpc_server(None, then="rst 8"),
    "goaway": grpc_server(None, then="goaway 0"),
    "goaway with an error": grpc_server(None, then="goaway 2"),
    "closed after the call": grpc_server(None, then="close"),
    "reset after the call": grpc_server(None, then="reset"),
    "silent after the call": grpc_server(None),
    "silent after the head": grpc_server(_SAID, then="wait"),
}

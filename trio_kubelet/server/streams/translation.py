"""WebSocket protocols that runtimes do not speak, carried on SPDY connections that they do.

With the feature ExtendWebSocketsToKubelet an API server hands `v5.channel.k8s.io` (exec and attach: channels
can be closed one by one) and `SPDY/3.1+portforward.k8s.io` (a SPDY connection in binary messages) on to the
node as they are. Streaming servers of runtimes know only the protocols before; the node stands in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio

from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.tls import close_for_good
from trio_kubelet.server.http.messages import Hijack, Request, Response
from trio_kubelet.server.streams.options import StreamOptions
from trio_kubelet.server.streams.spdy import DATA, GOAWAY, RST_STREAM, SPDYConnection
from trio_kubelet.server.streams.upgrade import (
    BUFFER,
    TUNNEL,
    V5,
    Upgraded,
    UpgradeFailed,
    forwarded_headers,
    open_upgraded,
    say_goodbye,
    tunnel_protocols,
)
from trio_kubelet.server.streams.websocket import WebSocket, WebSocketError, switch_head

log = get_logger(__name__)

_COMMAND_PROTOCOLS: Final = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_MOST_STATUS: Final = 64 * 1024  # bytes of it: what failed and why
_LOST: Final = "the connection to the runtime ended before the command did"
_WEBSOCKET_HEADERS: Final = (
    "upgrade",
    "sec-websocket-",
    "origin",
    "x-stream-protocol-version",
    "content-length",
)


async def translate_command(
    request: Request, url: str, options: StreamOptions, idle_seconds: float
) -> Response | Hijack:
    """Exec or attach by `v5.channel.k8s.io`."""
    opened = await _open(request, url, list(_COMMAND_PROTOCOLS))
    if isinstance(opened, Response):
        return opened
    upgraded, key = opened
    tells_end = dict(upgraded.headers).get("x-stream-protocol-version") == _COMMAND_PROTOCOLS[0]

    async def take(client: trio.abc.Stream, already_read: bytes) -> None:
        spdy = SPDYConnection(upgraded.stream, upgraded.said[upgraded.head_size :])
        session = _Command(WebSocket(client, already_read), spdy, options, tells_end)
        try:
            await client.send_all(switch_head(key, V5))
            await _while_moving(session.run, idle_seconds)
            await say_goodbye(client)
        finally:
            await spdy.aclose()

    return Hijack(take)


async def tunnel_spdy(request: Request, url: str, idle_seconds: float) -> Response | Hijack:
    """Port-forward by SPDY in binary messages."""
    opened = await _open(request, url, tunnel_protocols(request))
    if isinstance(opened, Response):
        return opened
    upgraded, key = opened
    chosen = dict(upgraded.headers).get("x-stream-protocol-version", "")

    async def take(client: trio.abc.Stream, already_read: bytes) -> None:
        session = _Tunnel(WebSocket(client, already_read), upgraded)
        try:
            await client.send_all(switch_head(key, TUNNEL + chosen if chosen else ""))
            await _while_moving(session.run, idle_seconds)
            await say_goodbye(client)
        finally:
            await close_for_good(upgraded.stream)

    return Hijack(take)


async def _open(request: Request, url: str, protocols: list[str]) -> Response | tuple[Upgraded, str]:
    """The runtime's connection, switched to SPDY, and the client's WebSocket key."""
    key = request.header("sec-websocket-key") or ""
    if request.method != "GET":
        return Response(status=405, body=b"bad method")
    if not key:
        return Response(status=400, body=b"mismatch challenge/response")
    if request.header("sec-websocket-version") != "13":
        headers = (("Sec-WebSocket-Version", "13"),)
        return Response(status=400, headers=headers, body=b"missing or bad WebSocket Version")
    forwarded = [(k, v) for k, v in forwarded_headers(request) if not k.startswith(_WEBSOCKET_HEADERS)]
    forwarded += [("upgrade", "SPDY/3.1"), ("content-length", "0")]
    forwarded += [("x-stream-protocol-version", protocol) for protocol in protocols]
    try:
        return await open_upgraded(url, "POST", forwarded), key
    except UpgradeFailed as exc:
        return exc.answer


Moved = Callable[[], None]


async def _while_moving(session: Callable[[Moved], Awaitable[None]], idle_seconds: float) -> None:
    """Runs a session until it ends or nothing has moved for `idle_seconds` (0: for ever)."""
    limit = idle_seconds or float("inf")
    with trio.CancelScope() as scope:

        def moved() -> None:
            scope.deadline = trio.current_time() + limit

        moved()
        try:
            await session(moved)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, WebSocketError) as group:
            log.v(4).info("Streaming connection ended", err=group)


class _Command:
    """The channels of one command between a WebSocket client and a runtime's SPDY streams.

    `tells_end`: the runtime says how every command ended; by the protocols before v4 it says how one failed.
    """

    def __init__(
        self, client: WebSocket, runtime: SPDYConnection, options: StreamOptions, tells_end: bool
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._options = options
        self._tells_end = tells_end
        self._inputs: dict[int, int] = {}  # channel to stream
        self._outputs: dict[int, int] = {}  # stream to channel; the open ones
        self._status = bytearray()

    async def run(self, moved: Moved) -> None:
        """Until the command has ended and all it said is with the client, or the client leaves."""
        await self._open_streams()
        ready = _STDOUT if self._options.stdout else _STDERR if self._options.stderr else _ERROR
        await self._client.send(bytes([ready]))  # tells the client that the connection stands
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._upwards, moved, nursery.cancel_scope)
            await self._downwards(moved)
            if self._status:
                await self._client.send(bytes([_ERROR]) + told_status(bytes(self._status)))
            elif self._tells_end:  # or a client takes the silence for success
                await self._client.send(bytes([_ERROR]) + _internal_error(_LOST))
            await self._client.close()
            nursery.cancel_scope.cancel()

    async def _open_streams(self) -> None:
        wanted = (
            (_ERROR, "error", True),
            (_STDIN, "stdin", self._options.stdin),
            (_STDOUT, "stdout", self._options.stdout),
            (_STDERR, "stderr", self._options.stderr),
            (_RESIZE, "resize", self._options.tty),
        )
        for channel, name, is_wanted in wanted:
            if is_wanted:
                stream = await self._runtime.open_stream({"streamType": name})
                if channel in (_STDIN, _RESIZE):
                    self._inputs[channel] = stream
                else:
                    self._outputs[stream] = channel

    async def _upwards(self, moved: Moved, scope: trio.CancelScope) -> None:
        try:
            while (message := await self._client.receive()) is not None:
                moved()
                if message:
                    await self._take(message[0], message[1:])
        except (trio.BrokenResourceError, trio.ClosedResourceError, WebSocketError) as exc:
            log.v(4).info("Streaming client left", err=exc)
        scope.cancel()

    async def _take(self, channel: int, data: bytes) -> None:
        if channel == _CLOSE:
            if len(data) != 1:
                raise WebSocketError("a single channel is closed at a time")
            if (stream := self._inputs.pop(data[0], None)) is not None:
                await self._runtime.send(stream, b"", fin=True)
        elif data and (stream := self._inputs.get(channel)) is not None:
            await self._runtime.send(stream, data)

    async def _downwards(self, moved: Moved) -> None:
        while self._outputs:
            frame = await self._runtime.receive()
            if frame is None or frame.kind == GOAWAY:
                return
            moved()
            channel = self._outputs.get(frame.stream)
            if channel is None:
                continue
            if frame.kind == DATA and frame.payload:
                if channel == _ERROR:
                    self._status += frame.payload[: _MOST_STATUS - len(self._status)]
                else:
                    await self._client.send(bytes([channel]) + frame.payload)
            if frame.fin or frame.kind == RST_STREAM:
                del self._outputs[frame.stream]


def told_status(said: bytes) -> bytes:
    """The status of a command for the client, from the runtime's: one that failed otherwise than by its exit
    code is an internal error, with the runtime's words in it (as the kubelet's translation tells it). Pure.
    """
    try:
        status = decode_flat(said, _Status)
    except msgspec.DecodeError:
        return said
    if status.status != "Failure" or status.reason == "NonZeroExitCode":
        return said
    return _internal_error(status.message)


def _internal_error(message: str) -> bytes:
    return msgspec.json.encode(
        {
            "metadata": {},
            "status": "Failure",
            "message": f"Internal error occurred: {message}",
            "reason": "InternalError",
            "details": {"causes": [{"message": message}]},
            "code": 500,
        }
    )


class _Status(msgspec.Struct):
    status: str = ""
    message: str = ""
    reason: str = ""


class _Tunnel:
    """A runtime's connection in the messages of a WebSocket."""

    def __init__(self, client: WebSocket, runtime: Upgraded) -> None:
        self._client = client
        self._runtime = runtime

    async def run(self, moved: Moved) -> None:
        """Until one end closes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._upwards, moved, nursery.cancel_scope)
            data = self._runtime.said[self._runtime.head_size :]
            while True:
                if data:
                    await self._client.send(data)
                moved()
                data = bytes(await self._runtime.stream.receive_some(BUFFER))
                if not data:
                    break
            await self._client.close()
            nursery.cancel_scope.cancel()

    async def _upwards(self, moved: Moved, scope: trio.CancelScope) -> None:
        try:
            while (message := await self._client.receive()) is not None:
                moved()
                await self._runtime.stream.send_all(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError, WebSocketError) as exc:
            log.v(4).info("Streaming client left", err=exc)
        scope.cancel()

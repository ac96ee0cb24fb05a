"""Many quiet watches over one connection: HTTP/2, for the hundreds of single objects pods refer to.

A connection of its own costs each watch a TLS session here and a socket at the API server; as a stream of a
shared connection it costs a few kilobytes. There is no task behind a connection: of those who wait for
events one reads for all, and when it leaves, another one takes over.
"""

from __future__ import annotations

import math
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import trio

from trio_kubelet.kube.answer_bodies import MAX_EVENT_BYTES, LineSplitter, LineTooLong
from trio_kubelet.kube.errors import APIUnavailable, error_from
from trio_kubelet.kube.request_words import connecting

OPEN_TIMEOUT: Final = 30.0
SEND_TIMEOUT: Final = 10.0
PONG_TIMEOUT: Final = 15.0
_CHUNK: Final = 65536
_WINDOW: Final = 1 << 20


class NotShared(Exception):
    """The server does not speak HTTP/2 here: each watch needs a connection of its own."""


class _Stream:
    """One watch; an EventStream."""

    def __init__(self, connection: _Connection, number: int) -> None:
        self.number = number
        self.status = 0
        self.ended = False
        self.body = bytearray()  # of a refusal
        self.wanted = trio.Event()  # not set while its task sleeps
        self.wanted.set()
        self._connection = connection
        self._splitter = LineSplitter()
        self._ready: deque[bytes] = deque()
        self._failure = ""

    async def answered(self) -> int:
        """The status of the answer; with all of the body if it is a refusal. Raises APIUnavailable."""
        await self._connection.wait(self, lambda: self.status == 200 or (bool(self.status) and self.ended))
        return self.status

    async def next_event(self) -> bytes | None:
        await self._connection.wait(self, lambda: bool(self._ready) or self.ended)
        if self._ready:
            return self._ready.popleft()
        if self._splitter.incomplete:
            raise APIUnavailable("the watch ended within an event")
        return None

    def feed(self, data: bytes) -> None:
        """Part of the answer's body."""
        if self.status != 200:
            self.body += data[: max(0, _CHUNK - len(self.body))]
            return
        try:
            self._ready.extend(self._splitter.feed(data))
        except LineTooLong:
            self.fail(f"a watch event beyond {MAX_EVENT_BYTES} bytes")

    def fail(self, reason: str) -> None:
        """Nothing more will come; who waits is told why."""
        self._failure = self._failure or reason
        self.wanted.set()

    def check(self) -> None:
        """Raises APIUnavailable once it has failed and what came before is read."""
        if self._failure and not self._ready:
            raise APIUnavailable(self._failure)


class _Connection:
    """One HTTP/2 connection. A send that is cut short would ruin it for all, so sends are shielded."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream], ping_period: float) -> None:
        self.streams: dict[int, _Stream] = {}
        self.opening = 0
        self.closed = False
        self._stream = stream
        self._ping_period = ping_period
        self._pinged = False
        self._reading = False
        self._settled = False
        self._quiet = trio.CancelScope()
        self._sending = trio.Lock()
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))

    async def begin(self) -> None:
        """Exchanges settings. Raises APIUnavailable."""
        self._h2.initiate_connection()
        self._h2.update_settings({h2.settings.SettingCodes.ENABLE_PUSH: 0})
        self._h2.increment_flow_control_window(_WINDOW)
        await self.flush()
        while not self._settled:
            await self._pump()

    @property
    def room(self) -> bool:
        """Whether one more stream may be opened."""
        if self.closed:
            return False
        most = self._h2.remote_settings.max_concurrent_streams
        return len(self.streams) + self.opening < (most if most is not None else math.inf)

    def open(self, headers: list[tuple[str, str]]) -> _Stream:
        """A new stream in the place that was kept for it; its request is sent with the next `flush`.

        Raises APIUnavailable.
        """
        self.opening -= 1
        try:
            number = self._h2.get_next_available_stream_id()
            self._h2.send_headers(number, headers, end_stream=True)
        except h2.exceptions.H2Error as error:
            raise self.give_up(str(error)) from error
        stream = self.streams[number] = _Stream(self, number)
        return stream

    async def leave(self, stream: _Stream | None) -> None:
        """The watch is not wanted any more; the last one closes the connection."""
        if stream is not None:
            self.streams.pop(stream.number, None)
        if not self.streams and not self.opening:
            self.closed = True
            await trio.aclose_forcefully(self._stream)
        elif stream is not None and not stream.ended and not self.closed:
            try:
                self._h2.reset_stream(stream.number, h2.errors.ErrorCodes.CANCEL)
                await self.flush()
            except (h2.exceptions.H2Error, APIUnavailable):
                pass  # it ended by itself, or everything did
        self._promote()

    async def wait(self, stream: _Stream, ready: Callable[[], bool]) -> None:
        """Until `ready`; reads for everybody if nobody else does. Raises APIUnavailable."""
        await trio.lowlevel.checkpoint()
        while not ready():
            stream.check()
            if self._reading:
                stream.wanted = trio.Event()
                await stream.wanted.wait()
                continue
            self._reading = True
            try:
                while not ready():
                    stream.check()
                    await self._pump()
            finally:
                self._reading = False
                self._promote()

    def _promote(self) -> None:
        """Somebody who waits takes the reading over."""
        if not self._reading:
            for stream in self.streams.values():
                if not stream.wanted.is_set():
                    stream.wanted.set()
                    return

    async def _pump(self) -> None:
        """Takes in what comes next; asks whether the other side lives when nothing does."""
        if self.closed:
            raise self.give_up("the connection is closed")
        data = b""
        self._quiet = quiet = trio.move_on_after(PONG_TIMEOUT if self._pinged else self._ping_period)
        with quiet:
            try:
                data = bytes(await self._stream.receive_some(_CHUNK))
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise self.give_up(str(error.__cause__ or error) or "connection lost") from error
        if self.closed:
            raise self.give_up("the connection is closed")
        if quiet.cancelled_caught:
            if self._pinged:
                raise self.give_up(f"no pong within {PONG_TIMEOUT:g}s")
            self._pinged = True
            self._h2.ping(b"quiet..?")
        elif not data:
            raise self.give_up("the server closed the connection")
        else:
            self._pinged = False
            try:
                for event in self._h2.receive_data(data):
                    self._take(event)
            except h2.exceptions.ProtocolError as error:
                raise self.give_up(f"protocol error: {error}") from error
        await self.flush()

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RemoteSettingsChanged):
            self._settled = True
            return
        if isinstance(event, h2.events.ConnectionTerminated):
            self.closed = True
            for stream in self.streams.values():
                if event.error_code:
                    stream.fail(f"the server ended the connection ({event.error_code})")
                stream.ended = True  # in good order: the watch goes on over another connection
                stream.wanted.set()
            return
        stream_or_none = self.streams.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, h2.events.DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
        if stream_or_none is None:
            return
        stream = stream_or_none
        if isinstance(event, h2.events.ResponseReceived):
            status = dict(event.headers or ()).get(b":status", b"")
            if len(status) != 3 or not status.isdigit():
                stream.fail(f"the server answers with status {status[:10]!r}")
            else:
                stream.status = int(status)
        elif isinstance(event, h2.events.DataReceived):
            stream.feed(event.data or b"")
        elif isinstance(event, h2.events.StreamEnded):
            stream.ended = True
        elif isinstance(event, h2.events.StreamReset):
            stream.fail(f"the server reset the watch ({event.error_code})")
        else:
            return
        stream.wanted.set()

    def give_up(self, reason: str) -> APIUnavailable:
        """Nothing works any more; every watch is told."""
        self.closed = True
        self._quiet.cancel()  # who reads hears of it, too
        for stream in self.streams.values():
            stream.fail(reason)
        return APIUnavailable(reason)

    async def flush(self) -> None:
        """Sends what is to be sent. Raises APIUnavailable."""
        async with self._sending:
            data = self._h2.data_to_send()
            if not data or self.closed:
                return
            with trio.move_on_after(SEND_TIMEOUT, shield=True) as scope:
                try:
                    await self._stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    raise self.give_up(str(error.__cause__ or error) or "connection lost") from error
            if scope.cancelled_caught:
                raise self.give_up(f"nothing could be sent within {SEND_TIMEOUT:g}s")


class SharedWatches:
    """Opens watches as streams of shared connections, one connection as long as the server allows."""

    def __init__(self) -> None:
        self._connections: dict[ssl.SSLContext, list[_Connection]] = {}
        self._dialling = trio.Lock()

    @asynccontextmanager
    async def open(
        self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext, server_name: str, ping_period: float
    ) -> AsyncIterator[_Stream]:
        """A watch at `url`. Raises NotShared, APIUnavailable, and APIError when the server refuses.

        `server_name` is the name the certificate has to carry, "" for the URL's.
        """
        parts = urlsplit(url)
        connection = await self._connection(url, tls, server_name, ping_period)
        stream: _Stream | None = None
        try:
            stream = connection.open(
                [
                    (":method", "GET"),
                    (":authority", parts.netloc.rpartition("@")[2]),
                    (":scheme", "https"),
                    (":path", f"{parts.path or '/'}?{parts.query}"),
                    ("accept", "application/json"),
                    *((key.lower(), value) for key, value in headers.items()),
                ]
            )
            with trio.fail_after(OPEN_TIMEOUT):
                await connection.flush()
                status = await stream.answered()
            if status != 200:
                raise error_from(status, bytes(stream.body))
            yield stream
        except trio.TooSlowError:
            # Nobody should try again over a connection that may be dead.
            raise connection.give_up(f"watch {parts.path}: no answer within {OPEN_TIMEOUT:g}s") from None
        finally:
            with trio.CancelScope(shield=True):
                await connection.leave(stream)

    async def _connection(
        self, url: str, tls: ssl.SSLContext, server_name: str, ping_period: float
    ) -> _Connection:
        """A connection with room for one more, which is taken."""
        async with self._dialling:
            alive = [c for c in self._connections.get(tls, ()) if not c.closed]
            found = next((c for c in alive if c.room), None)
            if found is None:
                found = await _dial(url, tls, server_name, ping_period)
                alive.append(found)
            # What no watch uses any more is forgotten with its identity.
            self._connections = {
                context: kept
                for context, connections in {**self._connections, tls: alive}.items()
                if (kept := [c for c in connections if not c.closed])
            }
            found.opening += 1
            return found


async def _dial(url: str, tls: ssl.SSLContext, server_name: str, ping_period: float) -> _Connection:
    parts = urlsplit(url)
    host = parts.hostname or ""
    with connecting(url):
        plain = await trio.open_tcp_stream(host, parts.port or 443)
        try:
            secure = _over_tls(plain, tls, server_name or host)
            await secure.do_handshake()
            if secure.selected_alpn_protocol() != "h2":
                raise NotShared
            connection = _Connection(secure, ping_period)
            await connection.begin()
        except BaseException:
            await trio.aclose_forcefully(plain)
            raise
        return connection


def _over_tls(
    plain: trio.SocketStream, tls: ssl.SSLContext, server_name: str
) -> trio.SSLStream[trio.SocketStream]:
    """TLS that offers HTTP/2. The context is shared with those who do not speak it: a session takes the
    offer over when it is made, so the context has it only for that moment.
    """
    tls.set_alpn_protocols(["h2", "http/1.1"])
    try:
        return trio.SSLStream(plain, tls, server_hostname=server_name, https_compatible=True)
    finally:
        tls.set_alpn_protocols(["http/1.1"])

"""The gRPC probe: one `grpc.health.v1.Health/Check` over cleartext HTTP/2.

Spoken with h2 directly on a Trio socket: one unary call on a fresh connection needs no channel, and so
no asyncio loop. Texts follow the kubelet (`pkg/probe/grpc`).
"""

from __future__ import annotations

from http import HTTPStatus

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import trio

from trio_kubelet.common.duration import format_duration
from trio_kubelet.common.go_words import (
    DEADLINE_EXCEEDED,
    EOF,
    UNEXPECTED_EOF,
    connection_words,
    parse_integer,
)
from trio_kubelet.common.log import go_quote
from trio_kubelet.grpc.errors import Code
from trio_kubelet.grpc.framing import (
    CONTENT_TYPE,
    HTTP_CODES,
    PREFIX,
    call_headers,
    frame,
    read_prefix,
    told_message,
)
from trio_kubelet.net.dial import DialError, join_host_port
from trio_kubelet.net.http import USER_AGENT
from trio_kubelet.net.wire import open_wire
from trio_kubelet.observed.probes import Outcome, Verdict

SERVING_STATUS = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_KNOWN = frozenset(Code)
MAX_ANSWER = 64 * 1024
MAX_RECEIVED = 256 * 1024
MAX_EVENTS = 1000
"""Of all that a server says to one check: frames that answer nothing could come without end. (An answer is
five frames or so.)
"""
_MOST_AT_ONCE = 4 * 1024  # as everything else waits while it is parsed, and may be hundreds of frames
_NOT_READ = "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data"
# How grpc-go reads codes of RST_STREAM.
_REFUSED_STREAM = 7
_RESETS = {
    0: "NO_ERROR",
    1: "PROTOCOL_ERROR",
    2: "INTERNAL_ERROR",
    3: "FLOW_CONTROL_ERROR",
    4: "SETTINGS_TIMEOUT",
    5: "STREAM_CLOSED",
    6: "FRAME_SIZE_ERROR",
    7: "REFUSED_STREAM",
    8: "CANCEL",
    9: "COMPRESSION_ERROR",
    10: "CONNECT_ERROR",
    11: "ENHANCE_YOUR_CALM",
    12: "INADEQUATE_SECURITY",
    13: "HTTP_1_1_REQUIRED",
}
_RESET_CODES = {7: 14, 8: 1, 11: 8, 12: 7}
_CONFIG = h2.config.H2Configuration(
    header_encoding="utf-8",
    validate_outbound_headers=False,  # a fifth of the CPU time of a check
    normalize_outbound_headers=False,
    split_outbound_cookies=False,
)


class _Failed(Exception):
    """The call ended with a gRPC status other than OK."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def probe_grpc(host: str, port: int, service: str, timeout: float) -> Outcome:
    """Asks the health service; SERVING is success."""
    address = join_host_port(host, port)
    call = _Call(address if host else f"localhost:{port}", service)
    try:
        with trio.fail_after(timeout):
            wire = await open_wire(host, port)
            try:
                status = await call.check(wire)
            finally:
                wire.close()
    except trio.TooSlowError:
        return Outcome(Verdict.FAILURE, _too_slow(call.connected, address, timeout))
    except _Failed as exc:
        return Outcome(Verdict.FAILURE, _failure_text(exc.code, str(exc), timeout))
    except (DialError, trio.BrokenResourceError, h2.exceptions.ProtocolError) as exc:
        if not call.connected:
            # Go's dialer keeps trying until the time is up, and then tells only that.
            return Outcome(Verdict.FAILURE, _too_slow(False, address, timeout))
        why = connection_words(exc).removeprefix("read: ")
        return Outcome(Verdict.FAILURE, _failure_text(14, f"error reading from server: {why}", timeout))
    if status != 1:
        shown = SERVING_STATUS.get(status, str(status))
        return Outcome(Verdict.FAILURE, f'service unhealthy (responded with "{shown}")')
    return Outcome(Verdict.SUCCESS, "service healthy")


def _too_slow(connected: bool, address: str, timeout: float) -> str:
    time = format_duration(timeout)
    if connected:
        return f"timeout: health rpc did not complete within {time}"
    return f'timeout: failed to connect service "{address}" within {time}: {DEADLINE_EXCEEDED}'


def _failure_text(code: int, message: str, timeout: float) -> str:
    if code == 12:
        server = "this server does not implement the grpc health protocol (grpc.health.v1.Health)"
        return f"error: {server}: {message}"
    if code == 4:
        return f"timeout: health rpc did not complete within {format_duration(timeout)}"
    name = Code(code).go_name if code in _KNOWN else f"Code({code})"
    return f"error: health rpc probe failed: rpc error: code = {name} desc = {message}"


def encode_request(service: str) -> bytes:
    """A length-prefixed HealthCheckRequest: field 1, the service's name."""
    name = service.encode()
    if len(name) > 0x3FFF:
        raise ValueError("service name too long")
    length = bytes([len(name)]) if len(name) < 0x80 else bytes([len(name) & 0x7F | 0x80, len(name) >> 7])
    message = b"\x0a" + length + name if name else b""
    return frame(message)


def ask(http: h2.connection.H2Connection, authority: str, service: str) -> int:
    """Writes the call; the number of its stream."""
    call: int = http.get_next_available_stream_id()
    headers = call_headers("/grpc.health.v1.Health/Check", authority, USER_AGENT)
    http.send_headers(call, list(headers.items()))
    http.send_data(call, encode_request(service), end_stream=True)
    return call


def decode_status(body: bytes) -> int:
    """The status in a length-prefixed HealthCheckResponse: field 1, a varint; the last one wins."""
    if not body:
        told = "received no response message from non-server-streaming RPC"
        raise _Failed(13, f"cardinality violation: {told}")
    if len(body) < PREFIX or (found := read_prefix(body)).length > len(body) - PREFIX:
        raise _Failed(13, UNEXPECTED_EOF)
    if found.compressed or found.length != len(body) - PREFIX:
        raise _Failed(13, _NOT_READ)
    status, at = 0, PREFIX
    while at < len(body):
        if body[at] != 0x08 or at + 1 >= len(body) or body[at + 1] >= 0x80:
            raise _Failed(13, _NOT_READ)
        status, at = body[at + 1], at + 2
    return status


class _Call:
    """One call. `connected` once the server has shown that it speaks HTTP/2."""

    def __init__(self, authority: str, service: str) -> None:
        self._authority = authority
        self._service = service
        self._body = bytearray()
        self._headers = dict[str, str]()
        self.connected = False

    async def check(self, stream: trio.abc.Stream) -> int:
        """The status of the service. Raises _Failed, h2's ProtocolError, trio.BrokenResourceError."""
        http = h2.connection.H2Connection(config=_CONFIG)
        http.initiate_connection()
        call = ask(http, self._authority, self._service)
        await stream.send_all(http.data_to_send())
        received = events = 0
        while received < MAX_RECEIVED and events < MAX_EVENTS:
            data = await stream.receive_some(_MOST_AT_ONCE)
            if not data:
                raise trio.BrokenResourceError(EOF)
            received += len(data)
            for event in http.receive_data(bytes(data)):
                events += 1
                if isinstance(event, h2.events.RemoteSettingsChanged):
                    self.connected = True
                elif isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                    self._headers.update((str(k), str(v)) for k, v in event.headers or ())
                elif isinstance(event, h2.events.DataReceived):
                    self._body += event.data or b""
                    if len(self._body) > MAX_ANSWER:
                        raise _Failed(8, "answer too large")
                    http.acknowledge_received_data(event.flow_controlled_length or 0, call)
                elif isinstance(event, h2.events.StreamReset):
                    raise _reset(int(event.error_code or 0))
                elif isinstance(event, h2.events.ConnectionTerminated):
                    raise trio.TooSlowError  # Go tries again until the time is up
                elif isinstance(event, h2.events.StreamEnded):
                    return self._verdict()
            await stream.send_all(http.data_to_send())
        raise _Failed(8, "answer too large")

    def _verdict(self) -> int:
        """The answer is complete. Raises _Failed."""
        status, kind = self._headers.get(":status", ""), self._headers.get("content-type", "")
        code = self._headers.get("grpc-status")
        if status != "200" or not kind.startswith(CONTENT_TYPE):
            raise _no_grpc(status, kind)
        if code is None:
            raise _Failed(13, "server closed the stream without sending trailers")
        try:
            number = parse_integer(code, "ParseInt", 32)
        except ValueError as exc:
            raise _Failed(2, f"transport: malformed grpc-status: {exc}") from None
        if number != 0:
            raise _Failed(number & 0xFFFF_FFFF, told_message(self._headers))
        return decode_status(bytes(self._body))


def _no_grpc(status: str, kind: str) -> _Failed:
    """An answer of a server that does not speak gRPC."""
    told = f"unexpected HTTP status code received from server: {status} ({_phrase(status)})"
    if not kind:
        told += "; malformed header: missing HTTP content-type"
    elif not kind.startswith(CONTENT_TYPE):
        told += f"; transport: received unexpected content-type {go_quote(kind)}"
    return _Failed(HTTP_CODES.get(status, Code.UNKNOWN), told)


def _phrase(status: str) -> str:
    try:
        return HTTPStatus(parse_integer(status)).phrase
    except ValueError:
        return ""


def _reset(code: int) -> _Failed:
    """The server has reset the stream."""
    if code == _REFUSED_STREAM:
        raise trio.TooSlowError  # Go tries again until the time is up
    name = _RESETS.get(code, f"unknown error code 0x{code:x}")
    return _Failed(_RESET_CODES.get(code, 13), f"stream terminated by RST_STREAM with error code: {name}")

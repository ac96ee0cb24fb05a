"""The gRPC probe: one `grpc.health.v1.Health/Check` over cleartext HTTP/2.

Spoken with h2 directly on a Trio socket: one unary call on a fresh connection needs no channel, and so
no asyncio loop. Texts follow the kubelet (`pkg/probe/grpc`).
"""

from __future__ import annotations

from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import trio

from trio_kubelet.common.duration import format_duration
from trio_kubelet.net.dial import DialError, dial, join_host_port
from trio_kubelet.net.http import USER_AGENT
from trio_kubelet.observed.probes import Outcome, Verdict

SERVING_STATUS = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
CODES = {
    1: "Canceled",
    2: "Unknown",
    3: "InvalidArgument",
    4: "DeadlineExceeded",
    5: "NotFound",
    6: "AlreadyExists",
    7: "PermissionDenied",
    8: "ResourceExhausted",
    9: "FailedPrecondition",
    10: "Aborted",
    11: "OutOfRange",
    12: "Unimplemented",
    13: "Internal",
    14: "Unavailable",
    15: "DataLoss",
    16: "Unauthenticated",
}
MAX_ANSWER = 64 * 1024


class _Failed(Exception):
    """The call ended with a gRPC status other than OK."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def probe_grpc(host: str, port: int, service: str, timeout: float) -> Outcome:
    """Asks the health service; SERVING is success."""
    address = join_host_port(host, port)
    connected = False
    try:
        with trio.fail_after(timeout):
            stream = await dial(host, port)
            connected = True
            try:
                status = await _check(stream, address if host else f"localhost:{port}", service)
            finally:
                await trio.aclose_forcefully(stream)
    except trio.TooSlowError:
        return Outcome(Verdict.FAILURE, _too_slow(connected, address, timeout))
    except DialError as exc:
        # Go's dialer keeps trying until the time is up, and then tells only that.
        return Outcome(Verdict.FAILURE, f"{_too_slow(False, address, timeout)} ({exc})")
    except _Failed as exc:
        return Outcome(Verdict.FAILURE, _failure_text(exc.code, str(exc), timeout))
    except (OSError, trio.BrokenResourceError, h2.exceptions.ProtocolError) as exc:
        return Outcome(Verdict.FAILURE, _failure_text(14, str(exc) or "connection lost", timeout))
    if status != 1:
        shown = SERVING_STATUS.get(status, str(status))
        return Outcome(Verdict.FAILURE, f'service unhealthy (responded with "{shown}")')
    return Outcome(Verdict.SUCCESS, "service healthy")


def _too_slow(connected: bool, address: str, timeout: float) -> str:
    time = format_duration(timeout)
    if connected:
        return f"timeout: health rpc did not complete within {time}"
    return f'timeout: failed to connect service "{address}" within {time}: context deadline exceeded'


def _failure_text(code: int, message: str, timeout: float) -> str:
    if code == 12:
        server = "this server does not implement the grpc health protocol (grpc.health.v1.Health)"
        return f"error: {server}: {message}"
    if code == 4:
        return f"timeout: health rpc did not complete within {format_duration(timeout)}"
    name = CODES.get(code, f"Code({code})")
    return f"error: health rpc probe failed: rpc error: code = {name} desc = {message}"


def encode_request(service: str) -> bytes:
    """A length-prefixed HealthCheckRequest: field 1, the service's name."""
    name = service.encode()
    if len(name) > 0x3FFF:
        raise ValueError("service name too long")
    length = bytes([len(name)]) if len(name) < 0x80 else bytes([len(name) & 0x7F | 0x80, len(name) >> 7])
    message = b"\x0a" + length + name if name else b""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def decode_status(body: bytes) -> int:
    """The status in a length-prefixed HealthCheckResponse: field 1, a varint; the last one wins."""
    if len(body) < 5 or body[0] != 0 or int.from_bytes(body[1:5], "big") != len(body) - 5:
        raise _Failed(13, "malformed answer")
    status, at = 0, 5
    while at < len(body):
        if body[at] != 0x08 or at + 1 >= len(body) or body[at + 1] >= 0x80:
            raise _Failed(13, "malformed answer")
        status, at = body[at + 1], at + 2
    return status


async def _check(stream: trio.abc.Stream, authority: str, service: str) -> int:
    http = h2.connection.H2Connection(config=h2.config.H2Configuration(header_encoding="utf-8"))
    http.initiate_connection()
    call = http.get_next_available_stream_id()
    http.send_headers(
        call,
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/grpc.health.v1.Health/Check"),
            (":authority", authority),
            ("content-type", "application/grpc"),
            ("user-agent", USER_AGENT),
            ("te", "trailers"),
        ],
    )
    http.send_data(call, encode_request(service), end_stream=True)
    await stream.send_all(http.data_to_send())
    body, headers = bytearray(), dict[str, str]()
    while True:
        data = await stream.receive_some(16 * 1024)
        if not data:
            raise _Failed(14, "connection closed")
        for event in http.receive_data(bytes(data)):
            if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                headers.update((str(k), str(v)) for k, v in event.headers or ())
            elif isinstance(event, h2.events.DataReceived):
                body += event.data or b""
                if len(body) > MAX_ANSWER:
                    raise _Failed(8, "answer too large")
                http.acknowledge_received_data(event.flow_controlled_length or 0, call)
            elif isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)):
                raise _Failed(14, "stream reset by the server")
            elif isinstance(event, h2.events.StreamEnded):
                code = headers.get("grpc-status", "")
                if code != "0":
                    told = headers.get("grpc-message", f"unexpected HTTP status {headers.get(':status')}")
                    raise _Failed(int(code) if code.isdecimal() else 2, unquote(told))
                return decode_status(bytes(body))
        await stream.send_all(http.data_to_send())

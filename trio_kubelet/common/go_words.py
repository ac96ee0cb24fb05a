"""Errors in the words that users of the kubelet know: Python's, OpenSSL's and Trio's as Go says them.

One table for everything that a user reads in an event, a condition, a message or the log: probes, hooks,
mounts and calls of the API server. Pure. What an error was about (a URL, a path) is the caller's to put in
front.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import trio

from trio_kubelet.common.error_groups import leaves
from trio_kubelet.common.log import go_quote

DEADLINE_EXCEEDED: Final = "context deadline exceeded"
PLAIN_HTTP: Final = "http: server gave HTTP response to HTTPS client"
NO_TLS: Final = "tls: first record does not look like a TLS handshake"
EOF: Final = "EOF"
UNEXPECTED_EOF: Final = "unexpected EOF"

_ALERTS: Final = {
    10: "unexpected message",
    20: "bad record MAC",
    21: "decryption failed",
    22: "record overflow",
    30: "decompression failure",
    40: "handshake failure",
    42: "bad certificate",
    43: "unsupported certificate",
    44: "revoked certificate",
    45: "expired certificate",
    46: "unknown certificate",
    47: "illegal parameter",
    48: "unknown certificate authority",
    49: "access denied",
    50: "error decoding message",
    51: "error decrypting message",
    60: "export restriction",
    70: "protocol version not supported",
    71: "insufficient security level",
    80: "internal error",
    86: "inappropriate fallback",
    90: "user canceled",
    100: "no renegotiation",
    109: "missing extension",
    110: "unsupported extension",
    111: "certificate unobtainable",
    112: "unrecognized name",
    113: "bad certificate status response",
    114: "bad certificate hash value",
    115: "unknown PSK identity",
    116: "certificate required",
    120: "no application protocol",
}
# OpenSSL's names of alerts that the peer has sent, where they are not `…_ALERT_` and the alert's name.
_ALERT_NAMES: Final = {
    "UNEXPECTED_MESSAGE": 10,
    "BAD_RECORD_MAC": 20,
    "DECRYPTION_FAILED": 21,
    "RECORD_OVERFLOW": 22,
    "DECOMPRESSION_FAILURE": 30,
    "HANDSHAKE_FAILURE": 40,
    "BAD_CERTIFICATE": 42,
    "UNSUPPORTED_CERTIFICATE": 43,
    "CERTIFICATE_REVOKED": 44,
    "CERTIFICATE_EXPIRED": 45,
    "CERTIFICATE_UNKNOWN": 46,
    "ILLEGAL_PARAMETER": 47,
    "UNKNOWN_CA": 48,
    "ACCESS_DENIED": 49,
    "DECODE_ERROR": 50,
    "DECRYPT_ERROR": 51,
    "EXPORT_RESTRICTION": 60,
    "PROTOCOL_VERSION": 70,
    "INSUFFICIENT_SECURITY": 71,
    "INTERNAL_ERROR": 80,
    "INAPPROPRIATE_FALLBACK": 86,
    "USER_CANCELLED": 90,
    "NO_RENEGOTIATION": 100,
    "MISSING_EXTENSION": 109,
    "UNSUPPORTED_EXTENSION": 110,
    "CERTIFICATE_UNOBTAINABLE": 111,
    "UNRECOGNIZED_NAME": 112,
    "BAD_CERTIFICATE_STATUS_RESPONSE": 113,
    "BAD_CERTIFICATE_HASH_VALUE": 114,
    "UNKNOWN_PSK_IDENTITY": 115,
    "CERTIFICATE_REQUIRED": 116,
    "NO_APPLICATION_PROTOCOL": 120,
}
_TLS: Final = {
    "WRONG_VERSION_NUMBER": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "PACKET_LENGTH_TOO_LONG": NO_TLS,
    "HTTP_REQUEST": PLAIN_HTTP,
    "UNSUPPORTED_PROTOCOL": "tls: server selected unsupported protocol version",
    "NO_PROTOCOLS_AVAILABLE": "tls: no supported versions satisfy MinVersion and MaxVersion",
    "UNEXPECTED_EOF_WHILE_READING": UNEXPECTED_EOF,
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "local error: tls: bad record MAC",
    "EE_KEY_TOO_SMALL": "tls: server's certificate contains an RSA key of a size that is not accepted",
    "DH_KEY_TOO_SMALL": "tls: handshake failure",
}
_UNVERIFIED: Final = "tls: failed to verify certificate: x509: "
# X509_V_ERR_… of OpenSSL.
_VERIFY: Final = {
    9: "certificate has expired or is not yet valid",
    10: "certificate has expired or is not yet valid",
    2: "certificate signed by unknown authority",
    18: "certificate signed by unknown authority",
    19: "certificate signed by unknown authority",
    20: "certificate signed by unknown authority",
    21: "certificate signed by unknown authority",
    7: "certificate signed by unknown authority",
    24: "invalid certificate: not authorized to sign other certificates",
    25: "too many intermediates for path length constraint",
    26: "certificate specifies an incompatible key usage",
    79: "invalid certificate: not authorized to sign other certificates",
    62: "certificate is valid for other names",
    64: "certificate is valid for other addresses",
}


_LONGEST: Final = 20
"""Digits of a number of 64 bits."""


def parse_integer(text: str, function: str = "Atoi", bits: int = 64) -> int:
    """A decimal number as Go's `strconv.Atoi`, `ParseInt` or `ParseUint` (no sign) reads it.

    Raises ValueError in the words of that function.
    """
    has_sign = function != "ParseUint" and text.startswith(("+", "-"))
    digits = text[1:] if has_sign else text
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"strconv.{function}: parsing {go_quote(text)}: invalid syntax")
    digits = digits.lstrip("0") or "0"
    if len(digits) <= _LONGEST:  # Python refuses to read very long ones
        number = -int(digits) if text.startswith("-") else int(digits)
        limit = 1 << (bits - 1)
        if 0 <= number < 2 * limit if function == "ParseUint" else -limit <= number < limit:
            return number
    raise ValueError(f"strconv.{function}: parsing {go_quote(text)}: value out of range")


def errno_words(number: int) -> str:
    """What Go says for an error number of Linux."""
    words = os.strerror(number)
    if words.startswith("Unknown error") or number == 133:  # EHWPOISON is not in Go's table
        return f"errno {number}"
    return words if words.startswith("RFS") else words[:1].lower() + words[1:]


def alert_words(number: int) -> str:
    """A fatal TLS alert of the peer."""
    return EOF if number == 0 else f"remote error: tls: {_ALERTS.get(number, f'alert({number})')}"


class LookupFailure(socket.gaierror):
    """A name has no address; `server` is the name server that was asked first, as `address:port`, `silent` if
    it did not answer.
    """

    def __init__(self, error: socket.gaierror, server: str, *, silent: bool = False) -> None:
        super().__init__(error.errno, error.strerror)
        self.server = server
        self.silent = silent


def lookup_words(error: socket.gaierror) -> str:
    """Why a name has no address."""
    if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
        return "no such host"
    if isinstance(error, LookupFailure) and error.silent:
        return f"read udp {error.server}: i/o timeout"
    return "server misbehaving"


def tls_words(error: ssl.SSLError) -> str:
    """What went wrong with a TLS connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        wanted = error.verify_message.rpartition("not valid for '")[2].rstrip("'.")
        known = _VERIFY.get(error.verify_code)
        if known is None:
            return _UNVERIFIED + error.verify_message
        return _UNVERIFIED + known + (f", not {wanted}" if error.verify_code in (62, 64) else "")
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return EOF
    reason = error.reason or ""
    before, mark, name = reason.partition("_ALERT_")
    name = name if mark else before.removeprefix("TLSV1_").removeprefix("TLSV13_")
    if reason.startswith(("SSLV3_", "TLSV1_", "TLSV13_")) and name in _ALERT_NAMES:
        return alert_words(_ALERT_NAMES[name])
    return _TLS.get(reason) or f"tls: {reason.replace('_', ' ').lower() or 'handshake failure'}"


def os_words(error: OSError) -> str:
    """The reason of an OSError, without what it was about."""
    if isinstance(error, ssl.SSLError):
        return tls_words(error)
    if isinstance(error, socket.gaierror):
        return lookup_words(error)
    if error.errno is not None and error.strerror in (None, os.strerror(error.errno)):
        return errno_words(error.errno)
    if isinstance(error, TimeoutError) and not str(error):
        return "i/o timeout"
    return error.strerror or str(error) or type(error).__name__


def path_words(operation: str, error: OSError) -> str:
    """As Go's errors about paths: `open /a/b: no such file or directory`."""
    about = [operation] if operation and error.filename is not None else []
    about += [
        os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)
    ]
    return f"{' '.join(about)}: {os_words(error)}" if about else os_words(error)


def connection_words(error: BaseException) -> str:
    """Why a connection broke."""
    for cause in _chain(error):
        if isinstance(cause, trio.TooSlowError):
            return DEADLINE_EXCEEDED
        if isinstance(cause, ssl.SSLError | socket.gaierror):
            return os_words(cause)
        if isinstance(cause, OSError) and cause.errno is not None:
            return system_words("read", cause)
    return next((str(cause) for cause in _chain(error) if str(cause)), EOF)


def dial_words(error: BaseException, host: str, address: str) -> str:
    """Why there is no connection to `host`; `address` with its port."""
    for cause in _chain(error):
        if isinstance(cause, UnicodeError):  # which is what IDNA makes of a host that is no name
            return f"dial tcp: lookup {host}: no such host"
        if isinstance(cause, socket.gaierror):
            asked = f" on {cause.server}" if isinstance(cause, LookupFailure) else ""
            return f"dial tcp: lookup {host}{asked}: {lookup_words(cause)}"
        if isinstance(cause, trio.TooSlowError):
            return f"dial tcp {address}: i/o timeout"
        if isinstance(cause, OSError) and cause.errno is not None:
            return f"dial tcp {address}: {system_words('connect', cause)}"
    return f"dial tcp {address}: {error}"


def error_words(error: BaseException, operation: str = "") -> str:
    """Any error for a user: of the system with its path and without Python's numbers, else its own text.

    `operation` is what Go calls the call (`open`, `mkdir`) where it is known.
    """
    if isinstance(error, BaseExceptionGroup):
        parts = [error_words(each, operation) for each in leaves(error)]
        return parts[0] if len(parts) == 1 else f"[{', '.join(parts)}]"
    if isinstance(error, OSError):
        return path_words(operation, error)
    if isinstance(error, trio.TooSlowError):
        return DEADLINE_EXCEEDED
    return str(error) or type(error).__name__


def system_words(call: str, error: OSError, way: str = "") -> str:
    """A failed call on a connection: `read tcp 10.0.0.1:1->10.0.0.2:2: read: connection reset by peer`.

    `way`: `LOCAL->REMOTE` if it is known.
    """
    if error.errno in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
        call = "connect"
    where = f"{call} tcp {way}: " if way else ""
    # Trio puts words of its own where the system's stand.
    known = error.errno is not None and error.errno in errno.errorcode
    why = errno_words(error.errno or 0) if known else os_words(error)
    return f"{where}{call}: {why}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it comes from, groups taken apart."""
    seen = set[int]()
    left = [error]
    while left:
        each = left.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, BaseExceptionGroup):
            left = [*leaves(each), *left]
            continue
        yield each
        left += [cause for cause in (each.__cause__, each.__context__) if cause is not None]

"""The error of a gRPC call, with the text that Go's client prints.

The text ends up in pod statuses, events and logs, where operators and their scripts know it in this form:
`rpc error: code = NotFound desc = …`.
"""

from __future__ import annotations

import enum
import errno
import os
from typing import Final

from trio_kubelet.common.log import shortened

_MOST_TOLD: Final = 1024
"""Characters of an error that a caller is told. They travel in a header, and to compress one takes a time
that grows with its square: ten minutes for a megabyte, as a name in a request may have.
"""


class Code(enum.IntEnum):
    """gRPC status codes; `go_name` is the spelling of Go's gRPC library."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @property
    def go_name(self) -> str:
        """`NotFound` for NOT_FOUND; Go spells two of them its own way."""
        if self is Code.OK:
            return "OK"
        if self is Code.CANCELLED:
            return "Canceled"
        return "".join(part.capitalize() for part in self.name.split("_"))


class GrpcError(Exception):
    """A call failed.

    `code` is the gRPC status, `message` the peer's own words, `method` what was called ("" if unknown). After
    UNAVAILABLE, DEADLINE_EXCEEDED or a cancellation the call may still have been executed.
    """

    def __init__(self, code: Code, message: str, method: str = "") -> None:
        super().__init__(code, message, method)
        self.code = code
        self.message = message
        self.method = method

    def __str__(self) -> str:
        return f"rpc error: code = {self.code.go_name} desc = {self.message}"


def told(message: str) -> str:
    """What a caller is told of an error, with which it may have its own words back."""
    return shortened(message, _MOST_TOLD)


class Unreachable(GrpcError):
    """Nobody has taken the call: there is no connection."""


class ConnectionLost(GrpcError):
    """The connection ended during the call, which may have been executed."""


def status_error(code: int, message: str, method: str = "") -> GrpcError:
    """The error for a status; a number that gRPC does not define counts as UNKNOWN, as in Go."""
    try:
        return GrpcError(Code(code), message, method)
    except ValueError:
        return GrpcError(Code.UNKNOWN, message or f"code = {code}", method)


def deadline_exceeded(method: str = "") -> GrpcError:
    """No answer in time."""
    return GrpcError(Code.DEADLINE_EXCEEDED, "context deadline exceeded", method)


def dial_error(path: str, exc: OSError, method: str = "") -> Unreachable:
    """Nobody behind a unix socket, in Go's words."""
    reason = os.strerror(exc.errno or errno.EIO).lower()
    dialing = f"dial unix {path}: connect: {reason}"
    text = f'connection error: desc = "transport: Error while dialing: {dialing}"'
    return Unreachable(Code.UNAVAILABLE, text, method)


def garbled(method: str = "") -> GrpcError:
    """The peer has answered something else than the message it should have, in Go's words."""
    text = "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data"
    return GrpcError(Code.INTERNAL, text, method)


def too_large(size: int, most: int) -> GrpcError:
    """A message that is not taken."""
    text = f"grpc: received message larger than max ({size} vs. {most})"
    return GrpcError(Code.RESOURCE_EXHAUSTED, text)

"""Errors of CRI calls: one exception class for each gRPC status code that callers tell apart.

The text of an error is the one a Go gRPC client prints (`rpc error: code = NotFound desc = …`), because it
ends up in pod statuses and events, where operators and their scripts know it in this form.
"""

from __future__ import annotations

import enum
from typing import ClassVar


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


class CRIError(Exception):
    """A CRI call failed.

    `code` is the gRPC status, `message` the runtime's own words, `method` the CRI method's name ("" if
    unknown). After `Unavailable`, `DeadlineExceeded` or a cancellation the call may still have been executed.
    """

    def __init__(self, code: Code, message: str, method: str = "") -> None:
        super().__init__(code, message, method)
        self.code = code
        self.message = message
        self.method = method

    def __str__(self) -> str:
        return f"rpc error: code = {self.code.go_name} desc = {self.message}"


class _WithCode(CRIError):
    """An error whose class says its code."""

    fixed_code: ClassVar[Code]

    def __init__(self, message: str, method: str = "") -> None:
        super().__init__(self.fixed_code, message, method)

    def __reduce__(self) -> tuple[type[CRIError], tuple[str, str]]:
        return type(self), (self.message, self.method)


class Unknown(_WithCode):
    """Most failures inside containerd come with this code."""

    fixed_code = Code.UNKNOWN


class DeadlineExceeded(_WithCode):
    """No answer in time, by the runtime's own account or by the client's deadline."""

    fixed_code = Code.DEADLINE_EXCEEDED


class NotFound(_WithCode):
    """No such sandbox, container or image."""

    fixed_code = Code.NOT_FOUND


class ResourceExhausted(_WithCode):
    """A limit was hit: a message too large, too many calls."""

    fixed_code = Code.RESOURCE_EXHAUSTED


class Unimplemented(_WithCode):
    """The runtime does not know this method."""

    fixed_code = Code.UNIMPLEMENTED


class Internal(_WithCode):
    """The runtime or the connection broke a rule of the protocol."""

    fixed_code = Code.INTERNAL


class Unavailable(_WithCode):
    """The runtime cannot be reached, or went away during the call."""

    fixed_code = Code.UNAVAILABLE


_BY_CODE: dict[Code, type[_WithCode]] = {cls.fixed_code: cls for cls in _WithCode.__subclasses__()}


def cri_error(code: int, message: str, method: str = "") -> CRIError:
    """The exception for a status code; a number that gRPC does not define counts as UNKNOWN, as in Go."""
    try:
        known = Code(code)
    except ValueError:
        return Unknown(message or f"code = {code}", method)
    cls = _BY_CODE.get(known)
    return cls(message, method) if cls else CRIError(known, message, method)

"""Errors of CRI calls: one exception class for each gRPC status code that callers tell apart."""

from __future__ import annotations

from typing import ClassVar

from trio_kubelet.grpc.errors import Code, GrpcError, status_error


class CRIError(GrpcError):
    """A CRI call failed; `method` is the CRI method's name."""


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


class UnusableAnswer(Unknown):
    """The runtime answered and left out what has to be there. No gRPC status says so, so its text is shown
    without one (kubelet: the checks of `cri-client`).
    """

    def __str__(self) -> str:
        return self.message


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
    error = status_error(code, message, method)
    cls = _BY_CODE.get(error.code)
    return cls(error.message, method) if cls else CRIError(error.code, error.message, method)

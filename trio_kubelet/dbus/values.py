"""What is said over D-Bus, as values, and how saying it can fail."""

from __future__ import annotations

from typing import Any

import msgspec


class Method(msgspec.Struct, frozen=True):
    """A method of an object of a service. `signature` is that of its arguments (D-Bus: `a(sv)`, `""`).

    A variant among the arguments is a pair of signature and value.
    """

    service: str
    path: str
    interface: str
    name: str
    signature: str = ""


class Signals(msgspec.Struct, frozen=True):
    """Which signals a subscriber wants: those of one name, told by one object of a service; or `by_anyone`
    who is on the bus, in the name of that object.
    """

    service: str
    path: str
    interface: str
    name: str
    by_anyone: bool = False


class Descriptor(int):
    """A file descriptor of an answer, told from any other number: it is the caller's to close."""


class BusError(Exception):
    """Nothing came of a call; the text says why."""


class BusUnavailable(BusError):
    """There is no connection, or it ended while a call was waiting, which then may have been carried out."""


class CallTimeout(BusError):
    """No answer in time. The call may have been carried out."""


class ErrorReply(BusError):
    """The service refused; `name` is D-Bus's name of the error."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}" if text else name)
        self.name = name


def error_reply(name: str | None, body: tuple[Any, ...]) -> ErrorReply:
    """The error an error message tells; by custom its first value is a text."""
    return ErrorReply(name or "", body[0] if body and isinstance(body[0], str) else "")

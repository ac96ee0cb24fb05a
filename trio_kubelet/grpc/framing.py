"""gRPC over HTTP/2, what of it is not HTTP/2's: the frames of messages, and the headers of a call and its
end. Pure.

grpclib has its own; this is for calls that need no asyncio loop: the relists of `cri.direct`, gRPC probes,
and the small service of `podresources`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from trio_kubelet.grpc.errors import Code, GrpcError, told, too_large
from trio_kubelet.grpc.trimming import Trimmer

PREFIX: Final = 5
"""Bytes before each message: whether it is compressed, and its length."""

CONTENT_TYPE: Final = "application/grpc"
_PLAIN: Final = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}~"  # what stands for itself in `grpc-message`

HTTP_CODES: Final = {
    "400": Code.INTERNAL,
    "401": Code.UNAUTHENTICATED,
    "403": Code.PERMISSION_DENIED,
    "404": Code.UNIMPLEMENTED,
    "429": Code.UNAVAILABLE,
    "502": Code.UNAVAILABLE,
    "503": Code.UNAVAILABLE,
    "504": Code.UNAVAILABLE,
}
"""What a status of HTTP means where gRPC was expected; any other is UNKNOWN."""


class Prefix(NamedTuple):
    """What stands before a message."""

    compressed: bool
    length: int


def frame(message: bytes) -> bytes:
    """A message as it is sent."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def read_prefix(data: bytes) -> Prefix:
    """The prefix of the first message; `data` has it whole."""
    return Prefix(data[0] != 0, int.from_bytes(data[1:PREFIX], "big"))


class Splitter:
    """Finds the messages in a stream of bytes that comes in pieces of any size."""

    def __init__(self) -> None:
        self._prefix = b""
        self._missing = 0

    def feed(self, piece: memoryview) -> Iterator[Prefix | memoryview]:
        """In order: what stands before each message that begins here, and pieces of messages' bytes."""
        at = 0
        while at < len(piece):
            if self._missing:
                part = piece[at : at + self._missing]
                self._missing -= len(part)
                at += len(part)
                yield part
                continue
            wanted = PREFIX - len(self._prefix)
            self._prefix += bytes(piece[at : at + wanted])
            at += wanted
            if len(self._prefix) == PREFIX:
                found, self._prefix = read_prefix(self._prefix), b""
                self._missing = found.length
                yield found

    @property
    def is_between(self) -> bool:
        """Whether no message has begun and not ended."""
        return not self._prefix and not self._missing


def announced(splitter: Splitter, data: bytes) -> int:
    """The greatest length of a message that these bytes announce."""
    found = splitter.feed(memoryview(data))
    return max((each.length for each in found if isinstance(each, Prefix)), default=0)


class _Whole:
    """Puts one message together, all of it."""

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self.feed = self._parts.append

    def end(self) -> bytes:
        return b"".join(self._parts)


class MessageReader:
    """Puts messages together. After an error it is not to be used any more.

    `enough`: of messages that come in several pieces so many bytes of each field will do, if not None (see
    `Trimmer`).
    """

    def __init__(self, max_message: int) -> None:
        self.messages: list[bytes] = []
        self.enough: int | None = None
        self._max = max_message
        self._splitter = Splitter()
        self._message: _Whole | Trimmer = _Whole()

    def feed(self, piece: memoryview) -> None:
        """Takes the next piece and keeps it until its message is complete. Raises GrpcError for a message
        that is compressed or too large.
        """
        size = len(piece) - PREFIX
        if self.is_complete and 0 <= size <= self._max and piece[:PREFIX] == b"\0" + size.to_bytes(4, "big"):
            self.messages.append(bytes(piece[PREFIX:]))  # one whole message, as most pieces are
            return
        for found in self._splitter.feed(piece):
            if isinstance(found, memoryview):
                self._message.feed(found)
            elif found.compressed:
                raise GrpcError(Code.INTERNAL, "grpc: compressed flag set with identity or empty encoding")
            elif found.length > self._max:
                raise too_large(found.length, self._max)
            else:
                self._message = Trimmer(self.enough) if self.enough is not None else _Whole()
            if self._splitter.is_between:
                self.messages.append(self._message.end())
                self._message = _Whole()

    def take(self) -> list[bytes]:
        """The messages that are complete; they are forgotten here."""
        messages, self.messages = self.messages, []
        return messages

    @property
    def is_complete(self) -> bool:
        """Whether the stream may end here."""
        return self._splitter.is_between


def call_headers(path: str, authority: str, user_agent: str = "") -> dict[str, str]:
    """The headers of a call without encryption."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": authority,
        "content-type": CONTENT_TYPE,
    }
    return fields | ({"user-agent": user_agent} if user_agent else {}) | {"te": "trailers"}


def status_headers(error: GrpcError | None = None) -> dict[str, str]:
    """How a call's end is told."""
    if error is None:
        return {"grpc-status": "0"}
    return {"grpc-status": str(int(error.code)), "grpc-message": quote(told(error.message), safe=_PLAIN)}


def told_message(found: Mapping[str, str]) -> str:
    """The text that came with a status."""
    return unquote(found.get("grpc-message", ""))

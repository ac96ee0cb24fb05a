"""Bodies of answers as they come: a whole one, unpacked and within a bound, or the events of a watch over
plain HTTP, which are JSON objects with a newline behind each in a body without end.

A server may send more than there is memory, and a few kilobytes of gzip become gigabytes: no more is
received or unpacked than the bound and one piece. Events are split by hand on the raw
bytes: text line iterators also split on U+0085 and its kin, which are allowed inside an annotation.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import trio

from trio_kubelet.kube.errors import APIUnavailable

if TYPE_CHECKING:
    import httpx

MAX_EVENT_BYTES = 16 * 1024 * 1024
_UNPACKED = 1 << 20  # bytes that are unpacked in one go: few milliseconds


class LineTooLong(Exception):
    """An event beyond the limit."""


class LineSplitter:
    """Chunks in, complete lines out. `limit`: bytes of the longest line."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._line = bytearray()

    @property
    def incomplete(self) -> bool:
        """Whether bytes without a newline are waiting for the rest of their line."""
        return bool(self._line)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without newline; empty lines are dropped. Raises LineTooLong."""
        first, *rest = chunk.split(b"\n")
        self._add(first)
        lines = []
        for piece in rest:
            lines.append(bytes(self._line))
            self._line.clear()
            self._add(piece)
        return [line for line in lines if line.strip()]

    def _add(self, piece: bytes) -> None:
        self._line += piece
        if len(self._line) > self._limit:
            raise LineTooLong


class ChunkedEvents:
    """An EventStream over the chunks of a body; `chunks` raises APIUnavailable when the connection broke."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._splitter = LineSplitter()
        self._ready: deque[bytes] = deque()

    async def next_event(self) -> bytes | None:
        await trio.lowlevel.checkpoint()
        while not self._ready:
            await trio.lowlevel.checkpoint()  # chunks of a byte, too, leave others their turns
            try:
                self._ready.extend(self._splitter.feed(await anext(self._chunks)))
            except StopAsyncIteration:
                if self._splitter.incomplete:
                    raise APIUnavailable("the watch ended within an event") from None
                return None
            except LineTooLong:
                raise APIUnavailable(f"a watch event beyond {MAX_EVENT_BYTES} bytes") from None
        return self._ready.popleft()


async def abandon(chunks: AsyncIterator[bytes]) -> None:
    """Ends an HTTP library's body that is not read to its end.

    Its nested generators end in order when they are cancelled where they wait; left alone they are leaks.
    """
    with trio.CancelScope(shield=True) as scope:
        scope.cancel()
        with contextlib.suppress(Exception):  # nobody wants to know any more how it fails
            async for _ in chunks:
                pass


class BodyError(OSError):
    """The body is longer than its bound, or not what its headers say."""


class WholeBody:
    """A body as it is put together, of at most `longest` bytes; `gzip`: whether it may come packed."""

    def __init__(self, encoding: str, longest: int, *, gzip: bool) -> None:
        """`encoding` is the header of that name. Raises BodyError for one that was not asked for."""
        self._unpack = _unpacker(encoding, gzip)
        self._longest = longest
        self._body = bytearray()

    async def add(self, piece: bytes) -> None:
        """Takes what has come; others have their turns while much is unpacked. Raises BodyError."""
        if self._unpack is None:
            self._take(piece)
            return
        while piece:
            try:
                self._take(self._unpack.decompress(piece, _UNPACKED))
            except zlib.error as exc:
                raise BodyError(f"the answer cannot be unpacked: {exc}") from exc
            if self._unpack.unused_data:  # the library keeps all that follows, however much
                raise BodyError("the answer goes on behind its end")
            if piece := self._unpack.unconsumed_tail:
                await trio.lowlevel.checkpoint()

    def _take(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > self._longest:
            raise BodyError(f"the answer is longer than {self._longest} bytes")

    def whole(self) -> bytes:
        """The body at its end. Raises BodyError."""
        if self._unpack is not None and not self._unpack.eof:
            raise BodyError("the answer ends before its end")
        return bytes(self._body)


async def read_body(answer: httpx.Response, longest: int, *, gzip: bool = False) -> bytes:
    """The body, of at most `longest` bytes; `gzip`: whether it may come packed. Raises BodyError.

    What httpx raises goes on. The answer is the caller's to close.
    """
    body = WholeBody(answer.headers.get("Content-Encoding", ""), longest, gzip=gzip)
    chunks = answer.aiter_raw()
    try:
        async for chunk in chunks:
            await body.add(chunk)
            await trio.lowlevel.checkpoint()  # there are thousands of small ones in what is received at once
    except BaseException:
        await abandon(chunks)
        raise
    return body.whole()


def _unpacker(encoding: str, gzip: bool) -> zlib._Decompress | None:
    if encoding.strip().lower() in ("", "identity"):
        return None
    if gzip and encoding.strip().lower() in ("gzip", "x-gzip"):
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    raise BodyError(f"the answer is packed in a way that was not asked for: {encoding[:50]}")

"""The body of an answer, unpacked, within a bound.

A server may send more than there is memory, and a few kilobytes of gzip become gigabytes: no more is received
or unpacked than the bound and one piece of the connection.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from trio_kubelet.kube.chunked import abandon

if TYPE_CHECKING:
    import httpx


class BodyError(OSError):
    """The body is longer than its bound, or not what its headers say."""


async def read_body(answer: httpx.Response, longest: int, *, gzip: bool = False) -> bytes:
    """The body, of at most `longest` bytes; `gzip`: whether it may come packed. Raises BodyError.

    What httpx raises goes on. The answer is the caller's to close.
    """
    unpack = _unpacker(answer.headers.get("Content-Encoding", ""), gzip)
    body = bytearray()
    chunks = answer.aiter_raw()
    try:
        async for chunk in chunks:
            body += unpack.decompress(chunk, longest + 1 - len(body)) if unpack is not None else chunk
            if len(body) > longest:
                raise BodyError(f"the answer is longer than {longest} bytes")
    except (BodyError, zlib.error) as exc:
        await abandon(chunks)
        if isinstance(exc, BodyError):
            raise
        raise BodyError(f"the answer cannot be unpacked: {exc}") from exc
    if unpack is not None and not unpack.eof:
        raise BodyError("the answer ends before its end")
    return bytes(body)


def _unpacker(encoding: str, gzip: bool) -> zlib._Decompress | None:
    if encoding.strip().lower() in ("", "identity"):
        return None
    if gzip and encoding.strip().lower() in ("gzip", "x-gzip"):
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    raise BodyError(f"the answer is packed in a way that was not asked for: {encoding[:50]}")

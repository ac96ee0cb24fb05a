"""The end of a connection that may be TLS.

A `trio.SSLStream` refers to itself (`_handshook` holds a method of it). So some forty kilobytes of OpenSSL's,
which the collector does not see, would wait with each one that is over until it has found a few objects of
Python's, and an agent whose port and probes make many connections would grow by tens of megabytes. From
Python 3.12 on the frames of an error that ended it hold it as well, so what is of OpenSSL goes first.
"""

from __future__ import annotations

import trio


async def close_for_good(stream: trio.abc.AsyncResource) -> None:
    """Closes a connection at once, as `trio.aclose_forcefully`; nobody may use it any more.

    What is below TLS is closed directly: a stream whose handshake has not ended would try to say goodbye, and
    the errors of that refer to it as well.
    """
    if not isinstance(stream, trio.SSLStream):
        await trio.aclose_forcefully(stream)
        return
    try:
        await trio.aclose_forcefully(stream.transport_stream)
    finally:
        if hasattr(stream, "_handshook"):
            del stream._handshook
        if hasattr(stream, "_ssl_object"):
            stream._ssl_object._sslobj = None  # type: ignore[attr-defined]

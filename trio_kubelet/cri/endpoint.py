"""What may stand as the runtime's endpoint: `unix:///run/x.sock`, or the bare path (deprecated)."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit


def socket_path(endpoint: str) -> str:
    """The unix socket's path. Raises ValueError, saying what is wrong, for anything that is not a unix
    socket.
    """
    if not endpoint:
        raise ValueError("container runtime endpoint is empty")
    if endpoint.startswith("/"):
        return endpoint
    parts = urlsplit(endpoint)
    if parts.scheme != "unix":
        raise ValueError(f"container runtime endpoint {endpoint!r}: only unix socket endpoints are supported")
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/"):
        raise ValueError(f"container runtime endpoint {endpoint!r}: the socket's path must be absolute")
    return path

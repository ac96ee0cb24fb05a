"""Failed requests in the words of client-go: `Get "https://host/path": dial tcp host:443: connect: …`."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import httpx
import trio

from trio_kubelet.common.go_words import (
    DEADLINE_EXCEEDED,
    EOF,
    NO_TLS,
    PLAIN_HTTP,
    UNEXPECTED_EOF,
    connection_words,
    dial_words,
    error_words,
    system_words,
)
from trio_kubelet.kube.errors import APIUnavailable

CONNECT_TIMEOUT: Final = 10.0
"""Seconds for a connection and its handshake."""
_RESET: Final = system_words("read", ConnectionResetError(errno.ECONNRESET, ""))
_PORTS: Final = {"https": 443, "http": 80}


def url_error(method: str, url: str, error: BaseException) -> str:
    """The whole text, as Go's `url.Error` writes it."""
    return f'{method[:1]}{method[1:].lower()} "{url}": {request_words(error, url)}'


@contextmanager
def connecting(url: str) -> Iterator[None]:
    """Within it a connection to `url` is made, for a watch. Raises APIUnavailable."""
    failure: httpx.TransportError
    try:
        with trio.fail_after(CONNECT_TIMEOUT):
            yield
    except trio.TooSlowError as exc:
        failure = httpx.ConnectTimeout(str(exc))
        raise APIUnavailable(url_error("GET", url, failure)) from exc
    except (OSError, UnicodeError, trio.BrokenResourceError) as exc:  # a host may be no name
        failure = httpx.ConnectError(str(exc))
        failure.__cause__ = exc
        raise APIUnavailable(url_error("GET", url, failure)) from exc


def request_words(error: BaseException, url: str) -> str:
    """Why there was no answer from `url`."""
    if isinstance(error, trio.TooSlowError):
        return DEADLINE_EXCEEDED
    if isinstance(error, httpx.ConnectTimeout):
        return dial_words(trio.TooSlowError(), *_where(url))
    if isinstance(error, httpx.ConnectError):
        words = connection_words(error)
        if words == NO_TLS:  # who answers a TLS client in plain text is a server of HTTP
            return PLAIN_HTTP
        # A reset is one of the handshake, which httpcore counts as connecting.
        of_handshake = _is_tls(error) or words == _RESET
        return words if of_handshake else dial_words(error, *_where(url))
    if isinstance(error, httpx.RemoteProtocolError):
        said = str(error)
        return EOF if "disconnected" in said else UNEXPECTED_EOF if "peer closed" in said else said
    if isinstance(error, httpx.HTTPError):
        return connection_words(error)
    return error_words(error)


def _where(url: str) -> tuple[str, str]:
    """Host, and host with port."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return host, f"{shown}:{parts.port or _PORTS.get(parts.scheme, 0)}"


def _is_tls(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False

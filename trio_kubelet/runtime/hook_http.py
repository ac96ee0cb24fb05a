"""The HTTP client of lifecycle hooks: that of the HTTP probe, without its verdict (kubelet: any
answer will do).
"""

from __future__ import annotations

import ssl

import trio

from trio_kubelet.net.http import HTTPFailure, HTTPRequest, fetch
from trio_kubelet.runtime.doors import HookHTTPError

DEADLINE = 600.0
"""Seconds. The kubelet sets none: preStop is bounded by the grace period, a postStart hook may hang
for ever.
"""

_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


class HookClient:
    """Sends hooks' requests."""

    async def get(self, request: HTTPRequest) -> None:
        """Sends the request and waits for an answer, whatever it says. Raises HookHTTPError."""
        try:
            await fetch(request, DEADLINE)
        except trio.TooSlowError:
            raise HookHTTPError(f'Get "{request.url}": context deadline exceeded') from None
        except HTTPFailure as failure:
            if _speaks_plain_http(failure):
                text = f'Get "{request.url}": http: server gave HTTP response to HTTPS client'
                raise HookHTTPError(text, plain_http=True) from failure
            raise HookHTTPError(str(failure)) from failure


def _speaks_plain_http(failure: BaseException) -> bool:
    """Whether a TLS handshake was answered in plain text."""
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, ssl.SSLError) and cause.reason in _PLAIN:
            return True
        cause = cause.__cause__
    return False

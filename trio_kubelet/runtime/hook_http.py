"""The HTTP client of lifecycle hooks: that of the HTTP probe, without its verdict (kubelet: any
answer will do).
"""

from __future__ import annotations

import trio

from trio_kubelet.common.go_words import DEADLINE_EXCEEDED
from trio_kubelet.net.http import HTTPFailure, HTTPRequest, fetch
from trio_kubelet.runtime.doors import HookHTTPError

DEADLINE = 600.0
"""Seconds. The kubelet sets none: preStop is bounded by the grace period, a postStart hook may hang
for ever.
"""


class HookClient:
    """Sends hooks' requests."""

    async def get(self, request: HTTPRequest) -> None:
        """Sends the request and waits for an answer, whatever it says. Raises HookHTTPError."""
        try:
            await fetch(request, DEADLINE)
        except trio.TooSlowError:
            raise HookHTTPError(f'Get "{request.url}": {DEADLINE_EXCEEDED}') from None
        except HTTPFailure as failure:
            raise HookHTTPError(str(failure), plain_http=failure.plain_http) from failure

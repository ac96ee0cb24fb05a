"""What can go wrong between us and the API server.

Apart from the client, because half of the agent handles these and only a node with an API server needs
the libraries behind the client.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.common.deep_json import decode_deep

LONGEST_RETRY_AFTER: Final = 300.0
"""Seconds a server may ask us to wait: who obeyed a wrong number would be lost to the cluster."""


class APIFailure(Exception):
    """A request was not done."""

    @property
    def not_found(self) -> bool:
        """Because what it is about does not exist."""
        return False


class APIUnavailable(APIFailure):
    """No answer: the server cannot be reached, the connection broke, or the deadline passed."""


class APIError(APIFailure):
    """The server refused; `status` is its Status object, `retry_after` the seconds it asked us to wait,
    as far as that is obeyed."""

    def __init__(self, code: int, status: v1.Status, retry_after: float | None = None) -> None:
        super().__init__(status.message or f"HTTP status {code}")
        self.code = code
        self.status = status
        self.retry_after = retry_after

    @property
    def reason(self) -> str:
        """The machine-readable reason, e.g. NotFound."""
        return self.status.reason

    @property
    def not_found(self) -> bool:
        return self.code == 404

    @property
    def conflict(self) -> bool:
        return self.code == 409

    @property
    def gone(self) -> bool:
        """The resource version (or continue token) is too old to go on from."""
        return self.code == 410


def error_from(code: int, body: bytes, retry_after: float | None = None) -> APIError:
    """An APIError from an answer that may or may not hold a Status."""
    try:
        status = decode_deep(msgspec.json.Decoder(v1.Status).decode, body)
    except msgspec.DecodeError:
        status = v1.Status(message=body[:500].decode("utf-8", "replace").strip())
    details = status.details
    if retry_after is None and details is not None and details.retry_after_seconds:
        retry_after = float(details.retry_after_seconds)
    if retry_after is not None:
        retry_after = min(max(retry_after, 0.0), LONGEST_RETRY_AFTER)
    return APIError(code, status, retry_after)


class WebSocketRefused(Exception):
    """Server or proxy did not upgrade; plain HTTP may work and tells why."""

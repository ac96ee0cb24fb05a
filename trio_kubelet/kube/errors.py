"""What can go wrong between us and the API server.

Apart from the client, because half of the agent handles these and only a node with an API server needs
the libraries behind the client.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.common.deep_json import decode_deep
from trio_kubelet.common.log import go_quote

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

    def is_about(self, name: str) -> bool:
        """Whether the server says so of this object. A proxy that answers while no server does, does not."""
        return self.status.details is not None and self.status.details.name == name

    @property
    def conflict(self) -> bool:
        return self.code == 409

    @property
    def gone(self) -> bool:
        """The resource version (or continue token) is too old to go on from."""
        return self.code == 410


def error_from(
    code: int, body: bytes, retry_after: float | None = None, method: str = "", path: str = ""
) -> APIError:
    """An APIError from an answer to `method` and `path` that may or may not hold a Status."""
    try:
        status = decode_deep(msgspec.json.Decoder(v1.Status).decode, body)
    except msgspec.DecodeError:
        text = body[:_LONGEST_TEXT].decode("utf-8", "replace").strip()
        status = _status_without_one(code, text, method, path)
    details = status.details
    if retry_after is None and details is not None and details.retry_after_seconds:
        retry_after = float(details.retry_after_seconds)
    if retry_after is not None:
        retry_after = min(max(retry_after, 0.0), LONGEST_RETRY_AFTER)
    return APIError(code, status, retry_after)


_LONGEST_TEXT: Final = 2048
"""Bytes of an answer that is no Status, as far as it is told (client-go)."""
_SAID: Final = {
    400: ("BadRequest", "the server rejected our request for an unknown reason"),
    401: ("Unauthorized", "the server has asked for the client to provide credentials"),
    404: ("NotFound", "the server could not find the requested resource"),
    405: ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
    409: ("Conflict", "the server reported a conflict"),
    422: ("Invalid", "the server rejected our request due to an error in our request"),
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: (
        "Timeout",
        "the server was unable to return a response in the time allotted, "
        "but may still be processing the request",
    ),
}


def _status_without_one(code: int, text: str, method: str, path: str) -> v1.Status:
    """What client-go makes of an answer that a proxy gave, or a server that is short of everything
    (apimachinery: `NewGenericServerResponse`).
    """
    if code in (403, 406, 415):
        reason, said = {403: "Forbidden", 406: "NotAcceptable", 415: "UnsupportedMediaType"}[code], text
    elif code in _SAID:
        reason, said = _SAID[code]
        if code == 409 and method == "POST":
            reason = "AlreadyExists"
    elif code >= 500:
        reason = "InternalError"
        said = f"an error on the server ({go_quote(text)}) has prevented the request from succeeding"
    else:
        reason = "Unknown"
        said = f"the server responded with the status code {code} but did not return more information"
    if about := _resource(path):
        said += f" ({method.lower()} {about})"
    return v1.Status(status="Failure", code=code, reason=reason, message=said)


def _resource(path: str) -> str:
    """The resource a path names, with its group, and the object."""
    parts = path.strip("/").split("/")
    group = parts[1] if parts[0] == "apis" and len(parts) > 2 else ""
    rest = parts[3:] if group else parts[2:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    resource = ".".join(filter(None, (*rest[:1], group)))
    return " ".join((resource, *rest[1:2])) if rest else ""


class WebSocketRefused(Exception):
    """Server or proxy did not upgrade; plain HTTP may work and tells why."""

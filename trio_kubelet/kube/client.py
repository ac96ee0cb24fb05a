"""Requests to the API server: httpx behind a small typed door.

One method for everything that is a request and an answer (`request`), typed helpers over it. Failures are
`APIError` when the server answered with a Status, `APIUnavailable` when there was no answer; the callers
decide about retries, as only they know what may be repeated. Every call has a deadline; nothing here logs a
header or a body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import httpx
import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.kube.credentials import Credentials

T = TypeVar("T")

USER_AGENT = "kubelet/v1.36 trio-kubelet"
JSON = "application/json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
MERGE_PATCH = "application/merge-patch+json"
DEFAULT_TIMEOUT = 30.0


class APIUnavailable(Exception):
    """No answer: the server cannot be reached, the connection broke, or the deadline passed."""


class APIError(Exception):
    """The server refused; `status` is its Status object."""

    def __init__(self, code: int, status: v1.Status) -> None:
        super().__init__(status.message or f"HTTP status {code}")
        self.code = code
        self.status = status
        self.retry_after: float | None = None

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
        """The resource version is too old to go on from."""
        return self.code == 410


def error_from(code: int, body: bytes) -> APIError:
    """An APIError from an answer that may or may not hold a Status."""
    try:
        status = msgspec.json.decode(body, type=v1.Status)
    except msgspec.DecodeError:
        status = v1.Status(message=body[:500].decode("utf-8", "replace").strip())
    return APIError(code, status)


class KubeClient:
    """One API server. Safe for many tasks at once."""

    def __init__(self, credentials: Credentials, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.credentials = credentials
        self._timeout = timeout

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
    ) -> bytes:
        """One request; the answer's body. Raises APIError, APIUnavailable."""
        headers = {"Accept": JSON, "User-Agent": USER_AGENT}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            with trio.fail_after(timeout or self._timeout):
                session = await self.credentials.session()
                headers.update(session.headers)
                answer = await session.http.request(
                    method, session.server + path, params=params, content=body, headers=headers
                )
        except trio.TooSlowError:
            raise APIUnavailable(f"{method} {path}: no answer within {timeout or self._timeout:g}s") from None
        except (httpx.HTTPError, OSError) as exc:
            raise APIUnavailable(f"{method} {path}: {exc or type(exc).__name__}") from exc
        if answer.is_success:
            return answer.content
        if answer.status_code == 401:
            self.credentials.rejected()
        error = error_from(answer.status_code, answer.content)
        retry_after = answer.headers.get("Retry-After", "")
        error.retry_after = float(retry_after) if retry_after.isdecimal() else None
        raise error

    async def get(self, path: str, kind: type[T], params: Mapping[str, str] | None = None) -> T:
        """GET and decode. Raises APIError, APIUnavailable."""
        return _decode(await self.request("GET", path, params=params), kind, path)

    async def create(self, path: str, thing: v1.Object, kind: type[T]) -> T:
        """POST an object and decode the answer."""
        return _decode(await self.request("POST", path, body=msgspec.json.encode(thing)), kind, path)

    async def update(self, path: str, thing: v1.Object, kind: type[T]) -> T:
        """PUT an object and decode the answer."""
        return _decode(await self.request("PUT", path, body=msgspec.json.encode(thing)), kind, path)

    async def patch(
        self, path: str, patch: bytes, kind: type[T], content_type: str = STRATEGIC_MERGE_PATCH
    ) -> T:
        """PATCH with an encoded patch and decode the answer."""
        body = await self.request("PATCH", path, body=patch, content_type=content_type)
        return _decode(body, kind, path)

    async def delete(self, path: str, *, uid: str = "", grace_seconds: int | None = None) -> None:
        """DELETE; with `uid` only the object that has it."""
        options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid:
            options["preconditions"] = {"uid": uid}
        await self.request("DELETE", path, body=msgspec.json.encode(options))


def _decode(body: bytes, kind: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as exc:
        raise APIUnavailable(f"{path}: the server's answer cannot be read: {exc}") from exc

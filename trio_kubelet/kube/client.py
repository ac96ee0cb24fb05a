"""Requests to the API server as typed calls.

Failures are `APIError` when the server answered with a Status, `APIUnavailable` when there was no answer;
the callers decide about retries, as only they know what may be repeated. Every call has a deadline;
nothing here logs a header or a body.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.deep_json import decode_deep
from trio_kubelet.kube.doors import APIAnswer, APIDoor, APIRequest, EventStream
from trio_kubelet.kube.errors import APIError, APIUnavailable, error_from

T = TypeVar("T")

STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
DEFAULT_TIMEOUT = 30.0
MOST_RETRIES = 10
LONGEST_PATIENCE = 60.0
"""Seconds for which a busy server is asked again."""


class KubeClient:
    """One API server. Safe for many tasks at once. `timeout` in seconds, for calls that name none."""

    def __init__(self, door: APIDoor, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.door = door
        self._timeout = timeout

    async def request(self, request: APIRequest, timeout: float | None = None) -> bytes:
        """One request; the answer's body. Raises APIError, APIUnavailable."""
        answer = await self.door.request(request, self._timeout if timeout is None else timeout)
        if 200 <= answer.status < 300:
            return answer.body
        raise error_from(answer.status, answer.body, answer.retry_after, request.method, request.path)

    async def get(self, path: str, kind: type[T], params: Mapping[str, str] | None = None) -> T:
        """GET and decode. Raises APIError, APIUnavailable."""
        return _decode(await self.request(APIRequest("GET", path, params or {})), kind, path)

    async def find(self, path: str, kind: type[T]) -> T | None:
        """GET and decode, None for what does not exist. Raises APIError, APIUnavailable."""
        try:
            return await self.get(path, kind)
        except APIError as error:
            if error.not_found:
                return None
            raise

    async def create(self, path: str, thing: v1.Object, kind: type[T]) -> T:
        """POST an object and decode the answer."""
        return _decode(await self.request(APIRequest("POST", path, {}, _encode(thing))), kind, path)

    async def update(self, path: str, thing: v1.Object, kind: type[T]) -> T:
        """PUT an object and decode the answer."""
        return _decode(await self.request(APIRequest("PUT", path, {}, _encode(thing))), kind, path)

    async def patch(
        self, path: str, patch: bytes, kind: type[T], content_type: str = STRATEGIC_MERGE_PATCH
    ) -> T:
        """PATCH with an encoded patch and decode the answer."""
        return _decode(await self.request(APIRequest("PATCH", path, {}, patch, content_type)), kind, path)

    async def delete(self, path: str, *, uid: str = "", grace_seconds: int | None = None) -> None:
        """DELETE; with `uid` only the object that has it (else APIError 409)."""
        options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid:
            options["preconditions"] = {"uid": uid}
        await self.request(APIRequest("DELETE", path, {}, msgspec.json.encode(options)))


class PatientDoor:
    """A door behind which a server that is busy is asked again when it says (client-go's `WithRetry`): for
    those whom a pod waits for, and whose failure would be its event.
    """

    def __init__(self, door: APIDoor) -> None:
        self._door = door

    async def request(self, request: APIRequest, timeout: float) -> APIAnswer:
        """See `APIDoor`; the waiting comes on top of `timeout`."""
        answer = await self._door.request(request, timeout)
        until = trio.current_time() + LONGEST_PATIENCE
        for _ in range(MOST_RETRIES):
            busy = answer.status == 429 or answer.status >= 500
            pause = max(answer.retry_after or 0.0, 0.0)
            if not busy or answer.retry_after is None or trio.current_time() + pause > until:
                break
            await trio.sleep(pause)
            answer = await self._door.request(request._replace(again=True), timeout)
        return answer

    def watch(
        self, path: str, params: Mapping[str, str], ping_period: float
    ) -> AbstractAsyncContextManager[EventStream]:
        """See `APIDoor`."""
        return self._door.watch(path, params, ping_period)


def _encode(thing: v1.Object) -> bytes:
    return msgspec.json.encode(thing)


def _decode(body: bytes, kind: type[T], path: str) -> T:
    try:
        return decode_deep(msgspec.json.Decoder(kind).decode, body)
    except msgspec.DecodeError as exc:
        raise APIUnavailable(f"{path}: the server's answer cannot be read: {exc}") from exc

"""An `APIDoor` straight into a test API server: no sockets, so a virtual clock rules everything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import trio

from tests.kube.apiserver import APIServer, parse_path, request_of
from tests.kube.store import Refused, encode
from tests.kube.watching import Watch
from trio_kubelet.kube.doors import APIAnswer, APIRequest, EventStream
from trio_kubelet.kube.errors import APIUnavailable, error_from
from trio_kubelet.server.http.messages import Response

PONG_DEADLINE = 15.0


class SimulatedDoor:
    """The door; `pings` stands for the WebSocket's, which tell that a server is silent."""

    def __init__(
        self, server: APIServer, pings: bool = True, headers: Mapping[str, str] | None = None
    ) -> None:
        self.server = server
        self._pings = pings
        self._headers = dict(headers or {})
        self.attempts: list[float] = []

    async def request(self, request: APIRequest, timeout: float) -> APIAnswer:
        self.attempts.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        headers = self._headers | {"Content-Type": request.content_type}
        asked = request_of(
            request.method, request.path, urlencode(request.params), request.body or b"", headers
        )
        try:
            with trio.fail_after(timeout):
                if self.server.silent:
                    await trio.sleep_forever()
                answer = await self.server.handle(asked)
        except (trio.TooSlowError, trio.BrokenResourceError) as exc:
            raise APIUnavailable(f"{request.method} {request.path}: {exc or 'no answer'}") from None
        assert isinstance(answer, Response)
        assert isinstance(answer.body, bytes)
        after = dict(answer.headers).get("Retry-After")
        return APIAnswer(answer.status, answer.body, float(after) if after else None)

    @asynccontextmanager
    async def watch(
        self, path: str, params: Mapping[str, str], ping_period: float
    ) -> AsyncIterator[EventStream]:
        self.attempts.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.server.down:
            raise APIUnavailable(f"watch {path}: the test server is down")
        asked = request_of("GET", path, urlencode({"watch": "1", **params}), headers=self._headers)
        self.server.requests.append(asked)
        route = parse_path(path)
        assert route is not None
        try:
            refusal = self.server.refuse(asked)
            if refusal is not None:
                raise refusal
            watch = self.server.open_watch(asked, route)
        except Refused as exc:
            raise error_from(exc.code, encode(exc.status)) from None
        try:
            yield _Stream(watch, self.server, ping_period + PONG_DEADLINE if self._pings else float("inf"))
        finally:
            self.server.watches.discard(watch)


class _Stream:
    def __init__(self, watch: Watch, server: APIServer, deadline: float) -> None:
        self._watch = watch
        self._server = server
        self._deadline = deadline

    async def next_event(self) -> bytes | None:
        await trio.lowlevel.checkpoint()
        while True:
            with trio.move_on_after(self._deadline):
                try:
                    return await self._watch.next_event()
                except trio.BrokenResourceError as exc:
                    raise APIUnavailable(str(exc)) from None
            if self._server.silent:
                raise APIUnavailable("no pong")

"""Hears when an API server that was silent answers again, and says so to those who wait for it.

Everything that follows the server or writes to it waits for itself after a failure, for up to half a minute
when the server has been away for long. Heartbeats are tried more often; so the first of them that is answered
ends the others' waiting, each after a moment of its own. How soon a whole cluster comes back is still spread
by the back-off of its heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from trio_kubelet.common.listeners import Listeners
from trio_kubelet.kube.doors import APIAnswer, APIDoor, APIRequest, EventStream
from trio_kubelet.kube.errors import APIUnavailable

WAKE_WITHIN = 0.5
"""Seconds within which those who were waiting try again."""
_BUSY = 429


class Recovery:
    """What was heard of one server; `back` tells when it answers again."""

    def __init__(self) -> None:
        self._silent = False
        self.back: Listeners[[]] = Listeners()

    def through(self, door: APIDoor) -> APIDoor:
        """The same door, listened to."""
        return _HeardDoor(door, self)

    def no_answer(self) -> None:
        """A request got none."""
        self._silent = True

    def answered(self) -> None:
        """A request got one that makes sense."""
        if self._silent:
            self._silent = False
            self.back.tell()


class _HeardDoor:
    def __init__(self, door: APIDoor, recovery: Recovery) -> None:
        self._door = door
        self._recovery = recovery

    async def request(self, request: APIRequest, timeout: float) -> APIAnswer:
        try:
            answer = await self._door.request(request, timeout)
        except APIUnavailable:
            self._recovery.no_answer()
            raise
        if answer.status < 500 and answer.status != _BUSY:
            self._recovery.answered()
        return answer

    def watch(
        self, path: str, params: Mapping[str, str], ping_period: float
    ) -> AbstractAsyncContextManager[EventStream]:
        return self._door.watch(path, params, ping_period)

"""One watch on the test API server's store: which events it gets, when, and how it ends."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import trio

from tests.kube.store import KINDS, Change, Refused, Selector, Store, Tree, encode

INITIAL_END = {"k8s.io/initial-events-end": "true"}


class Behaviour(Protocol):
    """What of the server's settings a watch looks at."""

    bookmark_period: float
    watch_list: str  # supported, refused, broken (etcd before 3.5.13), ignored (older servers), endless
    silent: bool


class WatchRequest:
    """The query parameters of a watch; raises Refused 422 for a WatchList the server does not take."""

    def __init__(self, query: dict[str, list[str]], behaviour: Behaviour) -> None:
        def first(name: str) -> str:
            return query.get(name, [""])[0]

        self.version = first("resourceVersion")
        self.bookmarks = first("allowWatchBookmarks") in ("true", "1")
        self.seconds = float(first("timeoutSeconds") or 1800)
        self.initial = first("sendInitialEvents") in ("true", "1") and behaviour.watch_list != "ignored"
        if first("sendInitialEvents") and behaviour.watch_list == "refused":
            raise Refused(422, "Invalid", "sendInitialEvents: Forbidden: is not enabled")
        if first("sendInitialEvents") and behaviour.watch_list == "broken":
            raise Refused(500, "InternalError", "the required storage feature is disabled")
        if self.initial and first("resourceVersionMatch") != "NotOlderThan":
            raise Refused(422, "Invalid", "resourceVersionMatch: Forbidden: must be NotOlderThan")


class Watch:
    """Hands out the events of one watch. A broken one raises `trio.BrokenResourceError`."""

    def __init__(self, store: Store, wanted: Selector, request: WatchRequest, behaviour: Behaviour) -> None:
        self._store = store
        self._wanted = wanted
        self._request = request
        self._behaviour = behaviour
        self._ready: deque[bytes] = deque()
        self._history = store.history
        self._position = len(store.history)
        self._after = 0
        self._deadline = trio.current_time() + request.seconds
        self._next_bookmark = trio.current_time() + behaviour.bookmark_period
        self._scope = trio.CancelScope()
        self.broken = False
        self.ended = False
        self._begin()

    def _begin(self) -> None:
        request, store = self._request, self._store
        if request.initial or request.version in ("", "0"):
            for thing in store.list(self._wanted):
                self._send("ADDED", thing)
            if request.initial and self._behaviour.watch_list != "endless":
                self._send_bookmark(INITIAL_END)
            return
        after = self._after = int(request.version)
        if after < store.compacted:
            self.expire(f"too old resource version: {after} ({store.compacted})")
            return
        self._position = next((i for i, c in enumerate(store.history) if c.version > after), self._position)

    def disrupt(self) -> None:
        """Breaks the connection."""
        self.broken = True
        self._scope.cancel()

    def expire(self, message: str) -> None:
        """Ends the watch, for the version it has come to is not known any more."""
        self._ready.append(encode({"type": "ERROR", "object": Refused(410, "Expired", message).status}))
        self.ended = True
        self._scope.cancel()

    async def next_event(self) -> bytes | None:
        """The next event; None at the end."""
        while True:
            if self.broken:
                raise trio.BrokenResourceError("the test server broke the connection")
            if self._behaviour.silent:
                await self._wait(float("inf"))
                continue
            if self._ready:
                return self._ready.popleft()
            if self.ended or trio.current_time() >= self._deadline:
                return None
            self._collect()
            if not self._ready:
                await self._wait(min(self._deadline, self._next_bookmark))

    async def _wait(self, until: float) -> None:
        """Until something was written, the watch was broken, or time is up."""
        self._scope = trio.CancelScope(deadline=until)
        with self._scope:
            await self._store.wait_for_change(self._wanted.resource)

    def _collect(self) -> None:
        history = self._store.history
        if history is not self._history:  # the store was put back
            self._history, self._position = history, self._store.restored_at
        while self._position < len(history):
            change = history[self._position]
            self._position += 1
            if change.version > self._after and change.resource == self._wanted.resource:
                self._tell(change)
        if trio.current_time() >= self._next_bookmark:
            self._next_bookmark = trio.current_time() + self._behaviour.bookmark_period
            if self._request.bookmarks and self._store.version > self._after:
                self._send_bookmark({})

    def _tell(self, change: Change) -> None:
        was, now = self._wanted.matches(change.old), self._wanted.matches(change.new)
        if now:
            assert change.new is not None
            self._send("MODIFIED" if was else "ADDED", change.new)
        elif was:
            assert change.old is not None
            metadata = {**change.old["metadata"], "resourceVersion": str(change.version)}
            self._send("DELETED", {**change.old, "metadata": metadata})

    def _send(self, type_: str, thing: Tree) -> None:
        self._ready.append(encode({"type": type_, "object": thing}))

    def _send_bookmark(self, annotations: dict[str, str]) -> None:
        kind = KINDS[self._wanted.resource]
        metadata: Tree = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        thing = {"kind": kind.kind, "apiVersion": kind.group_version, "metadata": metadata}
        self._send("BOOKMARK", {**thing, "spec": {"containers": None}, "status": {}})

"""One reader of the page: what it is sent and what it may ask for.

Messages are JSON. The reader begins with `{"from": number, "life": …}`, what it has from an earlier
connection; later it names the pods in its view (`see`), says whether it compares what all of them use
(`compare`), and names the one it looks into (`open`). Nothing waits for a reader but its own task: what it
gets is decided when it has taken the message before.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
import trio

from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.nodepage.feed import Feed, Reader

_DETAIL_PERIOD: Final = 0.7
_DETAIL_REST: Final = 2.0
"""Seconds between two looks into a pod, and while nothing of it is different."""
_SEND_SECONDS: Final = 60.0
_HELLO_SECONDS: Final = 15.0
_UIDS: Final = 200

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[], Awaitable[bytes | None]]

_encode = msgspec.json.Encoder().encode


class Opened(msgspec.Struct, frozen=True):
    """The pod a reader looks into, and the container whose log it sees ("" for none)."""

    uid: str
    container: str = ""
    previous: bool = False


class Asked(msgspec.Struct, frozen=True):
    """A message of a reader."""

    from_: int | None = msgspec.field(default=None, name="from")
    life: str = ""
    see: list[str] | None = None
    compare: bool = False
    open: Opened | msgspec.UnsetType | None = msgspec.UNSET


class BadMessage(Exception):
    """The reader said what no page says."""


class Session:
    """One connection of one reader."""

    def __init__(self, feed: Feed, send: Send, receive: Receive) -> None:
        self._feed = feed
        self._send_raw = send
        self._receive = receive
        self._reader = Reader()
        self._opened: Opened | None = None
        self._sent: dict[str, Any] = {}  # what the page has of the pod it looks into
        self._reopened = trio.Event()

    async def run(self) -> None:
        """Serves until the reader leaves. Raises BadMessage, trio.TooSlowError, and what `send` raises."""
        with trio.fail_after(_HELLO_SECONDS):
            hello = await self._asked()
        if hello is None:
            return
        await self._feed.join(self._reader)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell, hello.life, hello.from_ if hello.from_ is not None else -1)
                nursery.start_soon(self._show)
                nursery.start_soon(self._show_log)
                self._take(hello)
                while (asked := await self._asked()) is not None:
                    self._take(asked)
                nursery.cancel_scope.cancel()
        finally:
            self._feed.leave(self._reader)

    async def _asked(self) -> Asked | None:
        message = await self._receive()
        if message is None:
            return None
        try:
            return decode_flat(message, Asked)
        except msgspec.MsgspecError as exc:
            raise BadMessage(str(exc)) from exc

    def _take(self, asked: Asked) -> None:
        if asked.see is not None:
            self._reader.sees = tuple(asked.see[:_UIDS])
            self._reader.compares = asked.compare
        if asked.open is not msgspec.UNSET:
            self._open(asked.open)

    def _open(self, opened: Opened | None) -> None:
        """A page forgets the pod it leaves, and a log when it asks for another, even if it is back before it
        was sent anything.
        """
        before, self._opened = self._opened, opened
        if opened is None or before is None or opened.uid != before.uid:
            self._sent = {}
        elif opened != before:
            self._sent.pop("log", None)
        self._reopened.set()
        self._reopened = trio.Event()

    async def _tell(self, life: str, number: int) -> None:
        shown = self._feed.shown
        while True:
            messages = shown.since(life, number)
            life, number = shown.life, shown.number
            for message in messages:
                await self._send(message)
            if number == shown.number:
                await self._feed.news()

    async def _show(self) -> None:
        """The pod the reader looks into: what of it is different from what was sent."""
        while True:
            opened, sent, reopened = self._opened, self._sent, self._reopened
            what: dict[str, object] = {}
            if opened is not None:
                if (pod := self._feed.node.pod(opened.uid)) is not None and sent.get("pod") is not pod:
                    sent["pod"] = pod
                    what["detail"] = self._feed.node.detail(pod)
                story = self._feed.node.story(opened.uid)
                if sent.get("story") != story:
                    sent["story"] = story
                    what["story"] = {"uid": opened.uid, "entries": story}
            await self._say(what)
            await _rest(reopened, math.inf if opened is None else _pause_after(what))

    async def _show_log(self) -> None:
        """The log it looks at; apart, for its disk may be slow."""
        while True:
            opened, sent, reopened = self._opened, self._sent, self._reopened
            if opened is None or not opened.container:
                await reopened.wait()
                continue
            of, last = sent.get("log", (None, None))
            before = last if of == opened else None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_at, reopened, nursery.cancel_scope)
                tail = await self._feed.node.log_tail(opened.uid, opened.container, opened.previous, before)
                nursery.cancel_scope.cancel()
            if opened is not self._opened:
                continue  # it looks elsewhere now
            sent["log"] = opened, tail
            is_new = before is None or before.text != tail.text
            what = {"log": {**msgspec.to_builtins(opened), "text": tail.text}} if is_new else {}
            await self._say(what)
            await _rest(reopened, _pause_after(what))

    async def _say(self, what: Mapping[str, object]) -> None:
        if what:
            await self._send(_encode(what))

    async def _send(self, message: bytes) -> None:
        with trio.fail_after(_SEND_SECONDS):
            await self._send_raw(message)


async def _cancel_at(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _pause_after(said: object) -> float:
    return _DETAIL_PERIOD if said else _DETAIL_REST


async def _rest(reopened: trio.Event, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await reopened.wait()

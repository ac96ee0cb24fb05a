"""Shows a node: a table that is drawn again and again on a terminal, one line a change elsewhere.

What is shown comes from the agent's /pods, as any other reader would get it. The request is made by hand:
HTTP/1.0 to this very process needs no client library. Writing happens in a thread:
a terminal that was stopped with Ctrl-S must hold up nothing but this display.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import trio

from trio_kubelet.commands.table import Row, changes, fit, render, rows
from trio_kubelet.common.lanes import TERMINAL

_PERIOD = 0.5
_ANSWER_SECONDS = 5.0
_HOME, _CLEAR, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"

Pods = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Caption:
    """The fixed lines around the table."""

    title: str
    notes: tuple[str, ...]


def summary(lines: Sequence[Row]) -> str:
    """How many pods there are and how many of their containers run."""
    containers = [row for row in lines if row.indent]
    running = sum(row.state == "Running" for row in containers)
    pods = len(lines) - len(containers)
    return f"{pods} pod{'s' * (pods != 1)}, {running} of {len(containers)} containers running"


def frame(caption: Caption, pods: Pods | None, now_ns: int, width: int, height: int) -> str:
    """One drawing of the whole terminal; `pods` is None while the agent does not answer."""
    said = "the agent does not answer" if pods is None else summary(rows(pods, now_ns))
    head = [f"{caption.title}: {said}"[:width], *(note[:width] for note in caption.notes), ""]
    body = [] if pods is None else render(pods, now_ns, width, colour=True).split("\n")
    lines = fit("\n".join([*head, *body]), max(1, height - 1)).split("\n")
    lines[0] = f"{_BOLD}{lines[0]}{_PLAIN}"
    return _HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW


async def fetch_pods(port: int) -> Pods | None:
    """The items of /pods on a loopback port; None when there is no usable answer in time."""
    answer = b""
    with trio.move_on_after(_ANSWER_SECONDS):
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"GET /pods HTTP/1.0\r\nHost: localhost\r\n\r\n")
                answer = b"".join([chunk async for chunk in stream])
        except (OSError, trio.BrokenResourceError):
            return None
    return parse_pods(answer)


def parse_pods(answer: bytes) -> Pods | None:
    """The items of a PodList in a whole HTTP/1.0 answer; None when it is anything else."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.split(b" ")[1:2] != [b"200"]:
        return None
    try:
        listed = json.loads(body)
    except ValueError:
        return None
    # Go writes an empty list as null.
    items = (listed.get("items") or []) if isinstance(listed, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else None


class Screen:
    """The display of one node, whose agent serves /pods on a loopback port."""

    def __init__(self, out: TextIO, caption: Caption, port: int) -> None:
        self._out = out
        self._caption = caption
        self._port = port

    async def run(self) -> None:
        """Show until cancelled. Raises OSError when the display cannot be written."""
        if self._out.isatty():
            await self._draw()
        else:
            await self._report()

    async def _draw(self) -> None:
        await self._write(_CLEAR)
        while True:
            pods = await fetch_pods(self._port)
            size = await TERMINAL.run(shutil.get_terminal_size)
            now_ns = time.time_ns()
            await self._write(frame(self._caption, pods, now_ns, size.columns, size.lines))
            await trio.sleep(_PERIOD)

    async def _report(self) -> None:
        for line in (self._caption.title, *self._caption.notes):
            await self._write(f"{line}\n")
        began = time.monotonic()
        seen: list[Row] = []
        while True:
            pods = await fetch_pods(self._port)
            if pods is not None:
                lines = rows(pods, time.time_ns())
                for change in changes(seen, lines):
                    await self._write(f"{time.monotonic() - began:7.1f}s  {change}\n")
                seen = lines
            await trio.sleep(_PERIOD)

    async def _write(self, text: str) -> None:
        def write() -> None:
            self._out.write(text)
            self._out.flush()

        try:
            await TERMINAL.run(write)
        except OSError as exc:
            exc.filename = "/dev/stdout"
            raise

"""The display of a standalone node: a terminal gets drawings, anything else one line a change."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.commands.test_table import NOW_NS, pod, running, waiting
from trio_kubelet.commands.table import rows
from trio_kubelet.standalone.screen import Caption, Screen, frame, parse_pods, summary

CAPTION = Caption("node local on containerd 1.7", ("manifests: m", "Ctrl-C ends it"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Agent:
    """Serves whatever `answer` is at the moment as /pods."""

    def __init__(self) -> None:
        self.answer: bytes = b""
        self.port = 0

    def says(self, *pods: Any) -> None:
        self.answer = json.dumps({"items": list(pods)}).encode()

    async def serve(self, stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n" + self.answer)
        await stream.aclose()


@asynccontextmanager
async def an_agent() -> AsyncIterator[Agent]:
    agent = Agent()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, agent.serve, 0, host="127.0.0.1"))
        agent.port = listeners[0].socket.getsockname()[1]
        yield agent
        nursery.cancel_scope.cancel()


async def until_shown(out: io.StringIO, text: str) -> None:
    with trio.fail_after(60):
        while text not in out.getvalue():  # noqa: ASYNC110 -- another thread writes
            await trio.sleep(0.01)


async def test_without_a_terminal_there_is_one_line_a_change() -> None:
    out = io.StringIO()
    async with an_agent() as agent, trio.open_nursery() as nursery:
        agent.says(pod("web", waiting("main", "ContainerCreating"), phase="Pending"))
        nursery.start_soon(Screen(out, CAPTION, agent.port).run)
        await until_shown(out, "web/main: ContainerCreating")
        agent.says(pod("web", running("main")))
        await until_shown(out, "web/main: Running")
        agent.answer = b"no JSON"
        await trio.sleep(0.6)
        agent.says()
        await until_shown(out, "web: gone")
        nursery.cancel_scope.cancel()
    assert out.getvalue().startswith("node local on containerd 1.7\nmanifests: m\nCtrl-C ends it\n")
    assert out.getvalue().count("web/main: Running") == 1
    assert "\x1b" not in out.getvalue()


async def test_a_terminal_shows_that_the_agent_does_not_answer_and_then_its_pods() -> None:
    out = Terminal()
    async with an_agent() as agent, trio.open_nursery() as nursery:
        nursery.start_soon(Screen(out, CAPTION, agent.port).run)
        await until_shown(out, "the agent does not answer")
        agent.says(pod("web", running("main")))
        await until_shown(out, "1 pod, 1 of 1 containers running")
        nursery.cancel_scope.cancel()


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "items"),
    [
        (OK + b'{"items": [{}, 3, {"a": 1}]}', [{}, {"a": 1}]),
        (OK + b'{"items": []}', []),
        (OK + b'{"items": null}', []),
        (OK + b'{"items": 7}', None),
        (OK + b"[]", None),
        (OK + b'{"items": [', None),
        (OK + b"\xff", None),
        (b'HTTP/1.1 500 no\r\n\r\n{"items": []}', None),
        (b"", None),
    ],
)
def test_answers_of_the_agent(answer: bytes, items: object) -> None:
    assert parse_pods(answer) == items


def test_summary() -> None:
    lines = rows([pod("a", running("c"), waiting("d", "Error")), pod("b", running("c"))], NOW_NS)
    assert summary(lines) == "2 pods, 2 of 3 containers running"


@given(st.integers(0, 30), st.integers(1, 100), st.integers(2, 12))
def test_a_frame_never_scrolls_the_terminal(pods: int, width: int, height: int) -> None:
    text = frame(CAPTION, [pod(f"p{n}", running("c")) for n in range(pods)], NOW_NS, width, height)
    assert text.count("\n") <= height - 1
    assert text.startswith("\x1b[H")

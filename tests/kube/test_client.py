"""Requests that a busy server asks to be made again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import pytest
import trio
import trio.testing

from trio_kubelet.kube.client import LONGEST_PATIENCE, MOST_RETRIES, PatientDoor
from trio_kubelet.kube.doors import APIAnswer, APIRequest, EventStream

ASKED = APIRequest("GET", "/api/v1/nodes/n")


class Server:
    """Answers with the given answers, the last one for ever."""

    def __init__(self, *answers: APIAnswer) -> None:
        self._answers = list(answers)
        self.moments: list[float] = []

    async def request(self, request: APIRequest, timeout: float) -> APIAnswer:
        self.moments.append(trio.current_time())
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def watch(
        self, path: str, params: Mapping[str, str], ping_period: float
    ) -> AbstractAsyncContextManager[EventStream]:
        raise NotImplementedError


DONE = APIAnswer(200, b"{}")


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_server_is_asked_again_when_it_says(
    status: int, autojump_clock: trio.testing.MockClock
) -> None:
    server = Server(APIAnswer(status, b"", 3.0), APIAnswer(status, b"", 1.0), DONE)
    assert await PatientDoor(server).request(ASKED, 10) == DONE
    assert server.moments == [0, 3, 4]


@pytest.mark.parametrize(
    ("answer", "tries"),
    [
        (APIAnswer(429, b""), 1),  # it does not say when
        (APIAnswer(409, b"", 1.0), 1),  # nor is it busy
        (APIAnswer(503, b"", 0.0), 1 + MOST_RETRIES),
        (APIAnswer(503, b"", LONGEST_PATIENCE + 1), 1),
        (APIAnswer(503, b"", LONGEST_PATIENCE / 2), 3),
    ],
)
async def test_patience_has_an_end(
    answer: APIAnswer, tries: int, autojump_clock: trio.testing.MockClock
) -> None:
    server = Server(answer)
    assert await PatientDoor(server).request(ASKED, 10) == answer
    assert len(server.moments) == tries

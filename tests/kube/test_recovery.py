"""After an outage whoever waits is woken by the first answer that anybody gets."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random

import pytest
import trio
import trio.testing

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.store import Refused
from trio_kubelet.api import v1
from trio_kubelet.kube.doors import APIRequest
from trio_kubelet.kube.errors import APIUnavailable
from trio_kubelet.kube.recovery import WAKE_WITHIN, Recovery
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.server.http.messages import Request

_LEASE = APIRequest("GET", "/api/v1/pods")


def _refuse(refused: Refused, request: Request) -> Refused:
    return refused


async def test_only_an_answer_after_silence_is_told(autojump_clock: trio.testing.MockClock) -> None:
    server, recovery = APIServer(), Recovery()
    told: list[float] = []
    recovery.back.listen(lambda: told.append(trio.current_time()))
    door = recovery.through(SimulatedDoor(server))

    await door.request(_LEASE, 5)
    assert told == []
    server.down = True
    with pytest.raises(APIUnavailable):
        await door.request(_LEASE, 5)
    server.down = False
    for refused in (Refused(503, "Busy", "starting"), Refused(429, "Busy", "starting")):
        server.refuse = functools.partial(_refuse, refused)
        await door.request(_LEASE, 5)
    assert told == []
    server.refuse = lambda request: Refused(403, "Forbidden", "no")
    await door.request(_LEASE, 5)
    await door.request(_LEASE, 5)
    assert len(told) == 1


async def test_a_reflector_follows_soon_after_others_are_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server, recovery = APIServer(), Recovery()
    door = SimulatedDoor(server)
    pods = Reflector(door, "/api/v1/pods", v1.Pod, rng=random.Random(1))
    recovery.back.listen(pods.hurry)
    heartbeats = recovery.through(SimulatedDoor(server))

    async def beat() -> None:
        while True:
            with trio.move_on_after(7):
                with contextlib.suppress(APIUnavailable):
                    await heartbeats.request(_LEASE, 5)
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pods.run)
        nursery.start_soon(beat)
        await pods.synced.wait()
        for outage in (300, 303, 307):
            server.down = True
            server.break_watches()
            await trio.sleep(outage)
            door.attempts.clear()
            server.down = False
            server.store.create("pods", "d", {"metadata": {"name": f"p{outage}"}})
            began = trio.current_time()
            while f"d/p{outage}" not in pods.objects:  # noqa: ASYNC110 - another task's state
                await trio.sleep(0.01)
            assert trio.current_time() - began <= 7 + WAKE_WITHIN + 0.05
        nursery.cancel_scope.cancel()


async def test_after_an_outage_failures_count_anew(autojump_clock: trio.testing.MockClock) -> None:
    server = APIServer()
    door = SimulatedDoor(server)
    pods = Reflector(door, "/api/v1/pods", v1.Pod, rng=random.Random(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pods.run)
        await pods.synced.wait()
        server.down = True
        server.break_watches()
        await trio.sleep(300)
        server.down = False
        server.refuse = lambda request: Refused(403, "Forbidden", "starting")
        door.attempts.clear()
        pods.hurry()
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    pauses = [b - a for a, b in itertools.pairwise(door.attempts)]
    assert len(pauses) >= 2
    assert pauses[0] < 2

"""A day of faults of the API server and of the URL, through PodConfig: it ends as a day without."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.store import Refused
from tests.kube.test_reflector import a_pod
from tests.sources.test_http import ORIGIN, URL, Web, document, ok
from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import TrioClock
from trio_kubelet.podinfo.updates import API_SOURCE, HTTP_SOURCE, PodOperation
from trio_kubelet.sources.apiserver import APISource
from trio_kubelet.sources.http import HTTPSource, ManifestResponse
from trio_kubelet.sources.podconfig import PodConfig

HOUR = 3600.0


class Node:
    """What a node makes of its sources: the pods in force, by source and UID."""

    def __init__(self, server: APIServer, web: Web, seed: int) -> None:
        self.config = PodConfig(clock=TrioClock(0))
        self.pods: dict[tuple[str, str], Pod] = {}
        self._api = APISource(
            SimulatedDoor(server, pings=bool(seed % 2)), "n", self.config.channel(API_SOURCE),
            rng=random.Random(seed),
        )  # fmt: skip
        self._http = HTTPSource(URL, ORIGIN, 20, web.fetch, self.config.channel(HTTP_SOURCE))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        synced = trio.Event()
        synced.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.config.run)
            nursery.start_soon(self._api.run, synced)
            nursery.start_soon(self._http.run)
            nursery.start_soon(self._consume)
            yield
            nursery.cancel_scope.cancel()

    async def _consume(self) -> None:
        async for update in self.config.updates():
            for pod in update.pods:
                key = (update.source, pod.metadata.uid)
                if update.op is PodOperation.REMOVE:
                    del self.pods[key]
                else:
                    self.pods[key] = pod

    @property
    def names(self) -> set[tuple[str, str, str]]:
        return {(source, uid, pod.metadata.name) for (source, uid), pod in self.pods.items()}


def api_faults(server: APIServer, rng: random.Random) -> list[Callable[[], None]]:
    def refuse(code: int, reason: str) -> Callable[[], None]:
        def begin() -> None:
            server.refuse = lambda request: Refused(code, reason, reason) if rng.random() < 0.7 else None

        return begin

    def down() -> None:
        server.down = True
        server.break_watches()

    def silent() -> None:
        server.silent = True

    def expire() -> None:
        server.store.advance(5)
        server.store.compact()
        server.break_watches()

    def compact_quietly() -> None:
        server.store.compact()

    def mode(name: str) -> Callable[[], None]:
        def begin() -> None:
            server.watch_list = name
            expire()

        return begin

    return [
        down, silent, expire, compact_quietly, server.break_watches, server.end_watches,
        refuse(500, "InternalError"), refuse(429, "TooManyRequests"), refuse(403, "Forbidden"),
        refuse(401, "Unauthorized"), mode("refused"), mode("ignored"), mode("endless"),
    ]  # fmt: skip


def heal(server: APIServer) -> None:
    server.down = server.silent = False
    server.watch_list = "supported"
    server.refuse = lambda request: None
    server.store.advance(0)


def change_something(server: APIServer, rng: random.Random) -> None:
    """Pods are created, change and go, whatever the agent can see of it."""
    pods = [t for (r, _, _), t in server.store._objects.items() if r == "pods"]
    name = f"p{rng.randrange(12)}"
    known = next((p for p in pods if p["metadata"]["name"] == name), None)
    if known is None:
        server.store.create("pods", "d", a_pod(name))
    elif rng.random() < 0.5:
        phase = rng.choice(["Pending", "Running"])
        server.store.set_status("pods", "d", name, phase=phase, message=str(rng.random()))
    else:
        server.store.delete("pods", "d", name, {"gracePeriodSeconds": rng.choice([0, 30])})


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_a_day_of_faults_ends_like_a_day_without(
    autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    rng = random.Random(seed)
    server, web = APIServer(), Web()
    node = Node(server, web, seed)
    web_faults = [ManifestResponse(500), ManifestResponse(404), ok(b"{"), ok(b"\xff"), None]
    faults = api_faults(server, rng)
    served = document("s0")
    end = trio.current_time() + 24 * HOUR
    async with node.running():
        while trio.current_time() < end:
            rng.choice(faults)()
            fault = rng.choice(web_faults)
            web.fail() if fault is None else web.serve(fault)
            for _ in range(rng.randrange(1, 6)):
                change_something(server, rng)
                await trio.sleep(rng.choice([0.1, 1, 30, 300]))
            if rng.random() < 0.6:
                heal(server)
                served = document(*(f"s{i}" for i in range(rng.randrange(1, 4))))
                web.serve(ok(served, str(rng.random())))
                await trio.sleep(rng.choice([0.5, 10, 120]))
        heal(server)
        web.serve(ok(served))
        await trio.sleep(240)

        # A node that starts now, without any fault, is the measure.
        fresh = Node(server, web, seed)
        async with fresh.running():
            await trio.sleep(60)
            assert len(fresh.names) > 2
            assert node.names == fresh.names
            for key, pod in fresh.pods.items():
                assert node.pods[key].spec == pod.spec
                assert node.pods[key].status == pod.status


async def test_a_failing_source_does_not_hold_up_the_other(autojump_clock: trio.testing.MockClock) -> None:
    server, web = APIServer(), Web()
    server.down = True
    web.serve(ok(document("s")))
    node = Node(server, web, 1)
    async with node.running():
        await trio.sleep(60)
        assert {name for _, _, name in node.names} == {"s-n"}
        server.down = False
        server.store.create("pods", "d", a_pod("a"))
        web.fail()
        await trio.sleep(61)
        assert {name for _, _, name in node.names} == {"s-n", "a"}

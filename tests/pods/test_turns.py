"""Whatever happens to many pods at once: only a few of them are handled in one turn of the event loop."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from tests.pods.build import make_pod
from tests.pods.fake_runtime import RuntimePod
from tests.pods.world import World
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.pods.sync_loop import PART
from trio_kubelet.pods.worker_state import Worker
from trio_kubelet.pods.workers import PodWorkers
from trio_kubelet.runtime.results import PodSyncResult

PODS = 200


class Turns(trio.abc.Instrument):
    """Counts what is done in each turn."""

    def __init__(self) -> None:
        self.number = 0
        self.done: Counter[tuple[str, int]] = Counter()

    def after_io_wait(self, timeout: float) -> None:
        self.number += 1

    def most(self, what: str) -> int:
        """How much of this was done in one turn."""
        return max(count for (name, _), count in self.done.items() if name == what)

    def times(self, what: str) -> int:
        """How often it was done at all."""
        return sum(count for (name, _), count in self.done.items() if name == what)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    found = Turns()
    for name in ("create", "sync", "remove"):
        original = getattr(PodWorkers, name)

        def counted(
            self: PodWorkers, *args: Any, _name: str = name, _do: Any = original, **more: Any
        ) -> None:
            found.done[_name, found.number] += 1
            _do(self, *args, **more)

        monkeypatch.setattr(PodWorkers, name, counted)
    return found


async def test_a_burst_of_pods_and_of_deaths(turns: Turns, autojump_clock: trio.abc.Clock) -> None:
    trio.lowlevel.add_instrument(turns)
    world, pods = World(), [make_pod(f"p{number}") for number in range(PODS)]
    async with world.running():
        await world.add(*pods)
        await world.until(lambda: len(world.runtime.alive()) == PODS)
        assert turns.times("create") == PODS
        assert turns.most("create") <= PART
        await trio.sleep(5)
        turns.done.clear()
        for pod in pods:
            world.runtime.die(pod.metadata.uid)
        await trio.sleep(3)
        assert turns.times("sync") >= PODS
        assert turns.most("sync") <= PART
        await world.remove(*pods)
        await world.until(lambda: not world.runtime.alive())
        assert turns.times("remove") == PODS
        assert turns.most("remove") <= PART
    trio.lowlevel.remove_instrument(turns)


async def test_many_rounds_that_take_long_are_told_of_in_many_turns(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose pods all wait for an image: nothing else had its turn until all had been told of."""
    world, turns, pods = World(), Turns(), [make_pod(f"web-{number}") for number in range(40)]

    async def starts(kept: RuntimePod, name: str, status: PodStatus, result: PodSyncResult) -> None:
        await trio.sleep_forever()

    def tell(worker: Worker, status: PodStatus) -> None:
        turns.done["tell", turns.number] += 1

    monkeypatch.setattr(world.runtime, "_start", starts)
    monkeypatch.setattr(world.room.workers._syncer, "tell", tell)
    trio.lowlevel.add_instrument(turns)
    async with world.running():
        for pod in pods:
            await world.add(pod)
        await trio.sleep(15)
        assert turns.times("tell") == len(pods)
        assert turns.most("tell") <= 16

"""Whatever happens to many pods at once: only a few of them are handled in one turn of the event loop."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from tests.pods.build import make_pod
from tests.pods.world import World
from trio_kubelet.pods.sync_loop import PART
from trio_kubelet.pods.workers import PodWorkers

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

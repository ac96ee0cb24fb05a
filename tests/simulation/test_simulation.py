"""Random lives of a node, by seed: whatever happens, it ends as desired, and nothing forbidden happens."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.simulation.deterministic import StandsStill, simulate
from tests.simulation.life import Life
from tests.simulation.world import Node
from trio_kubelet.observed.types import PodLifecycleEventType

DIED = PodLifecycleEventType.CONTAINER_DIED
LIFE = 300.0  # simulated seconds of each seed
LONG_LIFE = 1000.0

SEEDS = 100
SOAK_SEEDS = 1000


def live(seed: int, base: Path, seconds: float, *, traced: bool = False) -> int:
    return simulate(seed, Life(seed, base, seconds=seconds, faults=seed % 4 != 0).run, traced=traced)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_life_ends_as_desired(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path, LIFE)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + SOAK_SEEDS))
def test_many_more_random_lives(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path, LONG_LIFE)


def test_the_same_seed_is_the_same_life_in_every_process(tmp_path: Path) -> None:
    """Without that no failing seed could be looked into."""
    (tmp_path / "here").mkdir()
    here = live(7, tmp_path / "here", 100.0, traced=True)
    program = (
        "import pathlib, sys; from tests.simulation.test_simulation import live; "
        "print(live(7, pathlib.Path(sys.argv[1]), 100.0, traced=True))"
    )
    for hash_seed in ("1", "2"):
        (base := tmp_path / hash_seed).mkdir()
        there = subprocess.run(
            [sys.executable, "-c", program, str(base)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert there.stdout.strip() == str(here), there.stderr[-2000:]


@pytest.mark.parametrize("seed", range(5))
def test_every_end_is_heard_at_once_without_a_relist(seed: int, tmp_path: Path) -> None:
    """What repeats itself (relists, rounds of the workers, restarts of the agent) would make good a loss."""
    simulate(seed, lambda: deaths_are_heard(Node(seed, tmp_path)))


async def deaths_are_heard(node: Node) -> None:
    async with node.running() as nursery:
        for number in range(8):
            node.want(f"p{number}", 3)
        await node.start_agent(nursery)
        await trio.sleep(30)  # the stream of events has settled, the next relist is minutes away
        assert node.agent is not None
        relists = partial(node.agent.registry.get_sample_value, "kubelet_pleg_relist_interval_seconds_count")
        listed = relists()
        died: dict[str, float] = {}
        for _ in range(60):
            await trio.sleep(node.random.expovariate(1))
            running = sorted(node.running_containers(), key=lambda c: c.id)
            for victim in running[: node.random.choice((1, 1, 4))]:
                died[victim.id] = trio.current_time()
                node.runtime.kill(victim.id, node.service.now_ns())
        await trio.sleep(1)
        heard = {data: at for (kind, data), at in node.heard.items() if kind is DIED}
        assert len(died) > 30
        assert died.keys() <= heard.keys()
        assert max(heard[id] - at for id, at in died.items()) < 0.1
        assert relists() == listed


def test_a_loop_that_waits_for_nothing_is_found() -> None:
    async def spin() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(StandsStill, match="the clock stands at 0"):
        simulate(0, spin)

"""Random lives of a node in a cluster: pods, runtime, agent and API server agree in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.cluster import ClusterLife
from tests.simulation.deterministic import simulate

LIFE = 300.0  # simulated seconds of each seed
LONG_LIFE = 1000.0

SEEDS = 20
SOAK_SEEDS = 300


def live(seed: int, base: Path, seconds: float) -> None:
    async def life() -> None:
        await ClusterLife(seed, base, seconds=seconds, faults=seed % 2 == 0).run()

    simulate(seed, life)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_life_in_a_cluster(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path, LIFE)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + SOAK_SEEDS))
def test_many_more_random_lives_in_a_cluster(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path, LONG_LIFE)

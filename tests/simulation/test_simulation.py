"""Random lives of a node, by seed: whatever happens, it ends as desired, and nothing forbidden happens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.simulation.deterministic import StandsStill, simulate
from tests.simulation.life import Life

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


def test_a_loop_that_waits_for_nothing_is_found() -> None:
    async def spin() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(StandsStill, match="the clock stands at 0"):
        simulate(0, spin)

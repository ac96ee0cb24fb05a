"""Random days of CPUs and memory: nothing is given twice, and what runs keeps what it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.placement.day import live


@pytest.mark.parametrize("seed", range(6))
def test_a_day_of_cpus_and_memory(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path)


def test_days_of_cpus_and_memory_are_not_empty(tmp_path: Path) -> None:
    days = []
    for seed in range(3):
        (directory := tmp_path / str(seed)).mkdir()
        days.append(live(seed, directory))
    assert sum(day.started for day in days) > 20
    assert sum(day.refused for day in days) > 3


@pytest.mark.soak
def test_a_thousand_days_of_cpus_and_memory(tmp_path: Path) -> None:
    for seed in range(1000):
        (directory := tmp_path / str(seed)).mkdir()
        live(seed, directory)

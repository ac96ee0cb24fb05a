"""Random days: no device belongs to two containers, and what was given stays given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.devices.day import live, totals


@pytest.mark.parametrize("seed", range(20))
def test_a_day(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path)


def test_days_are_not_empty(tmp_path: Path) -> None:
    started, refused = totals(live(seed, tmp_path / str(seed)) for seed in range(5))
    assert started > 20
    assert refused > 3


@pytest.mark.soak
def test_a_thousand_days(tmp_path: Path) -> None:
    for seed in range(1000):
        live(seed, tmp_path / str(seed))

"""Random days of claims: what runs keeps what it has, and what nobody uses is given back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dra.day import live


@pytest.mark.parametrize("seed", range(20))
def test_a_day_of_claims(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path)


def test_days_of_claims_are_not_empty(tmp_path: Path) -> None:
    assert sum(live(seed, tmp_path / str(seed)).started for seed in range(5)) > 20


@pytest.mark.soak
def test_a_thousand_days_of_claims(tmp_path: Path) -> None:
    for seed in range(1000):
        live(seed, tmp_path / str(seed))

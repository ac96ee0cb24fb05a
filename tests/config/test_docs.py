"""docs/configuration.md tells the truth about what acts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "tools" / "gen_configuration_docs.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert (ROOT / "docs" / "configuration.md").read_text() == generator.document()

"""Patterns are read as Go reads them: recorded answers, and what must never happen."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.server.logs.query import regexp_fault

needs_re2 = pytest.mark.skipif(importlib.util.find_spec("re2") is None, reason="needs the extra go-patterns")

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "go-regexp.json").read_text())["patterns"]


@needs_re2
@pytest.mark.parametrize(("pattern", "said"), RECORDED)
def test_recorded(pattern: str, said: str) -> None:
    assert regexp_fault(pattern) == (said or None)


@needs_re2
@given(st.text(alphabet="ab01(?:)[]{},-*+|\\pPQExd^$é<>="))
def test_every_pattern_gets_an_answer(pattern: str) -> None:
    found = regexp_fault(pattern)
    assert found is None or re.match(r"error parsing regexp: [a-zA-Z\-)\] ]+: `", found)


@needs_re2
@given(st.text())
def test_what_is_quoted_is_read(text: str) -> None:
    quoted = "".join(f"\\x{{{ord(character):x}}}" for character in text)
    assert regexp_fault(quoted) is None
    assert regexp_fault(f"[{quoted}]]") is None


def test_without_re2_journalctl_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    assert regexp_fault("(") is None

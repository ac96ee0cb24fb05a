"""Go's duration syntax."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.common.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("1m30s", 90.0),
        ("1h", 3600.0),
        ("100ms", 0.1),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("-2m", -120.0),
        ("+3s", 3.0),
        ("2µs", 2e-6),
        ("2us", 2e-6),
        ("1h1h", 7200.0),
    ],
)
def test_reads_what_go_reads(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-", "1", "s", ".s", "1 s", "1d", "1m 30s", "abc", "1e3s", "9999999999h", "1s1"]
)
def test_refuses_what_go_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (90, "1m30s"),
        (14400, "4h0m0s"),
        (0.1, "100ms"),
        (0.0015, "1.5ms"),
        (2e-6, "2µs"),
        (1e-9, "1ns"),
        (1.5, "1.5s"),
        (-60, "-1m0s"),
    ],
)
def test_writes_as_go_writes(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_written_durations_read_back(nanos: int) -> None:
    assert parse_duration(format_duration(nanos / 1e9)) == pytest.approx(nanos / 1e9, abs=1e-9)


@given(st.text(alphabet="0123456789.+-hmsuµn x"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-9, rel=1e-9)

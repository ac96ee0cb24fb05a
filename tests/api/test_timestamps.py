"""Timestamps as the API writes and reads them."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api.timestamps import parse_rfc3339, rfc3339, rfc3339_micro, rfc3339_nano

MOMENTS = st.integers(min_value=0, max_value=250_000_000_000 * 10**9)


@given(MOMENTS)
def test_nanoseconds_survive_the_round_trip(ns: int) -> None:
    assert parse_rfc3339(rfc3339_nano(ns)) == ns
    assert parse_rfc3339(rfc3339(ns)) == ns // 10**9 * 10**9
    assert parse_rfc3339(rfc3339_micro(ns)) == ns // 1000 * 1000


@given(st.datetimes(min_value=datetime.datetime(1970, 1, 2), timezones=st.just(datetime.UTC)))
def test_agrees_with_the_standard_library(moment: datetime.datetime) -> None:
    text = moment.isoformat()
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    microseconds = (moment - epoch) // datetime.timedelta(microseconds=1)
    assert parse_rfc3339(text) == microseconds * 1000 or moment.year > 2200


def test_trailing_zeros_are_left_out() -> None:
    assert rfc3339_nano(1_500_000_000) == "1970-01-01T00:00:01.5Z"
    assert rfc3339_nano(1_000_000_000) == "1970-01-01T00:00:01Z"
    assert rfc3339_micro(1_000_000_000) == "1970-01-01T00:00:01.000000Z"


def test_zones_are_taken_off() -> None:
    assert parse_rfc3339("1970-01-01T02:00:00+02:00") == 0
    assert parse_rfc3339("1969-12-31T22:30:00-01:30") == 0


@pytest.mark.parametrize("text", ["", "2026-01-01", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "x"])
def test_what_is_no_timestamp_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="not an RFC 3339"):
        parse_rfc3339(text)


def test_a_year_of_few_digits_is_filled_up() -> None:
    """A manifest that was created in the year 1 ended the agent."""
    text = "0001-01-01T00:00:00Z"
    assert rfc3339(parse_rfc3339(text)) == text

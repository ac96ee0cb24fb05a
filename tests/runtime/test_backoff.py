"""Back-off: how long, from when, until when."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.pods import container, pod
from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.runtime.backoff import (
    BackOff,
    container_back_off_key,
    crash_loop_back_off,
    image_pull_back_off,
)

S = NANOSECONDS


def test_delays_double_up_to_the_maximum() -> None:
    back_off = crash_loop_back_off(300)
    delays = []
    for n in range(8):
        back_off.next("c", n * S, n * S)
        delays.append(back_off.delay_ns("c") // S)
    assert delays == [10, 20, 40, 80, 160, 300, 300, 300]


def test_an_attempt_is_taken_back() -> None:
    back_off = crash_loop_back_off(300)
    back_off.next("c", 0, 0, "here")
    back_off.next("c", 10 * S, 10 * S, "here")
    back_off.take_back("c", "there", 9 * S)
    back_off.take_back("c", "here", 10 * S)
    assert back_off.delay_ns("c") == 20 * S
    back_off.take_back("c", "here", 9 * S)
    assert (back_off.delay_ns("c"), back_off.ends_at_ns("c")) == (10 * S, 10 * S)
    back_off.take_back("c", "here", 9 * S)
    assert back_off.delay_ns("c") == 10 * S
    back_off.next("new", 10 * S, 10 * S, "here")
    back_off.take_back("new", "here", 9 * S)
    assert len(back_off) == 1


@pytest.mark.parametrize(("maximum", "delays"), [(3, [3, 3]), (15, [10, 15]), (1, [1, 1])])
def test_a_small_maximum_is_the_initial_delay_too(maximum: float, delays: list[int]) -> None:
    back_off = crash_loop_back_off(maximum)
    found = []
    for _ in delays:
        back_off.next("c", 0, 0)
        found.append(back_off.delay_ns("c") // S)
    assert found == delays


def test_the_first_delay_can_be_shorter() -> None:
    back_off = crash_loop_back_off(3, initial=1)
    found = []
    for _ in range(4):
        back_off.next("c", 0, 0)
        found.append(back_off.delay_ns("c") // S)
    assert found == [1, 2, 3, 3]


def test_the_delay_counts_from_the_event() -> None:
    back_off = crash_loop_back_off(300)
    assert not back_off.waits_since_event("c", 0, 0)
    back_off.next("c", 0, 0)
    assert back_off.waits_since_event("c", 5 * S, 14 * S)
    assert not back_off.waits_since_event("c", 5 * S, 15 * S)


def test_nothing_waits_for_a_clock_that_was_set_back() -> None:
    back_off = crash_loop_back_off(300)
    back_off.next("c", 3600 * S, 3600 * S)
    assert not back_off.waits_since_event("c", 3605 * S, 10 * S)
    assert not back_off.waits_since_update("c", 10 * S)


def test_a_container_that_ran_for_ten_minutes_starts_anew() -> None:
    back_off = crash_loop_back_off(300)
    for _ in range(5):
        back_off.next("c", 0, 0)
    assert back_off.waits_since_event("c", 600 * S, 600 * S)
    assert not back_off.waits_since_event("c", 601 * S, 601 * S)
    back_off.next("c", 601 * S, 601 * S)
    assert back_off.delay_ns("c") == 10 * S


def test_entries_that_are_over_are_collected() -> None:
    back_off = image_pull_back_off()
    back_off.next("old", 0, 0)
    back_off.next("new", 0, 500 * S)
    assert back_off.collect(601 * S) == ["old"]
    assert len(back_off) == 1


@given(st.lists(st.integers(0, 3000), max_size=30), st.integers(1, 600))
def test_a_delay_stays_in_its_bounds(gaps: list[int], maximum: int) -> None:
    back_off = BackOff(min(10, maximum), maximum, 600)
    now = 0
    for gap in gaps:
        now += gap * S
        back_off.next("c", now, now)
        assert min(10, maximum) * S <= back_off.delay_ns("c") <= maximum * S
        assert back_off.waits_since_update("c", now)
        assert not back_off.waits_since_update("c", back_off.ends_at_ns("c"))


def test_the_key_changes_with_what_a_restart_may_cure() -> None:
    base = container("web")
    a_pod = pod(base)
    resources = v1.ResourceRequirements(limits={"memory": "1Gi"})
    keys = {
        container_back_off_key(p, c)
        for p, c in (
            (a_pod, base),
            (a_pod, container("web", image="other")),
            (a_pod, container("other")),
            (a_pod, container("web", resources=resources)),
            (pod(base, uid="uid-2"), base),
        )
    }
    assert len(keys) == 5
    labelled = msgspec.structs.replace(
        a_pod, metadata=msgspec.structs.replace(a_pod.metadata, labels={"a": "b"})
    )
    assert container_back_off_key(labelled, container("web", tty=True)) in keys

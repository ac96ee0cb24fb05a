"""Limits as systemd keeps them, for any limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.cgroups.limits import Limits, cpu_shares, cpu_weight, with_limits
from trio_kubelet.cgroups.units import INFINITY, cpu_bits, new_slice, properties, with_whole_percents

periods = st.integers(1000, 1_000_000)
quotas = st.one_of(st.just(-1), st.integers(1000, 10_000_000))


@given(quotas, periods)
def test_a_quota_is_rounded_up_to_whole_percents_and_no_further(quota: int, period: int) -> None:
    asked = Limits(cpu_quota=quota, cpu_period=period)
    rounded = with_whole_percents(asked)
    assert with_whole_percents(rounded) == rounded
    (_, told) = dict(properties(rounded, v2=True))["CPUQuotaPerSecUSec"]
    if quota < 0:
        assert (rounded, told) == (asked, INFINITY)
        return
    assert isinstance(told, int)
    assert told % 10_000 == 0
    assert 0 <= told - quota * 1_000_000 // period < 10_000
    assert rounded.cpu_quota in (quota, told * period // 1_000_000)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpus_are_bits(cpus: set[int]) -> None:
    mask = int.from_bytes(cpu_bits(",".join(map(str, sorted(cpus)))), "little")
    assert {cpu for cpu in range(301) if mask >> cpu & 1} == cpus


def test_a_range_of_cpus() -> None:
    assert cpu_bits("0-3,8") == bytes([0b1111, 1])


@given(st.integers(1, 10_000))
def test_shares_and_weight_agree(weight: int) -> None:
    assert cpu_weight(cpu_shares(weight)) in (weight, weight - 1)


def test_lifted_limits_are_infinite() -> None:
    lifted = Limits(memory=-1, pids=-1, cpu_quota=-1, cpu_period=100_000, unified={"memory.high": "max"})
    found = dict(properties(lifted, v2=True))
    assert {found[name] for name in ("MemoryMax", "TasksMax", "CPUQuotaPerSecUSec", "MemoryHigh")} == {
        ("t", INFINITY)
    }
    assert dict(properties(Limits(cpu_shares=2, memory=5), v2=False)) == {
        "MemoryLimit": ("t", 5),
        "CPUShares": ("t", 2),
    }


def test_a_slice_wants_the_one_above_it() -> None:
    assert dict(new_slice("/a.slice/a-b.slice"))["Wants"] == ("as", ["a.slice"])
    assert dict(new_slice("/a.slice"))["Wants"] == ("as", ["-.slice"])


def test_what_is_said_later_counts() -> None:
    old = Limits(memory=1, pids=2, unified={"a": "1"}, huge_pages={"2MB": 3})
    new = Limits(memory=-1, unified={"b": "2"})
    assert with_limits(old, new) == Limits(
        memory=-1, pids=2, unified={"a": "1", "b": "2"}, huge_pages={"2MB": 3}
    )

"""A week of a node: random loads, disks that fill, agents that are started anew, clocks that jump.

Whatever happens, conditions do not flap faster than the transition period, and no pod goes that the rules,
said once more in plain words, would have kept.
"""

from __future__ import annotations

import random

import pytest

from tests.eviction.build import pod_stats
from trio_kubelet.api import v1
from trio_kubelet.eviction.decision import victim
from trio_kubelet.eviction.pressure import Pressure, observe, to_act_on
from trio_kubelet.eviction.thresholds import CONDITIONS, Layout, Signal, Threshold, for_filesystems
from trio_kubelet.stats.summary_types import PodStats

WEEK = 7 * 24 * 3600
LOOK = 10
TRANSITION = 300.0
MEMORY, DISK, PIDS = 1000, 2000, 500
THRESHOLDS = for_filesystems(
    (
        Threshold("memory.available", "100", reclaim="50"),
        Threshold("memory.available", "20%", grace=60.0),
        Threshold("nodefs.available", "10%"),
        Threshold("nodefs.inodesFree", "5%"),
        Threshold("imagefs.available", "15%"),
        Threshold("pid.available", "50"),
    ),
    Layout.ONE,
)


class Week:
    """A node of twelve pods, each of which may be replaced by another when it has gone."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.jumped_ns = 0
        self.pods: dict[str, v1.Pod] = {}
        self.uses: dict[str, dict[str, int]] = {}
        self.numbers = 0
        self.frozen: dict[str, Signal] = {}

    def live(self) -> None:
        """Ten seconds pass."""
        rng = self.random
        while len(self.pods) < 12:
            uid = f"pod-{self.numbers}"
            self.numbers += 1
            resources = v1.ResourceRequirements(requests={"memory": str(rng.choice((0, 30, 60)))})
            spec = v1.PodSpec(containers=[v1.Container(name="c", resources=resources)])
            spec.priority = rng.choice((None, 0, 10, 2_000_000_000))
            self.pods[uid] = v1.Pod(metadata=v1.ObjectMeta(name=uid, namespace="d", uid=uid), spec=spec)
            self.uses[uid] = {
                "mem": rng.randint(5, 60),
                "disk": rng.randint(5, 100),
                "pids": rng.randint(1, 30),
            }
        for use in self.uses.values():
            for what in use:
                if rng.random() < 0.002:
                    use[what] = rng.randint(1, 60)
                if rng.random() < 0.0003:  # something leaks
                    use[what] *= rng.randint(2, 30)
        if rng.random() < 0.001:
            self.jumped_ns += rng.choice((-1, 1)) * rng.randint(1, 10**14)

    def signals(self, now: float) -> dict[str, Signal]:
        if self.random.random() < 0.02 and self.frozen:
            return self.frozen  # figures that are not news
        at_ns = 10**18 + int(now * 10**9) + self.jumped_ns
        used = {what: sum(use[what] for use in self.uses.values()) for what in ("mem", "disk", "pids")}
        found = {
            "memory.available": Signal(max(0, MEMORY - used["mem"]), MEMORY, at_ns),
            "nodefs.available": Signal(max(0, DISK - used["disk"]), DISK, at_ns),
            "nodefs.inodesFree": Signal(max(0, DISK - used["disk"] // 2), DISK, at_ns),
            "imagefs.available": Signal(max(0, DISK - used["disk"]), DISK, at_ns),
            "pid.available": Signal(PIDS - used["pids"], PIDS, at_ns),
        }
        for name in [name for name in found if self.random.random() < 0.003]:
            del found[name]  # could not be read
        self.frozen = found
        return found


def is_low(signal: Signal | None, threshold: Threshold, *, more: bool = False) -> bool:
    """The rule in plain words: less is left than the threshold (and what is to be reclaimed besides)."""
    if signal is None:
        return False
    text = threshold.least
    least = signal.capacity * int(text[:-1]) / 100 if text.endswith("%") else int(text)
    return signal.available < int(least) + (int(threshold.reclaim or "0") if more else 0)


def measured(uid: str, use: dict[str, int]) -> PodStats:
    container = {"n": "c", "logs": [use["disk"], use["disk"] // 2]}
    return pod_stats(uid, {"mem": use["mem"], "procs": use["pids"], "c": [container]})


def run(seed: int, seconds: int) -> tuple[int, int]:
    """Lives through it; how many pods went and how often conditions turned."""
    week, pressure = Week(seed), Pressure()
    low_at: dict[str, float] = {}
    hungry: dict[Threshold, float] = {}  # since when a threshold has been under without a break
    previous: dict[str, Signal] = {}
    evicted = turns = 0
    for now in range(0, seconds, LOOK):
        week.live()
        if week.random.random() < 0.0005:  # a new agent knows nothing of before
            pressure, hungry, low_at, previous = Pressure(), {}, {}, {}
        signals = week.signals(now)
        before, pressure = pressure, observe(THRESHOLDS, signals, pressure, TRANSITION, now)
        for each in THRESHOLDS:
            held = each in before.met
            if is_low(signals.get(each.signal), each, more=held):
                hungry.setdefault(each, now)
                low_at[CONDITIONS[each.signal]] = now
            else:
                hungry.pop(each, None)
        assert pressure.conditions == {kind for kind, at in low_at.items() if now - at < TRANSITION}
        turns += len(pressure.conditions ^ before.conditions)
        met = to_act_on(pressure, before)
        assert not (met and signals is previous), "never twice for one observation"
        previous = signals
        for each in met:
            assert now - hungry[each] >= each.grace, "nothing is acted on that the rules do not say"
        if not met:
            continue
        stats = {uid: measured(uid, use) for uid, use in week.uses.items()}
        chosen = victim(met, signals, Layout.ONE, list(week.pods.values()), stats, 30)
        if chosen is None:
            assert all((pod.spec.priority or 0) >= 2_000_000_000 for pod in week.pods.values())
            continue
        assert (chosen.pod.spec.priority or 0) < 2_000_000_000
        uid = chosen.pod.metadata.uid
        del week.pods[uid], week.uses[uid]
        evicted += 1
    return evicted, turns


@pytest.mark.parametrize("seed", range(2))
def test_a_day(seed: int) -> None:
    evicted, turns = run(seed, WEEK // 7)
    assert evicted
    assert turns


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 20))
def test_a_week(seed: int) -> None:
    evicted, turns = run(seed, WEEK)
    assert evicted
    assert turns <= 3 * 2 * WEEK / TRANSITION

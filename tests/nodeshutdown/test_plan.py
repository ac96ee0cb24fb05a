"""Who is ended when, as kubelet v1.36.2 did it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api import v1
from trio_kubelet.config.types import KubeletConfiguration, ShutdownGracePeriodByPodPriority
from trio_kubelet.nodeshutdown.plan import (
    MESSAGE,
    REASON,
    SYSTEM_CRITICAL,
    Period,
    grace_of,
    groups,
    logind_drop_in,
    periods_of,
    requested,
)
from trio_kubelet.nodeshutdown.state import NOT_READY

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "graceful-shutdown.json").read_text())


def a_pod(name: str, priority: int | None = None, grace: int | None = 5) -> v1.Pod:
    spec = v1.PodSpec(containers=[], priority=priority, termination_grace_period_seconds=grace)
    return v1.Pod(metadata=v1.ObjectMeta(name=name, namespace="default", uid=name), spec=spec)


def test_the_recorded_shutdown() -> None:
    config = KubeletConfiguration(shutdown_grace_period=30.0, shutdown_grace_period_critical_pods=12.0)
    periods = periods_of(config, by_priority=True)
    assert periods == (Period(0, 18), Period(SYSTEM_CRITICAL, 12))
    drop_in = logind_drop_in(requested(periods))
    [recorded_file] = [text for path, text in GOLDEN["files"].items() if path.endswith("99-kubelet.conf")]
    assert recorded_file.startswith(drop_in.rstrip())
    assert len(drop_in) == 56
    pods = [a_pod(name) for name in ("sw-nolimit", "be1", "st-node", "sw-bu")]
    pods += [a_pod("low", -10), a_pod("sw-crit", SYSTEM_CRITICAL)]
    said = []
    for group in groups(periods, pods):
        said += [(pod.metadata.name, grace_of(pod, group.period)) for pod in group.pods]
        said.append(("done", group.period.seconds))
    recorded = []
    for line in GOLDEN["killing"]:
        found = re.search(r'(?:pod="default/(\S+)" )?gracePeriod=(\d+)', line)
        assert found is not None
        recorded.append((found[1] or "done", int(found[2])))
    assert said == recorded
    assert GOLDEN["statuses"][0] == {"phase": "Failed", "reason": REASON, "message": MESSAGE}
    assert GOLDEN["disruption"][0]["message"] == MESSAGE
    assert GOLDEN["not_ready"][0]["message"] == NOT_READY


def test_which_configuration_counts() -> None:
    both = KubeletConfiguration(
        shutdown_grace_period=10.0,
        shutdown_grace_period_by_pod_priority=[
            ShutdownGracePeriodByPodPriority(priority=100, shutdown_grace_period_seconds=7),
            ShutdownGracePeriodByPodPriority(priority=-5, shutdown_grace_period_seconds=3),
        ],
    )
    assert periods_of(both, by_priority=True) == (Period(-5, 3), Period(100, 7))
    assert periods_of(both, by_priority=False) == (Period(0, 10), Period(SYSTEM_CRITICAL, 0))
    assert periods_of(KubeletConfiguration(), by_priority=True) == ()


def test_parts_of_a_second_count_together() -> None:
    config = KubeletConfiguration(shutdown_grace_period=2.3, shutdown_grace_period_critical_pods=1.3)
    assert periods_of(config, by_priority=True) == (Period(0, 1), Period(SYSTEM_CRITICAL, 1))
    config = KubeletConfiguration(shutdown_grace_period=3.2, shutdown_grace_period_critical_pods=1.3)
    assert periods_of(config, by_priority=True) == (Period(0, 1), Period(SYSTEM_CRITICAL, 1))


PRIORITIES = st.integers(-10, 10)


@given(st.lists(PRIORITIES, min_size=1, max_size=5, unique=True), st.lists(PRIORITIES, max_size=12))
def test_each_pod_is_in_the_group_of_the_highest_priority_it_reaches(
    priorities: list[int], pods: list[int]
) -> None:
    periods = [Period(priority, 1) for priority in sorted(priorities)]
    made = groups(periods, [a_pod(str(index), priority) for index, priority in enumerate(pods)])
    assert [each.period.priority for each in made] == sorted(each.period.priority for each in made)
    seen = 0
    for group in made:
        for pod in group.pods:
            seen += 1
            priority = pod.spec.priority or 0
            reached = [each for each in sorted(priorities) if each <= priority]
            assert group.period.priority == (reached[-1] if reached else min(priorities))
    assert seen == len(pods)

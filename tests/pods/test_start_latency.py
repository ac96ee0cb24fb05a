"""The pod start SLI: what counts as a start, and what is left out of its duration."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from tests.pods.build import make_pod
from tests.pods.fake_runtime import EPOCH_NS
from tests.pods.world import World
from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.podinfo.updates import CONFIG_SEEN_ANNOTATION
from trio_kubelet.pods.start_latency import KEPT_PULLS, PodStart, PodStarts, StartTracker, covered
from trio_kubelet.server.http.exposition import render

SECOND = 10**9
CREATED = 1_800_000_000 * SECOND
UID = "uid-web"
spans = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda t: (min(t), max(t))), max_size=8
)


def at(seconds: float) -> int:
    return CREATED + round(seconds * SECOND)


def api_pod(**fields: object) -> v1.Pod:
    return make_pod(source="api", created_at=rfc3339(CREATED), **fields)  # type: ignore[arg-type]


def runs(since: float, name: str = "main") -> v1.ContainerStatus:
    running = v1.ContainerStateRunning(started_at=rfc3339(at(since)))
    return v1.ContainerStatus(name=name, state=v1.ContainerState(running=running))


def ran(began: float, ended: float) -> v1.ContainerStatus:
    state = v1.ContainerStateTerminated(
        exit_code=0, started_at=rfc3339(at(began)), finished_at=rfc3339(at(ended))
    )
    return v1.ContainerStatus(name="init", state=v1.ContainerState(terminated=state))


def running(since: float = 5, **fields: object) -> v1.PodStatus:
    return v1.PodStatus(phase="Running", container_statuses=[runs(since)], **fields)  # type: ignore[arg-type]


@given(spans)
def test_time_is_covered_once_however_spans_overlap(some: list[tuple[int, int]]) -> None:
    assert covered(some) == len({moment for began, ended in some for moment in range(began, ended)})


def test_pulls_and_init_containers_are_left_out() -> None:
    tracker, pod = StartTracker(), api_pod()
    tracker.seen(pod, at(1))
    tracker.pulled(UID, at(2), at(6))
    tracker.pulled(UID, at(5), at(7))
    waiting = v1.PodStatus(phase="Pending", container_statuses=[v1.ContainerStatus(name="main")])
    assert tracker.status_changed(pod, waiting, at(8)) is None
    started = running(12, init_container_statuses=[ran(8, 11)])
    assert tracker.status_changed(pod, started, at(12.5)) == PodStart(
        total_ns=round(12.5 * SECOND), net_ns=round(4.5 * SECOND), stateful=False, network=True
    )


@given(spans)
def test_pulls_are_told_when_they_end(some: list[tuple[int, int]]) -> None:
    tracker, pod = StartTracker(), api_pod()
    tracker.seen(pod, at(0))
    for began, ended in sorted(some, key=lambda span: span[1]):
        tracker.pulled(UID, at(began), at(ended))
    start = tracker.status_changed(pod, running(60), at(61))
    assert start is not None
    assert start.total_ns - start.net_ns == covered(some) * SECOND


def test_of_a_pod_that_pulls_for_ever_the_time_is_kept_not_the_pulls() -> None:
    tracker, pod = StartTracker(), api_pod()
    tracker.seen(pod, at(0))
    for number in range(1000):
        tracker.pulled(UID, at(10 * number), at(10 * number + 3))
    assert len(tracker._starting[UID].pulls) == KEPT_PULLS
    start = tracker.status_changed(pod, running(20_000), at(20_000))
    assert start is not None
    assert start.total_ns - start.net_ns == 3000 * SECOND


def test_a_start_is_measured_once_in_the_life_of_a_pod() -> None:
    tracker, pod = StartTracker(), api_pod()
    tracker.seen(pod, at(1))
    assert tracker.status_changed(pod, running(), at(6)) is not None
    tracker.seen(pod, at(7))
    assert tracker.status_changed(pod, running(8), at(9)) is None
    tracker.gone(UID)
    tracker.seen(pod, at(10))
    assert tracker.status_changed(pod, running(11), at(12)) is not None


def test_all_containers_have_to_run() -> None:
    pair = api_pod(containers=[v1.Container(name="main"), v1.Container(name="other")])
    tracker = StartTracker()
    tracker.seen(pair, at(0))
    assert tracker.status_changed(pair, v1.PodStatus(phase="Pending"), at(1)) is None
    assert tracker.status_changed(pair, running(), at(6)) is None
    both = v1.PodStatus(phase="Running", container_statuses=[runs(5), runs(6, "other")])
    assert tracker.status_changed(pair, both, at(7)) is not None


UNSCHEDULABLE = v1.PodStatus(conditions=[v1.PodCondition(type="PodScheduled", status="False")])


@pytest.mark.parametrize(
    "pod",
    [
        api_pod(annotations={"kubernetes.io/config.mirror": "hash"}),
        api_pod(status=UNSCHEDULABLE),
        api_pod(status=v1.PodStatus(phase="Failed")),
        api_pod(status=v1.PodStatus(start_time=rfc3339(at(1)))),
        make_pod(source="api"),
    ],
    ids=["mirror", "unschedulable", "over", "started before", "of unknown age"],
)
def test_what_does_not_count(pod: v1.Pod) -> None:
    tracker = StartTracker()
    tracker.seen(pod, at(1))
    tracker.seen(replace(pod, status=v1.PodStatus()), at(2))
    assert tracker.status_changed(pod, running(), at(6)) is None


def test_a_pod_that_ran_when_it_was_first_seen_does_not_count() -> None:
    tracker, pod = StartTracker(), api_pod()
    tracker.seen(pod, at(6))
    assert tracker.status_changed(pod, running(5), at(7)) is None
    assert tracker.status_changed(pod, running(8), at(9)) is None


def test_a_start_within_the_second_of_the_first_sight_counts() -> None:
    tracker, pod = StartTracker(), api_pod()
    tracker.seen(pod, at(5.8))
    assert tracker.status_changed(pod, running(5), at(6)) is not None


def test_pods_nobody_showed_are_not_followed() -> None:
    tracker = StartTracker()
    tracker.pulled(UID, at(1), at(2))
    assert tracker.status_changed(make_pod(source="file"), running(), at(6)) is None


class Now:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = CREATED

    def now_ns(self) -> int:
        return self.at


def test_metrics() -> None:
    registry, clock = CollectorRegistry(), Now()
    starts = PodStarts(registry, clock)

    def value(name: str) -> float:
        return registry.get_sample_value(f"kubelet_{name}") or 0.0

    volume = v1.Volume(name="v", host_path=v1.HostPathVolumeSource(path="/v"))
    pods = [
        api_pod(name="host", spec={"host_network": True}),
        api_pod(name="stateful", spec={"volumes": [volume]}),
        api_pod(name="first"),
        api_pod(name="second"),
    ]
    for number, pod in enumerate(pods, start=1):
        starts.seen(pod)
        starts.pulled(pod.metadata.uid, at(0), at(0.5))
        clock.at = at(number)
        starts.status_changed(pod, running(number))
    assert value("pod_start_total_duration_seconds_count") == 4
    assert value("pod_start_total_duration_seconds_sum") == 10
    assert value("pod_start_sli_duration_seconds_count") == 3
    assert value("pod_start_sli_duration_seconds_sum") == 8 - 1.5
    assert value("first_network_pod_start_sli_duration_seconds") == 2.5


async def test_the_duration_of_a_start_is_on_the_page_of_metrics(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    three_seconds_ago = rfc3339(EPOCH_NS - 3 * SECOND)
    pod = make_pod(annotations={CONFIG_SEEN_ANNOTATION: three_seconds_ago})
    async with world.running():
        await world.add(pod)
        await world.until(lambda: world.status(pod).phase == "Running" if world.stories(pod) else False)
        await trio.sleep(60)
    shown = b"".join(render(world.registry)).decode().splitlines()
    for name in ("kubelet_pod_start_duration_seconds", "kubelet_pod_worker_start_duration_seconds"):
        assert f"{name}_count 1.0" in shown or f"{name}_count 1" in shown
        took = next(float(line.split()[1]) for line in shown if line.startswith(f"{name}_sum "))
        assert 3 <= took < 5

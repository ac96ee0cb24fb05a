"""What a pod asks for, has and is being resized to, in its status."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.pods.build import make_pod
from tests.pods.observed import container, exited, generate, observed, pod_of, seen
from trio_kubelet.api import v1
from trio_kubelet.observed.types import ContainerResources
from trio_kubelet.pods.status.conditions import put
from trio_kubelet.pods.status.resources import (
    container_status_resources,
    pod_level_status,
    pod_limits,
    pod_requests,
)

SIDECAR = container("s", restart_policy="Always")
INIT = container("i")


def test_sums_of_requests_and_limits() -> None:
    def needs(name: str, cpu: str, **more: Any) -> v1.Container:
        resources = v1.ResourceRequirements(requests={"cpu": cpu}, limits={"cpu": cpu})
        return container(name, resources=resources, **more)

    spec = {
        "init_containers": [needs("s", "100m", restart_policy="Always"), needs("i", "2")],
        "overhead": {"cpu": "50m", "memory": "10Mi"},
    }
    pod = make_pod(containers=[needs("a", "500m"), needs("b", "1")], spec=spec)
    assert pod_requests(pod) == {"cpu": "2150m", "memory": "10Mi"}
    assert pod_limits(pod) == {"cpu": "2150m"}
    pod_level = v1.ResourceRequirements(requests={"cpu": "3"})
    assert pod_requests(replace(pod, spec=replace(pod.spec, resources=pod_level)))["cpu"] == "3050m"


PLENTY = {"cpu": "1", "memory": "64Mi", "ephemeral-storage": "1Gi", "example.com/a": "1"}


@pytest.mark.parametrize(
    ("requests", "limits", "shown_requests", "shown_limits"),
    [
        ([None], [None], None, None),
        ([PLENTY], [PLENTY], {"cpu": "1", "memory": "64Mi"}, {"cpu": "1", "memory": "64Mi"}),
        ([{"cpu": "1"}, {"cpu": "2"}], [{"cpu": "1"}, None], {"cpu": "3"}, {"cpu": "1"}),
        ([{"cpu": "2m"}], [{"cpu": "10m"}], None, None),
        ([{"cpu": "3m"}], [{"cpu": "11m"}], {"cpu": "3m"}, {"cpu": "11m"}),
    ],
)
def test_a_running_pod_shows_its_cpu_and_memory(
    requests: list[dict[str, str] | None],
    limits: list[dict[str, str] | None],
    shown_requests: dict[str, str] | None,
    shown_limits: dict[str, str] | None,
) -> None:
    """Compared with a kubelet; sums of all that was granted until the pod runs."""
    containers = [
        container(f"c{number}", resources=v1.ResourceRequirements(requests=asked, limits=most))
        for number, (asked, most) in enumerate(zip(requests, limits, strict=True))
    ]
    pod = make_pod(containers=containers)
    shown = pod_level_status(pod, running=True)
    assert (shown.requests, shown.limits) == (shown_requests, shown_limits)
    waiting = pod_level_status(pod, running=False)
    assert (waiting.requests or {}, waiting.limits or {}) == (pod_requests(pod), pod_limits(pod))


def test_what_a_pod_asks_for_itself_is_shown_while_it_runs() -> None:
    own = v1.ResourceRequirements(requests={"cpu": "1m", "hugepages-2Mi": "4Mi"}, limits={"memory": "1Gi"})
    pod = make_pod(containers=[container("c")], spec={"resources": own})
    shown = pod_level_status(pod, running=True)
    assert shown == own


def test_while_a_resize_is_not_made_a_running_pod_shows_what_it_has() -> None:
    """As a kubelet does, which reads the pod's cgroup."""

    def sized(memory: str) -> v1.Pod:
        own = v1.ResourceRequirements(requests={"memory": memory}, limits={"memory": memory})
        return make_pod(source="api", containers=[container("c")], spec={"resources": own})

    had, asks = sized("64Mi"), sized("10Ki")
    running = generate(asks, observed(seen("c")), actuated=had)
    assert (running.phase, running.resources) == ("Running", had.spec.resources)
    assert running.allocated_resources == {"memory": "10Ki"}
    assert generate(asks, observed(seen("c")), actuated=asks).resources == asks.spec.resources
    waiting = generate(asks, observed(), actuated=had)
    assert (waiting.phase, waiting.resources) == ("Pending", asks.spec.resources)


def test_the_resources_of_a_pod_as_a_whole_are_not_shown_without_their_gate() -> None:
    own = v1.ResourceRequirements(requests={"cpu": "1"})
    pod = make_pod(source="api", containers=[container("c", resources=own)], spec={"resources": own})
    before = generate(pod, observed(seen("c")))
    assert (before.resources, before.allocated_resources) == (own, {"cpu": "1"})
    status = generate(pod, observed(seen("c")), before, pod_resources=False)
    assert (status.resources, status.allocated_resources) == (None, None)
    [shown] = status.container_statuses or []
    assert shown.allocated_resources == {"cpu": "1"}


def test_resources_in_force_are_shown_for_running_containers() -> None:
    limits = {"cpu": "1", "memory": "64Mi"}
    spec = container("c", resources=v1.ResourceRequirements(requests={"cpu": "1m"}, limits=limits))
    in_force = ContainerResources(
        cpu_period=100_000, cpu_quota=50_000, cpu_shares=2, memory_limit_in_bytes=32 * 2**20
    )
    shown = container_status_resources(spec, seen("c", resources=in_force), "containerd://c1", None)
    assert shown.limits == {"cpu": "500m", "memory": "32Mi"}
    assert shown.requests == {"cpu": "1m"}  # the lower end of the scale is not told apart
    dead = container_status_resources(spec, exited("c", resources=in_force), "containerd://c1", None)
    assert dead.limits == limits
    no_period = seen("c", resources=ContainerResources(cpu_quota=50_000))
    assert container_status_resources(spec, no_period, "containerd://c1", None).limits == limits


def test_stop_signals_are_shown_where_they_may_be_set() -> None:
    """KEP-4960. Nothing is shown of a runtime that does not say."""
    cases = (("SIGUSR1", True, "SIGUSR1"), ("SIGUSR1", False, None), ("", True, None))
    for signal, enabled, expected in cases:
        found = generate(pod_of(), observed(seen("c", stop_signal=signal)), stop_signals=enabled)
        assert [s.stop_signal for s in found.container_statuses or ()] == [expected]


def test_a_request_of_memory_is_shown_when_the_resize_has_arrived() -> None:
    before = v1.ResourceRequirements(
        requests={"cpu": "50m", "memory": "32Mi"}, limits={"cpu": "100m", "memory": "64M"}
    )
    after = v1.ResourceRequirements(
        requests={"cpu": "70m", "memory": "40Mi"}, limits={"cpu": "150m", "memory": "96M"}
    )
    running = v1.ContainerState(running=v1.ContainerStateRunning())
    old = v1.ContainerStatus(name="c", container_id="containerd://c1", state=running, resources=before)

    def shown(shares: int, quota: int, memory: int) -> dict[str, str] | None:
        in_force = ContainerResources(
            cpu_period=100_000, cpu_quota=quota, cpu_shares=shares, memory_limit_in_bytes=memory
        )
        found = seen("c", resources=in_force)
        return container_status_resources(
            container("c", resources=after), found, old.container_id, old
        ).requests

    assert shown(51, 10_000, 64_000_000) == {"cpu": "50m", "memory": "32Mi"}
    assert shown(71, 15_000, 64_000_000) == {"cpu": "70m", "memory": "32Mi"}
    assert shown(71, 15_000, 96_000_000) == {"cpu": "70m", "memory": "40Mi"}


@pytest.mark.parametrize(
    ("phase", "kept"), [("Running", ["PodResizePending", "PodResizeInProgress"]), ("Failed", [])]
)
def test_conditions_of_a_resize_stay_while_the_pod_goes_on(phase: str, kept: list[str]) -> None:
    said = [v1.PodCondition(type=f"PodResize{kind}", status="True") for kind in ("Pending", "InProgress")]
    status = generate(pod_of(), observed(seen("c")), v1.PodStatus(phase=phase, conditions=said))
    assert [each.type for each in status.conditions or () if "Resize" in each.type] == kept


def test_conditions_of_a_resize_stand_before_the_nodes_others() -> None:
    def of(*kinds: str) -> list[v1.PodCondition]:
        return [v1.PodCondition(type=kind, status="True") for kind in kinds]

    there = of("example.com/gate", "Initialized", "Ready")
    pending, in_progress, own = of("PodResizePending", "PodResizeInProgress", "PodScheduled")
    both = put(put(there, in_progress), pending)
    kinds = ["example.com/gate", "PodResizePending", "PodResizeInProgress", "Initialized", "Ready"]
    assert [each.type for each in both] == kinds
    assert put(put(there, pending), in_progress) == both
    assert put(there, own) == [*there, own]
    assert put([pending], in_progress) == [pending, in_progress]

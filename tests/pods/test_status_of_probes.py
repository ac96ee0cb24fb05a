"""What the probes found in statuses: started and ready, over restarts of the agent, too."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.pods.build import api_pod
from tests.pods.observed import SECOND, container, generate, observed, pod_of, seen
from trio_kubelet.api import v1
from trio_kubelet.observed.probes import ProbeResult, ProbeView

SIDECAR = container("s", restart_policy="Always")


def probe_pod(**status: Any) -> v1.Pod:
    probed = container("c", readiness_probe=v1.Probe(), startup_probe=v1.Probe())
    return api_pod(containers=[probed], status=v1.PodStatus(**status))


def flags(pod: v1.Pod, probes: ProbeView, old: v1.PodStatus | None = None) -> tuple[bool | None, bool]:
    [shown] = generate(pod, observed(seen("c", number=100)), old, probes=probes).container_statuses or []
    return shown.started, shown.ready


def test_started_and_ready_follow_the_probes() -> None:
    good, bad = ProbeResult.SUCCESS, ProbeResult.FAILURE
    assert flags(probe_pod(), ProbeView()) == (True, True)
    assert flags(probe_pod(), ProbeView(active=True)) == (False, False)
    assert flags(probe_pod(), ProbeView(active=True, startup={"c100": bad})) == (False, False)
    assert flags(probe_pod(), ProbeView(active=True, startup={"c100": good})) == (True, False)
    ready = ProbeView(active=True, startup={"c100": good}, readiness={"c100": good})
    assert flags(probe_pod(), ready) == (True, True)


def test_a_restart_of_the_agent_takes_no_ready_pod_out_of_service() -> None:
    """kubernetes 100277: pods flipped to NotReady when the kubelet restarted."""
    old = generate(probe_pod(), observed(seen("c", number=100)))
    restarted = ProbeView(active=True, kept_before_ns=1000 * SECOND)
    was_ready = {"conditions": [v1.PodCondition(type="Ready", status="True")], **_statuses(old)}
    assert flags(probe_pod(**was_ready), restarted, v1.PodStatus(**was_ready)) == (True, True)
    was_not = {"conditions": [v1.PodCondition(type="Ready", status="False")], **_statuses(old)}
    assert flags(probe_pod(**was_not), restarted, v1.PodStatus(**was_not)) == (True, False)
    young = ProbeView(active=True, kept_before_ns=105 * SECOND)
    assert flags(probe_pod(**was_ready), young, v1.PodStatus(**was_ready)) == (True, True)
    other = _statuses(generate(probe_pod(), observed(seen("c", number=99))))  # the container before this one
    was_other = {**was_ready, **other}
    assert flags(probe_pod(**was_other), young, v1.PodStatus(**was_other)) == (False, False)
    passed = replace(young, startup={"c100": ProbeResult.SUCCESS})
    assert flags(probe_pod(**was_other), passed, v1.PodStatus(**was_other)) == (True, False)
    passed = replace(restarted, startup={"c100": ProbeResult.SUCCESS})  # nor does it long before the agent
    assert flags(probe_pod(**was_other), passed, v1.PodStatus(**was_other)) == (True, False)
    untold = {"conditions": was_ready["conditions"]}  # by whom nothing is known of containers
    assert flags(probe_pod(**untold), passed, v1.PodStatus(**untold)) == (True, True)
    forgetful = ProbeView(active=True)  # ChangeContainerStatusOnKubeletRestart
    assert flags(probe_pod(**was_ready), forgetful, v1.PodStatus(**was_ready)) == (False, False)


def test_a_restart_of_the_agent_takes_no_ready_sidecar_out_of_service() -> None:
    pod = pod_of(init=(replace(SIDECAR, readiness_probe=v1.Probe()),))
    there = observed(seen("s", number=100), seen("c", number=101))
    was = generate(pod, there, probes=ProbeView(active=True, readiness={"s100": ProbeResult.SUCCESS}))
    young = ProbeView(active=True, kept_before_ns=105 * SECOND)
    [sidecar] = generate(pod, there, was, probes=young).init_container_statuses or []
    assert sidecar.ready


def _statuses(status: v1.PodStatus) -> dict[str, Any]:
    return {"container_statuses": status.container_statuses, "phase": "Running"}


def test_a_successor_has_to_pass_its_own_startup_probe() -> None:
    pod = probe_pod()
    old = generate(pod, observed(seen("c", number=1)))
    started = replace(
        old, container_statuses=[replace(s, started=True) for s in old.container_statuses or ()]
    )
    [shown] = (
        generate(
            pod,
            observed(seen("c", number=2)),
            started,
            probes=ProbeView(active=True, kept_before_ns=1000 * SECOND),
        ).container_statuses
        or []
    )
    assert shown.started is False

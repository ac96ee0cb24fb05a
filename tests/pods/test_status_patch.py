"""What is written of a status, and the patch for it. Rules as in the kubelet's `mergePodStatus`."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.kube.merge import strategic_merge
from tests.pods.build import api_pod, make_pod
from tests.pods.test_status_golden import CLUSTER, as_json, without_nulls
from trio_kubelet.api import v1
from trio_kubelet.pods.status.conditions import OWN, find
from trio_kubelet.pods.status.patch import may_be_deleted, status_patch, status_to_write

NOW = "2026-11-21T12:00:00Z"
BEFORE = "2026-11-21T11:00:00Z"
POD = api_pod(generation=3)


def cond(kind: str, status: str = "True", reason: str = "", moment: str = BEFORE) -> v1.PodCondition:
    return v1.PodCondition(type=kind, status=status, reason=reason, last_transition_time=moment)


def write(shown: v1.PodStatus, status: v1.PodStatus, *, may_run: bool = False) -> v1.PodStatus:
    return status_to_write(POD, shown, status, may_run=may_run, now=NOW)


def kinds(status: v1.PodStatus) -> list[str]:
    return [c.type for c in status.conditions or ()]


def test_conditions_of_others_stay_and_own_ones_that_are_gone_go() -> None:
    shown = v1.PodStatus(conditions=[cond("example.com/a"), cond("Ready"), cond("PodResizeInProgress")])
    written = write(shown, v1.PodStatus(conditions=[cond("Ready", "False"), cond("ContainersReady")]))
    assert kinds(written) == ["example.com/a", "Ready", "ContainersReady"]
    assert json.loads(status_patch("u", [shown], written) or b"")["status"]["conditions"] == [
        {"type": "Ready", "status": "False"},
        {"type": "ContainersReady", "status": "True", "lastTransitionTime": BEFORE},
        {"type": "PodResizeInProgress", "$patch": "delete"},
    ]


@pytest.mark.parametrize("terminal", ["Succeeded", "Failed"])
def test_a_terminal_phase_is_held_back_while_containers_may_run(terminal: str) -> None:
    shown = v1.PodStatus(phase="Running", reason="r", message="m")
    status = v1.PodStatus(phase=terminal, reason="x", message="y", conditions=[cond("Ready", "False")])
    written = write(shown, status, may_run=True)
    assert (written.phase, written.reason, written.message) == ("Running", "r", "m")
    assert kinds(written) == ["Ready"]
    assert write(shown, status).phase == terminal


@pytest.mark.parametrize("may_run", [True, False])
@pytest.mark.parametrize("phase", ["Pending", "Running", "Failed", ""])
def test_a_terminal_phase_is_never_left(phase: str, may_run: bool) -> None:
    shown = v1.PodStatus(phase="Succeeded", reason="Done")
    written = write(shown, v1.PodStatus(phase=phase), may_run=may_run)
    assert (written.phase, written.reason) == ("Succeeded", "Done")


def test_why_a_pod_has_ended_may_be_told_later() -> None:
    shown = v1.PodStatus(phase="Failed", reason="r", message="m")
    written = write(shown, v1.PodStatus(phase="Failed", reason="Evicted", message="no memory"))
    assert (written.phase, written.reason, written.message) == ("Failed", "Evicted", "no memory")


def test_a_static_pod_starts_again_after_the_node_went_down() -> None:
    """Its mirror shows what it was told last, that the pod ended with the node."""
    conditions = [cond("Ready", "False"), cond("DisruptionTarget")]
    shown = v1.PodStatus(phase="Failed", reason="Terminated", message="m", conditions=conditions)
    static = make_pod()
    running = v1.PodStatus(phase="Running", conditions=[cond("Ready")])
    written = status_to_write(static, shown, running, may_run=True, now=NOW)
    assert (written.phase, written.reason, written.message) == ("Running", "", "")
    ready = find(written.conditions, "Ready")
    assert ready is not None
    assert ready.status == "True"
    patch = json.loads(status_patch("u", [shown], written) or b"")["status"]
    assert patch["phase"] == "Running"
    assert patch["reason"] is None
    assert patch["message"] is None


@pytest.mark.parametrize(("phase", "reason"), [("Succeeded", "PodCompleted"), ("Failed", "PodFailed")])
def test_a_pod_that_is_over_is_not_ready(phase: str, reason: str) -> None:
    conditions = [cond("Initialized"), cond("Ready"), cond("ContainersReady", "False", "Old")]
    written = write(v1.PodStatus(phase="Running"), v1.PodStatus(phase=phase, conditions=conditions))
    ready, containers = (find(written.conditions, kind) for kind in ("Ready", "ContainersReady"))
    assert ready is not None
    assert containers is not None
    assert (ready.status, ready.reason, ready.last_transition_time) == ("False", reason, NOW)
    assert (containers.reason, containers.last_transition_time) == (reason, BEFORE)
    assert (ready.observed_generation, kinds(written)[0]) == (3, "Initialized")


def test_why_a_pod_was_disrupted_is_told_with_its_end_and_then() -> None:
    status = v1.PodStatus(
        phase="Failed", conditions=[cond("DisruptionTarget", "True", "TerminationByKubelet")]
    )
    running = v1.PodStatus(phase="Running")
    assert write(running, status, may_run=True).conditions is None
    told = find(write(running, status).conditions, "DisruptionTarget")
    assert told is not None
    assert told.last_transition_time == NOW
    patch = json.loads(status_patch("u", [running], write(running, status)) or b"")["status"]
    assert [each["reason"] for each in patch["conditions"]] == ["TerminationByKubelet"]
    shown = v1.PodStatus(phase="Running", conditions=[cond("DisruptionTarget", "True", "EvictionByAPI")])
    told = find(write(shown, status).conditions, "DisruptionTarget")
    assert told is not None
    assert (told.reason, told.last_transition_time) == ("TerminationByKubelet", BEFORE)
    over = replace(shown, phase="Failed")
    told = find(write(over, status).conditions, "DisruptionTarget")
    assert told is not None
    assert told.reason == "EvictionByAPI"


def test_resource_claims_are_never_written() -> None:
    claims = [v1.PodResourceClaimStatus(name="c", resource_claim_name="x")]
    shown = v1.PodStatus(phase="Pending", resource_claim_statuses=claims)
    written = write(shown, v1.PodStatus(phase="Running"))
    assert written.resource_claim_statuses == claims
    patch = json.loads(status_patch("u", [shown], written) or b"")
    assert patch == {"metadata": {"uid": "u"}, "status": {"phase": "Running"}}


def test_addresses_and_amounts_that_are_gone_are_taken_away() -> None:
    shown = v1.PodStatus(
        pod_ip="10.0.0.1",
        pod_ips=[v1.PodIP(ip="10.0.0.1")],
        allocated_resources={"cpu": "1", "memory": "1Gi"},
        message="old",
    )
    wanted = v1.PodStatus(
        pod_ip="10.0.0.2", pod_ips=[v1.PodIP(ip="10.0.0.2")], allocated_resources={"cpu": "1"}
    )
    assert json.loads(status_patch("u", [shown], wanted) or b"")["status"] == {
        "podIP": "10.0.0.2",
        "podIPs": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1", "$patch": "delete"}],
        "$setElementOrder/podIPs": [{"ip": "10.0.0.2"}],
        "allocatedResources": {"memory": None},
        "message": None,
    }


def test_which_address_is_the_first_is_told_and_no_order_of_conditions() -> None:
    ips = [v1.PodIP(ip="10.0.0.1"), v1.PodIP(ip="fd00::1")]
    shown = v1.PodStatus(pod_ips=ips, conditions=[cond("Ready"), cond("Initialized")])
    wanted = v1.PodStatus(pod_ips=ips[::-1], conditions=[cond("Initialized"), cond("Ready")])
    patch = json.loads(status_patch("u", [wanted, shown], wanted) or b"")
    assert patch["status"] == {"$setElementOrder/podIPs": [{"ip": "fd00::1"}, {"ip": "10.0.0.1"}]}


def test_equal_statuses_need_no_patch() -> None:
    status = v1.PodStatus(phase="Running", conditions=[cond("Ready")])
    assert status_patch("u", [status, copy.deepcopy(status)], status) is None


@pytest.mark.parametrize(
    ("deleted_at", "phase", "finished", "annotations", "expected"),
    [
        (NOW, "Failed", True, {}, True),
        (NOW, "Succeeded", True, {}, True),
        (NOW, "Running", True, {}, False),
        (NOW, "Failed", False, {}, False),
        (None, "Failed", True, {}, False),
        (NOW, "Failed", True, {"kubernetes.io/config.mirror": "x"}, False),
    ],
)
def test_when_a_pod_is_taken_off_the_server(
    deleted_at: str | None, phase: str, finished: bool, annotations: dict[str, str], expected: bool
) -> None:
    pod = api_pod(deleted_at=deleted_at, annotations=annotations)
    assert may_be_deleted(pod, v1.PodStatus(phase=phase), finished) is expected


# Recorded: the patches lead from each status the kubelet wrote to the next one.

SEQUENCES = sorted(CLUSTER["statusSequences"])


@pytest.mark.parametrize("name", SEQUENCES)
def test_recorded_sequences_are_reached_by_patches(name: str) -> None:
    first, *following = (without_nulls(step["status"]) for step in CLUSTER["statusSequences"][name])
    shown: dict[str, Any] = {"status": first}
    for recorded in following:
        before = msgspec.convert(shown["status"], v1.PodStatus)
        patch = status_patch("u", [before], msgspec.convert(recorded, v1.PodStatus))
        assert (patch is None) == (shown["status"] == recorded)
        shown = without_nulls(strategic_merge(shown, json.loads(patch))) if patch else shown
        assert shown["status"] == recorded


@pytest.mark.parametrize("name", SEQUENCES)
def test_recorded_statuses_are_what_is_written_again(name: str) -> None:
    """Whatever was recorded is stable: said again, nothing of it changes and nothing is sent."""
    for step in CLUSTER["statusSequences"][name]:
        status = msgspec.convert(step["status"], v1.PodStatus)
        written = write(status, status, may_run=True)
        assert as_json(written) == as_json(status)
        assert status_patch("u", [status], written) is None


# Properties

MOMENTS = st.sampled_from([NOW, BEFORE])
CONDITIONS = st.lists(
    st.builds(
        cond,
        st.sampled_from([*sorted(OWN), "DisruptionTarget", "example.com/a", "example.com/b"]),
        st.sampled_from(["True", "False"]),
        st.sampled_from(["", "R"]),
        MOMENTS,
    ),
    unique_by=lambda c: c.type,
    max_size=5,
)
STATES = st.sampled_from(
    [
        v1.ContainerState(),
        v1.ContainerState(running=v1.ContainerStateRunning(started_at=NOW)),
        v1.ContainerState(terminated=v1.ContainerStateTerminated(exit_code=1)),
    ]
)
CONTAINERS = st.lists(
    st.builds(v1.ContainerStatus, name=st.sampled_from(["a", "b"]), ready=st.booleans(), state=STATES),
    unique_by=lambda c: c.name,
)
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "2"]))
RESOURCES = st.none() | st.builds(v1.ResourceRequirements, requests=AMOUNTS, limits=st.none() | AMOUNTS)
IPS = st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1"]), unique=True, max_size=2)
STATUSES = st.builds(
    v1.PodStatus,
    phase=st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed"]),
    reason=st.sampled_from(["", "R"]),
    message=st.sampled_from(["", "M"]),
    conditions=CONDITIONS,
    container_statuses=CONTAINERS,
    resources=RESOURCES,
    allocated_resources=AMOUNTS,
    pod_ips=IPS.map(lambda ips: [v1.PodIP(ip=ip) for ip in ips]),
    host_ips=IPS.map(lambda ips: [v1.HostIP(ip=ip) for ip in ips]),
    observed_generation=st.integers(0, 2),
)


def normal(status: Any) -> Any:
    """A status without empty parts, conditions by type. The order of addresses has a meaning."""
    if isinstance(status, dict):
        kept = {key: normal(value) for key, value in status.items()}
        return {key: value for key, value in kept.items() if value not in (None, "", 0, [], {})}
    if isinstance(status, list):
        items = [normal(item) for item in status]
        return sorted(items, key=lambda item: item["type"]) if items and "type" in items[0] else items
    return status


def foreign(status: dict[str, Any]) -> dict[str, Any]:
    return {c["type"]: c for c in status.get("conditions", ()) if c["type"].startswith("example.com/")}


@given(st.lists(STATUSES, min_size=1, max_size=3), STATUSES, st.booleans(), st.data())
def test_whatever_the_server_shows_the_patch_leads_to_the_same(
    shown: list[v1.PodStatus], status: v1.PodStatus, may_run: bool, data: st.DataObject
) -> None:
    wanted = write(shown[0], status, may_run=may_run)
    patch = status_patch("u", shown, wanted)
    index = data.draw(st.integers(0, len(shown) - 1))
    there = as_json(shown[index])
    after = strategic_merge({"status": there}, json.loads(patch))["status"] if patch else there
    assert foreign(after) == foreign(there)

    def own(tree: dict[str, Any]) -> Any:
        conditions = [c for c in tree.get("conditions", ()) if c["type"] in OWN]
        return normal({**tree, "conditions": conditions})

    assert own(after) == own(as_json(wanted))


@given(STATUSES, STATUSES, st.booleans())
def test_phases_of_what_is_written(shown: v1.PodStatus, status: v1.PodStatus, may_run: bool) -> None:
    written = write(shown, status, may_run=may_run)
    over = ("Succeeded", "Failed")
    if shown.phase in over:
        assert written.phase == shown.phase
    elif may_run:
        assert written.phase not in over
    else:
        assert written.phase == status.phase
    if written.phase in over:
        ready = find(written.conditions, "Ready")
        assert ready is None or ready.status != "True"

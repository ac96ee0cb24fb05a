"""Statuses agree with what kubelet v1.36.2 reported for the same pods.

What the runtime showed at that moment is reconstructed from the recorded status; the status generated from
it must be the recorded one again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import parse_rfc3339, rfc3339
from trio_kubelet.observed.probes import ProbeResult, ProbeView
from trio_kubelet.observed.types import (
    ContainerState,
    ContainerStatus,
    ContainerUser,
    PodStatus,
    SandboxStatus,
)
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.status.generate import StatusInputs, generate_status
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.status.patch import status_to_write

GOLDEN = Path(__file__).parents[1] / "golden"
STATIC_CASES = [
    case
    for case in json.loads((GOLDEN / "cri-configs.json").read_text())["cases"]
    if case["pod"] is not None and "status" in case["pod"]
]
CLUSTER = json.loads((GOLDEN / "cluster-node.json").read_text())


class SetClock:
    """A clock that shows what it is set to."""

    now = 0

    def now_ns(self) -> int:
        return self.now


def without_nulls(value: Any) -> Any:
    """Go writes zero times as null, this agent leaves them out."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def without_moments(status: dict[str, Any]) -> dict[str, Any]:
    """A status without the moments that depend on when it was generated."""
    conditions = [
        {k: v for k, v in condition.items() if k != "lastTransitionTime"}
        for condition in status.get("conditions", ())
    ]
    return {**{k: v for k, v in status.items() if k != "startTime"}, "conditions": conditions}


def terminated(name: str, ended: dict[str, Any], shown: dict[str, Any], sandbox: str) -> ContainerStatus:
    return ContainerStatus(
        id=ended["containerID"].removeprefix("containerd://"),
        name=name,
        state=ContainerState.EXITED,
        pod_sandbox_id=sandbox,
        created_at_ns=parse_rfc3339(ended["startedAt"]),
        started_at_ns=parse_rfc3339(ended["startedAt"]),
        finished_at_ns=parse_rfc3339(ended["finishedAt"]),
        exit_code=ended["exitCode"],
        reason=ended.get("reason", ""),
        message=ended.get("message", ""),
        **common(shown),
    )


def common(shown: dict[str, Any]) -> dict[str, Any]:
    user = shown.get("user", {}).get("linux")
    return {
        "image": shown["image"],
        "image_ref": shown["imageID"],
        "restart_count": shown["restartCount"],
        "user": ContainerUser(user["uid"], user["gid"], tuple(user["supplementalGroups"])) if user else None,
    }


def containers_of(shown: dict[str, Any], sandbox: str) -> list[ContainerStatus]:
    """The containers behind one container status, the newest first."""
    found = []
    state, last = shown["state"], shown["lastState"].get("terminated")
    if "running" in state:
        started = parse_rfc3339(state["running"]["startedAt"])
        found.append(
            ContainerStatus(
                id=shown["containerID"].removeprefix("containerd://"),
                name=shown["name"],
                state=ContainerState.RUNNING,
                pod_sandbox_id=sandbox,
                created_at_ns=started + 1,
                started_at_ns=started,
                **common(shown),
            )
        )
    elif "terminated" in state:
        found.append(terminated(shown["name"], state["terminated"], shown, sandbox))
        found[0] = replace(found[0], created_at_ns=found[0].created_at_ns + 1)
    if last is not None:
        found.append(terminated(shown["name"], last, shown, sandbox))
    return found


def observed_behind(status: dict[str, Any], pod: v1.Pod) -> PodStatus:
    """What the runtime must have shown for that status."""
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    ips = tuple(ip["ip"] for ip in status.get("podIPs", ()))
    ready = conditions["PodReadyToStartContainers"] == "True"
    sandbox = SandboxStatus(
        id="sandbox",
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        uid=pod.metadata.uid,
        attempt=0,
        ready=ready,
        created_at_ns=1,
        ips=ips or ("10.0.0.1",),
        host_network=pod.spec.host_network,
    )
    shown = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return PodStatus(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        ips=ips,
        sandboxes=(sandbox,) if ready or any("containerID" in s for s in shown) else (),
        containers=tuple(c for s in shown for c in containers_of(s, "sandbox")),
    )


def inputs_behind(status: dict[str, Any], host_ips: tuple[str, ...], now_ns: int) -> StatusInputs:
    """Probe results and reasons that led to that status."""
    shown = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    readiness = {
        s["containerID"].removeprefix("containerd://"): ProbeResult.SUCCESS
        if s["ready"]
        else ProbeResult.FAILURE
        for s in shown
        if "containerID" in s
    }
    waiting = {s["name"]: s["state"]["waiting"] for s in shown if "waiting" in s["state"]}
    return StatusInputs(
        probes=ProbeView(active=True, readiness=readiness),
        reasons={
            name: (w["reason"], w.get("message", ""))
            for name, w in waiting.items()
            if w["reason"] not in ("ContainerCreating", "PodInitializing")
        },
        host_ips=host_ips,
        now_ns=now_ns,
    )


def as_json(status: v1.PodStatus) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(status))
    return decoded


@pytest.mark.parametrize("case", STATIC_CASES, ids=lambda case: case["manifest"]["metadata"]["name"])
def test_static_pods_without_an_api_server(case: dict[str, Any]) -> None:
    recorded = case["pod"]["status"]
    pod = msgspec.convert({k: v for k, v in case["pod"].items() if k != "status"}, v1.Pod)
    observed = observed_behind(recorded, pod)
    generated = generate_status(pod, observed, v1.PodStatus(), inputs_behind(recorded, (), 1), terminal=False)
    assert without_nulls(without_moments(as_json(generated))) == without_nulls(without_moments(recorded))


@pytest.mark.parametrize("name", sorted(CLUSTER["statusSequences"]))
def test_the_sequence_of_statuses_in_a_cluster(name: str) -> None:
    """Each recorded step follows from the one before it, moments of transition included."""
    clock, pods = SetClock(), PodManager()
    statuses = StatusManager(pods, clock)
    manifest = {k: v for k, v in CLUSTER["pods"][name].items() if k != "status"}
    base = msgspec.convert(manifest, v1.Pod)
    mirror = (base.metadata.annotations or {}).pop("kubernetes.io/config.mirror", None)
    previous: dict[str, Any] | None = None
    shown = v1.PodStatus(phase="Pending")
    compared = 0
    for step in CLUSTER["statusSequences"][name]:
        recorded = step["status"]
        if "conditions" not in recorded or recorded == previous:
            continue
        previous = recorded
        deleted = step["deletionTimestamp"] is not None
        metadata = replace(
            base.metadata,
            generation=0 if mirror else recorded["observedGeneration"],
            deletion_timestamp=step["deletionTimestamp"] if deleted else None,
            deletion_grace_period_seconds=step["deletionGracePeriodSeconds"],
        )
        pod = replace(base, metadata=metadata)
        pods.set(pod)
        moments = [c["lastTransitionTime"] for c in recorded["conditions"]]
        clock.now = max(parse_rfc3339(m) for m in [*moments, recorded["startTime"]])
        over = recorded["phase"] == "Failed"
        inputs = inputs_behind(recorded, (recorded["hostIP"],), clock.now)
        observed = observed_behind(recorded, pod)
        generated = statuses.set(
            pod, generate_status(pod, observed, statuses.before(pod), inputs, terminal=over)
        )
        expected = without_nulls(recorded)
        if any(c.get("reason") == "PodFailed" for c in expected["conditions"]):
            # The API server is told the terminal phase only once nothing can run any more.
            expected["phase"] = "Failed"
        assert without_nulls(as_json(generated)) == expected
        moment = rfc3339(clock.now)
        shown = status_to_write(pod, shown, generated, may_run=not over, now=moment)
        assert without_nulls(as_json(shown)) == without_nulls(recorded)
        compared += 1
    assert compared >= 1

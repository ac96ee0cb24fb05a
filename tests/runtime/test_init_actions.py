"""Init containers and sidecars: which one starts when."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.pods import container, pod, sandbox, seen, sidecar, status
from trio_kubelet.api import v1
from trio_kubelet.native.hashes import container_hash
from trio_kubelet.observed.probes import ProbeReadings, ProbeResult
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.runtime.actions import Observed, compute_pod_actions
from trio_kubelet.runtime.plan import KillReason, PodActions

FAILED, GOOD = ProbeResult.FAILURE, ProbeResult.SUCCESS
PROBE = v1.Probe()


def decide(a_pod: v1.Pod, observed: PodStatus, **more: Any) -> PodActions:
    return compute_pod_actions(a_pod, Observed(status=observed, hash_of=container_hash, **more))


# -----------------------------------------------------------------------------------------------

TWO = (container("i"), container("j"))


@pytest.mark.parametrize(
    ("policy", "containers", "starts", "regular", "kill"),
    [
        ("Always", (), [0], [], False),
        ("Always", (seen("i", "running"),), [], [], False),
        ("Always", (seen("i", "exited", 0),), [1], [], False),
        ("Always", (seen("i", "exited", 1),), [0], [], False),
        ("Never", (seen("i", "exited", 1),), [], [], True),
        ("Always", (seen("i", "exited", 0, reason="OOMKilled"),), [0], [], False),
        ("Always", (seen("i", "created"),), [0], [], False),
        ("Always", (seen("j", "exited", 0), seen("i", "exited", 0)), [], [0], False),
        ("Always", (seen("j", "exited", 0),), [], [0], False),
        ("Always", (seen("j", "exited", 1), seen("i", "exited", 0)), [1], [], False),
        ("Always", (seen("web", "running"),), [], [], False),
        ("Always", (seen("web", "exited", 1), seen("j", "exited", 0)), [], [0], False),
        ("Never", (seen("i", "unknown"),), [], [], True),
        ("Always", (seen("i", "unknown"),), [0], [], False),
    ],
    ids=[
        "none yet",
        "first runs",
        "first done",
        "first failed",
        "first failed for good",
        "oom with exit code 0",
        "never started",
        "all done",
        "the first one's remains are gone",
        "second failed",
        "init containers' remains are gone",
        "regular restarts",
        "unknown for good",
        "unknown",
    ],
)
def test_init_containers(
    policy: str, containers: Any, starts: list[int], regular: list[int], kill: bool
) -> None:
    actions = decide(pod(init=TWO, policy=policy), status(*containers))
    assert actions.init_containers_to_start == starts
    assert actions.containers_to_start == regular
    assert actions.kill_pod is kill


def test_a_pod_grows_as_a_whole_while_it_is_initialized() -> None:
    """kubernetes 138760: an init container got more memory, but its pod kept the limit that it ran into."""
    a_pod = pod(init=(sidecar("s"), container("i")))
    observed = status(seen("s", "running"), seen("i", "exited", 137))
    actions = decide(a_pod, observed, pod_resized=True)
    assert (actions.init_containers_to_start, actions.resize_pod) == ([1], True)
    assert not decide(a_pod, observed).resize_pod


@pytest.mark.parametrize(
    ("containers", "starts"),
    [
        ((seen("i", "exited", 0, pod_sandbox_id="new"), seen("web", "created", pod_sandbox_id="old")), [1]),
        ((seen("web", "created", pod_sandbox_id="old"),), [0]),
        ((seen("i", "exited", 1, pod_sandbox_id="new"), seen("j", "exited", 0, pod_sandbox_id="old")), [0]),
        ((seen("j", "exited", 0, pod_sandbox_id="old"),), [0]),
    ],
    ids=[
        "a regular one that was never started",
        "it alone",
        "an init container that could not be removed",
        "it alone, for the first was not made",
    ],
)
def test_what_an_earlier_sandbox_left_is_no_initialization(containers: Any, starts: list[int]) -> None:
    boxes = (sandbox("new", attempt=1), sandbox("old", ready=False))
    actions = decide(pod(init=TWO), status(*containers, sandboxes=boxes))
    assert (actions.init_containers_to_start, actions.containers_to_start) == (starts, [])


@pytest.mark.parametrize(
    ("containers", "probes", "starts", "regular", "killed"),
    [
        ((seen("s", "running"),), {}, [1], [], []),
        ((seen("s", "running"), seen("i", "exited", 0)), {}, [], [0], []),
        ((seen("s", "exited", 0), seen("i", "running")), {}, [0], [], []),
        ((seen("web", "running"),), {}, [0], [], []),
        ((seen("web", "running"), seen("s", "exited", 1)), {}, [0], [], []),
        ((seen("s", "running", hash="0"), seen("web", "running")), {}, [0], [], ["s"]),
    ],
    ids=["runs, next", "all done", "died meanwhile", "remains gone", "died", "changed"],
)
def test_sidecar_before_init_container(
    containers: Any, probes: Any, starts: list[int], regular: list[int], killed: list[str]
) -> None:
    a_pod = pod(init=(sidecar("s"), container("i")))
    actions = decide(a_pod, status(*containers), probes=ProbeReadings(**probes))
    assert actions.init_containers_to_start == starts
    assert actions.containers_to_start == regular
    assert list(actions.containers_to_kill) == killed


@pytest.mark.parametrize(
    ("startup", "starts", "killed"),
    [(None, [], []), (GOOD, [1], []), (FAILED, [0], ["s"]), (ProbeResult.UNKNOWN, [], [])],
)
def test_a_sidecar_holds_back_the_others_until_its_startup_probe_succeeds(
    startup: ProbeResult | None, starts: list[int], killed: list[str]
) -> None:
    a_pod = pod(init=(sidecar("s", startup_probe=PROBE), container("i")))
    probes = ProbeReadings(startup={"s": startup} if startup else {})
    actions = decide(a_pod, status(seen("s", "running")), probes=probes)
    assert actions.init_containers_to_start == starts
    assert list(actions.containers_to_kill) == killed


def test_a_sidecar_that_fails_its_liveness_probe_restarts_and_holds_back_nothing() -> None:
    a_pod = pod(init=(sidecar("s", liveness_probe=PROBE),))
    actions = decide(a_pod, status(seen("s", "running")), probes=ProbeReadings(liveness={"s": FAILED}))
    assert actions.init_containers_to_start == [0]
    assert actions.containers_to_kill["s"].reason is KillReason.LIVENESS_PROBE
    assert actions.containers_to_start == [0]

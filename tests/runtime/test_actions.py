"""What is to be done for a pod: a table of situations, and what holds in every situation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.pods import container, pod, sandbox, seen, sidecar, status
from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.native.hashes import container_hash
from trio_kubelet.observed.probes import ProbeReadings, ProbeResult
from trio_kubelet.observed.types import ContainerState, ContainerStatus, PodStatus
from trio_kubelet.runtime.actions import Observed, compute_pod_actions
from trio_kubelet.runtime.plan import ContainerToReset, KillReason, PodActions
from trio_kubelet.runtime.resize import Resources

FAILED, GOOD = ProbeResult.FAILURE, ProbeResult.SUCCESS
PROBE = v1.Probe()


def decide(a_pod: v1.Pod, observed: PodStatus, **more: Any) -> PodActions:
    return compute_pod_actions(a_pod, Observed(status=observed, hash_of=container_hash, **more))


def rule(action: str, operator: str, *codes: int) -> v1.ContainerRestartRule:
    return v1.ContainerRestartRule(
        action=action, exit_codes=v1.ContainerRestartRuleOnExitCodes(operator=operator, values=list(codes))
    )


# --- sandboxes
# -----------------------------------------------------------------------------------------------------


def test_a_new_pod_gets_a_sandbox_and_its_containers() -> None:
    actions = decide(pod(container("a"), container("b")), status(sandboxes=()))
    assert (actions.kill_pod, actions.create_sandbox, actions.attempt) == (True, True, 0)
    assert actions.containers_to_start == [0, 1]


def test_a_new_pod_starts_with_its_first_init_container_alone() -> None:
    actions = decide(pod(init=(container("i"), container("j"))), status(sandboxes=()))
    assert (actions.init_containers_to_start, actions.containers_to_start) == ([0], [])


def test_a_good_pod_is_left_alone() -> None:
    actions = decide(pod(), status(seen("web", "running")))
    assert actions.nothing_to_do
    assert actions.sandbox_id == "box"


@pytest.mark.parametrize(
    ("boxes", "attempt", "sandbox_id"),
    [
        ((sandbox(ready=False),), 1, "box"),
        ((sandbox("new", attempt=3), sandbox("old", attempt=2)), 4, "new"),
        ((sandbox("new", attempt=3, ready=False), sandbox("old", attempt=2)), 4, "new"),
        ((sandbox("new", attempt=2**32 - 1, ready=False),), 0, "new"),
        ((sandbox(host_network=True),), 1, ""),
        ((sandbox(ips=()),), 1, "box"),
    ],
    ids=[
        "not ready",
        "two ready",
        "the newest not ready",
        "the last that there can be",
        "other network",
        "no address",
    ],
)
def test_an_unfit_sandbox_is_replaced(boxes: Any, attempt: int, sandbox_id: str) -> None:
    actions = decide(pod(), status(seen("web", "running"), sandboxes=boxes))
    assert (actions.kill_pod, actions.create_sandbox) == (True, True)
    assert (actions.attempt, actions.sandbox_id) == (attempt, sandbox_id)
    assert actions.containers_to_start == [0]


def test_a_runtime_that_says_nothing_of_the_network_is_believed() -> None:
    observed = status(seen("web", "running"), sandboxes=(sandbox(ips=(), network_reported=False),))
    assert decide(pod(), observed).nothing_to_do


def test_a_finished_pod_gets_no_new_sandbox() -> None:
    dead = (sandbox(ready=False),)
    never = decide(pod(policy="Never"), status(seen("web", "exited", 1), sandboxes=dead))
    assert (never.kill_pod, never.create_sandbox) == (True, False)
    done = decide(pod(policy="OnFailure"), status(seen("web", "exited", 0), sandboxes=dead))
    assert (done.kill_pod, done.create_sandbox) == (True, False)


def test_a_pod_without_containers_gets_no_sandbox() -> None:
    nothing = pod()
    nothing.spec.containers = None
    nothing.spec.init_containers = [v1.Container(name="init", image="i")]
    actions = decide(nothing, status(sandboxes=()))
    assert not actions.create_sandbox
    assert not actions.init_containers_to_start


def test_a_pod_that_may_not_restart_still_tries_for_its_first_containers() -> None:
    actions = decide(pod(policy="Never"), status(sandboxes=(sandbox(ready=False),)))
    assert (actions.create_sandbox, actions.containers_to_start) == (True, [0])


def test_a_pod_that_may_not_restart_goes_on_where_its_sandbox_died_too_early() -> None:
    """As when the node reboots while images are pulled (kubernetes/kubernetes 118321)."""
    dead = (sandbox(ready=False),)
    created = decide(pod(policy="Never"), status(seen("web", "created"), sandboxes=dead))
    assert (created.create_sandbox, created.containers_to_start) == (True, [0])
    two = pod(container("a"), container("b"), policy="Never")
    for state in ("running", "exited", "unknown"):
        rest = decide(two, status(seen("a", state), seen("b", "created"), sandboxes=dead))
        assert (rest.create_sandbox, rest.containers_to_start) == (True, [1])
        over = decide(two, status(seen("a", state), seen("b", state), sandboxes=dead))
        assert (over.kill_pod, over.create_sandbox) == (True, False)
    initialised = pod(init=(container("i"),), policy="Never")
    for state, code, begins in (
        ("created", 0, True),
        ("exited", 0, True),
        ("exited", 1, False),
        ("running", 0, False),
        ("unknown", 0, False),
    ):
        again = decide(initialised, status(seen("i", state, code), sandboxes=dead))
        assert again.init_containers_to_start == ([0] if begins else [])
        assert again.create_sandbox is begins


def test_a_new_sandbox_leaves_out_what_succeeded() -> None:
    observed = status(seen("a", "exited", 0), seen("b", "exited", 1), sandboxes=(sandbox(ready=False),))
    actions = decide(pod(container("a"), container("b"), policy="OnFailure"), observed)
    assert actions.containers_to_start == [1]


def test_a_new_sandbox_leaves_out_what_its_own_policy_leaves_ended() -> None:
    """The API server takes no status any more in which it runs again."""
    task, other = container("task"), container("other")
    task.restart_policy = "Never"
    task.restart_policy_rules = [rule("Restart", "In", 7)]
    dead = (sandbox(ready=False),)
    for state, code, starts in (("exited", 0, False), ("exited", 7, True), ("running", 0, False)):
        observed = status(seen("task", state, code), seen("other", "exited", 1), sandboxes=dead)
        assert decide(pod(task, other), observed).containers_to_start == ([0, 1] if starts else [1])
    over = decide(pod(task), status(seen("task", "exited", 3), sandboxes=dead))
    assert (over.kill_pod, over.create_sandbox) == (True, False)


# --- regular containers
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "exit_code", "starts"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 1, True),
        ("OnFailure", 0, False),
        ("Never", 1, False),
    ],
)
def test_restart_policy(policy: str, exit_code: int, starts: bool) -> None:
    a_pod = pod(container("web"), container("other"), policy=policy)
    actions = decide(a_pod, status(seen("web", "exited", exit_code), seen("other", "running")))
    assert (actions.containers_to_start == [0]) is starts
    assert not actions.kill_pod


@pytest.mark.parametrize(
    ("fields", "pod_policy", "exit_code", "starts"),
    [
        ({"restart_policy": "Never"}, "Always", 1, False),
        ({"restart_policy": "Always"}, "Never", 0, True),
        ({"restart_policy": "OnFailure"}, "Never", 0, False),
        ({"restart_policy": "OnFailure"}, "Never", 3, True),
        ({"restart_policy": "Never", "restart_policy_rules": [rule("Restart", "In", 42)]}, "Never", 42, True),
        ({"restart_policy": "Never", "restart_policy_rules": [rule("Restart", "In", 42)]}, "Never", 1, False),
        (
            {"restart_policy": "Never", "restart_policy_rules": [rule("Restart", "NotIn", 42)]},
            "Never",
            1,
            True,
        ),
        ({"restart_policy_rules": [rule("Restart", "In", 42)]}, "Never", 42, False),
    ],
    ids=[
        "own never",
        "own always",
        "own on failure, good",
        "own on failure, bad",
        "rule",
        "no rule",
        "not in",
        "rules need a policy",
    ],
)
def test_container_policies_and_rules(
    fields: dict[str, Any], pod_policy: str, exit_code: int, starts: bool
) -> None:
    a_pod = pod(container("web", **fields), container("other"), policy=pod_policy)
    actions = decide(a_pod, status(seen("web", "exited", exit_code), seen("other", "running")))
    assert (actions.containers_to_start == [0]) is starts


def test_a_deleted_pod_starts_nothing() -> None:
    a_pod = pod()
    a_pod = msgspec.structs.replace(
        a_pod, metadata=msgspec.structs.replace(a_pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    assert decide(a_pod, status(seen("web", "exited", 1))).containers_to_start == []


def test_the_newest_container_of_a_name_decides() -> None:
    observed = status(
        seen("web", "running", id="new", created_at_ns=2), seen("web", "exited", 1, id="old", created_at_ns=1)
    )
    assert decide(pod(), observed).nothing_to_do


def test_when_all_is_over_the_pod_is_killed_with_its_sidecars() -> None:
    a_pod = pod(init=(sidecar("log"),), policy="Never")
    actions = decide(a_pod, status(seen("web", "exited", 0), seen("log", "running")))
    assert actions.kill_pod
    assert not actions.create_sandbox
    assert actions.init_containers_to_start == []


def test_a_changed_container_is_killed_and_started_whatever_the_policy() -> None:
    actions = decide(pod(policy="Never"), status(seen("web", "running", hash="0")))
    kill = actions.containers_to_kill["web"]
    assert kill.message == "Container web definition changed, will be restarted"
    assert kill.reason is KillReason.NONE
    assert actions.containers_to_start == [0]


@pytest.mark.parametrize(
    ("policy", "own", "ending", "starts"),
    [
        ("Always", None, ", will be restarted", [0]),
        ("Never", None, "", []),
        ("Never", "Always", ", will be restarted", [0]),
        ("Always", "Never", "", []),
    ],
)
@pytest.mark.parametrize("probe", ["liveness", "startup"])
def test_a_failed_probe_kills(
    probe: str, policy: str, own: str | None, ending: str, starts: list[int]
) -> None:
    a_pod = pod(container("web", restart_policy=own), container("other"), policy=policy)
    readings = ProbeReadings(**{probe: {"web": FAILED}})
    actions = decide(a_pod, status(seen("web", "running"), seen("other", "running")), probes=readings)
    assert actions.containers_to_kill["web"].message == f"Container web failed {probe} probe{ending}"
    assert actions.containers_to_kill["web"].reason == f"{probe.capitalize()}Probe"
    assert actions.containers_to_start == starts
    assert not actions.kill_pod


def test_a_failed_probe_of_the_last_container_that_may_not_restart_ends_the_pod() -> None:
    actions = decide(
        pod(policy="Never"), status(seen("web", "running")), probes=ProbeReadings(liveness={"web": FAILED})
    )
    assert actions.kill_pod


def test_a_container_in_unknown_state_is_killed_before_its_restart() -> None:
    actions = decide(pod(), status(seen("web", "unknown")))
    assert actions.containers_to_start == [0]
    assert (
        actions.containers_to_kill["web"].message
        == 'Container is in "unknown" state, try killing it before restart'
    )


def test_a_container_that_was_created_but_never_started_is_started_anew() -> None:
    assert decide(pod(policy="Never"), status(seen("web", "created"))).containers_to_start == [0]


# --- ephemeral containers, restart of all, resize
# ------------------------------------------------------------------


def test_ephemeral_containers_start_once_even_during_initialization() -> None:
    a_pod = pod(
        init=(container("i"), container("j")),
        ephemeral_containers=[v1.EphemeralContainer(name="d"), v1.EphemeralContainer(name="e")],
    )
    actions = decide(a_pod, status(seen("i", "running"), seen("d", "exited", 0)))
    assert actions.ephemeral_containers_to_start == [1]


def test_an_ephemeral_container_that_was_removed_does_not_start_again() -> None:
    """kubernetes 124176: it came back each time."""
    was = v1.ContainerStatus(name="d", container_id="containerd://d")
    a_pod = pod(ephemeral_containers=[v1.EphemeralContainer(name="d"), v1.EphemeralContainer(name="e")])
    a_pod.status.ephemeral_container_statuses = [was, v1.ContainerStatus(name="e")]
    assert decide(a_pod, status(seen("web", "running"))).ephemeral_containers_to_start == [1]


def test_restarting_all_removes_everything_and_its_cause_last() -> None:
    cause = container(
        "a", restart_policy="Never", restart_policy_rules=[rule("RestartAllContainers", "In", 7)]
    )
    a_pod = pod(cause, container("b"), init=(container("i"),))
    observed = status(
        seen("a", "exited", 7), seen("b", "running"), seen("i", "exited", 0), seen("b", "exited", 0, id="b0")
    )
    actions = decide(a_pod, observed, restart_all_containers=True)
    assert actions.containers_to_reset == [
        ContainerToReset("b", "b", True),
        ContainerToReset("b0", "b", False),
        ContainerToReset("i", "i", False),
        ContainerToReset("a", "a", False),
    ]
    assert not actions.containers_to_start
    assert not actions.kill_pod


def limits(**amounts: str) -> v1.ResourceRequirements:
    return v1.ResourceRequirements(limits=dict(amounts))


def test_changed_limits_are_put_into_force_without_a_restart() -> None:
    a_pod = pod(container("web", resources=limits(cpu="200m", memory="64Mi")))
    in_force = Resources(cpu_limit=100, memory_limit=64 << 20)
    actions = decide(a_pod, status(seen("web", "running")), actuated={"web": in_force})
    [resize] = actions.containers_to_resize
    assert (resize.desired.cpu_limit, resize.actuated) == (200, in_force)
    assert not actions.containers_to_kill


def test_a_resize_policy_may_ask_for_a_restart() -> None:
    policy = [v1.ContainerResizePolicy(resource_name="memory", restart_policy="RestartContainer")]
    a_pod = pod(container("web", resources=limits(memory="64Mi"), resize_policy=policy))
    actions = decide(a_pod, status(seen("web", "running")), actuated={"web": Resources(memory_limit=1)})
    assert actions.containers_to_kill["web"].message == "Container web resize requires restart"
    assert (actions.containers_to_start, actions.kill_pod) == ([0], False)


def test_resources_that_are_not_known_to_be_in_force_restart_nothing() -> None:
    a_pod = pod(container("web", resources=limits(memory="64Mi")))
    assert decide(a_pod, status(seen("web", "running"))).nothing_to_do


# --- what holds in every situation
# ---------------------------------------------------------------------------------

NAMES = ("s", "i", "a", "b")
STATES = ("created", "running", "exited", "unknown")
observations = st.lists(
    st.builds(
        lambda name, state, code, n: seen(name, state, code, id=f"{name}{n}", created_at_ns=n),
        st.sampled_from(NAMES),
        st.sampled_from(STATES),
        st.sampled_from((0, 1)),
        st.integers(1, 9),
    ),
    max_size=6,
    unique_by=lambda c: c.id,
)
readings = st.dictionaries(
    st.sampled_from([f"{n}{k}" for n in NAMES for k in range(1, 10)]),
    st.sampled_from(list(ProbeResult)),
    max_size=4,
)
sandboxes = st.lists(
    st.builds(lambda n, ready: sandbox(f"box{n}", attempt=n, ready=ready), st.integers(0, 3), st.booleans()),
    max_size=2,
    unique_by=lambda s: s.id,
)


def example_pod(policy: str) -> v1.Pod:
    return pod(
        container("a"),
        container("b", liveness_probe=PROBE),
        init=(sidecar("s", startup_probe=PROBE, liveness_probe=PROBE), container("i")),
        policy=policy,
    )


def alive(observed: PodStatus) -> dict[str, set[str]]:
    """Ids by name of what may run."""
    found: dict[str, set[str]] = {}
    for c in observed.containers:
        if c.state in (ContainerState.RUNNING, ContainerState.UNKNOWN):
            found.setdefault(c.name, set()).add(c.id)
    return found


@settings(max_examples=400)
@given(st.sampled_from(("Always", "OnFailure", "Never")), observations, readings, readings, sandboxes)
def test_a_container_starts_only_if_its_newest_one_does_not_run_on(
    policy: str, containers: list[ContainerStatus], live: Any, startup: Any, boxes: Any
) -> None:
    a_pod = example_pod(policy)
    ordered = tuple(sorted(containers, key=lambda c: -c.created_at_ns))
    observed = status(*ordered, sandboxes=tuple(sorted(boxes, key=lambda s: -s.attempt)))
    actions = decide(a_pod, observed, probes=ProbeReadings(liveness=live, startup=startup))
    assert a_pod.spec.init_containers is not None
    assert a_pod.spec.containers is not None
    started = [a_pod.spec.init_containers[i].name for i in actions.init_containers_to_start]
    started += [a_pod.spec.containers[i].name for i in actions.containers_to_start]
    assert len(set(started)) == len(started)
    for name in started:
        newest = observed.container_status(name)
        runs = newest is not None and newest.state in (ContainerState.RUNNING, ContainerState.UNKNOWN)
        assert not runs or actions.kill_pod or newest.id in actions.containers_to_kill  # type: ignore[union-attr]
    for kill in actions.containers_to_kill.values():
        assert kill.id in alive(observed)[kill.name]
    if actions.create_sandbox:
        assert actions.kill_pod
        assert actions.attempt == (observed.sandboxes[0].attempt + 1 if observed.sandboxes else 0)
    if actions.kill_pod and not actions.create_sandbox:
        assert not started


@settings(max_examples=200)
@given(st.sampled_from(("Always", "OnFailure", "Never")), observations)
def test_regular_containers_wait_for_initialization(policy: str, containers: list[ContainerStatus]) -> None:
    """As long as no trace of init container `i` says it ended well and no regular one exists, none starts."""
    a_pod = example_pod(policy)
    ordered = tuple(sorted((c for c in containers if c.name in ("s", "i")), key=lambda c: -c.created_at_ns))
    actions = decide(a_pod, status(*ordered))
    newest = status(*ordered).container_status("i")
    done = newest is not None and newest.state is ContainerState.EXITED and newest.exit_code == 0
    assert bool(actions.containers_to_start) is done


@pytest.mark.parametrize("state", ["running", "exited"])
@pytest.mark.parametrize("init", [False, True])
def test_thousands_of_containers_are_gone_through_once(state: str, init: bool) -> None:
    """For each container all that were observed were looked at: seconds in one turn."""
    many = tuple((sidecar if init else container)(f"c{number}") for number in range(5000))
    a_pod = pod(container("web"), init=many) if init else pod(*many)
    observed = status(*(seen(each.name, state, hash=container_hash(each.name, each.image)) for each in many))
    for _ in within_cpu(0.5):
        decide(a_pod, observed)
        decide(a_pod, observed, restart_all_containers=True)

"""API statuses beyond the recorded ones: phases, container states, conditions."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.pods.build import api_pod, make_pod
from tests.pods.observed import SECOND, container, exited, generate, observed, pod_of, seen
from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.ip import sort_ips
from trio_kubelet.observed.probes import ProbeView
from trio_kubelet.observed.types import ContainerState, ContainerStatus, PodStatus
from trio_kubelet.pods.refs import is_quiet
from trio_kubelet.pods.status import conditions
from trio_kubelet.pods.status.conditions import find
from trio_kubelet.pods.status.containers import StatusContext, container_statuses
from trio_kubelet.pods.status.phase import pod_phase
from trio_kubelet.probes.types import container_views

SIDECAR = container("s", restart_policy="Always")
INIT = container("i")


@pytest.mark.parametrize(
    ("policy", "containers", "static_phase", "api_phase"),
    [
        ("Always", [seen("a"), seen("b")], "Running", "Running"),
        ("Always", [seen("a")], "Pending", "Pending"),
        ("Always", [exited("a"), exited("b")], "Running", "Running"),
        ("Always", [exited("a", 1), seen("b")], "Running", "Running"),
        ("OnFailure", [exited("a"), exited("b")], "Succeeded", "Succeeded"),
        ("OnFailure", [exited("a", 1), exited("b")], "Running", "Running"),
        ("Never", [exited("a"), exited("b")], "Succeeded", "Succeeded"),
        ("Never", [exited("a", 1), exited("b")], "Failed", "Failed"),
        ("Never", [exited("a", 1), seen("b")], "Running", "Running"),
        ("Never", [], "Pending", "Pending"),
    ],
)
def test_phase_by_restart_policy(
    policy: str, containers: list[ContainerStatus], static_phase: str, api_phase: str
) -> None:
    for source, phase in (("file", static_phase), ("api", api_phase)):
        pod = pod_of("a", "b", restart_policy=policy, source=source)
        assert generate(pod, observed(*containers)).phase == phase


def test_a_stopped_pod_of_the_api_server_has_ended_a_static_one_has_not() -> None:
    stopped = observed(exited("c", 137), ready=False)
    assert generate(pod_of(source="api"), stopped, terminal=True).phase == "Failed"
    assert (
        generate(pod_of(source="api"), observed(exited("c"), ready=False), terminal=True).phase == "Succeeded"
    )
    assert generate(pod_of(source="file"), stopped, terminal=True).phase == "Running"
    # As the kubelet has it: one that waits for its next start has not succeeded.
    waiting = {"c": ("CrashLoopBackOff", "back-off")}
    late = generate(pod_of(source="api"), observed(exited("c")), reasons=waiting, terminal=True)
    assert late.phase == "Failed"


@pytest.mark.parametrize(
    ("policy", "init", "phase", "state"),
    [
        ("Always", [], "Pending", "PodInitializing"),
        ("Always", [seen("i")], "Pending", "PodInitializing"),
        ("Always", [exited("i", 2)], "Pending", "PodInitializing"),
        ("Never", [exited("i", 2)], "Failed", "PodInitializing"),
        ("OnFailure", [exited("i", 2)], "Pending", "PodInitializing"),
    ],
)
def test_a_pod_that_initialises(policy: str, init: list[ContainerStatus], phase: str, state: str) -> None:
    pod = pod_of(init=(INIT,), restart_policy=policy)
    status = generate(pod, observed(*init))
    assert status.phase == phase
    [shown] = status.container_statuses or []
    assert shown.state.waiting is not None
    assert shown.state.waiting.reason == state
    initialized = find(status.conditions, "Initialized")
    assert initialized is not None
    assert initialized.status == "False"
    assert initialized.message == "containers with incomplete status: [i]"


def test_an_initialised_pod_and_its_lost_init_container() -> None:
    pod = pod_of(init=(INIT,))
    status = generate(pod, observed(seen("c")))
    [init] = status.init_container_statuses or []
    assert init.state.terminated is not None
    assert (init.state.terminated.reason, init.state.terminated.exit_code) == ("Completed", 0)
    assert init.ready
    assert status.phase == "Running"
    once = pod_of(init=(INIT,), restart_policy="Never")
    assert generate(once, observed(exited("i"), seen("c"))).phase == "Running"


def test_an_init_container_lost_while_no_agent_ran_keeps_its_moments_and_has_the_message() -> None:
    """Of a static pod; its mirror says how it was. An agent that was there has nothing to infer."""
    pod = pod_of(init=(INIT,))
    before = generate(pod, observed(exited("i"), seen("c")))
    [said] = before.init_container_statuses or []
    adopted = generate(pod, observed(seen("c")), before, adopted=True)
    [init] = adopted.init_container_statuses or []
    assert init.state.terminated is not None
    assert said.state.terminated is not None
    assert init.state.terminated.message.endswith("treat it as exited normally")
    assert replace(init.state.terminated, message="") == said.state.terminated
    assert generate(pod, observed(seen("c")), adopted) == adopted  # it stays
    assert generate(pod, observed(seen("c")), before) == before
    # Without any container of the pod nothing is known: it may have to run again.
    unknown = generate(pod, observed(), before, adopted=True)
    assert (unknown.init_container_statuses or [])[0].state == said.state


def test_an_evicted_pod_whose_containers_end_well_has_failed() -> None:
    old = v1.PodStatus(phase="Failed", reason="Evicted", message="no memory")
    stopped = observed(exited("c"), ready=False)
    status = generate(pod_of(source="api"), stopped, old, terminal=True)
    assert (status.phase, status.reason, status.message) == ("Failed", "Evicted", "no memory")


def test_sidecars_count_for_readiness_and_hold_back_the_start() -> None:
    pod = pod_of(init=(SIDECAR, INIT))
    starting = generate(pod, observed(seen("s"), seen("i")))
    assert starting.phase == "Pending"
    assert [(s.name, s.started) for s in starting.init_container_statuses or ()] == [("s", True), ("i", True)]
    running = generate(pod, observed(seen("s"), exited("i"), seen("c")))
    assert running.phase == "Running"
    probed = replace(SIDECAR, readiness_probe=v1.Probe())
    unready = generate(pod_of(init=(probed,)), observed(seen("s"), seen("c")), probes=ProbeView(active=True))
    ready = find(unready.conditions, "Ready")
    assert ready is not None
    assert ready.message == "containers with unready status: [s]"


def test_a_sidecar_that_restarts_does_not_make_the_pod_pending_again() -> None:
    probed = replace(SIDECAR, startup_probe=v1.Probe())
    pod = pod_of(init=(probed,))
    status = generate(pod, observed(seen("s"), seen("c")), probes=ProbeView(active=True))
    assert [s.started for s in status.init_container_statuses or ()] == [False]
    assert status.phase == "Running"


@pytest.mark.parametrize(
    ("there", "phase"),
    [
        ([seen("s"), seen("c")], "Running"),
        ([seen("s"), exited("c")], "Running"),
        ([exited("s", 137), seen("c")], "Running"),
        ([exited("s", 137), exited("c")], "Succeeded"),
        ([exited("s"), exited("c", 1)], "Failed"),
        ([seen("s")], "Pending"),
        ([exited("c")], "Pending"),
    ],
)
def test_a_pod_goes_on_while_its_sidecar_runs_and_ends_as_its_containers_did(
    there: list[ContainerStatus], phase: str
) -> None:
    assert generate(pod_of(init=(SIDECAR,), restart_policy="Never"), observed(*there)).phase == phase


@pytest.mark.parametrize("state", ["terminated", "waiting"])
def test_a_container_that_ended_with_all_others_starts_again(state: str) -> None:
    ended = v1.ContainerState(
        terminated=v1.ContainerStateTerminated(exit_code=137, reason="RestartingAllContainers")
    )
    shown = v1.ContainerStatus(name="c", state=ended)
    if state == "waiting":
        shown = v1.ContainerStatus(name="c", state=WAITING, last_state=ended)
    pod = pod_of(restart_policy="Never")
    assert pod_phase(pod, [shown], terminal=False, initialised=True) == "Running"


def test_a_pod_in_a_new_sandbox_is_pending_until_it_is_initialised_there() -> None:
    """What ended in the one before does not count."""
    probed = replace(SIDECAR, startup_probe=v1.Probe())
    pod, starting = pod_of(init=(probed,)), ProbeView(active=True)
    before = replace(exited("c", 1), pod_sandbox_id="before")
    unready = observed(seen("s"), exited("c", 1), ready=False)
    gone = replace(unready, sandboxes=())
    for there in (observed(seen("s"), before), unready, gone):
        assert generate(pod, there, probes=starting).phase == "Pending"
    assert generate(pod, observed(seen("s"), exited("c", 1)), probes=starting).phase == "Running"
    assert generate(pod_of(init=(INIT,)), observed(seen("i"), before)).phase == "Pending"


def test_reasons_of_failed_starts() -> None:
    reasons = {"c": ("ErrImagePull", "no such image")}
    fresh = generate(pod_of(), observed(), reasons=reasons)
    [shown] = fresh.container_statuses or []
    assert shown.state.waiting == v1.ContainerStateWaiting(reason="ErrImagePull", message="no such image")
    looping = generate(
        pod_of(), observed(exited("c", 1, restart_count=3)), reasons={"c": ("CrashLoopBackOff", "back-off")}
    )
    [shown] = looping.container_statuses or []
    assert shown.state.waiting is not None
    assert shown.last_state.terminated is not None
    assert (shown.restart_count, looping.phase) == (3, "Running")
    running = generate(pod_of(), observed(seen("c")), reasons=reasons)
    assert (running.container_statuses or [])[0].state.running is not None


def test_state_and_last_state_are_the_two_newest_containers() -> None:
    containers = [exited("c", 1, number=1), exited("c", 2, number=2), seen("c", number=3, restart_count=2)]
    [shown] = generate(pod_of(), observed(*containers)).container_statuses or []
    assert shown.container_id == "containerd://c3"
    assert shown.last_state.terminated is not None
    assert shown.last_state.terminated.exit_code == 2


@pytest.mark.parametrize(
    ("policy", "last", "phase"),
    [
        ("Never", seen("c"), "Failed"),
        ("Never", exited("c"), "Succeeded"),
        ("Never", exited("c", 1), "Failed"),
        ("OnFailure", seen("c"), "Running"),
        ("OnFailure", exited("c"), "Succeeded"),
        ("OnFailure", exited("c", 1), "Running"),
        ("Always", seen("c"), "Running"),
        ("Always", exited("c"), "Running"),
    ],
)
def test_a_pod_that_runs_once_is_over_when_its_container_vanished(
    policy: str, last: ContainerStatus, phase: str
) -> None:
    """As where somebody removed it while no agent ran: the status that the source tells is what counts, and
    in a terminal phase nothing is started again.
    """
    pod = pod_of(restart_policy=policy, source="api")
    before = generate(pod, observed(last))
    assert generate(pod, observed(), before).phase == phase


def test_a_container_that_vanished_after_it_ran_is_lost_not_new() -> None:
    before = generate(pod_of(), observed(seen("c")))
    [shown] = generate(pod_of(), observed(), before).container_statuses or []
    assert shown.state.waiting is not None
    assert shown.last_state.terminated is not None
    assert shown.last_state.terminated.reason == "ContainerStatusUnknown"
    assert shown.restart_count == 1
    [unknown] = (
        generate(pod_of(), observed(seen("c", ContainerState.UNKNOWN)), before).container_statuses or []
    )
    assert unknown.state.terminated is not None
    assert unknown.state.terminated.exit_code == 137


def test_a_container_that_vanished_after_its_restart_keeps_its_last_end() -> None:
    before = generate(pod_of(), observed(exited("c", 3, number=1), seen("c", number=2, restart_count=1)))
    [shown] = generate(pod_of(), observed(), before).container_statuses or []
    assert shown.state.waiting is not None
    assert shown.last_state.terminated is not None
    assert (shown.last_state.terminated.exit_code, shown.restart_count) == (3, 1)


def test_terminal_phases_are_never_left() -> None:
    failed = v1.PodStatus(phase="Failed", reason="Evicted", message="no memory")
    status = generate(pod_of(source="api"), observed(seen("c")), failed)
    assert (status.phase, status.reason, status.message) == ("Failed", "Evicted", "no memory")
    over = api_pod(status=v1.PodStatus(phase="Succeeded"))
    assert generate(over, observed(exited("c", 1))).phase == "Succeeded"


@pytest.mark.parametrize(
    ("old", "heard", "shown"),
    [
        (("Running", "said", "before"), ("Running", "heard", "of it"), ("Running", "said", "before")),
        (("Running", "", ""), ("Running", "heard", "of it"), ("Running", "heard", "of it")),
        (("Pending", "said", "before"), ("Pending", "heard", "of it"), ("Running", "", "")),
        (("Failed", "said", "before"), ("Running", "", ""), ("Failed", "said", "before")),
        (("Running", "said", "before"), ("Failed", "heard", "of it"), ("Failed", "", "")),
        (("Succeeded", "said", "before"), ("Failed", "", ""), ("Failed", "said", "before")),
    ],
)
def test_a_reason_is_that_of_its_phase_and_what_was_heard_of_an_end_counts(
    old: tuple[str, str, str], heard: tuple[str, str, str], shown: tuple[str, str, str]
) -> None:
    def told(phase: str, reason: str, message: str) -> v1.PodStatus:
        return v1.PodStatus(phase=phase, reason=reason, message=message)

    status = generate(api_pod(status=told(*heard)), observed(seen("c")), told(*old))
    assert (status.phase, status.reason, status.message) == shown


def test_a_deadline_that_has_passed_fails_the_pod() -> None:
    pod = api_pod(spec={"active_deadline_seconds": 60})
    old = v1.PodStatus(phase="Running", start_time=rfc3339(100 * SECOND))
    assert generate(pod, observed(seen("c")), old, now_ns=159 * SECOND).phase == "Running"
    late = generate(pod, observed(seen("c")), old, now_ns=160 * SECOND)
    assert (late.phase, late.reason) == ("Failed", "DeadlineExceeded")
    assert late.message == "Pod was active on the node longer than the specified deadline"


def test_readiness_gates() -> None:
    gates = [v1.PodReadinessGate(condition_type="a/b"), v1.PodReadinessGate(condition_type="c")]
    foreign = v1.PodStatus(conditions=[v1.PodCondition(type="c", status="False")])
    pod = api_pod(spec={"readiness_gates": gates}, status=foreign)
    ready = find(generate(pod, observed(seen("c"))).conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "ReadinessGatesNotReady")
    assert ready.message == (
        'corresponding condition of pod readiness gate "a/b" does not exist., '
        'the status of pod readiness gate "c" is not "True", but False'
    )


def test_a_readiness_gate_may_name_a_condition_of_the_node_that_is_known_by_then() -> None:
    gates = [v1.PodReadinessGate(condition_type=kind) for kind in ("Initialized", "ContainersReady")]
    ready = find(generate(api_pod(spec={"readiness_gates": gates}), observed(seen("c"))).conditions, "Ready")
    assert ready is not None
    assert ready.message == (
        'corresponding condition of pod readiness gate "ContainersReady" does not exist.'
    )


@pytest.mark.parametrize(("left", "status"), [([exited("c", 7)], "True"), ([], "False")])
def test_all_containers_were_taken_away_although_an_ephemeral_one_stays(
    left: list[ContainerStatus], status: str
) -> None:
    rule = v1.ContainerRestartRule(
        action="RestartAllContainers",
        exit_codes=v1.ContainerRestartRuleOnExitCodes(operator="In", values=[7]),
    )
    pod = pod_of(restart_policy="Never", source="api")
    pod.spec.containers = [v1.Container(name="c", restart_policy="Never", restart_policy_rules=[rule])]
    pod.spec.ephemeral_containers = [v1.EphemeralContainer(name="debug")]
    old = v1.PodStatus(conditions=[v1.PodCondition(type="AllContainersRestarting", status="True")])
    found = find(generate(pod, observed(seen("debug"), *left), old).conditions, "AllContainersRestarting")
    assert found is not None
    assert found.status == status


@pytest.mark.parametrize(
    ("phase", "wanted", "status", "reason"),
    [
        ("Running", True, "True", "RestartAllContainersStarted"),
        ("Running", False, "False", ""),
        ("Succeeded", True, "False", "PodCompleted"),
        ("Failed", True, "False", "PodFailed"),
    ],
)
def test_while_any_of_the_containers_is_there_all_are_being_taken_away(
    phase: str, wanted: bool, status: str, reason: str
) -> None:
    pod = pod_of("c", "d")
    rule = v1.ContainerRestartRule(action="RestartAllContainers")
    pod.spec.containers = [v1.Container(name=name, restart_policy_rules=[rule]) for name in ("c", "d")]
    shown = v1.PodStatus(phase=phase)
    own = conditions.own_conditions(pod, observed(seen("c")), shown, v1.PodStatus(), wanted)
    found = find(own, "AllContainersRestarting")
    assert found is not None
    assert (found.status, found.reason) == (status, reason)


def test_an_ephemeral_container_that_was_removed_has_ended() -> None:
    pod = pod_of(source="api")
    pod.spec.ephemeral_containers = [v1.EphemeralContainer(name="debug")]
    before = generate(pod, observed(seen("c"), seen("debug")))
    for _ in range(2):
        before = generate(pod, observed(seen("c")), before)
        [shown] = before.ephemeral_container_statuses or []
        assert shown.state.terminated is not None
        assert (shown.state.terminated.exit_code, shown.restart_count) == (137, 0)
        assert shown.container_id.endswith("debug1")


WAITING = v1.ContainerState(waiting=v1.ContainerStateWaiting())
RUNNING = v1.ContainerState(running=v1.ContainerStateRunning())
ENDED = v1.ContainerState(terminated=v1.ContainerStateTerminated())
COMPLETE = v1.ContainerStatus(name="i", ready=True, state=ENDED)
STARTED = v1.ContainerStatus(name="s", started=True, state=RUNNING)


@pytest.mark.parametrize(
    ("statuses", "phase", "before", "expected"),
    [
        ([COMPLETE, STARTED], "Pending", "", ("True", "")),
        (
            [replace(COMPLETE, ready=False, started=True)],
            "Pending",
            "False",
            (
                "False",
                "containers with unknown status: [s], containers with incomplete status: [i]",
            ),
        ),
        (
            [COMPLETE, replace(STARTED, started=None, ready=True)],
            "Pending",
            "",
            ("False", "containers with incomplete status: [s]"),
        ),
        # What has begun before was initialised, and what was initialised stays so.
        ([v1.ContainerStatus(name="c", state=RUNNING)], "Running", "", ("True", "")),
        ([v1.ContainerStatus(name="c", state=ENDED)], "Running", "", ("True", "")),
        (
            [v1.ContainerStatus(name="c", state=WAITING), replace(COMPLETE, ready=False), STARTED],
            "Pending",
            "",
            ("False", "containers with incomplete status: [i]"),
        ),
        ([replace(COMPLETE, ready=False), STARTED], "Pending", "True", ("True", "")),
        (
            [replace(COMPLETE, ready=False), replace(STARTED, started=False)],
            "Succeeded",
            "",
            ("True", "done"),
        ),
        ([v1.ContainerStatus(name="c", state=ENDED), COMPLETE], "Succeeded", "", ("True", "")),
    ],
)
def test_when_a_pod_is_initialised(
    statuses: list[v1.ContainerStatus], phase: str, before: str, expected: tuple[str, str]
) -> None:
    pod = make_pod(spec={"init_containers": [INIT, SIDECAR]})
    old = v1.PodStatus(conditions=[v1.PodCondition(type="Initialized", status=before)] if before else None)
    found = conditions.initialized(pod, statuses, phase, old)
    status, text = expected
    done, message = (
        ("PodCompleted", "") if text == "done" else ("ContainersNotInitialized" * bool(text), text)
    )
    assert (found.status, found.reason, found.message) == (status, done, message)


@pytest.mark.parametrize(
    ("statuses", "phase", "reason", "message"),
    [
        (
            [replace(COMPLETE, ready=False), v1.ContainerStatus(name="c", state=RUNNING)],
            "Pending",
            "ContainersNotReady",
            "containers with unknown status: [s], containers with unready status: [c]",
        ),
        ([STARTED, v1.ContainerStatus(name="c", state=ENDED)], "Succeeded", "PodCompleted", ""),
        (
            [v1.ContainerStatus(name="c", state=ENDED)],
            "Succeeded",
            "ContainersNotReady",
            "containers with unknown status: [s], containers with unready status: [c]",
        ),
        ([], "Failed", "PodFailed", ""),
    ],
)
def test_why_the_containers_of_a_pod_are_not_ready(
    statuses: list[v1.ContainerStatus], phase: str, reason: str, message: str
) -> None:
    pod = make_pod(spec={"init_containers": [INIT, SIDECAR]})
    for found in (
        conditions.containers_ready(pod, statuses, phase),
        conditions.ready(pod, statuses, phase, ()),
    ):
        assert (found.status, found.reason, found.message) == ("False", reason, message)


def test_what_is_as_it_should_be_needs_no_reason() -> None:
    there = observed(seen("c"))
    kinds = ["Initialized", "Ready", "ContainersReady", "PodScheduled"]
    for gate in (True, False):
        found = generate(pod_of(), there, ready_to_start=gate).conditions or []
        assert [each.type for each in found] == ["PodReadyToStartContainers"] * gate + kinds
        assert {(each.status, each.reason, each.message) for each in found} == {("True", "", "")}


def test_conditions_of_others_are_passed_on_and_disruption_stays() -> None:
    foreign = v1.PodCondition(type="lb", status="True")
    disruption = v1.PodCondition(type="DisruptionTarget", status="True", reason="TerminationByKubelet")
    pod = api_pod(status=v1.PodStatus(conditions=[foreign, v1.PodCondition(type="Ready", status="True")]))
    status = generate(pod, observed(), v1.PodStatus(conditions=[disruption]))
    assert (status.conditions or [])[:2] == [foreign, disruption]
    assert [c.type for c in status.conditions or ()].count("Ready") == 1


@pytest.mark.parametrize(
    ("sandbox_ready", "ips", "expected"),
    [(True, ("10.0.0.9",), "True"), (True, (), "False"), (False, ("10.0.0.9",), "False")],
)
def test_ready_to_start_containers(sandbox_ready: bool, ips: tuple[str, ...], expected: str) -> None:
    status = generate(pod_of(), observed(ready=sandbox_ready, ips=ips))
    condition = find(status.conditions, "PodReadyToStartContainers")
    assert condition is not None
    assert condition.status == expected


def test_addresses() -> None:
    assert sort_ips(["fd00::1", "10.0.0.1", "10.0.0.2"], False) == ["10.0.0.1", "fd00::1"]
    assert sort_ips(["10.0.0.1", "FD00::0:1"], True) == ["fd00::1", "10.0.0.1"]
    assert sort_ips(["010.000.000.001", "fd01:0:0::1234"], False) == ["10.0.0.1", "fd01::1234"]
    pod = make_pod(spec={"host_network": True})
    status = generate(pod, observed(ips=()), host_ips=("192.0.2.1", "fd00::5"))
    assert (status.host_ip, status.pod_ip) == ("192.0.2.1", "192.0.2.1")
    assert [ip.ip for ip in status.pod_ips or ()] == ["192.0.2.1", "fd00::5"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Running"])
def test_a_pod_that_is_over_keeps_its_addresses_over_a_restart_of_the_agent(phase: str) -> None:
    """Its sandbox has none any more, and the agent that saw them is gone."""
    ips = [v1.PodIP(ip="10.0.0.1"), v1.PodIP(ip="fd00::1")]
    shown = v1.PodStatus(phase=phase, pod_ip="10.0.0.1", pod_ips=ips)
    pod = api_pod(status=shown, restart_policy="Never")
    unheard = api_pod(status=v1.PodStatus(phase=phase), restart_policy="Never")
    over = observed(ready=False, ips=())
    for told, old in ((pod, shown), (pod, None), (unheard, shown)):
        status = generate(told, over, old)
        kept = ips if phase != "Running" else None
        assert (status.pod_ips, status.pod_ip) == (kept, "10.0.0.1" if kept else "")
    assert generate(unheard, over).pod_ips is None
    assert generate(pod, observed(ips=("10.0.0.7",)), shown).pod_ip == "10.0.0.7"


def test_mounts_say_how_deep_read_only_goes() -> None:
    mounts = [
        v1.VolumeMount(name="a", mount_path="/a"),
        v1.VolumeMount(name="b", mount_path="/b", read_only=True, recursive_read_only="IfPossible"),
    ]
    pod = make_pod(containers=[container("c", volume_mounts=mounts)])
    for able, mode in ((True, "Enabled"), (False, "Disabled")):
        [shown] = generate(pod, observed(), recursive_read_only=able).container_statuses or []
        assert [m.recursive_read_only for m in shown.volume_mounts or ()] == [None, mode]


def test_a_pod_is_quiet_when_neither_a_container_nor_its_sandbox_is_up() -> None:
    assert is_quiet(None)
    assert is_quiet(observed(exited("c"), ready=False))
    assert not is_quiet(observed(exited("c"), ready=True))
    assert not is_quiet(observed(seen("c"), ready=False))


def test_a_condition_that_the_node_makes_is_written() -> None:
    """Of others a status only passes on what the API server shows; see `patch.status_to_write`."""
    named = {value for name, value in vars(conditions).items() if name.isupper() and isinstance(value, str)}
    assert named - {"Succeeded", "Failed", "PodCompleted"} == conditions.OWN | {conditions.DISRUPTION_TARGET}


def test_a_status_of_many_containers_is_made_at_once() -> None:
    names = [f"c{number}" for number in range(4000)]
    pod = pod_of(*names, init=tuple(container(f"i{number}") for number in range(4000)))
    for _ in within_cpu(0.5):
        status = generate(pod, observed())
        views = container_views(pod, status)
    assert [s.name for s in status.container_statuses or ()] == sorted(names)
    assert all(view.will_restart for view in views.values())
    assert len(views) == 8000


def test_thousands_of_containers_that_are_there_are_gone_through_once() -> None:
    """For each container all that were observed were looked at, and for each of those all containers."""
    many = [v1.Container(name=f"c{number}") for number in range(5000)]
    ended = [
        ContainerStatus(id=each.name, name=each.name, state=ContainerState.EXITED, exit_code=1)
        for each in many
    ]
    observed = PodStatus(uid="u", name="p", namespace="d", containers=tuple(ended))
    reasons = {each.name: ("CrashLoopBackOff", "back-off") for each in many}
    a_pod = v1.Pod(spec=v1.PodSpec(containers=many, restart_policy="Always"))
    for _ in within_cpu(0.5):
        context = StatusContext(reasons=reasons)
        _, statuses, _ = container_statuses(a_pod, observed, v1.PodStatus(), context)
    assert {each.state.waiting.reason for each in statuses if each.state.waiting} == {"CrashLoopBackOff"}

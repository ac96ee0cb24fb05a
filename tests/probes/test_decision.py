"""What a due probe does and what its outcomes mean."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.observed.probes import Outcome, ProbeKind, ProbeResult, Verdict
from trio_kubelet.probes.decision import Action, ProbeDecision, ProbeState, on_due, on_outcome
from trio_kubelet.probes.types import ProbedContainer

NOW = 1_000_000 * NANOSECONDS
PROBE = v1.Probe(period_seconds=10, timeout_seconds=1, success_threshold=1, failure_threshold=3)
RUNNING = ProbedContainer(
    container_id="a", running=True, started=True, started_at_ns=NOW - 5 * NANOSECONDS, pod_ip="10.0.0.1"
)
GOOD = Outcome(Verdict.SUCCESS)
BAD = Outcome(Verdict.FAILURE)


def due(
    kind: ProbeKind,
    view: ProbedContainer | None,
    state: ProbeState | None = None,
    *,
    ended: bool = False,
    deleted: bool = False,
    kept_before_ns: int = 0,
    probe: v1.Probe = PROBE,
) -> ProbeDecision:
    return on_due(
        state or ProbeState(),
        kind,
        probe,
        view,
        pod_ended=ended,
        pod_deleted=deleted,
        kept_before_ns=kept_before_ns,
        now_ns=NOW,
    )


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        (ProbeKind.LIVENESS, ProbeResult.SUCCESS),
        (ProbeKind.READINESS, ProbeResult.FAILURE),
        (ProbeKind.STARTUP, ProbeResult.UNKNOWN),
    ],
)
def test_a_new_container_starts_with_the_kinds_own_result(kind: ProbeKind, first: ProbeResult) -> None:
    decision = due(kind, RUNNING, ProbeState(container_id="old", on_hold=True))
    assert (decision.first, decision.results) == (first, (("old", None),))
    assert decision.state.container_id == "a"
    assert not decision.state.on_hold


def test_only_the_startup_probe_runs_before_the_start() -> None:
    fresh = msgspec.structs.replace(RUNNING, started=False)
    assert [due(k, fresh).action for k in ProbeKind] == [
        Action.RUN if k is ProbeKind.STARTUP else Action.WAIT for k in ProbeKind
    ]
    assert [due(k, RUNNING).action for k in ProbeKind] == [
        Action.WAIT if k is ProbeKind.STARTUP else Action.RUN for k in ProbeKind
    ]


def test_nothing_runs_in_the_initial_delay() -> None:
    late = msgspec.structs.replace(PROBE, initial_delay_seconds=6)
    assert due(ProbeKind.LIVENESS, RUNNING, probe=late).action is Action.WAIT
    soon = msgspec.structs.replace(PROBE, initial_delay_seconds=5)
    assert due(ProbeKind.LIVENESS, RUNNING, probe=soon).action is Action.RUN


@pytest.mark.parametrize(
    ("kind", "age", "ready", "first"),
    [
        (ProbeKind.READINESS, 11, False, None),
        (ProbeKind.READINESS, 9, False, ProbeResult.FAILURE),
        (ProbeKind.READINESS, 9, True, None),
        (ProbeKind.LIVENESS, 11, True, None),
        (ProbeKind.LIVENESS, 9, True, ProbeResult.SUCCESS),
    ],
)
def test_a_container_of_an_earlier_agent_keeps_its_readiness(
    kind: ProbeKind, age: int, ready: bool, first: ProbeResult | None
) -> None:
    """One that began so many seconds before the agent, and is shown as ready."""
    view = msgspec.structs.replace(RUNNING, ready=ready)
    decision = due(kind, view, kept_before_ns=RUNNING.started_at_ns + age * NANOSECONDS)
    assert (decision.first, decision.results, decision.action) == (first, (), Action.RUN)


def test_a_started_container_of_an_earlier_agent_stays_started() -> None:
    decision = due(ProbeKind.STARTUP, RUNNING, kept_before_ns=NOW + 10 * NANOSECONDS)
    assert (decision.first, decision.results) == (ProbeResult.SUCCESS, ())


def test_a_dead_container_fails_and_ends_the_probe_if_it_stays_dead() -> None:
    dead = msgspec.structs.replace(RUNNING, running=False, terminated=True)
    decision = due(ProbeKind.READINESS, dead, ProbeState(container_id="a"))
    assert (decision.action, decision.results) == (Action.WAIT, (("a", ProbeResult.FAILURE),))
    final = msgspec.structs.replace(dead, will_restart=False)
    assert due(ProbeKind.READINESS, final, ProbeState(container_id="a")).action is Action.STOP
    created = msgspec.structs.replace(final, terminated=False)
    assert due(ProbeKind.READINESS, created, ProbeState(container_id="a")).action is Action.WAIT


def test_a_pod_that_is_deleted_ends_quietly() -> None:
    state = ProbeState(container_id="a")
    for kind in (ProbeKind.LIVENESS, ProbeKind.STARTUP):
        decision = due(kind, RUNNING, state, deleted=True)
        assert (decision.action, decision.results) == (Action.STOP, (("a", ProbeResult.SUCCESS),))
    assert due(ProbeKind.READINESS, RUNNING, state, deleted=True).action is Action.RUN
    assert due(ProbeKind.READINESS, RUNNING, state, ended=True).action is Action.STOP


def test_nothing_is_probed_before_there_is_a_container() -> None:
    assert due(ProbeKind.LIVENESS, None) == ProbeDecision(state=ProbeState())
    assert due(ProbeKind.LIVENESS, ProbedContainer()) == ProbeDecision(state=ProbeState())


def test_on_hold_until_a_new_container() -> None:
    held = ProbeState(container_id="a", on_hold=True)
    assert due(ProbeKind.LIVENESS, RUNNING, held).action is Action.WAIT
    again = msgspec.structs.replace(RUNNING, container_id="b")
    assert due(ProbeKind.LIVENESS, again, held).action is Action.RUN


def outcomes(kind: ProbeKind, probe: v1.Probe, runs: list[Outcome]) -> list[ProbeResult | None]:
    state, told = ProbeState(container_id="a"), []
    for outcome in runs:
        state, result = on_outcome(state, kind, probe, outcome)
        told.append(result)
    return told


def test_thresholds_count_runs_in_a_row() -> None:
    probe = msgspec.structs.replace(PROBE, success_threshold=2)
    told = outcomes(ProbeKind.READINESS, probe, [BAD, BAD, GOOD, BAD, BAD, BAD, GOOD, GOOD])
    failed, passed = ProbeResult.FAILURE, ProbeResult.SUCCESS
    assert told == [None, None, None, None, None, failed, None, passed]


def test_a_warning_counts_as_success_and_an_error_not_at_all() -> None:
    error = Outcome(Verdict.UNKNOWN, error="no")
    told = outcomes(ProbeKind.READINESS, PROBE, [BAD, BAD, error, BAD, Outcome(Verdict.WARNING)])
    assert told == [None, None, None, ProbeResult.FAILURE, ProbeResult.SUCCESS]


def test_a_verdict_that_ends_the_container_puts_the_probe_on_hold() -> None:
    state = ProbeState(container_id="a", last=ProbeResult.FAILURE, run=2)
    assert on_outcome(state, ProbeKind.LIVENESS, PROBE, BAD)[0].on_hold
    assert not on_outcome(state, ProbeKind.READINESS, PROBE, BAD)[0].on_hold
    assert on_outcome(state, ProbeKind.STARTUP, PROBE, GOOD)[0].on_hold


@given(
    st.sampled_from(ProbeKind),
    st.lists(st.sampled_from([GOOD, BAD]), max_size=30),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_a_result_comes_exactly_when_the_last_runs_agree(
    kind: ProbeKind, runs: list[Outcome], passes: int, failures: int
) -> None:
    probe = msgspec.structs.replace(PROBE, success_threshold=passes, failure_threshold=failures)
    if kind is not ProbeKind.READINESS:
        return  # these rest after a verdict, which the test above shows
    for at, result in enumerate(outcomes(kind, probe, runs)):
        need = passes if runs[at] is GOOD else failures
        agree = at + 1 >= need and all(run is runs[at] for run in runs[at + 1 - need : at + 1])
        assert (result is not None) == agree

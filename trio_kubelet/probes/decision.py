"""What to do when a probe is due, and what an outcome means: pure functions.

The rules are those of the kubelet's prober worker (`pkg/kubelet/prober/worker.go`): initial values per
kind, nothing but the startup probe before the container has started, thresholds over runs in a row, a
hold after a verdict that ends the container.
"""

from __future__ import annotations

import enum

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.observed.probes import Outcome, ProbeKind, ProbeResult
from trio_kubelet.probes.types import ProbedContainer

RESTART_GRACE_NS = 10 * NANOSECONDS
"""A container that started this long before the agent is one that an earlier agent had started."""

INITIAL = {
    ProbeKind.LIVENESS: ProbeResult.SUCCESS,
    ProbeKind.READINESS: ProbeResult.FAILURE,
    ProbeKind.STARTUP: ProbeResult.UNKNOWN,
}


class Action(enum.Enum):
    """What to do now."""

    WAIT = enum.auto()
    RUN = enum.auto()
    STOP = enum.auto()


class ProbeState(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a probe between its runs."""

    container_id: str = ""
    on_hold: bool = False
    last: ProbeResult | None = None
    run: int = 0  # how often `last` came in a row


class ProbeDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The new state, what to do, and results to set: (container id, None to forget it).

    `first` is the result of the container of that state before any run. It is no news: a status that knows of
    no result says the same.
    """

    state: ProbeState
    action: Action = Action.WAIT
    first: ProbeResult | None = None
    results: tuple[tuple[str, ProbeResult | None], ...] = ()


def on_due(
    state: ProbeState,
    kind: ProbeKind,
    probe: v1.Probe,
    view: ProbedContainer | None,
    *,
    pod_ended: bool,
    pod_deleted: bool,
    kept_before_ns: int,
    now_ns: int,
) -> ProbeDecision:
    """What to do at a tick. `view` None: nothing is known of the pod yet; `kept_before_ns`: when this agent
    started, 0 if it is to take nothing over from the one before.
    """
    if pod_ended:
        return ProbeDecision(state=state, action=Action.STOP)
    if view is None or not view.container_id:
        return ProbeDecision(state=state)
    first, results = None, list[tuple[str, ProbeResult | None]]()
    if state.container_id != view.container_id:
        if state.container_id:
            results.append((state.container_id, None))
        first = first_result(kind, view, kept_before_ns)
        state = msgspec.structs.replace(state, container_id=view.container_id, on_hold=False)
    if state.on_hold:
        return ProbeDecision(state=state, first=first, results=tuple(results))
    action = Action.WAIT
    if not view.running:
        results.append((view.container_id, ProbeResult.FAILURE))
        action = Action.STOP if view.terminated and not view.will_restart else Action.WAIT
    elif pod_deleted and kind is not ProbeKind.READINESS:
        results.append((view.container_id, ProbeResult.SUCCESS))  # a quiet end
        action = Action.STOP
    elif not _is_early(probe, view, now_ns) and view.started is not (kind is ProbeKind.STARTUP):
        action = Action.RUN
    return ProbeDecision(state=state, action=action, first=first, results=tuple(results))


def _is_early(probe: v1.Probe, view: ProbedContainer, now_ns: int) -> bool:
    """Whether the delay before the first probe has not passed. Of a container that started later than now, as
    the clock was set back, it has: a kubelet probes it when the clock is there again (kubernetes/kubernetes
    58853, 123898).
    """
    return view.started_at_ns <= now_ns < view.started_at_ns + probe.initial_delay_seconds * NANOSECONDS


def first_result(kind: ProbeKind, view: ProbedContainer, kept_before_ns: int) -> ProbeResult | None:
    """The result before the first run.

    A container that an earlier agent had started gets none, so that a restart of the agent does not
    make a ready container unready (kubernetes/kubernetes 100277). One that is shown as ready, or as started,
    before it was probed here is of an earlier agent however young it is; a kubelet makes it unready.
    """
    if not (view.running and kept_before_ns):
        return INITIAL[kind]
    if kind is ProbeKind.STARTUP and view.started:
        return ProbeResult.SUCCESS
    is_old = 0 < view.started_at_ns < kept_before_ns - RESTART_GRACE_NS
    return None if is_old or (kind is ProbeKind.READINESS and view.ready) else INITIAL[kind]


def on_outcome(
    state: ProbeState, kind: ProbeKind, probe: v1.Probe, outcome: Outcome
) -> tuple[ProbeState, ProbeResult | None]:
    """The state after a run, and the result to set if a threshold was reached."""
    if outcome.error is not None:
        return state, None
    passed = outcome.passed
    result = ProbeResult.SUCCESS if passed else ProbeResult.FAILURE
    threshold = probe.success_threshold if passed else probe.failure_threshold
    if state.last is result and state.run > threshold:
        return state, result  # as before, and told already
    run = state.run + 1 if state.last is result else 1
    state = msgspec.structs.replace(state, last=result, run=run)
    if run < threshold:
        return state, None
    if kind is ProbeKind.STARTUP or (kind is ProbeKind.LIVENESS and not passed):
        # The container will be restarted, or needs no further startup probe: rest until a new one.
        state = msgspec.structs.replace(state, on_hold=True, run=0)
    return state, result

"""The transitions of a pod worker: the documented table, and what holds for every reachable state."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.pods.build import api_pod, make_pod
from tests.pods.worker_table import BEGIN, DOCUMENT, END, MESSAGES, in_stage, table
from trio_kubelet.pods.worker_state import (
    AttemptOutcome,
    Create,
    Done,
    Effect,
    Kill,
    KillOrphan,
    Message,
    Remove,
    Stage,
    Step,
    Update,
    Worker,
    effective_grace,
    step,
    take,
)
from trio_kubelet.pods.worker_table import StaticNames

ORDER = [Stage.WAITING, Stage.SYNCING, Stage.ORPHAN, Stage.TERMINATING, Stage.TERMINATED, Stage.FINISHED]
STOPPED_STAGES = (Stage.TERMINATED, Stage.FINISHED)


def test_the_documented_table_is_what_the_code_does() -> None:
    text = DOCUMENT.read_text()
    assert text.split(BEGIN)[1].split(END)[0].strip() == table().strip()


def shape(worker: Worker | None) -> object:
    """What tells states apart; the rest only carries values along."""
    if worker is None:
        return None
    return (
        worker.stage,
        worker.pending,
        worker.deleted,
        worker.evicted,
        worker.reborn,
        worker.grace,
        min(worker.failures, 2),
        worker.pod is None,
        min(len(worker.patches), 1),
        worker.sync_type,
    )


def reachable() -> list[tuple[Worker | None, str, Message, Step]]:
    """Every step from every state that messages and attempts can lead to."""
    found: list[tuple[Worker | None, str, Message, Step]] = []
    seen: set[object] = {None}
    queue: deque[Worker | None] = deque([None])
    while queue:
        worker = queue.popleft()
        following: list[Worker | None] = []
        for name, message in MESSAGES.items():
            addressed = in_stage(message, worker)
            result = step(worker, addressed, 2)
            found.append((worker, name, addressed, result))
            following.append(result.worker)
        if worker is not None:
            following.append(take(worker))
            if worker.stage is Stage.FINISHED:
                following.append(None)  # forgotten
        for after in following:
            if shape(after) not in seen:
                seen.add(shape(after))
                queue.append(after)
    return found


STEPS = reachable()


def steps_of(worker: Worker | None, result: Step) -> tuple[Stage | None, Stage | None]:
    return (
        worker.stage if worker is not None else None,
        result.worker.stage if result.worker is not None else None,
    )


def test_enough_states_were_reached() -> None:
    assert len({shape(worker) for worker, *_ in STEPS}) > 60
    assert {w.stage for w, *_ in STEPS if w is not None} == set(Stage)


def test_a_life_never_goes_back() -> None:
    for worker, name, _, result in STEPS:
        before, after = steps_of(worker, result)
        if before is not None:
            assert after is not None, name  # only forgetting drops a worker
            assert ORDER.index(after) >= ORDER.index(before), (before, name)


def test_the_end_is_told_exactly_when_it_comes_or_matters_again() -> None:
    for worker, name, message, result in STEPS:
        before, after = steps_of(worker, result)
        came = after is Stage.FINISHED and before is not Stage.FINISHED
        matters = before is Stage.FINISHED and isinstance(message, Create | Remove)
        assert (Effect.ENDED in result.effects) == (came or matters), (before, name)


def test_stopped_is_told_when_nothing_runs_any_more() -> None:
    for worker, name, _, result in STEPS:
        before, after = steps_of(worker, result)
        if (
            before in (Stage.WAITING, Stage.SYNCING, Stage.TERMINATING, Stage.ORPHAN)
            and after in STOPPED_STAGES
        ):
            assert Effect.STOPPED in result.effects, (before, name)
        if Effect.STOPPED in result.effects:
            assert after in STOPPED_STAGES, (before, name)


def test_a_task_is_started_exactly_for_a_new_worker() -> None:
    for worker, name, _, result in STEPS:
        new = worker is None and result.worker is not None
        assert (Effect.START in result.effects) == new, name


def test_grace_only_becomes_shorter_and_is_never_below_a_second() -> None:
    for worker, name, message, result in STEPS:
        after = result.worker
        if after is None or after.grace is None:
            continue
        assert after.grace >= 1
        if worker is not None and worker.grace is not None:
            assert after.grace <= worker.grace, (worker.stage, name)
            if after.stage is Stage.TERMINATING and after.grace < worker.grace:
                assert Effect.CANCEL in result.effects, name
        if isinstance(message, Kill) and message.grace is not None and after.stage is Stage.TERMINATING:
            assert after.grace <= message.grace, name


def test_a_removed_pod_is_not_born_again_and_a_wanted_one_is_not_forgotten() -> None:
    for worker, name, message, result in STEPS:
        after = result.worker
        if after is None:
            continue
        if isinstance(message, Remove):
            assert not after.reborn, name
            assert after.deleted, name
        if isinstance(message, Create) and worker is not None and worker.ending:
            assert after.reborn, (worker.stage, name)


def test_work_that_was_asked_for_is_pending_and_wakes_the_task() -> None:
    for worker, name, _, result in STEPS:
        after = result.worker
        if worker is None or after is None or Effect.WAKE not in result.effects:
            continue
        assert after.pending or after.stage is Stage.FINISHED, (worker.stage, name)


def test_nothing_new_is_synced_in_a_pod_that_ends() -> None:
    for worker, name, message, result in STEPS:
        if worker is not None and worker.ending and result.worker is not None:
            assert result.worker.stage is not Stage.SYNCING, (worker.stage, name)
        if isinstance(message, KillOrphan) and worker is not None:
            assert result.worker == worker


@pytest.mark.parametrize("stage", [Stage.SYNCING, Stage.TERMINATING, Stage.TERMINATED])
def test_every_stage_comes_to_its_end_once_its_work_succeeds(stage: Stage) -> None:
    worker = step(None, Create(pod=make_pod()), 1).worker
    assert worker is not None
    worker = replace(worker, stage=stage)
    worker = step(worker, Remove(), 2).worker
    for _ in range(3):
        assert worker is not None
        worker = step(worker, Done(worker.stage, AttemptOutcome.OK), 3).worker
    assert worker is not None
    assert worker.stage is Stage.FINISHED


@given(
    current=st.none() | st.integers(1, 600),
    deletion=st.none() | st.integers(0, 600),
    override=st.none() | st.integers(-5, 600),
    own=st.none() | st.integers(0, 600),
)
def test_effective_grace(
    current: int | None, deletion: int | None, override: int | None, own: int | None
) -> None:
    pod = api_pod(grace=own, deletion_grace=deletion)
    asked = [g for g in (current, deletion, override) if g is not None]
    expected = min(asked) if asked else own or 0
    assert effective_grace(current, pod, override) == max(expected, 1)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["claim", "release"])), max_size=40))
def test_a_static_name_has_one_holder_and_a_fair_line(actions: list[tuple[str, str]]) -> None:
    names, line = StaticNames(), list[str]()
    for uid, action in actions:
        if action == "claim":
            if uid not in line:
                line.append(uid)
            assert names.claim("n", uid) == (line[0] == uid)
        else:
            held = bool(line) and line[0] == uid
            if uid in line:
                line.remove(uid)
            assert names.release("n", uid) == (line[0] if held and line else None)
        assert names.holder("n") == (line[0] if line else None)
    while line:
        assert names.release("n", line.pop(0)) == (line[0] if line else None)
    assert names.holders() == {}


def test_two_updates_that_nobody_has_acted_on_keep_the_weightier_kind() -> None:
    pod = make_pod()
    worker = step(None, Create(pod=pod), 1).worker
    for message in (Update(pod=pod), *itertools.repeat(MESSAGES["Sync"], 2)):
        worker = step(worker, message, 2).worker
    assert worker is not None
    assert worker.sync_type.value == "update"

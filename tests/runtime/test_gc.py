"""What is cleaned up, and what is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.runtime.pods import container, pod, sandbox, seen, status
from tests.runtime.world import World, world
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.runtime.doors import GCPolicy
from trio_kubelet.runtime.gc import (
    DeadContainer,
    FoundSandbox,
    containers_to_prune,
    containers_to_remove,
    sandboxes_to_remove,
    uid_of_log_directory,
)
from trio_kubelet.runtime.log_links import restart_count_after
from trio_kubelet.sim.faults import Kind


def dead(
    id: str, created: int, name: str = "c", uid: str = "u", starting: bool = False, attempt: int = 0
) -> DeadContainer:
    return DeadContainer(id=id, uid=uid, name=name, attempt=attempt, created_at_ns=created, created=starting)


def ids(found: list[DeadContainer] | list[FoundSandbox]) -> list[str]:
    return [entry.id for entry in found]


def age(container: DeadContainer) -> int:
    return container.created_at_ns


def nobody(uid: str) -> bool:
    return False


THREE = [dead("a", 1), dead("c", 3), dead("b", 2)]
TWO_NAMES = [*THREE, dead("x", 4, "other"), dead("y", 5, "other")]
CLOCK_SET_BACK = [dead("a", 9, attempt=1), dead("b", 3, attempt=2), dead("c", 4, attempt=3)]
STARTING = [dead("old", 1, starting=True), dead("died", 2), dead("new", 3, starting=True)]


@pytest.mark.parametrize(
    ("found", "policy", "gone"),
    [
        (THREE, GCPolicy(), ["a", "b"]),
        (THREE, GCPolicy(max_per_pod_container=2), ["a"]),
        (THREE, GCPolicy(max_per_pod_container=0), ["a", "b", "c"]),
        (THREE, GCPolicy(max_per_pod_container=-1), []),
        (TWO_NAMES, GCPolicy(max_per_pod_container=-1, max_containers=4), ["a"]),
        (TWO_NAMES, GCPolicy(max_per_pod_container=-1, max_containers=2), ["a", "b", "x"]),
        (TWO_NAMES, GCPolicy(max_per_pod_container=-1, max_containers=1), ["a", "b", "x", "c"]),
        (TWO_NAMES, GCPolicy(max_per_pod_container=-1, max_containers=0), ["a", "b", "x", "c", "y"]),
        (CLOCK_SET_BACK, GCPolicy(), ["a", "b"]),
        ([], GCPolicy(max_containers=0), []),
        (STARTING, GCPolicy(), ["old"]),
        (STARTING, GCPolicy(max_per_pod_container=0), ["old", "died"]),
        (STARTING, GCPolicy(max_per_pod_container=-1, max_containers=1), ["old"]),
        (STARTING[2:], GCPolicy(max_containers=0), []),
    ],
)
def test_limits(found: list[DeadContainer], policy: GCPolicy, gone: list[str]) -> None:
    assert ids(containers_to_remove(found, policy, nobody)) == gone


def test_all_of_a_doomed_pod_goes() -> None:
    assert ids(containers_to_remove(STARTING, GCPolicy(), lambda uid: True)) == ["old", "died", "new"]
    found = [*THREE, dead("z", 1, uid="other")]
    assert ids(containers_to_remove(found, GCPolicy(max_per_pod_container=-1), lambda uid: uid == "u")) == [
        "a",
        "b",
        "c",
    ]


@given(
    st.lists(
        st.builds(
            dead,
            st.uuids().map(str),
            st.integers(0, 20),
            st.sampled_from("ab"),
            st.sampled_from("uvw"),
            st.booleans(),
        ),
        max_size=15,
        unique_by=lambda c: c.id,
    ),
    st.integers(-1, 3),
    st.integers(-1, 6),
    st.sets(st.sampled_from("uvw")),
)
def test_the_limits_hold_and_newer_ones_stay(
    found: list[DeadContainer], per_name: int, total: int, doomed: set[str]
) -> None:
    policy = GCPolicy(max_per_pod_container=per_name, max_containers=total)
    gone = containers_to_remove(found, policy, doomed.__contains__)
    left = [c for c in found if c not in gone]
    assert len(ids(gone)) == len(set(ids(gone)))
    assert not any(c.uid in doomed for c in left)
    newest: dict[tuple[str, str], DeadContainer] = {}
    for each in left:
        newest[each.uid, each.name] = max(newest.get((each.uid, each.name), each), each, key=age)
    starting = {c.id for c in newest.values() if c.created}
    if total >= 0:
        assert len(left) - len(starting) <= total
    for kept in left:
        unit = [c for c in found if (c.uid, c.name) == (kept.uid, kept.name)]
        if per_name >= 0:
            assert len([c for c in left if c in unit and c.id not in starting]) <= per_name
        assert not any(c.created_at_ns > kept.created_at_ns for c in unit if c in gone)


def box(id: str, created: int, ready: bool = False, uid: str = "u", attempt: int = 0) -> FoundSandbox:
    return FoundSandbox(id=id, uid=uid, attempt=attempt, created_at_ns=created, ready=ready)


@pytest.mark.parametrize(
    ("found", "doomed", "gone"),
    [
        ([box("old", 1), box("new", 2)], False, ["old"]),
        ([box("old", 9), box("new", 2, attempt=1)], False, ["old"]),  # the clock was set back
        ([box("new", 2)], False, []),
        ([box("old", 1), box("new", 2)], True, ["old", "new"]),
        ([box("old", 1, ready=True), box("new", 2)], True, ["new"]),
        ([box("old", 1, ready=True), box("new", 2)], False, []),
    ],
)
def test_sandboxes(found: list[FoundSandbox], doomed: bool, gone: list[str]) -> None:
    assert ids(sandboxes_to_remove(found, lambda uid: doomed)) == gone


def prune(exited: str, remove_all: bool = False, keep: int = 1) -> list[str]:
    observed = status(
        seen("a", "running", id="a3", created_at_ns=3),
        seen("a", "exited", id="a1", created_at_ns=1),
        seen("a", "exited", id="a2", created_at_ns=2),
        seen("b", "exited", id="b1", created_at_ns=4),
        seen("b", "created", id="b2", created_at_ns=5),
        sandboxes=(sandbox(),),
    )
    return [c.id for c in containers_to_prune(observed, exited, remove_all, keep)]


def test_pruning_after_an_end() -> None:
    assert prune("a1") == ["a1"]
    assert prune("b1") == []
    assert prune("a2", keep=0) == ["a2", "a1"]
    assert prune("nobody") == []
    assert prune("a2", remove_all=True) == ["b1", "a2", "a1"]
    assert prune("", keep=1) == ["a2", "a1"]


def test_after_a_clock_was_set_back_the_last_end_is_still_kept() -> None:
    observed = status(
        seen("a", "exited", id="before", created_at_ns=9, restart_count=1),
        seen("a", "exited", id="last", created_at_ns=3, restart_count=2),
        sandboxes=(sandbox(),),
    )
    assert [c.id for c in containers_to_prune(observed, "last", remove_all=False, keep=1)] == ["before"]


def test_the_uid_in_a_log_directory() -> None:
    assert uid_of_log_directory("default_web_1234") == "1234"
    assert uid_of_log_directory("1234") == "1234"


class States:
    """Says which pods are gone."""

    def __init__(self, gone: Callable[[str], bool], ended: Callable[[str], bool] = nobody) -> None:
        self._gone = gone
        self._ended = ended

    def is_termination_requested(self, uid: str) -> bool:
        return self._gone(uid)

    def should_content_be_removed(self, uid: str) -> bool:
        return self._gone(uid)

    def should_runtime_be_removed(self, uid: str) -> bool:
        return self._gone(uid) or self._ended(uid)


ALL_GONE = States(lambda uid: True)
NONE_GONE = States(nobody)


async def crash(here: World, times: int) -> None:
    """Runs a pod whose container ends at once, and starts it so many times."""
    a_pod = pod(container("web", command=["sh", "-c", "echo bye; exit 1"]))
    for _ in range(times):
        await here.sync(a_pod)
        await trio.sleep(601)


@pytest.mark.parametrize(
    ("names", "count"),
    [
        ([], 0),
        (["0.log.rotated", "1.log", "2.log"], 3),
        (["145.log.log.rotated"], 146),
        (["a.log", "12log", "-42.log", "rotated.23.log"], 0),
        # Whoever made these, no runtime could be told of so many.
        (["9223372036854775807.log", f"{'9' * 40}.log", "2147483647.log", "23.log"], 24),
    ],
)
def test_restarts_are_counted_on_from_the_logs_that_are_there(names: list[str], count: int) -> None:
    assert restart_count_after(names) == count


async def test_dead_containers_go_with_their_logs_and_links(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await crash(here, 3)
        assert len(here.containers) == 3
        logs = here.logs / "default_web_uid-1" / "web"
        assert len(os.listdir(logs)) == len(os.listdir(here.links)) == 3
        await here.runtime.garbage_collect(GCPolicy(), NONE_GONE, all_sources_ready=True)
        assert [c.config.metadata.attempt for c in here.containers] == [2]
        assert os.listdir(logs) == ["2.log"]
        assert len(os.listdir(here.links)) == 1


async def test_young_containers_stay(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await crash(here, 3)
        await here.runtime.garbage_collect(GCPolicy(min_age=2000), NONE_GONE, all_sources_ready=True)
        assert len(here.containers) == 3


async def test_a_dead_sandbox_with_containers_in_it_stays(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await crash(here, 1)
        [old] = here.sandboxes
        here.service.runtime.sandbox_dies(old, here.service.now_ns())
        await crash(here, 1)  # in a new sandbox
        policy = GCPolicy(max_per_pod_container=2)
        await here.runtime.garbage_collect(policy, NONE_GONE, all_sources_ready=True)
        assert old in here.sandboxes
        await here.runtime.garbage_collect(GCPolicy(), NONE_GONE, all_sources_ready=True)
        assert old not in here.sandboxes
        assert len(here.sandboxes) == 1


async def test_a_node_where_all_is_well_is_not_listed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A list of everything is megabytes, each minute."""
    async with world(tmp_path) as here:
        await here.sync_ok(pod())
        asked: list[bool] = []
        listed = here.service.runtime.listed_containers

        def count(filter: cri.ContainerFilter) -> bytes:
            asked.append(filter.ByteSize() > 0)
            return listed(filter)

        here.service.runtime.listed_containers = count  # type: ignore[method-assign]
        await here.runtime.garbage_collect(GCPolicy(), NONE_GONE, all_sources_ready=True)
        assert asked
        assert all(asked)


async def test_of_a_pod_that_is_gone_nothing_stays(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await crash(here, 2)
        await here.runtime.kill_pod(None, await here.status(pod()))
        await here.runtime.garbage_collect(GCPolicy(), ALL_GONE, all_sources_ready=True)
        assert (here.containers, here.sandboxes) == ([], [])
        assert (os.listdir(here.logs), os.listdir(here.links)) == ([], [])


async def test_after_a_clock_was_set_back_nothing_waits_until_it_is_there_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await crash(here, 3)
        here.clock.set_back(3600)
        await here.runtime.garbage_collect(GCPolicy(min_age=60), NONE_GONE, all_sources_ready=True)
        assert [c.config.metadata.attempt for c in here.containers] == [2]
        await here.runtime.kill_pod(None, await here.status(pod()))
        await here.runtime.garbage_collect(GCPolicy(), ALL_GONE, all_sources_ready=True)
        assert (here.containers, here.sandboxes) == ([], [])


async def leave_sandboxes(here: World, count: int) -> None:
    """Of so many pods that have ended."""
    for number in range(count):
        a_pod = pod(uid=f"uid-{number}", name=f"web-{number}")
        await here.sync_ok(a_pod)
        await here.runtime.kill_pod(None, await here.status(a_pod))
        await here.runtime.prune(await here.status(a_pod), "", True)


async def test_sandboxes_are_removed_eight_at_a_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One after the other, what each takes added up when many pods went at once."""
    async with world(tmp_path) as here:
        await leave_sandboxes(here, 20)
        here.fail("RemovePodSandbox", Kind.SLOW, seconds=1.0, count=20)
        began = trio.current_time()
        await here.runtime.garbage_collect(GCPolicy(), ALL_GONE, all_sources_ready=True)
        assert here.sandboxes == []
        assert 3.0 <= trio.current_time() - began < 3.5


async def test_a_container_that_cannot_be_removed_holds_up_no_other(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await crash(here, 10)
        here.fail("RemoveContainer", Kind.SLOW, seconds=100.0, count=1)
        with trio.move_on_after(10):
            await here.runtime.garbage_collect(GCPolicy(), NONE_GONE, all_sources_ready=True)
        assert len(here.containers) == 2


async def test_many_sandboxes_that_hang_hold_up_no_other(tmp_path: Path, autojump_clock: MockClock) -> None:
    """As where a network plugin does not answer for some: each takes minutes, and the oldest come first."""
    async with world(tmp_path) as here:
        await leave_sandboxes(here, 20)
        here.fail("RemovePodSandbox", Kind.HANG, count=12)
        with trio.move_on_after(10):
            await here.runtime.garbage_collect(GCPolicy(), ALL_GONE, all_sources_ready=True)
        assert len(here.sandboxes) == 12


async def test_links_are_searched_when_logs_were_left_behind(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Else there are none to find, and each log directory that goes would cost a look at all links."""
    async with world(tmp_path) as here:
        await here.runtime.garbage_collect(GCPolicy(), NONE_GONE, all_sources_ready=True)
        os.makedirs(here.links, exist_ok=True)
        os.symlink("/nowhere/0.log", here.links / "old_default_web-0123456789.log")
        (here.logs / "default_web_uid-8" / "web").mkdir(parents=True)
        await here.runtime.garbage_collect(GCPolicy(), ALL_GONE, all_sources_ready=True)
        assert os.listdir(here.logs) == []
        assert len(os.listdir(here.links)) == 1
        (here.logs / "default_web_uid-9" / "web").mkdir(parents=True)
        (here.logs / "default_web_uid-9" / "web" / "0.log").write_text("bye")
        await here.runtime.garbage_collect(GCPolicy(), ALL_GONE, all_sources_ready=True)
        assert os.listdir(here.links) == []


async def test_while_sources_are_not_ready_nobody_counts_as_gone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await crash(here, 1)
        await here.runtime.garbage_collect(GCPolicy(), NONE_GONE, all_sources_ready=False)
        assert len(here.containers) == 1
        assert os.listdir(here.logs) == ["default_web_uid-1"]
        # What is known to be over before that loses its log, but no container that nobody has looked at.
        await here.runtime.garbage_collect(GCPolicy(), ALL_GONE, all_sources_ready=False)
        assert len(here.containers) == 1
        assert os.listdir(here.logs) == []


async def test_under_pressure_ended_pods_go_too(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await crash(here, 1)
        await here.runtime.kill_pod(None, await here.status(pod()))
        states = States(nobody, ended=lambda uid: True)
        await here.runtime.garbage_collect(
            GCPolicy(), states, all_sources_ready=True, evict_non_deleted_pods=True
        )
        assert (here.containers, here.sandboxes) == ([], [])
        assert os.listdir(here.logs) == ["default_web_uid-1"]


async def test_what_runs_is_never_collected(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod())
        policy = GCPolicy(max_per_pod_container=0, max_containers=0)
        await here.runtime.garbage_collect(policy, States(nobody), all_sources_ready=True)
        assert here.running() == ["web"]


async def test_dead_links_go_and_those_of_living_containers_stay(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=["sh", "-c", "echo hi; sleep 100000"]))
        await here.sync_ok(a_pod)
        [live] = os.listdir(here.links)
        os.unlink(here.container("web").log_path)  # as in the middle of a rotation
        os.symlink("/nowhere/0.log", here.links / "old_default_web-0123456789.log")
        os.symlink("/nowhere/0.log", here.links / "foreign.log")
        await here.runtime.garbage_collect(GCPolicy(), NONE_GONE, all_sources_ready=True)
        assert os.listdir(here.links) == [live]


async def test_one_container_that_cannot_be_removed_keeps_nothing_else(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await crash(here, 3)
        here.fail("RemoveContainer", message="device busy")
        await here.runtime.garbage_collect(
            GCPolicy(max_per_pod_container=0), NONE_GONE, all_sources_ready=True
        )
        assert len(here.containers) == 1


async def test_what_several_ask_for_is_removed_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    """That a container died and that its pod is gone come together."""
    async with world(tmp_path) as here:
        await crash(here, 3)
        observed = await here.status(pod())
        here.fail("RemoveContainer", Kind.SLOW, seconds=2.0, count=10)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(here.runtime.prune, observed, "", True)
        assert here.containers == []
        assert here.service.calls["RemoveContainer"] == 3


async def test_a_runtime_that_does_not_answer_is_an_error(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        here.fail("ListContainers", Kind.FAIL, code="UNAVAILABLE", count=2)
        (here.logs / "default_gone_uid-9").mkdir()
        with pytest.raises(ExceptionGroup) as caught:
            await here.runtime.garbage_collect(GCPolicy(), ALL_GONE, all_sources_ready=True)
        assert all(isinstance(error, CRIError) for error in caught.value.exceptions)
        # The log directories were looked at nevertheless.
        assert os.listdir(here.logs) == []


async def test_pruning_removes_what_was_selected(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await crash(here, 3)
        observed = await here.status(pod())
        await here.runtime.prune(observed, observed.containers[0].id, remove_all=False)
        assert [c.id for c in here.containers] == [observed.containers[0].id]
        assert len(os.listdir(here.links)) == 1
        here.fail("RemoveContainer")
        await here.runtime.prune(observed, "", remove_all=True)
        await here.runtime.prune(observed, "", remove_all=True)
        assert here.containers == []

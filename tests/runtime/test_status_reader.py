"""What the runtime knows becomes what the agent knows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.runtime.pods import container, pod, sandbox, seen, status
from tests.runtime.test_gc import NONE_GONE
from tests.runtime.world import World, world
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.errors import CRIError, NotFound, Unavailable
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import ContainerState, ContainerUser, PodParts, PodStatus
from trio_kubelet.runtime.configs.labels import CONTAINER_HASH, CONTAINER_NAME, POD_UID, RESTART_COUNT
from trio_kubelet.runtime.doors import GCPolicy, SyncContext
from trio_kubelet.runtime.status_reader import (
    StatusReader,
    assemble,
    container_state,
    convert_container,
    convert_sandbox,
    run_bounded,
    running_pods,
    sandbox_ips,
    signal_name,
)
from trio_kubelet.sim.faults import Kind
from trio_kubelet.sim.records import Sandbox


async def test_what_vanished_is_left_out(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("a"), container("b"))
        await here.sync_ok(a_pod)
        ids = [c.id for c in here.containers]
        parts = PodParts(
            uid="uid-1",
            name="web",
            namespace="default",
            sandbox_ids=[here.sandboxes[0].id, "gone"],
            container_ids=[*ids, "gone-too"],
            timestamp_ns=7,
        )
        observed = await here.runtime.read_pod_status(parts)
        assert {c.id for c in observed.containers} == set(ids)
        assert len(observed.sandboxes) == 1
        assert observed.timestamp_ns == 7


def parts_of(here: World, ready: Sequence[str] = ()) -> PodParts:
    """The pod's sandboxes as a look hands them over."""
    ids = [sandbox.id for sandbox in here.sandboxes]
    return PodParts(
        uid="uid-1",
        name="web",
        namespace="default",
        sandbox_ids=ids,
        container_ids=(),
        timestamp_ns=7,
        ready=ready,
    )


async def test_the_look_after_a_start_rests_on_what_the_start_read_of_the_sandbox(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        result = await here.runtime.sync_pod(pod(), await here.status(pod()), SyncContext())
        assert (result.ok, here.service.calls["PodSandboxStatus"]) == (True, 1)
        [sandbox] = here.sandboxes
        first = await here.runtime.read_pod_status(parts_of(here, ready=[sandbox.id]))
        assert here.service.calls["PodSandboxStatus"] == 1
        second = await here.runtime.read_pod_status(parts_of(here, ready=[sandbox.id]))
        assert here.service.calls["PodSandboxStatus"] == 2  # that start is long ago
        assert first == second
        assert first.ips == (sandbox.ip,)


async def test_where_all_is_to_be_read_so_is_a_sandbox_that_was_just_made(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await here.runtime.sync_pod(pod(), await here.status(pod()), SyncContext())
        await here.runtime.read_pod_status(parts_of(here))
        assert here.service.calls["PodSandboxStatus"] == 2


async def test_a_sandbox_that_ended_after_its_start_is_read(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await here.runtime.sync_pod(pod(), await here.status(pod()), SyncContext())
        await here.cri.stop_pod_sandbox(here.sandboxes[0].id)
        observed = await here.runtime.read_pod_status(parts_of(here))
        assert [sandbox.ready for sandbox in observed.sandboxes] == [False]


@pytest.mark.parametrize(("host_network", "reads"), [(False, 2), (True, 1)])
async def test_a_sandbox_whose_address_was_not_known_yet_is_read_again(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    host_network: bool,
    reads: int,
) -> None:
    async with world(tmp_path) as here:
        a_pod, run = pod(host_network=host_network), here.service.runtime.run_sandbox

        def without_address(*args: Any) -> Sandbox:
            sandbox = run(*args)
            sandbox.ip = ""
            return sandbox

        monkeypatch.setattr(here.service.runtime, "run_sandbox", without_address)
        await here.runtime.sync_pod(a_pod, await here.status(a_pod), SyncContext())
        [sandbox] = here.sandboxes
        sandbox.ip = "127.1.2.3"
        observed = await here.runtime.read_pod_status(parts_of(here, ready=[sandbox.id]))
        assert here.service.calls["PodSandboxStatus"] == reads
        assert observed.ips == (() if host_network else ("127.1.2.3",))


async def test_housekeeping_forgets_starts_that_nobody_looked_at(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await here.runtime.sync_pod(pod(), await here.status(pod()), SyncContext())
        await here.runtime.garbage_collect(GCPolicy(), NONE_GONE, all_sources_ready=False)
        await here.runtime.read_pod_status(parts_of(here, ready=[here.sandboxes[0].id]))
        assert here.service.calls["PodSandboxStatus"] == 2


async def test_half_an_answer_is_none(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(container("a"), container("b")))
        here.fail("ContainerStatus", code="UNAVAILABLE")
        with pytest.raises(Unavailable):
            await here.status(pod())


async def test_the_parts_of_a_pod_are_read_side_by_side(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(*(container(f"c{n}") for n in range(15)))
        await here.sync_ok(a_pod)
        here.fail("*Status", Kind.SLOW, seconds=1, count=None)
        begun = trio.current_time()
        observed = await here.status(a_pod)
        assert len(observed.containers) == 15
        assert trio.current_time() - begun == pytest.approx(2, abs=0.1)


async def test_the_first_failure_ends_a_bounded_run(autojump_clock: MockClock) -> None:
    ended: list[int] = []

    async def job(n: int) -> None:
        await trio.sleep(n)
        if n == 2:
            raise NotFound("gone")
        ended.append(n)

    with pytest.raises(CRIError, match="gone"):
        await run_bounded(4, [partial(job, n) for n in (1, 2, 3, 4)])
    assert ended == [1]
    await run_bounded(3, [])


def test_addresses_come_from_the_newest_sandbox_if_it_is_ready() -> None:
    old, new = sandbox("old", created_at_ns=1, ips=("10.0.0.1",)), sandbox("new", created_at_ns=5)

    def ips(*boxes: object, newest: str = "new") -> tuple[str, ...]:
        return assemble(status(sandboxes=boxes), newest).ips  # type: ignore[arg-type]

    assert ips(new, old) == ("10.0.0.2",)
    assert ips(sandbox("new", ready=False), old) == ()
    assert ips(old) == ()


def test_of_one_moment_the_later_attempt_is_the_newer() -> None:
    first, second = seen("a", "exited", id="first"), seen("a", "running", id="second", restart_count=1)
    for order in ((first, second), (second, first)):
        found = assemble(status(*order), "box").container_status("a")
        assert found is not None
        assert found.id == "second"


def test_a_container_belongs_to_its_sandbox_or_the_newest_one_older_than_itself() -> None:
    boxes = (sandbox("new", created_at_ns=5), sandbox("old", created_at_ns=1))
    observed = assemble(
        status(
            seen("a", "exited", id="first", created_at_ns=2),
            seen("a", "running", id="second", created_at_ns=5),
            seen("a", "exited", id="stray", created_at_ns=0),
            sandboxes=boxes,
        ),
        "new",
    )
    assert [(c.id, c.pod_sandbox_id) for c in observed.containers] == [
        ("second", "new"),
        ("first", "old"),
        ("stray", ""),
    ]
    observed = assemble(observed, "new", {"first": "new", "stray": "old"})
    assert {c.id: c.pod_sandbox_id for c in observed.containers} == {
        "second": "new",
        "first": "new",
        "stray": "old",
    }
    alone = assemble(status(seen("a", "running", created_at_ns=1), sandboxes=boxes[:1]), "new")
    assert [c.pod_sandbox_id for c in alone.containers] == ["new"]


def test_only_what_has_happened_is_told() -> None:
    running = cri.ContainerStatus(
        id="x",
        state=cri.CONTAINER_CREATED,
        started_at=5,
        finished_at=6,
        exit_code=7,
        reason="Error",
        message="text",
        image_ref="ref",
        labels={CONTAINER_NAME: "web"},
        annotations={CONTAINER_HASH: "abc", RESTART_COUNT: "4"},
    )
    running.user.linux.uid = 5
    found = convert_container(running)
    assert (found.name, found.hash, found.restart_count, found.image_id) == ("web", "abc", 4, "ref")
    assert (found.started_at_ns, found.finished_at_ns, found.exit_code) == (0, 0, 0)
    assert (found.reason, found.message) == ("", "")
    assert found.user == ContainerUser(5, 0)
    assert found.resources is None
    running.state = cri.CONTAINER_EXITED
    running.resources.linux.cpu_shares = 2
    found = convert_container(running)
    assert (found.started_at_ns, found.finished_at_ns, found.exit_code) == (5, 6, 7)
    assert found.resources is not None
    assert (found.resources.cpu_shares, found.resources.cpu_quota) == (2, None)


def test_sandboxes() -> None:
    answer = cri.PodSandboxStatus(id="box", state=cri.SANDBOX_READY, created_at=3)
    answer.metadata.attempt = 2
    bare = convert_sandbox(answer)
    assert (bare.ready, bare.attempt, bare.network_reported, bare.host_network, bare.ips) == (
        True,
        2,
        False,
        False,
        (),
    )
    answer.linux.namespaces.options.network = cri.NODE
    answer.network.ip = "10.0.0.1"
    answer.network.additional_ips.add(ip="fd00::1")
    found = convert_sandbox(answer)
    assert (found.network_reported, found.host_network, found.ips) == (True, True, ("10.0.0.1", "fd00::1"))
    answer.network.ip = "010.000.000.001"  # not as others write it
    assert sandbox_ips(answer) == ("010.000.000.001", "fd00::1")
    answer.network.ip = "not an address"
    assert sandbox_ips(answer) == ()


@pytest.mark.parametrize(
    ("signal", "name"),
    [
        (cri.RUNTIME_DEFAULT, ""),
        (cri.SIGTERM, "SIGTERM"),
        (cri.SIGRTMINPLUS3, "SIGRTMIN+3"),
        (cri.SIGRTMAXMINUS14, "SIGRTMAX-14"),
        (9999, ""),
    ],
)
def test_signals(signal: cri.Signal.ValueType, name: str) -> None:
    assert signal_name(signal) == name


def test_a_state_nobody_has_heard_of_is_unknown() -> None:
    odd: cri.ContainerState.ValueType = cri.ContainerState.ValueType(77)
    assert container_state(odd) is ContainerState.UNKNOWN


def listed(uid: str, id: str, created: int) -> cri.Container:
    found = cri.Container(id=id, created_at=created, state=cri.CONTAINER_RUNNING, labels={POD_UID: uid})
    found.metadata.name = "c"
    return found


def listed_box(uid: str, id: str, created: int, attempt: int = 0) -> cri.PodSandbox:
    found = cri.PodSandbox(id=id, created_at=created)
    found.metadata.uid, found.metadata.attempt = uid, attempt
    return found


@given(
    st.lists(st.tuples(st.sampled_from("uvw"), st.integers(0, 9)), max_size=8),
    st.lists(st.tuples(st.sampled_from("uvwx"), st.integers(0, 9)), max_size=8),
)
def test_lists_are_grouped_by_pod_and_nothing_is_lost(
    boxes: list[tuple[str, int]], containers: list[tuple[str, int]]
) -> None:
    pods = running_pods(
        [listed_box(uid, f"s{n}", created) for n, (uid, created) in enumerate(boxes)],
        [listed(uid, f"c{n}", created) for n, (uid, created) in enumerate(containers)],
    )
    assert len({p.uid for p in pods}) == len(pods)
    assert sorted(c.id for p in pods for c in p.containers) == sorted(f"c{n}" for n in range(len(containers)))
    assert sorted(s.id for p in pods for s in p.sandboxes) == sorted(f"s{n}" for n in range(len(boxes)))
    for p in pods:
        assert all(containers[int(c.id[1:])][0] == p.uid for c in p.containers)
        created = [c.created_at_ns for c in p.containers]
        assert created == sorted(created, reverse=True)


def test_a_sandboxs_attempt_says_more_than_its_time() -> None:
    [found] = running_pods(
        [listed_box("u", "late", 9, attempt=0), listed_box("u", "third", 5, attempt=2)], []
    )
    assert [s.id for s in found.sandboxes] == ["third", "late"]


def test_nothing_known() -> None:
    empty = PodStatus(uid="u", name="n", namespace="ns")
    assert assemble(empty, "") == empty


@pytest.mark.parametrize(
    ("reason", "code", "known", "shown"),
    [
        ("Error", 137, True, "OOMKilled"),
        ("", 137, True, "OOMKilled"),
        ("Error", 137, False, "Error"),
        ("Error", 1, True, "Error"),  # it lived through that and ended of itself
        ("Completed", 0, True, "Completed"),
        ("ContainerCannotRun", 137, True, "ContainerCannotRun"),
    ],
)
async def test_the_kernel_may_know_why_a_container_was_killed(
    reason: str, code: int, known: bool, shown: str
) -> None:
    """Where the runtime says nothing of why, not against what it says."""

    class Answers:
        async def container_status(self, container_id: str) -> cri.ContainerStatusResponse:
            status = cri.ContainerStatus(id=container_id, state=cri.CONTAINER_EXITED, exit_code=code)
            status.reason = reason
            return cri.ContainerStatusResponse(status=status)

    reader = StatusReader(cast(RuntimeService, Answers()), SystemClock(), lambda each: known and each == "c")
    found = await reader.container("c")
    assert found is not None
    assert found.reason == shown

"""What a relist reports, trap by trap, for the table in use and for the plain-Python one."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.native import RelistTable
from trio_kubelet.native.doors import RelistTableLike
from trio_kubelet.native.pure_table import PureRelistTable
from trio_kubelet.native.types import MalformedList
from trio_kubelet.observed.types import ContainerState, PodLifecycleEvent, PodLifecycleEventType

Listed = cri.Container | cri.PodSandbox

STARTED = PodLifecycleEventType.CONTAINER_STARTED
DIED = PodLifecycleEventType.CONTAINER_DIED
REMOVED = PodLifecycleEventType.CONTAINER_REMOVED
CHANGED = PodLifecycleEventType.CONTAINER_CHANGED

CREATED, RUNNING, EXITED, UNKNOWN = 0, 1, 2, 3
READY, NOT_READY = 0, 1


@pytest.fixture(params=[RelistTable, PureRelistTable], ids=["in use", "pure"])
def table(request: pytest.FixtureRequest) -> RelistTableLike:
    make: Callable[[], RelistTableLike] = request.param
    return make()


def container(
    entry_id: str, state: int = RUNNING, uid: str | None = "u", created_at: int = 1
) -> cri.Container:
    labels = {} if uid is None else {"io.kubernetes.pod.uid": uid}
    return cri.Container(
        id=entry_id,
        metadata=cri.ContainerMetadata(name=f"name-{entry_id}"),
        image=cri.ImageSpec(image="image"),
        state=cri.ContainerState.ValueType(state),
        created_at=created_at,
        labels=labels,
    )


def sandbox(
    entry_id: str, state: int = READY, uid: str = "u", created_at: int = 1, attempt: int = 0
) -> cri.PodSandbox:
    return cri.PodSandbox(
        id=entry_id,
        metadata=cri.PodSandboxMetadata(name="pod", namespace="ns", uid=uid, attempt=attempt),
        state=cri.PodSandboxState.ValueType(state),
        created_at=created_at,
    )


def listed(*entries: Listed) -> tuple[bytes, bytes]:
    """Both answers of a runtime that has these."""
    return (
        cri.ListPodSandboxResponse(
            items=[e for e in entries if isinstance(e, cri.PodSandbox)]
        ).SerializeToString(),
        cri.ListContainersResponse(
            containers=[e for e in entries if isinstance(e, cri.Container)]
        ).SerializeToString(),
    )


def events(table: RelistTableLike, *entries: Listed, uid: str = "u") -> list[tuple[str, str]]:
    """Relists and returns the pod's events as (type, id)."""
    changes = {change.uid: change.events for change in table.relist(*listed(*entries))}
    assert all(event.pod_uid == uid for event in changes.get(uid, ()))
    return [(event.type, event.data) for event in changes.get(uid, ())]


def settle(table: RelistTableLike, *entries: Listed) -> None:
    """Relists and commits everything."""
    for change in table.relist(*listed(*entries)):
        table.commit(change.uid)


TRANSITIONS = [
    (None, CREATED, [CHANGED]),
    (None, RUNNING, [STARTED]),
    (None, EXITED, [DIED]),
    (None, UNKNOWN, [CHANGED]),
    (CREATED, CREATED, []),
    (CREATED, RUNNING, [STARTED]),
    (CREATED, EXITED, [DIED]),
    (CREATED, UNKNOWN, []),
    (CREATED, None, [DIED, REMOVED]),
    (RUNNING, CREATED, [CHANGED]),
    (RUNNING, RUNNING, []),
    (RUNNING, EXITED, [DIED]),
    (RUNNING, UNKNOWN, [CHANGED]),
    (RUNNING, None, [DIED, REMOVED]),
    (EXITED, RUNNING, [STARTED]),
    (EXITED, EXITED, []),
    (EXITED, UNKNOWN, [CHANGED]),
    (EXITED, None, [REMOVED]),
    (UNKNOWN, CREATED, []),
    (UNKNOWN, RUNNING, [STARTED]),
    (UNKNOWN, 17, []),
    (UNKNOWN, None, [DIED, REMOVED]),
]


@pytest.mark.parametrize(("old", "new", "expected"), TRANSITIONS)
def test_transition(table: RelistTableLike, old: int | None, new: int | None, expected: list[str]) -> None:
    settle(table, *([] if old is None else [container("c", old)]))
    found = events(table, *([] if new is None else [container("c", new)]))
    assert found == [(event, "c") for event in expected]


def test_sandboxes_count_as_containers(table: RelistTableLike) -> None:
    assert events(table, sandbox("s")) == [(STARTED, "s")]
    table.commit("u")
    assert events(table, sandbox("s", NOT_READY)) == [(DIED, "s")]
    table.commit("u")
    assert events(table) == [(REMOVED, "s")]


def test_a_change_is_reported_until_it_is_committed(table: RelistTableLike) -> None:
    settle(table, container("c"), container("d", uid="v"))
    for _ in range(3):
        assert events(table, container("c", EXITED), container("d", uid="v")) == [(DIED, "c")]
    table.commit("u")
    assert table.relist(*listed(container("c", EXITED), container("d", uid="v"))) == []


def test_what_comes_back_before_the_commit_is_no_change(table: RelistTableLike) -> None:
    settle(table, container("c"))
    assert events(table) == [(DIED, "c"), (REMOVED, "c")]
    assert events(table, container("c")) == []


def test_what_came_and_went_uncommitted_leaves_nothing(table: RelistTableLike) -> None:
    assert events(table, container("c")) == [(STARTED, "c")]
    assert events(table) == []
    assert table.pod("u") is None
    assert list(table.pods()) == []


def test_commit_takes_what_the_last_relist_showed(table: RelistTableLike) -> None:
    table.relist(*listed(container("c")))
    table.relist(*listed(container("c", EXITED)))
    table.commit("u")
    assert events(table) == [(REMOVED, "c")]


def test_commit_of_an_unknown_pod_does_nothing(table: RelistTableLike) -> None:
    table.commit("nobody")
    assert list(table.pods()) == []


def test_events_stand_in_the_kubelets_order(table: RelistTableLike) -> None:
    settle(table, container("a", created_at=1), container("b", created_at=2), sandbox("s", created_at=9))
    found = events(
        table,
        container("n", created_at=7),
        container("m", created_at=7),
        container("a", EXITED, created_at=1),
        sandbox("t", created_at=10),
        sandbox("old", NOT_READY, created_at=20, attempt=0),
        sandbox("new", created_at=1, attempt=1),
    )
    assert found == [
        (DIED, "b"),
        (REMOVED, "b"),
        (DIED, "a"),
        (DIED, "s"),
        (REMOVED, "s"),
        (STARTED, "m"),
        (STARTED, "n"),
        (STARTED, "new"),
        (DIED, "old"),
        (STARTED, "t"),
    ]


def test_one_id_can_stand_under_two_pods(table: RelistTableLike) -> None:
    settle(table, container("c", uid="u"), container("c", uid="v"))
    assert events(table, container("c", EXITED, uid="u"), container("c", uid="v")) == [(DIED, "c")]
    assert events(table, container("c", uid="u"), container("c", EXITED, uid="v")) == []


def test_a_container_beats_a_sandbox_with_its_id(table: RelistTableLike) -> None:
    settle(table, sandbox("x", READY, created_at=9), container("x", EXITED, created_at=1))
    view = table.pod("u")
    assert view is not None
    assert [c.state for c in view.containers] == [ContainerState.EXITED]
    assert view.sandboxes == ()


@pytest.mark.parametrize("newest_first", [True, False])
def test_of_two_with_one_id_the_newest_counts(table: RelistTableLike, newest_first: bool) -> None:
    entries = [container("c", EXITED, created_at=2), container("c", RUNNING, created_at=1)]
    assert events(table, *(entries if newest_first else entries[::-1])) == [(DIED, "c")]


def test_of_two_sandboxes_with_one_id_the_highest_attempt_counts(table: RelistTableLike) -> None:
    assert events(
        table, sandbox("s", READY, created_at=5, attempt=0), sandbox("s", NOT_READY, attempt=1)
    ) == [(DIED, "s")]


def test_a_container_without_uid_label_belongs_to_the_empty_uid(table: RelistTableLike) -> None:
    assert events(table, container("c", uid=None), uid="") == [(STARTED, "c")]
    assert list(table.pods()) == [""]


def test_entries_the_kubelet_passes_over(table: RelistTableLike) -> None:
    bare = container("no-metadata")
    bare.ClearField("metadata")
    imageless = container("no-image")
    imageless.ClearField("image")
    nameless = sandbox("no-metadata")
    nameless.ClearField("metadata")
    assert table.relist(*listed(bare, imageless, container(""), nameless, sandbox(""))) == []


def test_a_malformed_list_names_the_place_and_changes_nothing(table: RelistTableLike) -> None:
    settle(table, container("c"), sandbox("s"))
    before = table.pod("u"), table.counts()
    sandboxes, containers = listed(container("c", EXITED), container("d"), sandbox("s", NOT_READY))
    with pytest.raises(MalformedList) as caught:
        table.relist([sandboxes, sandboxes], [containers, containers + b"\x0a\x09\x0a\x01x"])
    fault = caught.value
    assert (fault.list, fault.message, fault.offset) == ("containers", 1, len(containers) + 1)
    assert fault.reason == "length runs past the end"
    assert (table.pod("u"), table.counts()) == before
    assert table.relist(*listed(container("c"), sandbox("s"))) == []


def test_a_stream_of_messages_is_one_list(table: RelistTableLike) -> None:
    sandboxes, first = listed(container("a"), sandbox("s"))
    _, second = listed(container("b"))
    changes = table.relist([sandboxes], iter([first, b"", second]))
    assert [event.data for change in changes for event in change.events] == ["a", "b", "s"]


def test_changes_come_by_uid(table: RelistTableLike) -> None:
    uids = ["u9", "u1", "u10", "ü", ""]
    changes = table.relist(*listed(*[container(f"c{i}", uid=uid) for i, uid in enumerate(uids)]))
    assert [change.uid for change in changes] == sorted(uids)


def test_relist_of_one_pod_leaves_the_others(table: RelistTableLike) -> None:
    settle(table, container("c"), container("d", uid="v"))
    change = table.relist_pod("u", *listed(container("c", EXITED), container("x", uid="v")))
    assert change is not None
    assert change.events == (PodLifecycleEvent("u", DIED, "c"),)
    table.commit("u")
    assert table.relist(*listed(container("c", EXITED), container("d", uid="v"))) == []
    assert table.relist_pod("u", b"", b"") is not None
    assert list(table.pods()) == ["v"]
    assert table.relist_pod("nobody", b"", b"") is None


def test_the_view_of_a_pod(table: RelistTableLike) -> None:
    labels = {
        "io.kubernetes.pod.uid": "u",
        "io.kubernetes.pod.name": "from-label",
        "io.kubernetes.pod.namespace": "ns-label",
    }
    web = cri.Container(
        id="c1",
        pod_sandbox_id="s2",
        metadata=cri.ContainerMetadata(name="web", attempt=3),
        image=cri.ImageSpec(image="nginx"),
        image_ref="sha256:ref",
        state=cri.ContainerState.CONTAINER_CREATED,
        created_at=30,
        labels=labels,
        annotations={"io.kubernetes.container.hash": "9690f4d"},
    )
    old = cri.Container()
    old.CopyFrom(web)
    old.id, old.image_id, old.created_at = "c0", "sha256:id", 20
    old.state = cri.ContainerState.CONTAINER_EXITED
    table.relist(
        *listed(old, web, sandbox("s1", NOT_READY, created_at=10), sandbox("s2", created_at=20, attempt=1))
    )
    view = table.pod("u")
    assert view is not None
    assert (view.uid, view.name, view.namespace, view.created_at_ns) == ("u", "pod", "ns", 10)
    assert [(c.id, c.name, c.state, c.created_at_ns) for c in view.containers] == [
        ("c1", "web", ContainerState.CREATED, 30),
        ("c0", "web", ContainerState.EXITED, 20),
    ]
    newest, oldest = view.containers
    assert (newest.sandbox_id, newest.image, newest.image_ref, newest.hash) == (
        "s2",
        "nginx",
        "sha256:ref",
        "9690f4d",
    )
    assert (newest.image_id, oldest.image_id) == ("sha256:ref", "sha256:id")
    assert [(s.id, s.state, s.attempt) for s in view.sandboxes] == [
        ("s2", ContainerState.RUNNING, 1),
        ("s1", ContainerState.EXITED, 0),
    ]
    table.relist(*listed(web))
    view = table.pod("u")
    assert view is not None
    assert (view.name, view.namespace, view.created_at_ns) == ("from-label", "ns-label", 0)


def test_counts_and_running_pods(table: RelistTableLike) -> None:
    table.relist(
        *listed(
            container("a", RUNNING),
            container("b", EXITED),
            container("c", CREATED, uid="v"),
            container("d", 99, uid="v"),
            sandbox("s1"),
            sandbox("s2"),
            sandbox("s3", NOT_READY, uid="v"),
            container("e", RUNNING, uid="w"),
        )
    )
    counts = table.counts()
    assert counts.running_pods == 1
    assert counts.containers == {
        ContainerState.CREATED: 1,
        ContainerState.RUNNING: 2,
        ContainerState.EXITED: 1,
        ContainerState.UNKNOWN: 1,
    }
    assert sorted(table.pods()) == ["u", "v", "w"]
    assert sorted(table.running_pods()) == ["u", "w"]


def test_many_pods_come_and_go(table: RelistTableLike) -> None:
    entries = [container(f"c{i}" * 30, uid=f"pod-{i // 3}") for i in range(600)]
    settle(table, *entries)
    assert len(list(table.pods())) == 200
    found = table.relist(*listed(*entries[::2]))
    assert sum(len(change.events) for change in found) == 600
    for change in found:
        table.commit(change.uid)
    settle(table)
    assert list(table.pods()) == []
    settle(table, *entries)
    assert table.counts().containers[ContainerState.RUNNING] == 600


def test_two_tables_know_nothing_of_each_other() -> None:
    first, second = RelistTable(), RelistTable()
    settle(first, container("c"))
    assert list(second.pods()) == []


def test_a_second_thread_is_refused_while_a_relist_runs() -> None:
    native_table = pytest.importorskip("trio_kubelet.native.table")
    table = native_table.CRelistTable()
    data = listed(*[container(f"c{i}", uid=f"u{i}") for i in range(2000)])
    outcomes: list[object] = []

    def work() -> None:
        for _ in range(30):
            try:
                table.relist(*data)
                outcomes.append("done")
            except RuntimeError as err:
                outcomes.append(str(err))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {"done", "the relist table is in use by another thread"}
    assert "done" in outcomes
    assert table.counts().containers[ContainerState.RUNNING] == 2000

"""The C table against the Python one: the same relists, commits and looks, the same answers and errors."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.native import wire_strategies as ws
from trio_kubelet import native
from trio_kubelet.native.doors import RelistTableLike
from trio_kubelet.native.pure_table import PureRelistTable
from trio_kubelet.native.types import ListAnswer, MalformedList, PodChange

if not native.HAVE_C:
    pytest.skip("the C extension is not built", allow_module_level=True)

from trio_kubelet.native.table import CRelistTable

UIDS = ["", "u1", "u2", "u3", "0123456789" * 5, "ü", "nobody"]
Fault = tuple[str, int, int, str]


@st.composite
def answers(draw: st.DrawFn, messages: st.SearchStrategy[bytes]) -> ListAnswer:
    """The message of a unary call or those of a stream."""
    if draw(st.booleans()):
        return draw(messages)
    return draw(st.lists(messages, max_size=3))


def relist(table: RelistTableLike, sandboxes: ListAnswer, containers: ListAnswer) -> list[PodChange] | Fault:
    try:
        return table.relist(sandboxes, containers)
    except MalformedList as err:
        return err.list, err.message, err.offset, err.reason


def relist_pod(
    table: RelistTableLike, uid: str, sandboxes: ListAnswer, containers: ListAnswer
) -> PodChange | Fault | None:
    try:
        return table.relist_pod(uid, sandboxes, containers)
    except MalformedList as err:
        return err.list, err.message, err.offset, err.reason


def seen(table: RelistTableLike) -> object:
    """All a table shows without changing it."""
    views = {uid: table.pod(uid) for uid in table.pods()}
    return views, sorted(table.running_pods()), table.counts()


class TwoTables(RuleBasedStateMachine):
    """Drives a C and a Python table through the same life."""

    def __init__(self) -> None:
        super().__init__()
        self.c = native.RelistTable()
        self.pure = PureRelistTable()
        self.last: tuple[ListAnswer, ListAnswer] = (b"", b"")

    @rule(sandboxes=answers(ws.sandbox_lists), containers=answers(ws.container_lists))
    def relist(self, sandboxes: ListAnswer, containers: ListAnswer) -> None:
        self.last = sandboxes, containers
        assert relist(self.c, sandboxes, containers) == relist(self.pure, sandboxes, containers)

    @rule()
    def relist_again(self) -> None:
        assert relist(self.c, *self.last) == relist(self.pure, *self.last)

    @rule(
        sandboxes=answers(ws.damaged_sandbox_lists),
        containers=answers(ws.damaged_container_lists),
    )
    def relist_damaged(self, sandboxes: ListAnswer, containers: ListAnswer) -> None:
        before = seen(self.c)
        found = relist(self.c, sandboxes, containers)
        assert found == relist(self.pure, sandboxes, containers)
        if isinstance(found, tuple):
            assert seen(self.c) == before

    @rule(uid=st.sampled_from(UIDS), sandboxes=ws.sandbox_lists, containers=ws.damaged_container_lists)
    def relist_one_pod(self, uid: str, sandboxes: bytes, containers: bytes) -> None:
        found = relist_pod(self.c, uid, sandboxes, containers)
        assert found == relist_pod(self.pure, uid, sandboxes, containers)

    @rule(uid=st.sampled_from(UIDS))
    def commit(self, uid: str) -> None:
        self.c.commit(uid)
        self.pure.commit(uid)

    @rule()
    def commit_all(self) -> None:
        for uid in UIDS:
            self.commit(uid)

    @rule()
    def empty_node(self) -> None:
        assert relist(self.c, b"", b"") == relist(self.pure, b"", b"")

    @invariant()
    def they_show_the_same(self) -> None:
        assert seen(self.c) == seen(self.pure)


TestTwoTables = TwoTables.TestCase
TestTwoTables.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


@given(ws.damaged_sandbox_lists, ws.damaged_container_lists)
@settings(deadline=None, max_examples=100)
def test_first_relist_is_the_same(sandboxes: bytes, containers: bytes) -> None:
    c, pure = native.RelistTable(), PureRelistTable()
    assert relist(c, sandboxes, containers) == relist(pure, sandboxes, containers)
    assert seen(c) == seen(pure)


@given(ws.damaged_container_lists, st.integers(0, 40))
@settings(deadline=None, max_examples=100)
def test_reading_stops_at_the_same_byte_wherever_the_list_is_cut(containers: bytes, cut: int) -> None:
    assume(cut < len(containers))
    c, pure = native.RelistTable(), PureRelistTable()
    assert relist(c, b"", containers[:-cut]) == relist(pure, b"", containers[:-cut])


@given(
    ws.sandbox_lists, ws.container_lists, st.sets(st.sampled_from(UIDS)), ws.sandbox_lists, ws.container_lists
)
@settings(deadline=None, max_examples=40)
def test_out_of_memory_is_all_or_nothing(
    sandboxes: bytes, containers: bytes, committed: set[str], next_sandboxes: bytes, next_containers: bytes
) -> None:
    table, pure = CRelistTable(), PureRelistTable()
    for each in (table, pure):
        each.relist(sandboxes, containers)
        for uid in committed:
            each.commit(uid)
    before = seen(pure)
    expected = pure.relist(next_sandboxes, next_containers)
    for allowed in range(200):
        table.fail_allocations_after(allowed)
        try:
            found = table.relist(next_sandboxes, next_containers)
        except MemoryError:
            table.fail_allocations_after(-1)
            # The lists are taken or not; taken, but not told, their changes are told the next time.
            assert seen(table) in (before, seen(pure))
        else:
            break
    assert found == expected
    table.fail_allocations_after(-1)
    assert table.relist(next_sandboxes, next_containers) == expected

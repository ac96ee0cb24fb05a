"""The index of names agrees with the table, and asks it for no pod twice."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.native.doors import RelistTableLike
from trio_kubelet.native.types import PodView
from trio_kubelet.pleg.generic import NamesOfPods


class Table:
    """Pods with names; counts how often one is read."""

    def __init__(self) -> None:
        self.views: dict[str, PodView] = {}
        self.read = 0

    def pod(self, uid: str) -> PodView | None:
        self.read += 1
        return self.views.get(uid)


def view(uid: str, name: str) -> PodView:
    return PodView(uid=uid, name=name, namespace="d", created_at_ns=1, sandboxes=(), containers=())


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=30))
def test_names_are_those_of_the_pods_that_are_listed(doings: list[tuple[str, bool]]) -> None:
    table = Table()
    names = NamesOfPods(cast(RelistTableLike, table))
    name_of = {"a": "x", "b": "x", "c": "x"}
    for uid, there in doings:
        if there:
            table.views[uid] = view(uid, name_of.get(uid, uid))
        else:
            table.views.pop(uid, None)
        names.note(uid)
    for name in ("x", "d", "e", "f"):
        expected = sorted(uid for uid, each in table.views.items() if each.name == name)
        assert names.uids(name, "d") == expected
    assert names.uids("x", "other") == []


def test_a_name_is_found_without_going_through_the_pods() -> None:
    table = Table()
    names = NamesOfPods(cast(RelistTableLike, table))
    for number in range(1000):
        table.views[f"u{number}"] = view(f"u{number}", f"p{number}")
        names.note(f"u{number}")
    read = table.read
    assert names.uids("p7", "d") == ["u7"]
    assert table.read == read

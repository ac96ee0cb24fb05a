"""Numbers, differences and snapshots: what any reader has is what is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nodepage.nodes import facts
from trio_kubelet.nodepage import shown
from trio_kubelet.nodepage.rows import PodRow, pod_row
from trio_kubelet.nodepage.shown import ShownPods


class Mirror:
    """What a page makes of the messages."""

    def __init__(self) -> None:
        self.life, self.number, self.snapshots = "", -1, 0
        self.pods: dict[str, Any] = {}
        self.events: list[Any] = []

    def read(self, pods: ShownPods) -> None:
        """Takes what it lacks."""
        for message in map(json.loads, pods.since(self.life, self.number)):
            if "life" in message:
                self.snapshots += 1
                self.life, self.pods, self.events = message["life"], message["pods"], message["events"]
            else:
                assert message["n"] == self.number + 1, "a difference was left out"
                self.pods.update(message.get("pods", {}))
                for uid in message.get("gone", ()):
                    del self.pods[uid]
                self.events += message.get("events", [])
            self.number = message["n"]


def row(name: str, restarts: int = 0) -> PodRow:
    made = pod_row(facts(name))
    return (
        made
        if not restarts
        else PodRow(name=name, namespace="default", state="Running", health="good", restarts=restarts)
    )


steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans(), st.booleans()), max_size=40
)


@given(steps)
def test_readers_at_any_pace_see_what_is_shown(doings: list[tuple[str, int, bool, bool]]) -> None:
    pods = ShownPods({"name": "n"})
    quick, slow = Mirror(), Mirror()
    for uid, restarts, gone, slow_reads in doings:
        pods.put({uid: None if gone else row(uid, restarts)}, events=[{"uid": uid}] if restarts else [])
        quick.read(pods)
        if slow_reads:
            slow.read(pods)
    slow.read(pods)
    quick.read(pods)
    want = {uid: each.restarts for uid, each in pods.rows.items()}
    for mirror in (quick, slow):
        assert {uid: each.get("restarts", 0) for uid, each in mirror.pods.items()} == want
    assert quick.events == slow.events
    assert quick.snapshots == 1


def test_nothing_new_is_no_message() -> None:
    pods = ShownPods({})
    assert pods.put({"a": row("a")})
    assert not pods.put({"a": row("a"), "b": None})
    assert pods.since(pods.life, pods.number) == []


def test_a_reader_goes_on_by_its_number() -> None:
    pods, mirror = ShownPods({}), Mirror()
    pods.put({"a": row("a")})
    mirror.read(pods)
    for restarts in range(1, 5):
        pods.put({"a": row("a", restarts)})
    mirror.read(pods)
    assert mirror.snapshots == 1
    assert mirror.pods["a"]["restarts"] == 4


def test_a_slow_reader_gets_a_snapshot_and_nothing_is_kept_for_it() -> None:
    pods, mirror = ShownPods({}), Mirror()
    pods.put({"a": row("a")})
    mirror.read(pods)
    for restarts in range(1, shown.LAG_FRAMES + 3):
        pods.put({"a": row("a", restarts)})
    assert len(pods.since(mirror.life, mirror.number)) == 1
    mirror.read(pods)
    assert mirror.snapshots == 2


def test_what_is_kept_is_bounded() -> None:
    pods = ShownPods({})
    for number in range(2000):
        pods.put({}, events=[{"message": "x" * 5000, "n": number}], points=[{"at": number}])
    assert pods._bytes <= shown.KEPT_BYTES
    assert len(pods._frames) <= shown.KEPT_FRAMES
    said = json.loads(pods.snapshot())
    assert len(said["events"]) == shown.EVENTS
    assert len(said["points"]) == shown.POINTS


@pytest.mark.parametrize("number", [-1, 5, 10**9])
def test_numbers_of_another_life_or_of_nobody_mean_a_snapshot(number: int) -> None:
    pods = ShownPods({})
    for restarts in range(10):
        pods.put({"a": row("a", restarts)})
    for life in ("another", pods.life) if number != 5 else ("another",):
        (message,) = pods.since(life, number)
        assert json.loads(message)["life"] == pods.life


def test_what_was_noted_while_nobody_read_is_in_the_snapshot_alone() -> None:
    pods, mirror = ShownPods({}), Mirror()
    pods.put({"a": row("a")})
    mirror.read(pods)
    pods.note(points=[{"at": 1}])
    mirror.read(pods)
    assert mirror.snapshots == 2


def test_an_event_that_comes_again_and_again_leaves_the_others_in_a_snapshot() -> None:
    pods = ShownPods({"name": "n"})
    once = {"uid": "a", "reason": "Started", "message": "once", "count": 1}
    for number in range(1, 2 * shown.EVENTS):
        again = {"uid": "a", "reason": "BackOff", "message": "again", "count": number}
        pods.put({}, events=[once, again] if number == 1 else [again])
    assert json.loads(pods.snapshot())["events"] == [once, again]

"""Any interleaving of changes, failures, lagging watches, restarts and others' writes ends in the same place.

At the end the API server shows the last status of each pod that is there, a phase that was once terminal has
never been left, and no deletion has met another pod than the one it meant.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube.apiserver import APIServer
from tests.kube.store import Change, Refused
from tests.pods.desk import Desk
from trio_kubelet.pods.refs import is_terminal_phase
from trio_kubelet.pods.status.writer import StatusWriter
from trio_kubelet.server.http.messages import Request

NAMES = ("a", "b", "c")
Op: TypeAlias = tuple[Any, ...]

FAULTS = ("none", "down", "lose", "slow", "500", "429", "409", "503")
NAME = st.sampled_from(NAMES)
OPS = st.one_of(
    st.tuples(st.just("say"), NAME, st.sampled_from(["Pending", "Running"]), st.booleans()),
    st.tuples(st.just("end"), NAME, st.sampled_from(["Succeeded", "Failed"])),
    st.tuples(st.just("stop"), NAME),
    st.tuples(st.just("delete"), NAME),
    st.tuples(st.just("force"), NAME),
    st.tuples(st.just("create"), NAME),
    st.tuples(st.just("meddle"), NAME, st.sampled_from(["Ready", "example.com/x"])),
    st.tuples(st.just("look")),
    st.tuples(
        st.just("fault"), st.sampled_from(["none", "down", "lose", "slow", "500", "429", "409", "503"])
    ),
    st.tuples(st.just("restart")),
    st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.2, 1.0, 15.0, 60.0])),
)


class Story:
    """One run: a server, one agent at a time, and what the node knows of its pods."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.server = self.desk.server
        self.finished: set[str] = set()
        self.server.store.on_change = self._check
        self.scope: trio.CancelScope | None = None
        self.victims: list[tuple[str, str]] = []  # UID meant, UID of what went

    def _check(self, change: Change) -> None:
        if change.old is not None and change.new is not None:
            before, after = (tree["status"].get("phase", "") for tree in (change.old, change.new))
            assert not is_terminal_phase(before) or after == before
            assert change.old["metadata"]["uid"] == change.new["metadata"]["uid"]
        if change.new is None and change.old is not None:
            request = self.server.requests[-1] if self.server.requests else None
            if request is not None and request.method == "DELETE" and not self.by_hand:
                meant = json.loads(request.body)["preconditions"]["uid"]
                assert meant == change.old["metadata"]["uid"]
                assert meant in self.finished

    by_hand = False

    async def run(self, ops: Sequence[Op]) -> None:
        async with trio.open_nursery() as nursery:
            self._start(nursery)
            for op in ops:
                await self._do(op, nursery)
            await self._settle()
            nursery.cancel_scope.cancel()

    def _start(self, nursery: trio.Nursery) -> None:
        self.scope = trio.CancelScope()

        async def work(scope: trio.CancelScope, writer: StatusWriter) -> None:
            with scope:
                await writer.run()

        nursery.start_soon(work, self.scope, self.desk.writer)

    def _uid(self, name: str) -> str:
        """The UID under which the node knows the pod."""
        pod = self.desk.pods.get_by_name("default", name)
        return pod.metadata.uid if pod is not None else ""

    async def _do(self, op: Op, nursery: trio.Nursery) -> None:
        desk, store = self.desk, self.server.store
        match op:
            case ("say", name, phase, ready):
                if (uid := self._uid(name)) and uid not in self.finished:
                    desk.may_run.add(uid)
                    desk.say(uid, phase, ready=ready)
            case ("end", name, phase):
                if uid := self._uid(name):
                    desk.say(uid, phase)
            case ("stop", name):
                if uid := self._uid(name):
                    self._stop(uid)
            case ("delete" | "force" as how, name):
                grace = {"gracePeriodSeconds": 0} if how == "force" else {}
                self._by_hand(store.delete, "pods", "default", name, grace)
            case ("create", name) if desk.shown(name) is None:
                desk.create(name)
            case ("meddle", name, kind):
                theirs = [{"type": kind, "status": "False", "reason": "Meddled"}]
                self._by_hand(functools.partial(store.set_status, "pods", "default", name, conditions=theirs))
            case ("look",):
                desk.look()
            case ("fault", fault):
                self._fault(fault)
            case ("restart",):
                self._restart(nursery)
            case ("sleep", seconds):
                await trio.sleep(seconds)

    def _by_hand(self, do: Any, *args: Any) -> None:
        self.by_hand = True
        try:
            do(*args)
        except Refused:
            pass  # there is no such pod
        finally:
            self.by_hand = False

    def _stop(self, uid: str) -> None:
        self.finished.add(uid)
        self.desk.finish(uid)

    def _fault(self, fault: str) -> None:
        server = self.server
        server.down, server.lose_answers = fault == "down", fault == "lose"
        server.latency = 20.0 if fault == "slow" else 0.0

        def refuse(request: Request) -> Refused | None:
            return Refused(int(fault), "Fault", "as the test wants") if fault.isdigit() else None

        server.refuse = refuse

    def _restart(self, nursery: trio.Nursery) -> None:
        assert self.scope is not None
        self.scope.cancel()
        self.desk = Desk(self.server)
        self.desk.look()
        self._start(nursery)
        for pod in self.desk.pods.pods():
            self.desk.say(pod.metadata.uid, pod.status.phase or "Pending", ready=False)
            if pod.metadata.uid in self.finished:
                self.desk.finish(pod.metadata.uid)

    async def _settle(self) -> None:
        """All is well again, and the watch tells of everything."""
        self._fault("none")
        for _ in range(80):
            self.desk.look()
            for pod in self.desk.pods.pods():
                if pod.metadata.deletion_timestamp is not None and pod.metadata.uid not in self.finished:
                    self._stop(pod.metadata.uid)  # the node ends what is to be deleted
            await trio.sleep(1)
        for name in NAMES:
            shown, uid = self.desk.shown(name), self._uid(name)
            if shown is None:
                continue
            assert "deletionTimestamp" not in shown["metadata"]
            found = self.desk.statuses.get(uid)
            if found is not None and not is_terminal_phase(found.phase):
                assert self.desk.agrees(uid, name), (found, shown["status"])
            elif found is not None and uid not in self.desk.may_run:
                assert shown["status"]["phase"] == found.phase
        assert self.desk.writer.unwritten == 0 or self.desk.may_run


@settings(max_examples=150, deadline=None)
@given(st.lists(OPS, max_size=40), st.integers(0, 2**16))
def test_every_interleaving_ends_with_the_last_status(ops: list[Op], seed: int) -> None:
    random.seed(seed)

    async def run() -> None:
        await Story().run([("create", "a"), ("create", "b"), ("look",), *ops])

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0), strict_exception_groups=True)


def test_the_server_is_shared_by_the_agents_of_a_story() -> None:
    """A restarted agent meets what its predecessor left."""

    async def run() -> APIServer:
        story = Story()
        ops: list[Op] = [("create", "a"), ("look",), ("say", "a", "Running", True), ("sleep", 1.0)]
        await story.run([*ops, ("restart",), ("end", "a", "Failed"), ("stop", "a"), ("delete", "a")])
        return story.server

    server = trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [r.method for r in server.requests].count("DELETE") <= 1

"""Events on their way to the API server: in good times, bad times and when there are far too many."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.store import Refused, selector
from tests.shapes import SHAPES
from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.kube import recorder as module
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.event_correlation import Write
from trio_kubelet.kube.metrics import KubeMetrics
from trio_kubelet.kube.recorder import BREATH, APIEventRecorder
from trio_kubelet.podinfo.recorder import EventRecorder

GOLDEN = Path(__file__).parent.parent / "golden" / "cluster-node.json"
CLOCK = TrioClock(1_763_700_000 * NANOSECONDS)
POD = v1.Pod(metadata=v1.ObjectMeta(name="web", namespace="d", uid="u-1", resource_version="77"))


class Setup:
    def __init__(self) -> None:
        self.server = APIServer(clock=CLOCK)
        self.door = SimulatedDoor(self.server)
        self.registry = CollectorRegistry()
        self.metrics = KubeMetrics(self.registry)
        self.events = EventRecorder(CLOCK)
        self.api = APIEventRecorder(KubeClient(self.door), "node-a", CLOCK, self.metrics, random.Random(1))
        self.events.pod_events.listen(self.api.record_pod)

    def found(self) -> list[dict[str, Any]]:
        events = self.server.store.list(selector("events"))
        return sorted(events, key=lambda e: int(e["metadata"]["resourceVersion"]))

    def dropped(self, cause: str) -> float:
        labels = {"cause": cause}
        return self.registry.get_sample_value("trio_kubelet_events_dropped_total", labels) or 0.0


@asynccontextmanager
async def recording() -> AsyncIterator[Setup]:
    setup = Setup()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(setup.api.run)
        yield setup
        nursery.cancel_scope.cancel()


async def test_pod_and_node_events(autojump_clock: MockClock) -> None:
    async with recording() as setup:
        setup.events.record(POD, "Normal", "Started", "Container started", "spec.containers{c}")
        setup.api.record_node("Warning", "CgroupV1", "old")
        setup.api.record_node("Odd", "X", "not a type")
        await trio.sleep(1)
        pod, node = setup.found()
        assert pod["metadata"]["namespace"] == "d"
        assert pod["metadata"]["name"].startswith("web.")
        assert pod["involvedObject"] == {
            "kind": "Pod", "apiVersion": "v1", "namespace": "d", "name": "web", "uid": "u-1",
            "resourceVersion": "77", "fieldPath": "spec.containers{c}",
        }  # fmt: skip
        assert node["metadata"]["namespace"] == "default"
        assert node["involvedObject"] == {"kind": "Node", "apiVersion": "v1", "name": "node-a"}
        assert node["source"] == {"component": "kubelet", "host": "node-a"}


async def test_an_event_gives_way_to_what_it_tells_of_and_many_do_not_wait(autojump_clock: MockClock) -> None:
    async with recording() as setup:
        await trio.testing.wait_all_tasks_blocked()
        setup.events.record(POD, "Normal", "Created", "Container created", "spec.containers{c}")
        await trio.sleep(BREATH / 2)
        assert not setup.found()
        await trio.sleep(BREATH)
        assert len(setup.found()) == 1
        for number in range(200):
            pod = v1.Pod(metadata=v1.ObjectMeta(name=f"web-{number}", namespace="d", uid=f"u-{number}"))
            setup.events.record(pod, "Normal", "Created", "Container created", "spec.containers{c}")
        await trio.sleep(BREATH / 2)
        assert len(setup.found()) == 1
        await trio.sleep(BREATH)
        assert len(setup.found()) == 201


async def test_the_shape_of_recorded_events(autojump_clock: MockClock) -> None:
    """Said as often as a kubelet said it, each event looks as the kubelet's did."""
    recorded = json.loads(GOLDEN.read_text())["events"]
    async with recording() as setup:
        for event in recorded:
            kind, _, name = event["object"].partition("/")
            for _ in range(event["count"]):
                if kind == "Node":
                    setup.api.record_node(event["type"], event["reason"], event["message"])
                else:
                    pod = v1.Pod(metadata=v1.ObjectMeta(name=name, namespace="default", uid=name))
                    setup.events.record(
                        pod, event["type"], event["reason"], event["message"], event["fieldPath"] or ""
                    )
                await trio.sleep(301)  # the spam filter is another test's
        found = [
            {
                **{key: e[key] for key in ("type", "reason", "message", "count", "reportingComponent")},
                "source": e["source"],
                "object": f"{e['involvedObject']['kind']}/{e['involvedObject']['name']}",
                "fieldPath": e["involvedObject"].get("fieldPath"),
            }
            for e in setup.found()
        ]
        key = json.dumps
        assert sorted(map(key, found)) == sorted(map(key, recorded))


async def test_repetitions_are_patched_and_created_anew_when_they_are_gone(autojump_clock: MockClock) -> None:
    async with recording() as setup:
        for expected in (1, 2, 3):
            setup.events.record(POD, "Normal", "Pulled", "already present")
            await trio.sleep(1)
            (event,) = setup.found()
            assert event["count"] == expected
        assert event["firstTimestamp"] < event["lastTimestamp"]
        setup.server.store.delete("events", "d", event["metadata"]["name"])
        setup.events.record(POD, "Normal", "Pulled", "already present")
        await trio.sleep(1)
        (again,) = setup.found()
        assert (again["count"], again["metadata"]["name"]) == (4, event["metadata"]["name"])
        methods = [r.method for r in setup.server.requests]
        assert methods == ["POST", "PATCH", "PATCH", "PATCH", "POST"]


async def test_an_absent_server_is_waited_for_and_then_forgotten(autojump_clock: MockClock) -> None:
    async with recording() as setup:
        setup.server.down = True
        setup.events.record(POD, "Normal", "A", "lost")
        setup.events.record(POD, "Normal", "B", "late")
        await trio.sleep(10 * module.RETRY_PAUSE)
        assert (len(setup.door.attempts), setup.dropped("away")) == (11, 0)
        await trio.sleep(module.RETRY_PAUSE)
        assert setup.dropped("away") == 1
        setup.server.down = False
        await trio.sleep(15)
        assert [e["message"] for e in setup.found()] == ["late"]
        assert setup.dropped("away") == 1


async def test_a_busy_server_is_asked_again_when_it_says_so(autojump_clock: MockClock) -> None:
    async with recording() as setup:
        busy = [Refused(429, "TooManyRequests", "later", retry_after=40), Refused(500, "InternalError", "x")]
        setup.server.refuse = lambda request: busy.pop(0) if busy else None
        setup.events.record(POD, "Normal", "A", "m")
        await trio.sleep(39)
        assert len(setup.door.attempts) == 1
        await trio.sleep(25)
        assert [e["count"] for e in setup.found()] == [1]


async def test_a_namespace_whose_events_the_server_fails_with_holds_up_no_other(
    autojump_clock: MockClock,
) -> None:
    """As where a webhook for it does not answer."""
    async with recording() as setup:
        fails = True

        def refuse(request: Any) -> Refused | None:
            if fails and "/namespaces/d/" in request.path:
                return Refused(500, "InternalError", "failed calling webhook")
            return None

        setup.server.refuse = refuse
        for message in ("first", "second"):
            setup.events.record(POD, "Normal", message.title(), message)
            await trio.sleep(0.1)
        other = v1.Pod(metadata=v1.ObjectMeta(name="other", namespace="e", uid="u-2"))
        setup.events.record(other, "Normal", "A", "of another")
        await trio.sleep(1)
        assert [e["message"] for e in setup.found()] == ["of another"]
        await trio.sleep(60)
        fails = False
        setup.events.record(POD, "Normal", "Third", "third")
        await trio.sleep(15)
        assert [e["message"] for e in setup.found()] == ["of another", "first", "second", "third"]
        setup.events.record(POD, "Normal", "Fourth", "fourth")
        await trio.sleep(1)
        assert len(setup.found()) == 5


async def test_events_of_a_namespace_that_wait_have_a_bound(autojump_clock: MockClock) -> None:
    async with recording() as setup:
        setup.server.refuse = lambda request: Refused(500, "InternalError", "x")
        for round in range(3):
            for number in range(module.QUEUE_SIZE // 2):
                pod = v1.Pod(metadata=v1.ObjectMeta(name=f"p{round}-{number}", namespace="d", uid="u"))
                setup.events.record(pod, "Normal", "A", "m")
            await trio.sleep(0.1)
        assert setup.dropped("queue") == module.QUEUE_SIZE // 2 - 1
        assert len(setup.door.attempts) <= 2


async def test_a_refused_event_is_not_tried_again(autojump_clock: MockClock) -> None:
    async with recording() as setup:
        no = [Refused(403, "Forbidden", "no")]
        setup.server.refuse = lambda request: no.pop() if no else None
        setup.events.record(POD, "Normal", "A", "refused")
        setup.events.record(POD, "Normal", "B", "good")
        await trio.sleep(1)
        assert [e["message"] for e in setup.found()] == ["good"]
        assert setup.dropped("refused") == 1


async def test_a_lost_answer_does_not_make_two_events(autojump_clock: MockClock) -> None:
    async with recording() as setup:
        setup.server.lose_answers = True
        setup.events.record(POD, "Normal", "A", "m")
        await trio.sleep(0.001)
        setup.server.lose_answers = False
        await trio.sleep(60)
        assert [e["count"] for e in setup.found()] == [1]


async def test_a_full_queue_drops_and_never_waits(autojump_clock: MockClock) -> None:
    setup = Setup()
    for n in range(module.QUEUE_SIZE + 30):
        pod = v1.Pod(metadata=v1.ObjectMeta(name=f"p{n}", namespace="d", uid=str(n)))
        setup.events.record(pod, "Normal", "A", "m")
    assert setup.dropped("queue") == 30
    with trio.move_on_after(5):
        await setup.api.run()
    assert len(setup.found()) == module.QUEUE_SIZE


async def test_spam_is_held_back(autojump_clock: MockClock) -> None:
    async with recording() as setup:
        for _ in range(100):
            setup.events.record(POD, "Warning", "BackOff", "Back-off restarting")
        await trio.sleep(1)
        assert [e["count"] for e in setup.found()] == [25]
        assert setup.dropped("spam") == 75
        await trio.sleep(300)
        setup.events.record(POD, "Warning", "BackOff", "Back-off restarting")
        await trio.sleep(1)
        assert [e["count"] for e in setup.found()] == [101]


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_an_event_makes_the_code_raise_the_others_are_written(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    async with recording() as setup:
        once, bad = setup.api._once, [SHAPES[shape]()]

        async def writes(write: Write) -> Any:
            if bad:
                raise bad.pop()
            return await once(write)

        monkeypatch.setattr(setup.api, "_once", writes)
        setup.events.record(POD, "Warning", "A", "bad")
        setup.events.record(POD, "Normal", "B", "good")
        await trio.sleep(60)
        assert [e["message"] for e in setup.found()] == ["good"]
        assert setup.dropped("refused") == 1


async def test_words_that_are_no_text_are_told_as_text(autojump_clock: MockClock) -> None:
    """A file name with any bytes in an error's words cannot be sent as JSON."""
    async with recording() as setup:
        setup.events.record(POD, "Warning", "A", "open \udcff: no such file")
        await trio.sleep(60)
        setup.events.record(POD, "Normal", "B", "good")
        await trio.sleep(60)
        assert [e["message"] for e in setup.found()] == ["open \ufffd: no such file", "good"]

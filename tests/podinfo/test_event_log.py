"""The last events of a node."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.podinfo.event_log import LONGEST_MESSAGE, EventLog, LoggedEvent
from trio_kubelet.podinfo.recorder import LONGEST_MESSAGE as LONGEST_RECORDED
from trio_kubelet.podinfo.recorder import EventRecorder

CLOCK = TrioClock(1_763_700_000 * NANOSECONDS)


def a_pod(name: str) -> v1.Pod:
    return v1.Pod(metadata=v1.ObjectMeta(name=name, namespace="d", uid=f"u-{name}"))


def recording(size: int = 1000) -> tuple[EventRecorder, EventLog]:
    recorder, log = EventRecorder(CLOCK), EventLog("node-a", CLOCK, size)
    recorder.pod_events.listen(log.record_pod)
    recorder.node_events.listen(log.record_node)
    return recorder, log


async def test_equal_events_are_one_with_a_count(autojump_clock: MockClock) -> None:
    recorder, log = recording()
    recorder.record(a_pod("web"), "Warning", "BackOff", "again", "spec.containers{main}")
    await trio.sleep(5)
    recorder.record_node("Normal", "NodeReady", "ready")
    await trio.sleep(5)
    recorder.record(a_pod("web"), "Warning", "BackOff", "again", "spec.containers{main}")
    recorder.record(a_pod("web"), "Warning", "BackOff", "again", "spec.containers{other}")

    node, back_off, other = log.entries()
    assert (node.kind, node.name, node.namespace, node.count) == ("Node", "node-a", "", 1)
    assert (back_off.name, back_off.namespace, back_off.uid) == ("web", "d", "u-web")
    assert (back_off.count, back_off.last_ns - back_off.first_ns) == (2, 10 * NANOSECONDS)
    assert other.field_path == "spec.containers{other}"
    assert log.entries(back_off.number) == [other]
    assert log.entries(other.number) == []
    assert log.entries(other.number + 1) == [node, back_off, other]  # who asks has heard another agent


async def test_it_keeps_the_newest_and_cuts_what_is_long(autojump_clock: MockClock) -> None:
    recorder, log = recording(size=3)
    told: list[LoggedEvent] = []
    log.changed.listen(told.append)
    for name in "abcd":
        recorder.record(a_pod(name), "Normal", "Pulled", name * 10_000)
    assert [entry.name for entry in log.entries()] == ["b", "c", "d"]
    assert {len(entry.message) for entry in log.entries()} == {LONGEST_MESSAGE}
    assert [entry.name for entry in told] == ["a", "b", "c", "d"]


async def test_messages_have_a_longest_length_for_all_who_listen() -> None:
    recorder, said = EventRecorder(CLOCK), list[str]()
    recorder.pod_events.listen(lambda event: said.append(event.message))
    recorder.node_events.listen(lambda type, reason, message: said.append(message))
    recorder.object_events.listen(lambda about, type, reason, message: said.append(message))
    output = "Liveness probe failed: " + "x" * 10 * 1024  # as much as a probe may write
    for message in (output, "x" * 1_000_000):
        recorder.record(a_pod("web"), "Warning", "Unhealthy", message)
        recorder.record_node("Warning", "Unhealthy", message)
        recorder.record_object(v1.ObjectReference(), "Warning", "Unhealthy", message)
    assert said[:3] == [output] * 3
    assert {len(message) for message in said[3:]} == {LONGEST_RECORDED}

"""The correlator against its rules, told once more and more slowly."""

from __future__ import annotations

import json
import tracemalloc
from typing import NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.kube.event_correlation import LRU, EventCorrelator, Write, event_name, new_event

START = 1_763_700_000 * NANOSECONDS
SOURCE = v1.EventSource(component="kubelet", host="node-a")


def pod(name: str = "p", field_path: str = "") -> v1.ObjectReference:
    return v1.ObjectReference(
        kind="Pod", api_version="v1", namespace="d", name=name, uid=f"uid-{name}", field_path=field_path
    )


def said(
    message: str,
    now_ns: int,
    about: v1.ObjectReference | None = None,
    reason: str = "R",
    type: str = "Normal",
) -> v1.Event:
    return new_event(SOURCE, about or pod(), type, reason, message, now_ns)


class Said(NamedTuple):
    pause: float
    name: str
    type: str
    reason: str
    message: str


SAYINGS = st.lists(
    st.builds(
        Said,
        st.sampled_from([0.0, 1.0, 30.0, 299.0, 300.0, 599.0, 600.0, 601.0, 4000.0]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["Normal", "Warning"]),
        st.sampled_from(["R", "S"]),
        st.sampled_from([f"m{i}" for i in range(14)]),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(SAYINGS)
def test_the_three_rules(sayings: list[Said]) -> None:
    correlator = EventCorrelator()
    now_ns = START
    counts: dict[tuple[str, ...], int] = {}
    names: dict[tuple[str, ...], str] = {}
    tokens: dict[tuple[str, str], tuple[float, int]] = {}
    similar: dict[tuple[str, str, str], tuple[list[str], int]] = {}
    for saying in sayings:
        now_ns += round(saying.pause * NANOSECONDS)
        event = said(saying.message, now_ns, pod(saying.name), saying.reason, saying.type)
        write = correlator.correlate(event, now_ns)
        # the tenth different message within ten minutes of the one before
        group = (saying.name, saying.type, saying.reason)
        messages, last = similar.get(group, ([], now_ns))
        if now_ns - last > 600 * NANOSECONDS:
            messages = []
        if saying.message not in messages:
            messages = [*messages, saying.message]
        combined = len(messages) >= 10
        similar[group] = (messages[1:] if combined else messages, now_ns)
        # the same again is counted, and keeps its name
        key = group if combined else (*group, saying.message)
        counts[key] = counts.get(key, 0) + 1
        names.setdefault(key, event_name(saying.name, now_ns))
        # 25 at once, one more in five minutes
        left, since = tokens.get(group[:2], (25.0, now_ns))
        left = min(25.0, left + (now_ns - since) / (300 * NANOSECONDS))
        accepted = left >= 1 - 1e-6
        tokens[group[:2]] = (left - accepted, now_ns)
        assert (write is not None) is accepted
        if write is not None:
            prefix = "(combined from similar events): " if combined else ""
            assert write.event.message == prefix + saying.message
            assert write.event.count == counts[key]
            assert write.event.metadata.name == names[key]
            assert (write.patch is not None) is (counts[key] > 1)


def test_spam_is_dropped_counts_nevertheless_and_may_go_on_after_a_while() -> None:
    correlator = EventCorrelator()
    writes = [correlator.correlate(said("m", START), START) for _ in range(30)]
    assert [write is not None for write in writes] == [True] * 25 + [False] * 5
    almost, later = START + 299 * NANOSECONDS, START + 300 * NANOSECONDS
    assert correlator.correlate(said("m", almost), almost) is None
    assert correlated(correlator, said("m", later), later).event.count == 32
    assert correlator.correlate(said("m", later), later) is None
    assert correlator.correlate(said("m", later, pod("other")), later) is not None
    assert correlator.correlate(said("m", later, type="Warning"), later) is not None


def test_similar_events_are_combined_until_ten_minutes_of_silence() -> None:
    correlator, now_ns = EventCorrelator(), START
    said_so_far = []
    for number in range(12):
        now_ns += 600 * NANOSECONDS
        said_so_far.append(correlated(correlator, said(f"m{number}", now_ns), now_ns).event)
    combined = [event.message.startswith("(combined from similar events): ") for event in said_so_far]
    assert combined == [False] * 9 + [True] * 3
    assert [event.count for event in said_so_far[9:]] == [1, 2, 3]
    assert len({event.metadata.name for event in said_so_far[9:]}) == 1
    now_ns += 600 * NANOSECONDS + 1
    assert correlated(correlator, said("m20", now_ns), now_ns).event.message == "m20"


def correlated(correlator: EventCorrelator, event: v1.Event, now_ns: int) -> Write:
    write = correlator.correlate(event, now_ns)
    assert write is not None
    return write


def test_what_is_written() -> None:
    correlator, about = EventCorrelator(), pod(field_path="spec.containers{c}")
    first = correlated(correlator, said("hello", START, about), START)
    assert first.patch is None
    assert json.loads(msgspec.json.encode(first.event)) == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"p.{START:x}", "namespace": "d"},
        "involvedObject": {
            "kind": "Pod", "apiVersion": "v1", "namespace": "d", "name": "p", "uid": "uid-p",
            "fieldPath": "spec.containers{c}",
        },
        "type": "Normal", "reason": "R", "message": "hello", "count": 1,
        "firstTimestamp": "2025-11-21T04:40:00Z", "lastTimestamp": "2025-11-21T04:40:00Z",
        "eventTime": None,
        "source": {"component": "kubelet", "host": "node-a"},
        "reportingComponent": "kubelet", "reportingInstance": "node-a",
    }  # fmt: skip
    later = START + 5 * NANOSECONDS
    again = correlated(correlator, said("hello", later, about), later)
    assert again.event.metadata.name == f"p.{START:x}"
    assert again.event.first_timestamp == "2025-11-21T04:40:00Z"
    assert again.patch is not None
    assert json.loads(again.patch) == {
        "count": 2, "lastTimestamp": "2025-11-21T04:40:05Z", "message": "hello",
    }  # fmt: skip
    other = correlated(correlator, said("hello", later, pod(field_path="spec.containers{d}")), later)
    assert other.patch is None


def test_the_server_has_the_last_word_about_a_count() -> None:
    correlator = EventCorrelator()
    write = correlated(correlator, said("m", START), START)
    correlator.written(msgspec.structs.replace(write.event, count=7))
    assert correlated(correlator, said("m", START), START).event.count == 8


def test_names_are_valid_whatever_the_object_is_called() -> None:
    assert event_name("web-0", 0x2A) == "web-0.2a"
    for odd in ("Web", "a_b", "x" * 250, ""):
        name = event_name(odd, START)
        assert len(name) == 36
        assert name == event_name(odd, START) != event_name(odd, START + 1)


def test_events_without_a_namespace_go_to_default() -> None:
    node = v1.ObjectReference(kind="Node", api_version="v1", name="node-a")
    event = said("m", START, node)
    assert (event.metadata.namespace, event.involved_object.namespace) == ("default", "")


def test_what_is_only_asked_for_is_used_too() -> None:
    cache = LRU[int](2)
    cache.put(("a",), 1)
    cache.put(("b",), 2)
    assert cache.get(("a",)) == 1
    cache.put(("c",), 3)
    assert (cache.get(("a",)), cache.get(("b",)), cache.get(("c",))) == (1, None, 3)


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=60))
def test_what_was_not_used_for_longest_is_forgotten(size: int, steps: list[tuple[bool, int]]) -> None:
    cache, used = LRU[int](size), list[int]()
    for put, n in steps:
        if put:
            cache.put((str(n),), n)
        found = cache.get((str(n),))
        assert (found == n) if (put or n in used) else (found is None)
        if found is not None:
            used = [x for x in used if x != n] + [n]
            used = used[-size:]
        assert len(cache) == len(used) <= size


def test_of_long_messages_little_is_remembered_and_they_are_told_apart_by_their_ends() -> None:
    correlator = EventCorrelator()
    long = "x" * 100_000
    tracemalloc.start()
    for number in range(100):
        correlator.correlate(said(f"{long}{number}", START, pod(f"p{number}")), START)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000
    assert correlated(correlator, said(f"{long}7", START, pod("p7")), START).event.count == 2
    assert correlated(correlator, said(f"{long}8", START, pod("p7")), START).event.count == 1

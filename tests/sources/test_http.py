"""The URL source: its decisions, its timing, and what it makes of the recorded manifests."""

from __future__ import annotations

import copy
import io
import json
import pathlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.collector import Collector
from trio_kubelet.common import log
from trio_kubelet.common.lanes import MANIFESTS
from trio_kubelet.podinfo.updates import PodOperation
from trio_kubelet.sources import http as http_module
from trio_kubelet.sources.http import (
    FetchDecision,
    FetchError,
    FetchState,
    HTTPSource,
    Known,
    ManifestResponse,
    after_answer,
    after_failure,
    may_follow,
    request_headers,
    shown,
)
from trio_kubelet.sources.manifest import Origin

URL = "http://example.test/pods.yaml"
ORIGIN = Origin("n", "http", URL)
GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "static-pods.json"


def document(*names: str, kind: str = "PodList") -> bytes:
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
         "spec": {"containers": [{"name": "c", "image": "busybox"}]}}
        for name in names
    ]  # fmt: skip
    return json.dumps(
        pods[0] if kind == "Pod" else {"apiVersion": "v1", "kind": kind, "items": pods}
    ).encode()


def ok(body: bytes, etag: str = "") -> ManifestResponse:
    return ManifestResponse(200, body, etag)


def test_what_a_server_wrote_into_a_pod_that_was_copied_from_there_is_passed_over() -> None:
    body = document("web").replace(
        b'"name": "web"', b'"name": "web", "deletionTimestamp": "2026-01-01T00:01:00Z"'
    )
    decision = after_answer(FetchState(), ok(body), ORIGIN)
    assert decision.pods is not None
    assert [pod.metadata.deletion_timestamp for pod in decision.pods] == [None]


def names(decision: FetchDecision) -> list[str] | None:
    return None if decision.pods is None else [pod.metadata.name for pod in decision.pods]


# --- decisions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Pod", "PodList"])
def test_a_pod_and_a_list_are_applied(kind: str) -> None:
    decision = after_answer(FetchState(), ok(document("a", kind=kind)), ORIGIN)
    assert names(decision) == ["a-n"]
    assert not decision.problem


def test_yaml_is_read_too() -> None:
    body = b"apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: b}]}\n"
    assert names(after_answer(FetchState(), ok(body), ORIGIN)) == ["web-n"]


def test_an_unchanged_document_changes_nothing() -> None:
    state = after_answer(FetchState(), ok(document("a"), "v1"), ORIGIN).state
    again = after_answer(state, ok(document("a"), "v2"), ORIGIN)
    assert again.pods is None
    assert not again.problem
    assert request_headers(again.state) == {"If-None-Match": "v2"}


def test_validators_are_sent_and_a_304_means_unchanged() -> None:
    answer = ManifestResponse(200, document("a"), '"x"', "Sat, 21 Nov 2026 08:00:00 GMT")
    state = after_answer(FetchState(), answer, ORIGIN).state
    assert request_headers(state) == {
        "If-None-Match": '"x"',
        "If-Modified-Since": "Sat, 21 Nov 2026 08:00:00 GMT",
    }
    failed = after_failure(state, "down").state
    decision = after_answer(failed, ManifestResponse(304), ORIGIN)
    assert decision.pods is None
    assert decision.recovered
    assert decision.state.known == state.known


def test_a_304_that_nobody_asked_for_is_a_failure() -> None:
    assert after_answer(FetchState(), ManifestResponse(304), ORIGIN).problem == "HTTP status 304"


@pytest.mark.parametrize("status", [201, 204, 206, 301, 401, 404, 500, 503])
def test_only_a_200_counts(status: int) -> None:
    state = after_answer(FetchState(), ok(document("a")), ORIGIN).state
    decision = after_answer(state, ManifestResponse(status), ORIGIN)
    assert decision.pods is None
    assert str(status) in decision.problem
    assert decision.state.known == state.known


def test_an_empty_body_empties_the_source_says_so_and_forgets_the_document() -> None:
    state = after_answer(FetchState(), ok(document("a"), "v1"), ORIGIN).state
    decision = after_answer(state, ok(b""), ORIGIN)
    assert decision.pods == ()
    assert "empty" in decision.problem
    assert request_headers(decision.state) == {}
    assert names(after_answer(decision.state, ok(document("a"), "v1"), ORIGIN)) == ["a-n"]


def test_an_empty_list_empties_the_source_without_complaint() -> None:
    decision = after_answer(FetchState(), ok(document()), ORIGIN)
    assert decision.pods == ()
    assert not decision.problem


@pytest.mark.parametrize(
    "body", [b"<html>", b"{", b"\xff\xfe", b"[]", b'{"kind":"Service","apiVersion":"v1"}', b" "]
)
def test_garbage_leaves_the_pods_and_stays_a_failure(body: bytes) -> None:
    state = after_answer(FetchState(), ok(document("a"), "v1"), ORIGIN).state
    for failures in (1, 2):
        decision = after_answer(state, ok(body, "v2"), ORIGIN)
        assert decision.pods is None
        assert decision.problem
        assert decision.state == FetchState(state.known, failures)
        state = decision.state
    back = after_answer(state, ok(document("a"), "v1"), ORIGIN)
    assert back.pods is None
    assert back.recovered


def test_one_invalid_item_rejects_the_list_and_is_named() -> None:
    tree = json.loads(document("a", "b"))
    del tree["items"][1]["spec"]["containers"][0]["image"]
    decision = after_answer(FetchState(), ok(json.dumps(tree).encode()), ORIGIN)
    assert decision.pods is None
    assert "items[1]" in decision.problem


def test_a_uid_that_leads_elsewhere_is_refused() -> None:
    tree = json.loads(document("a"))
    tree["items"][0]["metadata"]["uid"] = "../.."
    decision = after_answer(FetchState(), ok(json.dumps(tree).encode()), ORIGIN)
    assert decision.pods is None
    assert "metadata.uid: must be printable, without '/'" in decision.problem


def test_failures_are_said_three_times_then_quietly_and_the_recovery_once() -> None:
    state, loud = FetchState(), []
    for _ in range(10):
        decision = after_failure(state, "down")
        loud.append(not decision.quiet)
        state = decision.state
    assert loud == [True] * 3 + [False] * 7
    first = after_answer(state, ok(document("a")), ORIGIN)
    second = after_answer(first.state, ok(document("a")), ORIGIN)
    assert (first.recovered, second.recovered) == (True, False)


ANSWERS = st.one_of(
    st.sampled_from([None, ManifestResponse(304), ManifestResponse(500), ok(b""), ok(b"{"), ok(document())]),
    st.builds(
        lambda name, etag: ok(document(name), etag), st.sampled_from("abc"), st.sampled_from(["", "v"])
    ),
)


@given(st.lists(ANSWERS, max_size=12))
def test_pods_follow_the_last_good_answer(answers: list[ManifestResponse | None]) -> None:
    """Against a model: the pods in force are those of the last answer that named any."""
    state = FetchState()
    in_force: tuple[str, ...] | None = None
    expected: tuple[str, ...] | None = None
    for answer in answers:
        decision = after_failure(state, "x") if answer is None else after_answer(state, answer, ORIGIN)
        state = decision.state
        if decision.pods is not None:
            in_force = tuple(pod.metadata.name for pod in decision.pods)
        if answer is not None and answer.status == 200 and answer.body != b"{":
            tree = json.loads(answer.body or b'{"items":[]}')
            expected = tuple(item["metadata"]["name"] + "-n" for item in tree["items"])
        assert in_force == expected
        assert (state.known is not None) <= (in_force is not None)


def test_redirects_keep_configured_headers_at_home() -> None:
    assert may_follow("http://a/x", "http://b/y", with_headers=False)
    assert may_follow("http://a/x", "http://a/y", with_headers=True)
    assert may_follow("http://a/x", "https://a/y", with_headers=True)
    assert not may_follow("http://a/x", "http://b/y", with_headers=True)
    assert not may_follow("http://a/x", "http://a:81/y", with_headers=True)
    assert not may_follow("https://a/x", "http://a/x", with_headers=True)
    assert not may_follow("https://a/x", "https://a:81/y", with_headers=True)
    assert not may_follow("http://a/x", "file:///etc/passwd", with_headers=False)


def test_a_password_in_the_url_is_not_shown() -> None:
    assert shown("https://me:secret@h:8/x?y=1") == "https://me:xxxxx@h:8/x?y=1"
    assert shown("https://h/x") == "https://h/x"


# --- recorded manifests ----------------------------------------------------------------------------


def fnv1a_128(data: bytes) -> str:
    """Written out here, so that the recorded text and not our own hash is what counts."""
    value = 0x6C62272E07BB014262B821756295C58D
    for byte in data:
        value = (value ^ byte) * 0x1000000000000000000013B % (1 << 128)
    return f"{value:032x}"


VECTORS = json.loads(GOLDEN.read_text())["vectors"]


@pytest.mark.parametrize(
    "vector",
    VECTORS,
    ids=[pathlib.Path(v["file"]).name if "file" in v else str(i) for i, v in enumerate(VECTORS)],
)
def test_recorded_manifests_from_a_url(vector: dict[str, Any]) -> None:
    """As from a file, but for the source annotation, the toleration and the place in the UID."""
    decision = after_answer(FetchState(), ok(vector["manifest"].encode()), Origin("node-a", "http", URL))
    if not vector["accepted"]:
        assert decision.pods == (None if vector["manifest"] else ())
        assert decision.problem
        return
    assert decision.pods is not None
    (pod,) = decision.pods
    tree = json.loads(msgspec.json.encode(pod))
    tree.pop("status", None)
    expected = copy.deepcopy(vector["pod"])
    metadata = expected["metadata"]
    metadata["annotations"]["kubernetes.io/config.source"] = "http"
    if '"uid"' not in vector["manifest"]:
        text = vector["uidHashInput"] + f"url:{URL}"
        uid = fnv1a_128(text.encode())
        metadata["uid"] = metadata["annotations"]["kubernetes.io/config.hash"] = uid
    manifest_tolerations = "tolerations" in vector["manifest"]
    if not manifest_tolerations:
        assert expected["spec"].pop("tolerations") == [{"effect": "NoExecute", "operator": "Exists"}]
        assert tree == expected
    else:
        added = [t for t in expected["spec"].pop("tolerations") if t not in tree["spec"]["tolerations"]]
        assert len(added) <= 1
        assert {k: v for k, v in tree["spec"].items() if k != "tolerations"} == expected["spec"]
        assert tree["metadata"] == expected["metadata"]


# --- the shell -------------------------------------------------------------------------------------


class Web:
    """A document that tests change; remembers what was asked with which headers."""

    def __init__(self) -> None:
        self.answer: Callable[[], Awaitable[ManifestResponse]] = self._nothing
        self.asked: list[tuple[float, dict[str, str]]] = []

    async def _nothing(self) -> ManifestResponse:
        raise FetchError("connection refused")

    def serve(self, answer: ManifestResponse) -> None:
        async def give() -> ManifestResponse:
            return answer

        self.answer = give

    def fail(self) -> None:
        self.answer = self._nothing

    async def fetch(self, headers: Mapping[str, str]) -> ManifestResponse:
        self.asked.append((trio.current_time(), dict(headers)))
        return await self.answer()


async def test_reads_at_once_then_every_period(autojump_clock: trio.testing.MockClock) -> None:
    web = Web()
    web.serve(ok(document("a"), "v1"))
    async with Collector() as collected:
        source = HTTPSource(URL, ORIGIN, 20, web.fetch, collected.send)
        collected.nursery.start_soon(source.run)
        await trio.sleep(61)
    began = web.asked[0][0]
    assert [round(at - began) for at, _ in web.asked] == [0, 20, 40, 60]
    assert [h for _, h in web.asked] == [{}] + [{"If-None-Match": "v1"}] * 3
    assert [(u.op, u.source, len(u.pods)) for u in collected.updates] == [(PodOperation.SET, "http", 1)]


async def test_a_source_that_never_answered_says_nothing(autojump_clock: trio.testing.MockClock) -> None:
    web = Web()
    async with Collector() as collected:
        collected.nursery.start_soon(HTTPSource(URL, ORIGIN, 20, web.fetch, collected.send).run)
        await trio.sleep(3600)
        assert collected.updates == []
        web.serve(ok(b""))
        await trio.sleep(21)
        assert {u.pods for u in collected.updates} == {()}


async def test_a_document_counts_as_known_only_when_it_was_taken(
    autojump_clock: trio.testing.MockClock,
) -> None:
    web = Web()
    web.serve(ok(document("a"), "v1"))
    send, receive = trio.open_memory_channel[Any](0)
    source = HTTPSource(URL, ORIGIN, 20, web.fetch, send)
    with trio.move_on_after(5):
        await source.read_once()
    assert source._state.known is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.read_once)
        assert len((await receive.receive()).pods) == 1
    assert source._state.known == Known(document("a"), "v1")


async def test_a_document_that_takes_too_long_is_a_failure_and_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    web, go_on = Web(), threading.Event()
    web.serve(ok(document("a"), "v1"))

    def never_done(state: FetchState, answer: ManifestResponse, origin: Origin) -> FetchDecision:
        go_on.wait(10)
        return after_answer(state, answer, origin)

    async with Collector() as collected:
        source = HTTPSource(URL, ORIGIN, 20, web.fetch, collected.send)
        with monkeypatch.context() as patched:
            patched.setattr(http_module, "after_answer", never_done)
            patched.setattr(MANIFESTS, "deadline", 0.1)
            try:
                await source.read_once()
            finally:
                go_on.set()
        assert source._state == FetchState(None, failures=1)
        assert collected.updates == []
        await source.read_once()
        assert source._state == FetchState(Known(document("a"), "v1"))
    assert [len(update.pods) for update in collected.updates] == [1]


async def test_a_day_of_faults_ends_like_a_day_without(autojump_clock: trio.testing.MockClock) -> None:
    import random

    rng = random.Random(4)
    faulty = [
        ManifestResponse(500),
        ManifestResponse(404),
        ok(b"{"),
        ok(b"<html>"),
        ManifestResponse(304),
        None,
    ]
    web, calm = Web(), Web()
    async with Collector() as collected, Collector() as reference:
        for one, sink in ((web, collected), (calm, reference)):
            sink.nursery.start_soon(HTTPSource(URL, ORIGIN, 20, one.fetch, sink.send).run)
        for hour in range(24):
            answer = ok(document(*(f"p{i}" for i in range(hour % 5 + 1))), f"v{hour}")
            calm.serve(answer)
            for _ in range(20):
                fault = rng.choice(faulty)
                if fault is None:
                    web.fail()
                else:
                    web.serve(fault)
                await trio.sleep(150)
                assert all(update in reference.updates for update in collected.updates)
            web.serve(answer)
            await trio.sleep(600)
        assert collected.updates[-1] == reference.updates[-1]


async def test_logs_hold_no_headers_and_few_failures(autojump_clock: trio.testing.MockClock) -> None:
    lines = io.StringIO()
    log.configure(stream=lines)
    try:
        web = Web()
        async with Collector() as collected:
            collected.nursery.start_soon(HTTPSource(URL, ORIGIN, 20, web.fetch, collected.send).run)
            await trio.sleep(400)
            web.serve(ok(document("a")))
            await trio.sleep(100)
    finally:
        log.configure()
    text = lines.getvalue()
    assert text.count("Cannot read pods from URL") == 3
    assert text.count("works again") == 1

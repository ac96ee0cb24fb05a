"""The merge: single rules by example, and random histories against a plain model."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.sources.pods import pod
from trio_kubelet.api.v1 import Pod
from trio_kubelet.podinfo.updates import (
    CONFIG_HASH_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SEEN_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    PodOperation,
)
from trio_kubelet.sources.merge import Known, KnownPods, Merge, merge

SECOND = 1_000_000_000
SET, ADD, UPDATE, REMOVE = PodOperation.SET, PodOperation.ADD, PodOperation.UPDATE, PodOperation.REMOVE


def known(*pods: Pod) -> Known:
    return merge({}, SET, pods, "file", SECOND).known


def uids(pods: tuple[Pod, ...]) -> list[str]:
    return [each.metadata.uid for each in pods]


def changed(result: Merge) -> dict[str, list[str]]:
    """The kinds of change that happened, with the UIDs."""
    kinds = ("adds", "updates", "deletes", "removes", "reconciles", "duplicates")
    return {kind: uids(getattr(result, kind)) for kind in kinds if getattr(result, kind)}


def test_new_pods_are_added_with_source_and_first_sight() -> None:
    result = merge({}, SET, [pod("a")], "file", 1_700_000_000 * SECOND)
    assert changed(result) == {"adds": ["a"]}
    assert result.adds[0].metadata.annotations == {
        CONFIG_SOURCE_ANNOTATION: "file",
        CONFIG_SEEN_ANNOTATION: "2023-11-14T22:13:20Z",
    }


def test_the_same_again_changes_nothing() -> None:
    before = known(pod("a"), pod("b"))
    assert changed(merge(before, SET, [pod("a"), pod("b")], "file", 2 * SECOND)) == {}
    assert changed(merge(before, UPDATE, [pod("a")], "file", 2 * SECOND)) == {}


@pytest.mark.parametrize(
    "after",
    [
        pod("a", image="other"),
        pod("a", labels={"x": "y"}),
        pod("a", annotations={"x": "y"}),
        pod("a", annotations={CONFIG_HASH_ANNOTATION: "1"}),
        pod("a", grace=5),
    ],
    ids=["spec", "labels", "annotations", "hash", "grace"],
)
def test_differences_that_update(after: Pod) -> None:
    before = known(pod("a"))
    result = merge(before, SET, [after], "file", 9 * SECOND)
    assert changed(result) == {"updates": ["a"]}
    annotations = result.updates[0].metadata.annotations or {}
    assert annotations[CONFIG_SEEN_ANNOTATION] == "1970-01-01T00:00:01Z"
    assert annotations[CONFIG_SOURCE_ANNOTATION] == "file"
    assert result.updates[0].spec == after.spec


@pytest.mark.parametrize("key", [CONFIG_SOURCE_ANNOTATION, CONFIG_SEEN_ANNOTATION, CONFIG_MIRROR_ANNOTATION])
def test_own_annotations_are_no_difference(key: str) -> None:
    assert changed(merge(known(pod("a")), SET, [pod("a", annotations={key: "x"})], "file", SECOND)) == {}


def test_a_mirror_annotation_stays() -> None:
    before = known(pod("a", annotations={CONFIG_MIRROR_ANNOTATION: "m"}))
    after = merge(before, SET, [pod("a", image="other")], "file", SECOND).updates[0]
    assert (after.metadata.annotations or {})[CONFIG_MIRROR_ANNOTATION] == "m"


def test_a_deletion_timestamp_is_a_delete_and_then_nothing() -> None:
    ending = pod("a", deleted_at="2024-01-01T00:00:00Z", grace=30)
    result = merge(known(pod("a")), UPDATE, [ending], "api", SECOND)
    assert changed(result) == {"deletes": ["a"]}
    assert (
        changed(
            merge(result.known, UPDATE, [pod("a", deleted_at="2024-01-01T00:00:00Z", grace=30)], "api", 1)
        )
        == {}
    )


def test_status_alone_is_a_reconcile() -> None:
    result = merge(known(pod("a")), SET, [pod("a", phase="Running")], "api", SECOND)
    assert changed(result) == {"reconciles": ["a"]}
    assert result.known["a"].pod.status.phase == "Running"
    both = merge(known(pod("a")), SET, [pod("a", phase="Running", image="other")], "api", SECOND)
    assert changed(both) == {"updates": ["a"]}


def test_set_removes_what_it_does_not_name() -> None:
    assert changed(merge(known(pod("a"), pod("b")), SET, [pod("b")], "file", SECOND)) == {"removes": ["a"]}
    assert changed(merge(known(pod("a"), pod("b")), ADD, [pod("c")], "api", SECOND)) == {"adds": ["c"]}
    assert changed(merge(known(pod("a"), pod("b")), REMOVE, [pod("b"), pod("z")], "api", 1)) == {
        "removes": ["b"]
    }


@pytest.mark.parametrize("op", [SET, ADD, UPDATE])
def test_a_new_uid_under_a_known_name_is_a_remove_and_an_add(op: PodOperation) -> None:
    result = merge(known(pod("a", "web"), pod("b")), op, [pod("a2", "web"), pod("b")], "file", SECOND)
    assert changed(result) == {"removes": ["a"], "adds": ["a2"]}
    assert sorted(result.known) == ["a2", "b"]


def test_of_two_pods_with_one_name_the_first_stays() -> None:
    result = merge({}, SET, [pod("a", "web"), pod("b", "web"), pod("c")], "file", SECOND)
    assert changed(result) == {"adds": ["a", "c"], "duplicates": ["b"]}


def test_of_two_pods_with_one_uid_the_first_stays() -> None:
    given = [pod("u", "web"), pod("u", "copy", image="y"), pod("b")]
    first = merge({}, SET, given, "file", SECOND)
    assert changed(first) == {"adds": ["u", "b"], "duplicates": ["u"]}
    assert [each.metadata.name for each in first.duplicates] == ["copy"]
    assert changed(merge(first.known, SET, given, "file", SECOND)) == {"duplicates": ["u"]}


@pytest.mark.parametrize("op", [SET, ADD, UPDATE])
def test_another_name_under_a_known_uid_is_a_remove_and_an_add(op: PodOperation) -> None:
    pods = KnownPods()
    pods.apply(SET, [pod("u", "web")], "file", SECOND)
    result = pods.apply(op, [pod("u", "renamed")], "file", SECOND)
    assert changed(result) == {"removes": ["u"], "adds": ["u"]}
    assert result.removes[0].metadata.name == "web"
    assert result.adds[0].metadata.name == "renamed"
    assert changed(pods.apply(ADD, [pod("v", "web")], "file", SECOND)) == {"adds": ["v"]}


def test_given_pods_are_never_changed() -> None:
    given = pod("a", annotations={"x": "y"})
    copy = msgspec.json.encode(given)
    merge(known(pod("a")), SET, [given], "file", SECOND)
    assert msgspec.json.encode(given) == copy


# --- against a model -------------------------------------------------------------------------------


class Model:
    """What should be known, as plain values: UID → (name, spec, status) and the moment first seen."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}

    def apply(self, op: PodOperation, given: list[dict[str, Any]], now: int) -> dict[str, list[str]]:
        out: dict[str, list[str]] = {}
        if op is REMOVE:
            for each in given:
                if self.pods.pop(each["uid"], None) is not None:
                    out.setdefault("removes", []).append(each["uid"])
            return out
        names: set[str] = set()
        distinct = []
        for each in given:
            if each["name"] in names:
                out.setdefault("duplicates", []).append(each["uid"])
            else:
                names.add(each["name"])
                distinct.append(each)
        old = dict(self.pods)
        after = {} if op is SET else {u: p for u, p in old.items() if p["name"] not in names}
        for each in distinct:
            uid = each["uid"]
            before = old.get(uid)
            after[uid] = {**each, "seen": before["seen"] if before else now}
            if before is None:
                out.setdefault("adds", []).append(uid)
            elif any(before[k] != each[k] for k in ("image", "label", "note", "deleted")):
                out.setdefault("deletes" if each["deleted"] else "updates", []).append(uid)
            elif before["phase"] != each["phase"]:
                out.setdefault("reconciles", []).append(uid)
        gone = [uid for uid in old if uid not in after]
        if gone:
            out["removes"] = gone
        self.pods = after
        return out


def random_pod(rng: random.Random) -> dict[str, Any]:
    uid = rng.choice("abcdefgh")
    return {
        "uid": uid,
        # Some UIDs stand for one name: a pod made anew.
        "name": {"c": "a", "d": "a", "f": "b"}.get(uid, uid),
        "image": rng.choice(["x", "x", "y"]),
        "label": rng.choice(["", "", "l"]),
        "note": rng.choice(["", "", "n"]),
        "deleted": rng.random() < 0.1,
        "phase": rng.choice(["Pending", "Running"]),
    }


def as_pod(each: dict[str, Any]) -> Pod:
    return pod(
        each["uid"],
        each["name"],
        image=each["image"],
        labels={"l": each["label"]} if each["label"] else None,
        annotations={"n": each["note"]} if each["note"] else None,
        deleted_at="2024-01-01T00:00:00Z" if each["deleted"] else None,
        phase=each["phase"],
    )


def random_history(seed: int) -> None:
    rng = random.Random(seed)
    model = Model()
    state: Known = {}
    index = KnownPods()
    for step in range(1, rng.randint(2, 9)):
        op = rng.choice([SET, SET, *PodOperation])
        given = [random_pod(rng) for _ in range(rng.randint(0, 6))]
        if len({each["uid"] for each in given}) != len(given):
            given = list({each["uid"]: each for each in given}.values())
        expected = model.apply(op, given, step)
        pods = [as_pod(each) for each in given]
        result = merge(state, op, pods, "s", step * SECOND)
        got = changed(result)
        indexed = changed(index.apply(op, pods, "s", step * SECOND))
        assert {k: sorted(v) for k, v in indexed.items()} == {k: sorted(v) for k, v in got.items()}, seed
        assert {k: sorted(v) for k, v in got.items()} == {k: sorted(v) for k, v in expected.items()}, seed
        state = result.known
        assert sorted(state) == sorted(model.pods), seed
        for uid, entry in state.items():
            want = model.pods[uid]
            annotations = entry.pod.metadata.annotations or {}
            assert entry.pod.spec == as_pod(want).spec
            assert entry.pod.status.phase == want["phase"]
            assert annotations[CONFIG_SEEN_ANNOTATION] == f"1970-01-01T00:00:{want['seen']:02d}Z"
    last = index.apply(SET, [], "s", SECOND)
    assert {each.metadata.uid: each for each in last.removes} == {u: e.pod for u, e in state.items()}


def test_ten_thousand_random_histories_agree_with_the_model() -> None:
    for seed in range(10_000):
        random_history(seed)

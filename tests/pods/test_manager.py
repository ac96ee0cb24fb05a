"""Desired pods, their mirrors and their stories."""

from __future__ import annotations

from msgspec.structs import replace

from tests.pods.build import api_pod, make_pod
from trio_kubelet.api import v1
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.story import LONGEST_TEXT, Story

HASH, MIRROR = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"


class Clock:
    def now_ns(self) -> int:
        return 0


def static(uid: str, version: str) -> v1.Pod:
    return make_pod(uid=uid, annotations={HASH: version})


def mirror(uid: str, version: str, phase: str = "Running") -> v1.Pod:
    return make_pod(uid=uid, annotations={HASH: version, MIRROR: version}, status=v1.PodStatus(phase=phase))


def test_mirrors_are_not_pods_but_lead_to_them() -> None:
    pods = PodManager()
    pod, shown = static("s", "1"), mirror("m", "1")
    pods.set(pod)
    pods.set(shown)
    assert pods.pods() == (pod,)
    assert pods.get("m") is None
    assert pods.mirror_of(pod) is shown
    assert pods.pod_and_mirror(shown) == (pod, shown, True)
    assert pods.pod_and_mirror(pod) == (pod, shown, False)
    assert pods.translate_uid("m") == "s"
    pods.remove(pod)
    assert pods.pods_and_mirrors().orphaned_mirrors == ("web_default",)
    assert pods.translate_uid("m") == "m"


def test_a_successor_of_the_same_name_survives_the_removal_of_its_predecessor() -> None:
    pods = PodManager()
    old, new = static("old", "1"), static("new", "2")
    pods.set(old)
    pods.set(new)
    pods.remove(old)
    assert pods.get_by_name("default", "web") is new
    assert pods.get("old") is None


def test_a_static_pod_keeps_its_name_when_a_pod_of_the_api_server_had_it_too() -> None:
    pods = PodManager()
    pod, other = static("s", "1"), api_pod(uid="a")
    pods.set(pod)
    pods.set(other)
    assert pods.get_by_name("default", "web") is other
    assert pods.static_by_full_name("web_default") is pod
    pods.set(mirror("m", "1"))
    assert pods.translate_uid("m") == "s"
    pods.remove(other)
    assert pods.get_by_name("default", "web") is pod
    assert pods.pods_and_mirrors().orphaned_mirrors == ()


def test_only_a_mirror_of_this_version_says_how_the_pod_was() -> None:
    """A failed earlier version of a static pod must not make the new one count as over."""
    pods = PodManager()
    statuses = StatusManager(pods, Clock())
    pods.set(mirror("m", "1", phase="Failed"))
    assert statuses.before(static("s", "1")).phase == "Failed"
    assert statuses.before(static("s", "2")).phase == ""


def test_pods_of_the_api_server_have_no_mirror() -> None:
    pods = PodManager()
    pods.set(replace(mirror("m", "1")))
    assert pods.mirror_of(api_pod()) is None


def test_the_story_is_bounded_and_counts_repetitions() -> None:
    story = Story(entries_per_pod=3, pods=2)
    for moment in range(5):
        story.note("a", moment, "timer", "same")
    [entry] = story.entries("a")
    assert (entry.count, entry.first_ns, entry.at_ns) == (5, 0, 4)
    for moment in range(5):
        story.note("a", moment, "timer", f"news {moment}")
    assert [entry.text for entry in story.entries("a")] == ["news 2", "news 3", "news 4"]
    story.note("b", 1, "config", "x")
    story.note("a", 2, "config", "y")
    story.note("c", 3, "config", "z")
    assert story.entries("b") == ()
    assert len(story.entries("a")) == 3
    story.note("a", 4, "worker", "x" * 1_400_000)
    assert len(story.entries("a")[-1].text) == LONGEST_TEXT

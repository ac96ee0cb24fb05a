"""Mirror pods of static pods, with the whole pods room at work."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.kube.store import Refused
from tests.pods.admit_all import AdmitAll
from tests.pods.build import make_pod
from tests.pods.cluster import CLIENT_TIMEOUT, NODE, Cluster, Picky
from tests.shapes import SHAPES
from trio_kubelet.api import v1
from trio_kubelet.podinfo.updates import HTTP_SOURCE, PodOperation, PodUpdate
from trio_kubelet.pods.admission.admitter import Decision, Reject
from trio_kubelet.pods.admission.occupancy import Others
from trio_kubelet.pods.mirrors import MirrorPods, MirrorStep, MirrorWrite, decide
from trio_kubelet.pods.status.writer import PAUSES
from trio_kubelet.server.http.messages import Request

Clock = trio.testing.MockClock
MIRROR, HASH = "kubernetes.io/config.mirror", "kubernetes.io/config.hash"


def uid_of(cluster: Cluster, name: str = "etcd") -> str:
    found = cluster.shown(name)
    return str(found["metadata"]["uid"]) if found is not None else ""


def version_of(cluster: Cluster, name: str = "etcd") -> str:
    found = cluster.shown(name)
    return str(found["metadata"]["annotations"].get(MIRROR)) if found is not None else ""


def namesake(pod: v1.Pod) -> v1.Pod:
    """What another source may have."""
    return replace(pod, metadata=replace(pod.metadata, uid="other", annotations={HASH: "other"}))


async def test_a_static_pod_has_a_mirror_with_its_status(autojump_clock: Clock) -> None:
    cluster = Cluster()
    async with cluster.agent() as node:
        pod = await cluster.manifest("etcd")
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        found = cluster.shown("etcd")
        assert found is not None
        metadata = found["metadata"]
        assert metadata["annotations"] | {"kubernetes.io/config.seen": ""} == {
            HASH: "etcd-1",
            MIRROR: "etcd-1",
            "kubernetes.io/config.source": "file",
            "kubernetes.io/config.seen": "",
        }
        node_uid = cluster.store.get("nodes", "", NODE)["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node_uid, "controller": True}
        assert metadata["ownerReferences"] == [owner]
        assert metadata["uid"] != pod.metadata.uid
        assert found["spec"]["containers"][0]["name"] == "c"
        assert cluster.agrees(pod.metadata.uid)
        assert {b["metadata"]["uid"] for b in cluster.bodies("PATCH", "etcd")} == {metadata["uid"]}
        await trio.sleep(300)
        assert len(cluster.requests("POST")) == 1
        assert len(node.runtime.starts(pod.metadata.uid)) == 1


async def test_a_deleted_mirror_comes_back_and_the_pod_does_not_notice(autojump_clock: Clock) -> None:
    cluster = Cluster()
    async with cluster.agent() as node:
        pod = await cluster.manifest("etcd")
        for options in ({}, {"gracePeriodSeconds": 0}, {}):
            await cluster.until(lambda: cluster.ready("etcd"), 5)
            before = uid_of(cluster)
            cluster.delete("etcd", **options)
            await cluster.until(lambda before=before: uid_of(cluster) not in ("", before), 5)  # type: ignore[misc]
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        await trio.sleep(120)
        assert len(cluster.requests("POST")) == 4
        assert len(node.runtime.starts(pod.metadata.uid)) == 1
    cluster.check()


async def test_the_mirror_is_of_the_pod_that_runs_while_another_source_has_one_of_its_name(
    autojump_clock: Clock,
) -> None:
    cluster = Cluster()
    async with cluster.agent() as node:
        pod = await cluster.manifest("etcd")
        other = namesake(pod)
        url = cluster.config.channel(HTTP_SOURCE)
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        await url.send(PodUpdate(PodOperation.SET, HTTP_SOURCE, (other,)))
        before = uid_of(cluster)
        cluster.delete("etcd", gracePeriodSeconds=0)
        await cluster.until(lambda: uid_of(cluster) not in ("", before), 5)
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        assert version_of(cluster) == "etcd-1"
        assert cluster.agrees(pod.metadata.uid)
        assert node.runtime.alive() == {pod.metadata.uid}
        cluster.manifests.clear()
        await cluster.publish()
        await cluster.until(lambda: version_of(cluster) == "other" and cluster.ready("etcd"), 60)
        await trio.sleep(120)
        assert len(cluster.requests("POST")) == 3
    cluster.check()


async def test_of_two_pods_of_a_name_that_are_over_one_has_the_mirror(autojump_clock: Clock) -> None:
    cluster = Cluster()
    async with cluster.agent() as node:
        pod = await cluster.manifest("job", restart_policy="Never")
        other = namesake(pod)
        url = cluster.config.channel(HTTP_SOURCE)
        await cluster.until(lambda: pod.metadata.uid in node.runtime.alive(), 60)
        await url.send(PodUpdate(PodOperation.SET, HTTP_SOURCE, (other,)))
        for uid in (pod.metadata.uid, "other"):
            await cluster.until(lambda uid=uid: uid in node.runtime.alive(), 60)  # type: ignore[misc]
            node.runtime.die(uid, 0)
        await cluster.until(lambda: version_of(cluster, "job") == "other", 60)
        await trio.sleep(300)
        assert len(cluster.requests("POST")) == 2
    cluster.check()


async def test_a_mirror_deleted_before_it_was_seen_comes_back(autojump_clock: Clock) -> None:
    cluster = Cluster()
    cluster.store.on_change = lambda change: (
        cluster.delete("etcd", gracePeriodSeconds=0)
        if len(cluster.requests("POST")) == 1 and change.new and change.new["kind"] == "Pod"
        else None
    )
    async with cluster.agent():
        await cluster.manifest("etcd")
        await cluster.until(lambda: cluster.ready("etcd"), 30)
        assert len(cluster.requests("POST")) == 2


async def test_a_changed_manifest_replaces_the_mirror_after_the_old_pod_has_ended(
    autojump_clock: Clock,
) -> None:
    cluster = Cluster()
    async with cluster.agent() as node:
        old = await cluster.manifest("etcd")
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        before = uid_of(cluster)
        node.runtime.stop_takes[old.metadata.uid] = 1.5
        new = await cluster.manifest("etcd", "2")
        await cluster.until(lambda: version_of(cluster) == "etcd-2", 10)
        assert old.metadata.uid not in node.runtime.alive()
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        assert cluster.agrees(new.metadata.uid)
        assert [b["preconditions"]["uid"] for b in cluster.bodies("DELETE", "etcd")] == [before]
        await trio.sleep(120)
        assert len(cluster.requests("POST")) == 2
    cluster.check()


async def test_the_old_mirror_stays_while_the_old_pod_ends_however_young_it_is(
    autojump_clock: Clock,
) -> None:
    """What the mirror's creation has scheduled must not replace it while the old containers still run."""
    cluster = Cluster()
    async with cluster.agent() as node:
        old = await cluster.manifest("etcd")
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        before = uid_of(cluster)
        node.runtime.stop_takes[old.metadata.uid] = 20
        await trio.sleep(9 - trio.current_time())
        await cluster.manifest("etcd", "2")
        await trio.sleep(0.2)
        while old.metadata.uid in node.runtime.alive():
            shown = cluster.shown("etcd")
            assert shown is not None
            assert (shown["metadata"]["uid"], shown["status"]["phase"]) == (before, "Running")
            await trio.sleep(0.1)
        await cluster.until(lambda: version_of(cluster) == "etcd-2", 5)
    cluster.check()


async def test_a_mirrors_successor_is_not_deleted_in_its_place(autojump_clock: Clock) -> None:
    """kubernetes/kubernetes 79147, 74161: deletions name the mirror's UID, and one new mirror is enough."""
    cluster = Cluster()
    async with cluster.agent() as node:
        await cluster.manifest("etcd")
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        first, successor = uid_of(cluster), ""

        def replaced_meanwhile(request: Request) -> Refused | None:
            nonlocal successor
            if request.method == "DELETE" and not successor:
                there = cluster.store.get("pods", "default", "etcd")
                cluster.delete("etcd", gracePeriodSeconds=0)
                metadata = {k: v for k, v in there["metadata"].items() if k not in ("uid", "resourceVersion")}
                metadata["annotations"] = {**metadata["annotations"], HASH: "etcd-2", MIRROR: "etcd-2"}
                made = cluster.store.create("pods", "default", {"metadata": metadata, "spec": there["spec"]})
                successor = made["metadata"]["uid"]
            return None

        cluster.server.refuse = replaced_meanwhile
        new = await cluster.manifest("etcd", "2")
        await cluster.until(lambda: cluster.ready("etcd"), 10)
        await trio.sleep(600)
        assert uid_of(cluster) == successor
        assert [b["preconditions"]["uid"] for b in cluster.bodies("DELETE", "etcd")] == [first]
        assert len(cluster.requests("POST")) == 1
        assert len(node.runtime.starts(new.metadata.uid)) == 1
    cluster.check()


async def test_the_mirror_goes_with_the_static_pod_when_that_has_ended(autojump_clock: Clock) -> None:
    cluster = Cluster()
    async with cluster.agent() as node:
        pod = await cluster.manifest("etcd")
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        node.runtime.stop_takes[pod.metadata.uid] = 1.5
        cluster.manifests.clear()
        await cluster.publish()
        while pod.metadata.uid in node.runtime.alive():
            assert cluster.shown("etcd") is not None
            await trio.sleep(0.05)
        await cluster.until(lambda: cluster.shown("etcd") is None, 10)
        await trio.sleep(120)
        assert len(cluster.requests("DELETE", "etcd")) == 1
    cluster.check()


async def test_the_mirror_does_not_wait_for_volumes_that_stay_busy(autojump_clock: Clock) -> None:
    cluster = Cluster()
    async with cluster.agent() as node:
        pod = await cluster.manifest("etcd")
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        node.volumes.busy.add(pod.metadata.uid)
        cluster.manifests.clear()
        await cluster.publish()
        await cluster.until(lambda: cluster.shown("etcd") is None, 10)
        assert pod.metadata.uid in node.volumes.up


async def test_a_mirror_left_by_an_earlier_agent(autojump_clock: Clock) -> None:
    """One whose static pod is gone goes, one that fits is kept, one of an old version is replaced."""
    cluster = Cluster()
    async with cluster.agent():
        for name in ("gone", "kept", "edited"):
            await cluster.manifest(name)
        await cluster.until(lambda: all(map(cluster.ready, ("gone", "kept", "edited"))), 5)
    kept = uid_of(cluster, "kept")
    del cluster.manifests["gone"]
    writes = len([r for r in cluster.server.requests if r.method == "PATCH"])
    async with cluster.agent() as node:
        await cluster.manifest("edited", "2")
        await cluster.until(lambda: cluster.shown("gone") is None, 20)
        await cluster.until(lambda: version_of(cluster, "edited") == "edited-2", 20)
        await cluster.until(lambda: node.runtime.alive() == {"kept-1", "edited-2"}, 20)
        await trio.sleep(60)
        assert uid_of(cluster, "kept") == kept
        later = [r for r in cluster.server.requests if r.method == "PATCH"][writes:]
        assert not [r for r in later if "/kept/" in r.path]
    cluster.check()


async def test_a_static_pod_starts_and_ends_without_an_api_server(autojump_clock: Clock) -> None:
    """The server is silent, so every request to it hangs until its deadline."""
    cluster = Cluster()
    cluster.server.silent = True
    async with cluster.agent() as node:
        first = await cluster.manifest("etcd")
        await cluster.until(lambda: first.metadata.uid in node.runtime.alive(), 1)
        second = await cluster.manifest("etcd", "2")
        await cluster.until(lambda: node.runtime.alive() == {second.metadata.uid}, 5)
        del cluster.manifests["etcd"]
        await cluster.publish()
        await cluster.until(lambda: not node.runtime.alive(), 5)
        third = await cluster.manifest("etcd", "3")
        await cluster.until(lambda: third.metadata.uid in node.runtime.alive(), 5)
        await trio.sleep(3600)
        cluster.server.silent = False
        # The mirror, then its status: for each a request may just have begun to wait.
        await cluster.until(lambda: cluster.ready("etcd"), 2 * (CLIENT_TIMEOUT + PAUSES.after(99, 1.0)) + 5)
        assert version_of(cluster) == "etcd-3"
    cluster.check()


async def test_the_mirror_waits_for_the_node(autojump_clock: Clock) -> None:
    cluster = Cluster(registered=False)
    async with cluster.agent():
        await cluster.manifest("etcd")
        await trio.sleep(60)
        assert cluster.shown("etcd") is None
        cluster.register()
        await cluster.until(lambda: cluster.ready("etcd"), 3)


async def test_no_mirror_while_the_node_is_being_removed(autojump_clock: Clock) -> None:
    cluster = Cluster()
    metadata = {**cluster.store.get("nodes", "", NODE)["metadata"], "finalizers": ["example.com/wait"]}
    cluster.store.update("nodes", "", NODE, {"metadata": metadata})
    async with cluster.agent():
        # The store marks only pods as being deleted, so the mark is set by hand.
        cluster.store.get("nodes", "", NODE)["metadata"]["deletionTimestamp"] = "2026-11-21T08:00:00Z"
        await cluster.manifest("etcd")
        await trio.sleep(60)
        assert not cluster.requests("POST")


async def test_a_pod_of_somebody_else_that_has_the_name_is_left_alone(autojump_clock: Clock) -> None:
    cluster = Cluster()
    cluster.store.create("pods", "default", {"metadata": {"name": "etcd"}, "spec": {"nodeName": "other"}})
    before = uid_of(cluster)
    async with cluster.agent() as node:
        pod = await cluster.manifest("etcd")
        await trio.sleep(600)
        assert uid_of(cluster) == before
        assert pod.metadata.uid in node.runtime.alive()
        assert len(cluster.requests("POST")) < 600 / 1.0
        cluster.delete("etcd", gracePeriodSeconds=0)
        await cluster.until(lambda: cluster.ready("etcd"), 60)


async def test_the_mirror_comes_when_a_pod_of_this_node_that_had_the_name_is_gone(
    autojump_clock: Clock,
) -> None:
    cluster = Cluster()
    async with cluster.agent() as node:
        other = cluster.create("etcd")
        await cluster.until(lambda: other in node.runtime.alive(), 5)
        pod = await cluster.manifest("etcd")
        await cluster.until(lambda: node.runtime.alive() == {other, pod.metadata.uid}, 5)
        asked = len(cluster.requests("POST"))
        await trio.sleep(600)
        assert len(cluster.requests("POST")) - asked < 60
        cluster.delete("etcd", gracePeriodSeconds=0)
        await cluster.until(lambda: node.runtime.alive() == {pod.metadata.uid}, 5)
        await cluster.until(lambda: cluster.ready("etcd"), 60)


async def test_a_mirror_of_another_node_that_has_the_name_is_left_alone(autojump_clock: Clock) -> None:
    cluster = Cluster()
    metadata = {"name": "etcd", "annotations": {MIRROR: "theirs"}}
    cluster.store.create("pods", "default", {"metadata": metadata, "spec": {"nodeName": "other"}})
    before = uid_of(cluster)
    async with cluster.agent():
        await cluster.manifest("etcd")
        await trio.sleep(600)
        assert uid_of(cluster) == before
        assert not cluster.requests("DELETE", "etcd")


async def test_a_late_retry_does_not_delete_the_mirror_of_a_pod_that_is_still_ending(
    autojump_clock: Clock,
) -> None:
    cluster = Cluster()
    async with cluster.agent() as node:
        await cluster.manifest("etcd")
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        refused = Refused(500, "InternalError", "not now")
        cluster.server.refuse = lambda request: refused if request.method == "DELETE" else None
        second = await cluster.manifest("etcd", "2")
        await cluster.until(lambda: len(cluster.requests("DELETE", "etcd")) == 2, 60)
        assert second.metadata.uid in node.runtime.alive()
        node.runtime.stop_takes[second.metadata.uid] = 1.9  # the next attempt comes earlier
        del cluster.manifests["etcd"]
        await cluster.publish()
        cluster.server.refuse = lambda request: None
        while second.metadata.uid in node.runtime.alive():
            assert cluster.shown("etcd") is not None
            await trio.sleep(0.05)
        await cluster.until(lambda: cluster.shown("etcd") is None, 60)
    cluster.check()


async def test_few_mirrors_are_made_at_once(autojump_clock: Clock) -> None:
    cluster = Cluster()
    cluster.server.latency = 1
    under_way, most = 0, 0
    handle = cluster.server.handle

    async def counting(request: Request) -> Any:
        nonlocal under_way, most
        is_creation = request.method == "POST" and request.path.endswith("/pods")
        under_way += is_creation
        most = max(most, under_way)
        try:
            return await handle(request)
        finally:
            under_way -= is_creation

    cluster.server.handle = counting  # type: ignore[method-assign]
    async with cluster.agent():
        for number in range(20):
            await cluster.manifest(f"etcd-{number}")
        await cluster.until(lambda: len(cluster.requests("POST")) == 20, 60)
    assert 1 < most <= 4


async def test_a_lost_answer_to_the_creation_makes_no_second_mirror(autojump_clock: Clock) -> None:
    cluster = Cluster()
    async with cluster.agent():
        cluster.store.on_change = lambda change: setattr(cluster.server, "lose_answers", True)
        await cluster.manifest("etcd")
        await cluster.until(lambda: cluster.shown("etcd") is not None, 20)
        before = uid_of(cluster)
        await trio.sleep(5)
        cluster.store.on_change = lambda change: None
        cluster.server.lose_answers = False
        await cluster.until(lambda: cluster.ready("etcd"), 60)
        assert uid_of(cluster) == before
    cluster.check()


async def test_a_server_that_refuses_mirrors_is_not_asked_all_the_time(autojump_clock: Clock) -> None:
    cluster = Cluster()

    def refuse(request: Request) -> Refused | None:
        return Refused(403, "Forbidden", "no mirrors here") if request.method == "POST" else None

    cluster.server.refuse = refuse
    async with cluster.agent() as node:
        pod = await cluster.manifest("etcd")
        await trio.sleep(3600)
        assert pod.metadata.uid in node.runtime.alive()
        assert 60 < len(cluster.requests("POST")) < 3600 / 30 + 20


class Fickle(AdmitAll):
    """Admits no pod of a second version."""

    def admit(self, pod: v1.Pod, active: Others) -> Decision:
        if pod.metadata.uid.endswith("-2"):
            return Reject("NodeAffinity", "not here")
        return super().admit(pod, active)


async def test_a_refused_static_pod_is_shown_in_place_of_its_earlier_version(autojump_clock: Clock) -> None:
    cluster = Cluster()
    async with cluster.agent(admitter=Fickle()) as node:
        await cluster.manifest("etcd")
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        before = uid_of(cluster)
        node.runtime.stop_takes["etcd-1"] = 20
        await cluster.manifest("etcd", "2")
        while "etcd-1" in node.runtime.alive():
            assert uid_of(cluster) == before
            await trio.sleep(0.1)
        await cluster.until(lambda: version_of(cluster) == "etcd-2", 10)
        await cluster.until(lambda: cluster.phase("etcd") == "Failed", 5)
        assert (cluster.shown("etcd") or {})["status"]["reason"] == "NodeAffinity"
        await cluster.manifest("new", "2")
        await cluster.until(lambda: cluster.phase("new") == "Failed", 35)
        await trio.sleep(300)
        assert len(cluster.requests("POST")) == 3
        await cluster.manifest("etcd", "3")
        await cluster.until(lambda: cluster.ready("etcd"), 5)
        assert version_of(cluster) == "etcd-3"
    cluster.check()


@pytest.mark.parametrize("then", ["refused", "removed"])
async def test_a_mirror_stays_until_what_an_earlier_agent_began_has_ended(
    then: str, autojump_clock: Clock
) -> None:
    """Its manifest was edited, or removed, while no agent ran."""
    cluster = Cluster()
    async with cluster.agent():
        await cluster.manifest("etcd")
        await cluster.until(lambda: cluster.ready("etcd"), 5)
    before = uid_of(cluster)
    if then == "refused":
        await cluster.manifest("etcd", "2")
    else:
        del cluster.manifests["etcd"]
    cluster.node.runtime.stop_takes["etcd-1"] = 20
    async with cluster.agent(admitter=Fickle()) as node:
        while "etcd-1" in node.runtime.alive():
            assert uid_of(cluster) == before
            await trio.sleep(0.1)
        if then == "refused":
            await cluster.until(lambda: version_of(cluster) == "etcd-2", 10)
        else:
            await cluster.until(lambda: cluster.shown("etcd") is None, 10)
    cluster.check()


async def test_a_static_pod_that_is_over_is_shown_in_place_of_its_earlier_version(
    autojump_clock: Clock,
) -> None:
    """It ran while there was no server to show it to, and ended before its next agent began."""
    cluster = Cluster()
    async with cluster.agent() as node:
        await cluster.manifest("job")
        await cluster.until(lambda: cluster.ready("job"), 5)
        cluster.server.silent = True
        await cluster.manifest("job", "2", restart_policy="Never")
        await cluster.until(lambda: node.runtime.alive() == {"job-2"}, 10)
        node.runtime.die("job-2", 0)
        await trio.sleep(5)
    cluster.server.silent = False
    async with cluster.agent():
        await cluster.until(lambda: version_of(cluster, "job") == "job-2", 35)
        await cluster.until(lambda: cluster.phase("job") == "Succeeded", 5)
    cluster.check()


async def test_a_refused_static_pod_is_not_started_by_its_mirror(autojump_clock: Clock) -> None:
    cluster = Cluster()
    async with cluster.agent():
        await cluster.manifest("no-room")
        await cluster.until(lambda: cluster.ready("no-room"), 5)
    # The mirror arrives after the pod was refused.
    cluster.server.silent = True
    async with cluster.agent(admitter=Picky()) as node:
        await trio.sleep(5)
        cluster.server.silent = False
        await cluster.until(lambda: cluster.phase("no-room") == "Failed", 120)
        assert len(node.runtime.starts("no-room-1")) == 1
        assert node.room.workers.get("no-room-1") is None


# The decision itself


def mirror(uid: str, version: str, deleted: bool = False) -> v1.Pod:
    at = "2026-11-21T08:00:00Z" if deleted else None
    return make_pod("etcd", uid, source="api", annotations={MIRROR: version}, deleted_at=at)


PODS = st.sampled_from([None, *(make_pod("etcd", f"s{v}", annotations={HASH: v}) for v in ("1", "2"))])
MIRRORS = st.none() | st.builds(
    mirror, st.sampled_from(["m1", "m2"]), st.sampled_from(["1", "2"]), st.booleans()
)
DONE = st.none() | st.builds(
    MirrorWrite,
    shows=st.sampled_from(["", "1", "2"]),
    created=st.sampled_from(["", "m1", "m2"]),
    deleted=st.frozensets(st.sampled_from(["m1", "m2"])),
    until=st.sampled_from([5.0, 15.0]),
)


@given(PODS, MIRRORS, DONE)
def test_what_is_decided(pod: v1.Pod | None, there: v1.Pod | None, done: MirrorWrite | None) -> None:
    step = decide(pod, there, done, 10.0)
    known = there if there is None or done is None or there.metadata.uid not in done.deleted else None
    fits = known is not None and pod is not None and known.metadata.deletion_timestamp is None
    fits = fits and annotation(known, MIRROR) == annotation(pod, HASH)
    match step:
        case MirrorStep.CREATE:
            assert pod is not None
            assert known is None
            assert done is None or done.shows != annotation(pod, HASH) or done.until < 10
        case MirrorStep.REPLACE:
            assert known is not None
            assert not fits
        case MirrorStep.DELETE:
            assert known is not None
            assert pod is None
        case MirrorStep.WAIT:
            assert known is None
            assert done is not None
            assert done.shows == annotation(pod, HASH)
            assert done.until > 10
        case MirrorStep.NOTHING:
            assert fits or (pod is None and known is None)


def annotation(pod: Any, key: str) -> str:
    found: str = pod.metadata.annotations.get(key, "")
    return found


def test_requests_have_the_form_the_server_wants() -> None:
    """Deletions name the mirror and leave no grace; creations carry no status of ours that counts."""

    async def life() -> Cluster:
        cluster = Cluster()
        async with cluster.agent():
            await cluster.manifest("etcd")
            await cluster.until(lambda: cluster.ready("etcd"), 5)
            cluster.delete("etcd")
            await cluster.until(lambda: len(cluster.requests("POST")) == 2, 5)
        return cluster

    cluster = trio.run(life, clock=trio.testing.MockClock(autojump_threshold=0))
    post, *_ = cluster.requests("POST")
    assert post.path == "/api/v1/namespaces/default/pods"
    body = json.loads(post.body)
    assert (body["apiVersion"], body["kind"]) == ("v1", "Pod")
    assert "blockOwnerDeletion" not in body["metadata"]["ownerReferences"][0]
    delete, *_ = cluster.requests("DELETE", "etcd")
    assert json.loads(delete.body)["gracePeriodSeconds"] == 0


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_a_mirror_makes_the_code_raise_the_others_are_made(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """It is tried again, and the pods run meanwhile."""
    cluster, bad, do = Cluster(), [True], MirrorPods._do

    async def does(self: MirrorPods, name: str) -> None:
        if "bad" in name and bad[0]:
            raise SHAPES[shape]()
        await do(self, name)

    monkeypatch.setattr(MirrorPods, "_do", does)
    async with cluster.agent() as node:
        pod = await cluster.manifest("bad")
        await cluster.manifest("good")
        await cluster.until(lambda: cluster.ready("good"), 5)
        await trio.sleep(5)
        assert cluster.shown("bad") is None
        assert len(node.runtime.starts(pod.metadata.uid)) == 1
        bad[0] = False
        await cluster.until(lambda: cluster.ready("bad"), 120)
        assert len(node.runtime.starts(pod.metadata.uid)) == 1

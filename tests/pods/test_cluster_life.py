"""API pods from creation to deletion, between a test API server and a fake runtime."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from tests.kube.store import Refused
from tests.pods.cluster import Cluster, Picky
from trio_kubelet.api import v1
from trio_kubelet.pods.status.reporter import NodeView
from trio_kubelet.server.http.messages import Request

Clock = trio.testing.MockClock


async def test_a_pod_starts_is_shown_ready_and_is_deleted(autojump_clock: Clock) -> None:
    cluster = Cluster()
    uid = cluster.create("web")
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("web"), 5)
        assert cluster.phase("web") == "Running"
        await cluster.until(lambda: cluster.agrees(uid), 5)
        cluster.delete("web")
        node.runtime.stop_takes[uid] = 2.0
        await cluster.until(lambda: cluster.shown("web") is None, 20)
        assert uid not in node.runtime.alive()
        assert uid not in node.volumes.up
        assert uid not in node.cgroups.there
        assert [body["preconditions"]["uid"] for body in cluster.bodies("DELETE", "web")] == [uid]
        await cluster.until(lambda: not node.room.workers.known() and uid not in node.directories.there)
    cluster.check()


@pytest.mark.parametrize("left", ["volumes", "cgroups"])
async def test_the_pod_stays_on_the_server_until_nothing_of_it_is_left(
    left: str, autojump_clock: Clock
) -> None:
    cluster = Cluster()
    uid = cluster.create("web")
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("web"))
        busy: set[str] = getattr(node, left).busy
        busy.add(uid)
        cluster.delete("web")
        await cluster.until(lambda: uid not in node.runtime.alive())
        await trio.sleep(120)
        assert not cluster.requests("DELETE", "web")
        assert ("FailedUnmount" in node.events.reasons(uid)) == (left == "volumes")
        busy.clear()
        await cluster.until(lambda: cluster.shown("web") is None, 30)
    cluster.check()


async def test_the_terminal_phase_is_told_only_when_no_container_can_run(autojump_clock: Clock) -> None:
    cluster = Cluster()
    uid = cluster.create("web", grace=30)
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("web"))
        node.runtime.stop_takes[uid] = 25.0

        def terminal() -> bool:
            return cluster.phase("web") in ("Failed", "Succeeded")

        cluster.delete("web")
        while cluster.shown("web") is not None:
            assert not (terminal() and uid in node.runtime.alive())
            await trio.sleep(0.01)
        last = cluster.changes("web")[-1].old
        assert last is not None
        assert last["status"]["phase"] in ("Failed", "Succeeded")
        assert {c["status"] for c in last["status"]["conditions"] if c["type"] == "Ready"} == {"False"}


async def test_a_pod_that_runs_its_course_is_shown_so_and_goes_when_deleted(autojump_clock: Clock) -> None:
    cluster = Cluster()
    uid = cluster.create("job", restart="Never")
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("job"))
        node.runtime.die(uid, 0)
        await cluster.until(lambda: cluster.phase("job") == "Succeeded", 5)
        assert cluster.condition("job", "Ready") == "False"
        await trio.sleep(60)
        assert not cluster.requests("DELETE", "job")
        cluster.delete("job")
        await cluster.until(lambda: not node.room.workers.known())


@pytest.mark.parametrize("told", [True, False])
async def test_that_a_pod_can_start_its_containers_is_told_if_it_is_to_be(
    told: bool, autojump_clock: Clock
) -> None:
    cluster = Cluster()
    cluster.create("job")
    async with cluster.agent(view=NodeView(ready_to_start=told)):
        await cluster.until(lambda: cluster.ready("job"))
        await trio.sleep(2)
    patches = [body["status"] for body in cluster.bodies("PATCH", "job")]
    kinds = {each["type"] for status in patches for each in status.get("conditions", ())}
    assert ("PodReadyToStartContainers" in kinds) is told
    assert "Initialized" in kinds


@pytest.mark.parametrize("shown", [True, False])
async def test_the_resources_of_a_pod_as_a_whole_are_shown_if_they_are_to_be(
    shown: bool, autojump_clock: Clock
) -> None:
    cluster = Cluster()
    cluster.create("job", resources={"requests": {"cpu": "1"}})
    async with cluster.agent(view=NodeView(pod_resources=shown)):
        await cluster.until(lambda: cluster.ready("job"))
    fields = {field for body in cluster.bodies("PATCH", "job") for field in body["status"]}
    assert (fields & {"resources", "allocatedResources"} != set()) is shown


@pytest.mark.parametrize("ends", ["by itself", "deleted"])
async def test_the_end_of_a_pod_is_one_write(ends: str, autojump_clock: Clock) -> None:
    cluster = Cluster()
    uid = cluster.create("job", restart="Never")
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("job"))
        before = len(cluster.bodies("PATCH", "job"))
        node.runtime.stop_takes[uid] = 0.5
        node.volumes.busy.add(uid)  # what is left of the pod takes its time, and is not waited for
        if ends == "deleted":
            cluster.delete("job")
            await trio.sleep(0.5)
        else:
            node.runtime.die(uid, 0)
        expected = "Failed" if ends == "deleted" else "Succeeded"
        await cluster.until(lambda: cluster.phase("job") == expected, 1.5)
        await trio.sleep(5)
        (written,) = cluster.bodies("PATCH", "job")[before:]
        assert written["status"]["phase"] == expected
        assert cluster.condition("job", "PodReadyToStartContainers") == "False"
        node.volumes.busy.clear()


async def test_a_finished_pod_with_a_finalizer_is_released_once(autojump_clock: Clock) -> None:
    cluster = Cluster()
    uid = cluster.create("job", restart="Never")
    found = cluster.shown("job")
    assert found is not None
    metadata = {**found["metadata"], "finalizers": ["example.com/wait"]}
    cluster.store.update("pods", "default", "job", {**found, "metadata": metadata})
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("job"))
        node.runtime.die(uid, 0)
        await cluster.until(lambda: cluster.phase("job") == "Succeeded", 5)
        cluster.delete("job")
        await cluster.until(lambda: bool(cluster.requests("DELETE", "job")), 2)
        await trio.sleep(60)
        assert len(cluster.requests("DELETE", "job")) == 1
        assert cluster.shown("job") is not None


async def test_a_shorter_grace_period_takes_effect(autojump_clock: Clock) -> None:
    cluster = Cluster()
    uid = cluster.create("web", grace=600)
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("web"))
        node.runtime.stop_takes[uid] = 500.0
        cluster.delete("web")
        await trio.sleep(5)
        assert uid in node.runtime.alive()
        cluster.delete("web", gracePeriodSeconds=2)
        await cluster.until(lambda: cluster.shown("web") is None, 10)
        assert uid not in node.runtime.alive()


async def test_a_pod_deleted_by_force_ends_and_nothing_is_written(autojump_clock: Clock) -> None:
    cluster = Cluster()
    uid = cluster.create("web")
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("web"))
        await trio.sleep(1)
        before = len(cluster.server.requests)
        cluster.delete("web", gracePeriodSeconds=0)
        await cluster.until(lambda: uid not in node.runtime.alive())
        await cluster.until(lambda: not node.room.workers.known())
        await trio.sleep(60)
        assert not [r for r in cluster.server.requests[before:] if r.method != "GET"]


async def test_the_successor_of_the_same_name_is_left_alone(autojump_clock: Clock) -> None:
    """The old pod is deleted by force and created anew while it is still ending."""
    cluster = Cluster()
    old = cluster.create("web")
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("web"))
        node.runtime.stop_takes[old] = 4.0
        cluster.delete("web")
        await trio.sleep(1)
        cluster.delete("web", gracePeriodSeconds=0)
        new = cluster.create("web")
        await cluster.until(lambda: cluster.ready("web"))
        await cluster.until(lambda: old not in node.runtime.alive())
        await trio.sleep(60)
        assert new in node.runtime.alive()
        assert cluster.ready("web")
        assert cluster.agrees(new)
    cluster.check()


async def test_deletions_that_happen_while_the_agent_is_away(autojump_clock: Clock) -> None:
    cluster = Cluster()
    begun, gone, kept = (cluster.create(name) for name in ("begun", "gone", "kept"))
    async with cluster.agent():
        await cluster.until(lambda: all(map(cluster.ready, ("begun", "gone", "kept"))))
    cluster.delete("begun")
    cluster.delete("gone", gracePeriodSeconds=0)
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.shown("begun") is None, 20)
        await cluster.until(lambda: node.runtime.alive() == {kept}, 20)
        assert len(node.runtime.starts(kept)) == 1
        assert {begun, gone}.isdisjoint(node.cgroups.there | node.volumes.up)
    cluster.check()


@pytest.mark.parametrize("moment", [number * 0.01 for number in range(30)])
async def test_an_agent_killed_while_a_pod_ends_is_followed_by_one_that_finishes(
    autojump_clock: Clock, moment: float
) -> None:
    cluster = Cluster()
    uid = cluster.create("web", grace=2)
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("web"))
        node.runtime.stop_takes[uid] = 0.1
        cluster.delete("web")
        await trio.sleep(moment)
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.shown("web") is None, 30)
        await cluster.until(lambda: not node.runtime.alive(), 5)
    cluster.check()


async def test_refused_pods_are_shown_failed_and_can_be_deleted(autojump_clock: Clock) -> None:
    cluster = Cluster()
    cluster.create("no-room")
    found = cluster.shown("no-room")
    assert found is not None
    metadata = {**found["metadata"], "finalizers": ["example.com/wait"]}
    cluster.store.update("pods", "default", "no-room", {**found, "metadata": metadata})
    scheduled = [{"type": "PodScheduled", "status": "True"}, {"type": "example.com/x", "status": "True"}]
    cluster.store.set_status("pods", "default", "no-room", conditions=scheduled, qosClass="BestEffort")
    async with cluster.agent(admitter=Picky()) as node:
        await cluster.until(lambda: cluster.phase("no-room") == "Failed", 5)
        status = cluster.status("no-room")
        assert status["reason"] == "NodeAffinity"
        assert status["message"] == "Pod was rejected: not here"
        assert [c["type"] for c in status["conditions"]] == ["example.com/x"]
        cluster.delete("no-room")
        await cluster.until(lambda: bool(cluster.requests("DELETE", "no-room")), 30)
        assert not node.runtime.log
    cluster.check()


async def test_an_api_server_away_for_an_hour_disturbs_no_pod(autojump_clock: Clock) -> None:
    """Containers die and start again, a pod runs its course, one is deleted meanwhile: all is told after."""
    cluster = Cluster()
    steady, crashing, job, doomed = (
        cluster.create("steady"),
        cluster.create("crashing"),
        cluster.create("job", restart="Never"),
        cluster.create("doomed"),
    )
    async with cluster.agent() as node:
        await cluster.until(lambda: all(map(cluster.ready, ("steady", "crashing", "job", "doomed"))))
        static = await cluster.manifest("static")
        await cluster.until(lambda: cluster.ready("static"))
        cluster.delete("doomed")
        cluster.server.down = True
        cluster.server.break_watches()
        before = len(cluster.server.requests)
        await trio.sleep(600)
        node.runtime.die(crashing, 1)
        node.runtime.die(job, 0)
        await trio.sleep(3000)
        asked = [r for r in cluster.server.requests[before:] if r.method != "GET"]
        assert len(asked) < 3600 / 30 * 1.5
        for uid in (steady, static.metadata.uid):
            assert len(node.runtime.starts(uid)) == 1
            assert uid in node.runtime.alive()
        assert crashing in node.runtime.alive()
        cluster.server.down = False
        await cluster.until(lambda: cluster.phase("job") == "Succeeded", 60)
        await cluster.until(lambda: cluster.agrees(crashing) and cluster.agrees(steady), 60)
        assert cluster.status("crashing")["containerStatuses"][0]["restartCount"] == 1
        await cluster.until(lambda: cluster.shown("doomed") is None, 60)
        assert doomed not in node.runtime.alive()
        assert cluster.writer is not None
        assert cluster.writer.unwritten == 0
    cluster.check()


@pytest.mark.parametrize("code", [403, 409, 500, 503])
async def test_a_delete_that_fails_is_repeated(autojump_clock: Clock, code: int) -> None:
    cluster = Cluster()
    cluster.create("web")
    async with cluster.agent():
        await cluster.until(lambda: cluster.ready("web"))
        failing = Refused(code, "Fault", "etcd is tired")

        def refuse(request: Request) -> Refused | None:
            return failing if request.method == "DELETE" else None

        cluster.server.refuse = refuse
        cluster.delete("web")
        await trio.sleep(60)
        assert cluster.shown("web") is not None
        assert 2 < len(cluster.requests("DELETE", "web")) < 15
        cluster.server.refuse = lambda request: None
        await cluster.until(lambda: cluster.shown("web") is None, 60)
    cluster.check()


async def test_a_lost_answer_to_the_delete_does_no_harm(autojump_clock: Clock) -> None:
    cluster = Cluster()
    cluster.create("web")
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("web"))
        cluster.delete("web")
        cluster.server.lose_answers = True
        await cluster.until(lambda: cluster.shown("web") is None, 60)
        new = cluster.create("web")
        cluster.server.lose_answers = False
        await cluster.until(lambda: cluster.ready("web"))
        await trio.sleep(60)
        assert node.runtime.alive() == {new}
    cluster.check()


async def test_a_pod_the_server_says_has_failed_is_ended(autojump_clock: Clock) -> None:
    """As the pod garbage collector does it: the phase is set by somebody else, and never taken back."""
    cluster = Cluster()
    uid = cluster.create("web")
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("web"))
        cluster.store.set_status("pods", "default", "web", phase="Failed", reason="Lost")
        await trio.sleep(15)
        cluster.delete("web")
        await cluster.until(lambda: uid not in node.runtime.alive(), 30)
        await cluster.until(lambda: not node.room.workers.known(), 30)
    cluster.check()


async def test_statuses_name_the_pod_and_nothing_but_the_difference(autojump_clock: Clock) -> None:
    cluster = Cluster()
    uid = cluster.create("web")
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("web"))
        await trio.sleep(30)
        count = len(cluster.requests("PATCH", "web"))
        node.room.statuses.set_readiness(uid, node.runtime.pods[uid].containers[-1].id, False)
        await cluster.until(lambda: not cluster.ready("web"), 5)
        request, *more = cluster.requests("PATCH", "web")[count:]
        assert not more
        assert request.path == "/api/v1/namespaces/default/pods/web/status"
        assert request.header("content-type") == "application/strategic-merge-patch+json"
        patch = json.loads(request.body)
        assert patch["metadata"] == {"uid": uid}
        named = {key for key in patch["status"] if not key.startswith("$")}
        assert named == {"conditions", "containerStatuses"}
        assert {c["type"] for c in patch["status"]["conditions"]} == {"Ready", "ContainersReady"}


async def test_ends_of_containers_are_counted_once(autojump_clock: Clock) -> None:
    cluster = Cluster()
    uid = cluster.create("job", restart="Never")
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("job"))
        node.runtime.die(uid, 3)
        await cluster.until(lambda: cluster.phase("job") == "Failed", 5)
        await trio.sleep(60)
        counted = [
            (sample.labels["container_type"], sample.labels["exit_code"], sample.value)
            for metric in node.registry.collect()
            for sample in metric.samples
            if sample.name == "kubelet_terminated_containers_total"
        ]
        assert counted == [("container", "3", 1.0)]


async def test_an_evicted_pod_is_shown_failed_with_the_reason_once_it_has_stopped(
    autojump_clock: Clock,
) -> None:
    cluster = Cluster()
    uid = cluster.create("web")

    def evicted(status: v1.PodStatus) -> v1.PodStatus:
        target = v1.PodCondition(type="DisruptionTarget", status="True", reason="TerminationByKubelet")
        conditions = [*(status.conditions or ()), target]
        return replace(status, phase="Failed", reason="Evicted", message="low", conditions=conditions)

    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("web"))
        node.runtime.stop_takes[uid] = 3.0
        pod = node.room.pods.get(uid)
        assert pod is not None
        node.room.workers.kill(pod, grace=4, evict=True, patch=evicted)
        await trio.sleep(2)
        assert cluster.phase("web") == "Running"
        assert not cluster.condition("web", "DisruptionTarget")
        await cluster.until(lambda: cluster.phase("web") == "Failed", 10)
        assert uid not in node.runtime.alive()
        assert cluster.status("web")["reason"] == "Evicted"
        assert cluster.condition("web", "DisruptionTarget") == "True"
        assert cluster.condition("web", "Ready") == "False"
        await trio.sleep(30)
        assert cluster.shown("web") is not None
        assert not cluster.requests("DELETE", "web")
    cluster.check()


async def test_a_manifest_with_the_uid_of_a_pod_of_the_server_counts_when_that_is_gone(
    autojump_clock: Clock,
) -> None:
    """As one that was copied from it."""
    cluster = Cluster()
    uid = cluster.create("web")
    async with cluster.agent() as node:
        await cluster.until(lambda: cluster.ready("web"))
        await cluster.manifest("web-node", uid=uid)
        await trio.sleep(60)
        assert cluster.ready("web")
        assert cluster.shown("web-node") is None
        assert len(node.runtime.starts(uid)) == 1, "it is one pod, and not the other"
        cluster.delete("web")
        await cluster.until(lambda: cluster.ready("web-node"))
        assert cluster.shown("web") is None
        assert len(node.runtime.starts(uid)) == 2
    cluster.check()


async def test_a_manifest_with_the_uid_of_its_own_mirror_counts_when_that_is_gone(
    autojump_clock: Clock,
) -> None:
    """The mirror was copied into the place of what it shows."""
    cluster = Cluster()
    async with cluster.agent():
        await cluster.manifest("web")
        await cluster.until(lambda: cluster.ready("web"))
        shown = cluster.shown("web")
        assert shown is not None
        del cluster.manifests["web"]
        await cluster.manifest("web-node", uid=shown["metadata"]["uid"])
        await cluster.until(lambda: cluster.ready("web-node"))
        assert cluster.shown("web") is None
    cluster.check()

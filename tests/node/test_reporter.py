"""Registration and status of the Node against the test API server, on virtual time."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from tests.kube.store import Refused
from tests.node.nodes import RECORDED, profile
from tests.node.world import World
from trio_kubelet.node.conditions import NodeHealth
from trio_kubelet.node.reporter import ReportTimes
from trio_kubelet.node.status import NodeObservation
from trio_kubelet.pods.admission.fit import NodeFacts
from trio_kubelet.server.http.messages import Request

Clock = trio.testing.MockClock
SUFFICIENT = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]


async def test_a_new_node_registers_and_is_ready(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        await world.reporter.registered.wait()
        await trio.sleep(1)
        without_time = {key: value for key, value in world.node["status"].items() if key != "conditions"}
        recorded = {key: value for key, value in RECORDED["status"].items() if key != "conditions"}
        assert without_time == recorded
        assert world.condition()["status"] == "True"
        assert world.said.reasons == SUFFICIENT
        assert world.own.host_ips() == ("192.0.2.2",)
    assert world.registry.get_sample_value("kubelet_node_name", {"node": "node-a"}) == 1
    assert world.value("kubelet_node_startup_pre_kubelet_duration_seconds") == 10
    assert world.value("kubelet_node_startup_duration_seconds") >= 10


async def test_ready_is_told_at_once_when_it_comes(autojump_clock: Clock) -> None:
    world = World()
    world.not_ready("container runtime network not ready: x")
    async with world.running():
        await trio.sleep(33.33)
        assert world.condition()["message"] == "container runtime network not ready: x"
        world.not_ready()
        await trio.sleep(0.3)
        assert world.condition()["status"] == "True"
        assert world.said.reasons == [*SUFFICIENT, "NodeReady"]
    assert world.value("kubelet_node_startup_post_registration_duration_seconds") == pytest.approx(
        33.5, abs=0.5
    )


async def test_ready_is_told_at_once_though_other_news_came_just_before(autojump_clock: Clock) -> None:
    """While the agent starts there is much of it: volumes, its own Node seen for the first time."""
    world = World()
    world.not_ready("CSINode is not yet initialized")
    async with world.running():
        await world.reporter.registered.wait()
        await trio.sleep(0.1)
        world.reporter.wake()
        await trio.sleep(0.05)
        world.not_ready()
        await trio.sleep(0.1)
        assert world.condition()["status"] == "True"


@pytest.mark.parametrize("registers", [True, False])
async def test_a_restart_does_not_turn_a_ready_node(registers: bool, autojump_clock: Clock) -> None:
    world = World(profile(register_node=registers))
    world.server.store.create("nodes", "", {"metadata": {"name": "node-a"}, "status": RECORDED["status"]})
    world.not_ready("CSINode is not yet initialized")
    async with world.running():
        await trio.sleep(4)
        world.not_ready()
        await trio.sleep(60)
        assert world.condition()["lastTransitionTime"] == "2026-11-21T09:38:01Z"
        assert "NodeNotReady" not in world.said.reasons


async def test_a_restart_leaves_what_others_advertise(autojump_clock: Clock) -> None:
    world = World()
    status = {**RECORDED["status"], "capacity": {**RECORDED["status"]["capacity"], "example.com/gpu": "3"}}
    world.server.store.create("nodes", "", {"metadata": {"name": "node-a"}, "status": status})
    async with world.running():
        await trio.sleep(30)
        assert world.node["status"]["capacity"] == status["capacity"]
        assert world.node["status"]["allocatable"]["example.com/gpu"] == "3"


async def test_a_restarted_node_that_is_unwell_says_so(autojump_clock: Clock) -> None:
    world = World()
    world.server.store.create("nodes", "", {"metadata": {"name": "node-a"}, "status": RECORDED["status"]})
    world.not_ready("network")
    async with world.running():
        await trio.sleep(11)
        assert world.condition()["status"] == "False"
        await trio.sleep(20)
        world.not_ready()
        await trio.sleep(0.3)
        assert world.condition()["status"] == "True"


async def test_pod_addresses_do_not_wait_for_ready(autojump_clock: Clock) -> None:
    world = World()
    world.not_ready("network")
    async with world.running():
        await trio.sleep(12)
        world.server.store.patch("nodes", "", "node-a", {"spec": {"podCIDRs": ["10.0.0.0/24"]}}, True)
        await trio.sleep(1.5)
        assert world.cidrs == ["10.0.0.0/24"]


async def test_own_writes_do_not_keep_it_busy(autojump_clock: Clock) -> None:
    world = World()
    looks = 0

    async def look() -> NodeObservation:
        nonlocal looks
        looks += 1
        return await original()

    original = world.look
    world.look = look  # type: ignore[method-assign]
    async with world.running():
        await trio.sleep(9)
        # To register and for the first report; once more for each if the watch was faster than the answer.
        assert looks <= 4


async def test_ready_with_a_failing_server_does_not_hurry(autojump_clock: Clock) -> None:
    world = World()
    world.not_ready("x")
    async with world.running():
        await trio.sleep(1)
        world.not_ready()
        world.server.down = True
        before = len(world.door.attempts)
        await trio.sleep(60)
        # Five tries of each of six periods and a first one, and the watch's.
        assert len(world.door.attempts) - before < 60


async def test_a_quiet_node_reports_now_and_then(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        await trio.sleep(3600)
        assert 9 <= world.writes() <= 14  # every five minutes, the first ones spread
        assert world.said.reasons == SUFFICIENT
        world.see["images"] = []
        count = world.writes()
        await trio.sleep(11)
        assert world.writes() == count + 1


async def test_after_a_change_nodes_report_at_different_times(autojump_clock: Clock) -> None:
    """What they all were told at once must not bring them back together five minutes later."""
    world = World()
    async with world.running():
        await trio.sleep(3600)
        pauses = set[int]()
        for health in (NodeHealth(not_ready=("x",)), NodeHealth()) * 4:
            world.see["health"] = health
            await trio.sleep(11)
            count, changed = world.writes(), trio.current_time()
            while world.writes() == count:  # noqa: ASYNC110 - the server tells nobody
                await trio.sleep(1)
            pauses.add(round(trio.current_time() - changed))
    assert len(pauses) > 4
    assert all(130 <= pause <= 470 for pause in pauses)


async def test_pressure_is_told_when_woken(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        await trio.sleep(25)
        world.see["health"] = NodeHealth(pressures=frozenset({"MemoryPressure"}))
        world.reporter.wake()
        await trio.sleep(1.5)
        assert world.condition("MemoryPressure")["status"] == "True"
        assert world.said.reasons[-1] == "NodeHasInsufficientMemory"


async def test_an_hour_without_a_server(autojump_clock: Clock) -> None:
    world = World()
    world.server.down = True
    async with world.running():
        await trio.sleep(3600)
        assert not world.said.events
        before = len(world.door.attempts)
        assert before < 2000
        world.server.down = False
        await trio.sleep(8)
        assert world.is_registered()
        assert world.said.reasons == SUFFICIENT


async def test_a_server_that_goes_away_and_comes_back(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        await trio.sleep(60)
        world.server.down = True
        world.server.break_watches()
        world.not_ready("PLEG is not healthy: x")
        await trio.sleep(3600)
        assert world.condition()["status"] == "True"
        world.server.down = False
        await trio.sleep(11)
        assert world.condition()["status"] == "False"
        assert world.said.reasons == [*SUFFICIENT, "NodeNotReady"]


async def test_a_deleted_node_registers_again(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        await trio.sleep(60)
        uid = world.node["metadata"]["uid"]
        world.server.store.delete("nodes", "", "node-a")
        await trio.sleep(3)
        assert world.node["metadata"]["uid"] != uid
        assert world.condition()["status"] == "True"
        assert world.own.uid == world.node["metadata"]["uid"]
        await trio.sleep(60)
        assert world.writes("POST", "/nodes") == 2


async def test_a_node_that_does_not_register_waits_for_its_object(autojump_clock: Clock) -> None:
    world = World(profile(register_node=False))
    async with world.running():
        await trio.sleep(60)
        assert not world.is_registered()
        world.server.store.create("nodes", "", {"metadata": {"name": "node-a"}})
        await trio.sleep(11)
        assert world.condition()["status"] == "True"
        assert world.writes("POST", "/nodes") == 0


async def test_an_existing_node_is_taken_over(autojump_clock: Clock) -> None:
    world = World()
    status = msgspec.convert(RECORDED, dict)["status"] | {"nodeInfo": {"bootID": "before"}}
    metadata = {"name": "node-a", "labels": {"mine": "1"}, "annotations": {"theirs": "2"}}
    spec = {
        "unschedulable": True,
        "taints": [{"key": "k", "effect": "NoExecute"}],
        "podCIDRs": ["10.0.0.0/24"],
    }
    world.server.store.create("nodes", "", {"metadata": metadata, "spec": spec, "status": status})
    uid = world.node["metadata"]["uid"]
    async with world.running():
        await trio.sleep(15)
        assert world.node["metadata"]["uid"] == uid
        assert world.node["metadata"]["labels"]["mine"] == "1"
        assert world.node["metadata"]["labels"]["kubernetes.io/arch"] == "amd64"
        assert world.node["metadata"]["annotations"]["theirs"] == "2"
        assert world.node["spec"] == spec
        assert world.said.reasons.count("Rebooted") == 1
        assert world.said.reasons.count("NodeNotSchedulable") == 1
        assert world.cidrs == ["10.0.0.0/24"]
        facts = world.own.facts(NodeFacts(name="node-a", allocatable={"cpu": "1"}))
        assert facts.labels["mine"] == "1"
        assert [taint.key for taint in facts.taints] == ["k"]
        assert (facts.allocatable["cpu"], facts.allocatable["pods"]) == ("1", "1100")
        world.server.store.patch("nodes", "", "node-a", {"spec": {"unschedulable": False}}, True)
        await trio.sleep(3)
        assert world.said.reasons[-1] == "NodeSchedulable"


async def test_pod_addresses_are_handed_on_until_it_works(autojump_clock: Clock) -> None:
    world = World()
    world.cidr_works = False
    async with world.running():
        await trio.sleep(5)
        spec = {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "fd00::/80"]}
        world.server.store.patch("nodes", "", "node-a", {"spec": spec}, True)
        await trio.sleep(15)
        world.cidr_works = True
        tries = len(world.cidrs)
        assert set(world.cidrs) == {"10.0.0.0/24,fd00::/80"}
        await trio.sleep(60)
        assert len(world.cidrs) == tries + 1


async def test_a_node_that_may_not_be_created_may_be_there(autojump_clock: Clock) -> None:
    world = World()
    world.server.allow = lambda user, verb, route: not (route.resource == "nodes" and verb == "create")
    async with world.running():
        await trio.sleep(30)
        assert not world.reporter.registered.is_set()
        world.server.store.create("nodes", "", {"metadata": {"name": "node-a"}})
        await trio.sleep(11)
        assert world.condition()["status"] == "True"


async def test_one_that_is_there_is_not_taken_over_with_the_gate(autojump_clock: Clock) -> None:
    world = World(profile(gates={"KubeletRegistrationGetOnExistsOnly": True}))
    world.server.allow = lambda user, verb, route: not (route.resource == "nodes" and verb == "create")
    world.server.store.create("nodes", "", {"metadata": {"name": "node-a"}})
    async with world.running():
        await trio.sleep(30)
        assert not world.reporter.registered.is_set()
        world.server.allow = lambda user, verb, route: True
        await trio.sleep(30)
        assert world.reporter.registered.is_set()


async def test_refusals_of_all_kinds_are_outlived(autojump_clock: Clock) -> None:
    world = World()
    refusals = [
        Refused(403, "Forbidden", "no"),
        Refused(409, "Conflict", "later"),
        Refused(422, "Invalid", "bad"),
        Refused(429, "TooManyRequests", "busy", retry_after=1),
        Refused(500, "InternalError", "etcd"),
    ]

    def refuse(request: Request) -> Refused | None:
        return refusals.pop() if refusals and request.method != "GET" else None

    world.server.refuse = refuse
    async with world.running():
        await trio.sleep(30)
        assert not refusals
        assert world.condition()["status"] == "True"


async def test_an_answer_that_was_lost(autojump_clock: Clock) -> None:
    world = World()
    world.server.lose_answers = True
    async with world.running():
        await trio.sleep(5)
        world.server.lose_answers = False
        await trio.sleep(10)
        assert world.reporter.registered.is_set()
        assert world.condition()["status"] == "True"


async def test_a_slow_server_is_borne(autojump_clock: Clock) -> None:
    world = World()
    world.server.latency = 9.0
    async with world.running():
        await trio.sleep(120)
        assert world.condition()["status"] == "True"
        world.server.latency = 11.0  # longer than a request may take
        await trio.sleep(120)
        world.server.latency = 0.0
        world.not_ready("x")
        await trio.sleep(30)
        assert world.condition()["status"] == "False"


async def test_times_are_those_given(autojump_clock: Clock) -> None:
    world = World(times=ReportTimes(update=1.0, report=10.0))
    async with world.running():
        await trio.sleep(100)
        assert 8 <= world.writes() <= 12

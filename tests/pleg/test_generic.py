"""The generic PLEG under the cases that make other agents lose events or call the node not ready."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from tests.pleg.world import World
from tests.shapes import SHAPES
from trio_kubelet.common import log as logging
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.observed.types import (
    ContainerState,
    PodLifecycleEvent,
    PodLifecycleEventType,
    PodParts,
    PodStatus,
    SandboxStatus,
)
from trio_kubelet.pleg.cache import InspectionFailed
from trio_kubelet.pleg.generic import RelistDuration
from trio_kubelet.pleg.looks import LookLimits, keep_ips
from trio_kubelet.pleg.outbox import Outbox
from trio_kubelet.sim.faults import Fault, Kind

STARTED = PodLifecycleEventType.CONTAINER_STARTED
DIED = PodLifecycleEventType.CONTAINER_DIED
REMOVED = PodLifecycleEventType.CONTAINER_REMOVED

Clock = trio.testing.MockClock


def by_type(events: list[PodLifecycleEvent], type: PodLifecycleEventType) -> set[str]:
    return {event.data for event in events if event.type is type}


async def test_the_life_of_a_container_is_told(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        world.add_pod("a", 2)
        begun = await world.events_for(2)
        assert by_type(begun, STARTED) == {world.sandboxes["a"], *world.containers["a"]}
        status = world.cache.get("a")
        assert status is not None
        assert [c.name for c in status.containers] == ["c0", "c1"] or {c.name for c in status.containers} == {
            "c0",
            "c1",
        }
        ips = status.ips
        assert ips
        world.kill("a")
        assert by_type(await world.events_for(2), DIED) == set(world.containers["a"])
        world.sim.stop_sandbox(world.sandboxes["a"], world.service.now_ns())
        await world.events_for(2)
        ended = world.cache.get("a")
        assert ended is not None
        assert ended.ips == ips  # a pod whose sandbox ended keeps its addresses
        world.remove("a")
        gone = await world.events_for(2)
        assert by_type(gone, REMOVED) == {world.sandboxes["a"], *world.containers["a"]}
        assert world.cache.get("a") is None
        assert world.pleg.pod("a") is None


async def test_the_exit_code_of_a_container_is_logged(autojump_clock: Clock) -> None:
    world, said = World(), io.StringIO()
    logging.configure(stream=said, verbosity=2)
    try:
        async with world.running():
            world.add_pod("a", 2)
            await world.events_for(2)
            world.sim.kill(world.containers["a"][1], world.service.now_ns(), exit_code=42)
            await world.events_for(2)
        logging.flush()
    finally:
        logging.configure()
    [line] = [line for line in said.getvalue().splitlines() if "Container finished" in line]
    assert 'container="c1"' in line
    assert "exitCode=42" in line


async def test_a_look_may_still_be_asked_for_while_the_agent_stops(autojump_clock: Clock) -> None:
    """A worker's shielded clean-up outlives the PLEG's own tasks."""
    world = World()
    world.add_pod("a")
    async with trio.open_nursery() as nursery:
        await nursery.start(world.service.run)
        await nursery.start(world.pleg.run)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            for _ in range(5):
                await trio.lowlevel.checkpoint()
                world.pleg.request_look("a")
                world.pleg.request_look("b")


async def test_a_pod_that_vanishes_during_its_first_look_is_forgotten(autojump_clock: Clock) -> None:
    """It was never committed, so the list without it is no change; the cache must not keep it for that."""
    world = World(duration=RelistDuration(period=3600.0))
    world.add_pod("a", 2)
    world.fault(Fault(Kind.SLOW, "ContainerStatus", seconds=5, count=1))
    async with world.running():
        await trio.sleep(1)
        world.remove("a")
        world.pleg.request_look("a")
        await trio.sleep(10)
        assert world.known() == world.truth() == {}


@pytest.mark.parametrize("failures", [0, 1])
async def test_a_status_is_as_old_as_the_lists_it_rests_on(autojump_clock: Clock, failures: int) -> None:
    """A worker that has started a container while the runtime was long in answering must not take the answer
    for what came of it: it would end the container as one of no sandbox that is there.
    """
    world = World(duration=RelistDuration(period=3600.0))
    world.add_pod("a")
    async with world.running():
        await trio.sleep(1)
        world.kill("a")
        world.fault(Fault(Kind.SLOW, "ListContainers", seconds=10, count=1))
        world.fault(Fault(Kind.FAIL, "ContainerStatus", count=failures))
        world.pleg.request_look("a")
        await trio.sleep(7.5)
        late, acted = world.add_container("a", "late"), trio.current_time()
        await trio.sleep(5)  # it has answered, and a look that failed was made again
        assert world.cache.known_newer_than("a", acted) is None
        known = world.cache.get("a")
        assert known is not None
        assert [each.state for each in known.containers] == [ContainerState.EXITED]
        await world.pleg.update_one("a")
        status = world.cache.known_newer_than("a", acted)
        assert status is not None
        assert late in {each.id for each in status.containers}


async def test_a_list_of_one_pod_that_a_relist_overtook_is_not_believed(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is older than the relist's; with rare relists it would stay wrong for minutes."""
    world = World(duration=RelistDuration(period=3600.0))
    world.add_pod("a")
    list_now = world.door.runtime.list_containers_raw
    held = 0

    async def list_late(filter: cri.ContainerFilter | None = None) -> Sequence[bytes]:
        nonlocal held
        answer = await list_now(filter)
        if filter is not None and not held:
            held += 1
            await trio.sleep(5)
        return answer

    monkeypatch.setattr(world.door.runtime, "list_containers_raw", list_late)
    async with world.running():
        await trio.sleep(1)
        world.pleg.request_look("a")
        await trio.sleep(1)
        world.add_container("a", "c1")
        await world.pleg.relist_now()
        await trio.sleep(10)
        assert held == 1
        assert world.known() == world.truth()


@pytest.mark.parametrize("reading", [0, 5])
async def test_a_relist_whose_answer_is_older_than_that_of_a_look_is_not_believed(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, reading: int
) -> None:
    """The look was asked for first and saw what came later; it has ended by then, or still reads."""
    world = World(duration=RelistDuration(period=3600.0))
    world.add_pod("a")
    list_now = world.door.runtime.list_containers_raw
    slow = False

    async def list_slowly(filter: cri.ContainerFilter | None = None) -> Sequence[bytes]:
        if filter is not None:
            await trio.sleep(2 * slow)
            return await list_now(filter)
        answer = await list_now(filter)
        await trio.sleep(2 * slow)
        return answer

    monkeypatch.setattr(world.door.runtime, "list_containers_raw", list_slowly)
    async with world.running():
        await trio.sleep(1)
        slow = True
        world.pleg.request_look("a")
        await trio.sleep(1)
        world.fault(Fault(Kind.SLOW, "ContainerStatus", seconds=reading))
        world.pleg.request_relist()
        await trio.sleep(0.5)
        world.add_container("a", "c1")
        await trio.sleep(1)
        assert bool(reading) or world.known() == world.truth()
        await trio.sleep(20)
        assert world.known() == world.truth()


async def test_500_pods_changing_at_once_are_inspected_in_parallel(autojump_clock: Clock) -> None:
    world = World()
    for number in range(500):
        world.add_pod(f"p{number}")
    world.fault(Fault(Kind.SLOW, "*Status", seconds=0.1))
    began = trio.current_time()
    async with world.running():
        seen: set[str] = set()
        async for event in world.pleg.watch():
            seen.add(event.pod_uid)
            if len(seen) == 500:
                break
    assert trio.current_time() - began <= 5
    assert world.reader.most <= LookLimits().parallel


async def test_one_hung_pod_holds_up_nobody(autojump_clock: Clock) -> None:
    world = World()
    world.fault(Fault(Kind.HANG, "ContainerStatus", count=1))
    for number in range(500):
        world.add_pod(f"p{number}")
    async with world.running():
        events = await world.events_for(2)
        assert len({event.pod_uid for event in events}) == 499
        assert world.pleg.healthy() is None
        hung = ({f"p{number}" for number in range(500)} - {event.pod_uid for event in events}).pop()
        with pytest.raises(InspectionFailed, match=f"pod {hung} .*: context deadline exceeded$"):
            await world.cache.get_newer_than(hung, -1)
        # The hung one is tried again by itself, once its deadline has passed.
        later = await world.events_for(LookLimits().deadline + 2)
        assert len({event.pod_uid for event in later}) == 1
        assert world.known() == world.truth()


async def test_more_hung_pods_than_places_hold_up_nobody(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead server of files takes all pods that use it; others do not wait, nor do those that fail once."""
    world, hung = World(), {f"p{number}" for number in range(100)}
    read = world.reader.read_pod_status

    async def read_pod_status(parts: PodParts) -> PodStatus:
        if parts.uid in hung:
            await trio.sleep_forever()
        return await read(parts)

    monkeypatch.setattr(world.reader, "read_pod_status", read_pod_status)
    for number in range(500):
        world.add_pod(f"p{number}")
    async with world.running():
        assert len({event.pod_uid for event in await world.events_for(2)}) == 400
        await world.events_for(60)  # the hung ones are tried again, in vain
        world.fault(Fault(Kind.FAIL, "ContainerStatus", count=1))
        world.add_pod("new")
        assert "new" in {event.pod_uid for event in await world.events_for(6)}
        assert world.pleg.healthy() is None
        hung.clear()
        await world.events_for(60)
        assert world.known() == world.truth()


async def test_hung_pods_that_have_failed_leave_the_others_their_places(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(limits=LookLimits(parallel=4, parallel_retries=2, aside=8))
    read = world.reader.read_pod_status

    async def read_pod_status(parts: PodParts) -> PodStatus:
        if parts.uid != "new":
            await trio.sleep_forever()
        return await read(parts)

    monkeypatch.setattr(world.reader, "read_pod_status", read_pod_status)
    for number in range(40):
        world.add_pod(f"p{number}")
    async with world.running():
        await world.events_for(100)
        world.add_pod("new")
        assert "new" in {event.pod_uid for event in await world.events_for(2)}


async def test_many_hung_pods_do_not_starve_the_others(autojump_clock: Clock) -> None:
    world = World(limits=LookLimits(parallel=4, parallel_retries=2, deadline=1))
    world.fault(Fault(Kind.HANG, "*Status", count=200))
    for number in range(40):
        world.add_pod(f"p{number}")
    async with world.running():
        await world.events_for(11)  # every pod has been tried, nearly all in vain
        world.add_pod("new")
        world.service.faults.clear()
        assert "new" in {event.pod_uid for event in await world.events_for(3)}
        await world.events_for(60)
        assert world.known() == world.truth()


async def test_a_failed_look_tells_the_change_again(autojump_clock: Clock) -> None:
    world = World()
    world.fault(Fault(Kind.FAIL, "PodSandboxStatus", count=3))
    world.add_pod("a")
    async with world.running():
        events = await world.events_for(10)
        assert by_type(events, STARTED) == {world.sandboxes["a"], *world.containers["a"]}


async def test_an_error_is_told_until_the_next_look_that_finds_all_as_it_was(autojump_clock: Clock) -> None:
    world = World(duration=RelistDuration(period=3600.0))
    world.add_pod("a")
    async with world.running():
        await trio.sleep(2)
        asked = trio.current_time()
        await trio.sleep(1)
        world.fault(Fault(Kind.FAIL, "ListContainers", count=1, code="UNAVAILABLE"))
        await world.pleg.update_one("a")
        with pytest.raises(InspectionFailed):
            world.cache.known_newer_than("a", asked)
        await trio.sleep(2)
        assert world.cache.known_newer_than("a", asked) is not None
        assert world.known() == world.truth()


@pytest.mark.parametrize("capacity", [1, 1000])
async def test_nothing_is_discarded_while_the_consumer_pauses(autojump_clock: Clock, capacity: int) -> None:
    world = World(capacity=capacity)
    for number in range(1000):
        world.add_pod(f"p{number}", 4)
    async with world.running():
        await world.events_for(20)
        for number in range(1000):
            world.kill(f"p{number}")
        await trio.sleep(60)  # nobody reads
        assert world.pleg.healthy() is None  # a full channel is lag, not ill health
        events = await world.events_for(60)
    died = by_type(events, DIED)
    assert died == {c for ids in world.containers.values() for c in ids}
    assert len(events) == 4000  # told once each


async def test_the_events_of_a_pod_come_in_one_turn() -> None:
    send, receive = trio.open_memory_channel[PodLifecycleEvent](10)
    outbox = Outbox(send)
    events = [PodLifecycleEvent("uid", STARTED, f"c{n}") for n in range(3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        outbox.put(events)
        assert await receive.receive() == events[0]
        assert [receive.receive_nowait(), receive.receive_nowait()] == events[1:]
        nursery.cancel_scope.cancel()


async def test_an_unhealthy_pleg_with_a_full_channel_still_drains(autojump_clock: Clock) -> None:
    world = World(capacity=1, duration=RelistDuration(period=1, threshold=30))
    for number in range(10):
        world.add_pod(f"p{number}")
    async with world.running():
        await trio.sleep(5)
        world.fault(Fault(Kind.FAIL, "List*"))
        await trio.sleep(60)
        assert (world.pleg.healthy() or "").endswith("s ago; threshold is 30s")
        assert len(await world.events_for(5)) == 20
        world.service.faults.clear()
        await trio.sleep(10)
        assert world.pleg.healthy() is None


async def test_health_before_the_first_relist(autojump_clock: Clock) -> None:
    world = World()
    world.fault(Fault(Kind.FAIL, "List*"))
    async with world.running():
        await trio.sleep(10)
        assert world.pleg.healthy() == "pleg has yet to be successful"


async def test_a_relist_that_failed_is_made_again_soon_though_they_are_rare(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        world.pleg.update(RelistDuration(period=300))
        await trio.sleep(200)
        world.add_pod("a")
        world.fault(Fault(Kind.FAIL, "ListPodSandbox"))
        await trio.sleep(105)
        world.service.faults.clear()
        assert await world.events_for(6)


async def test_a_pod_is_seen_right_after_its_sync(autojump_clock: Clock) -> None:
    world = World(duration=RelistDuration(period=100))
    async with world.running():
        await trio.sleep(10)
        world.add_pod("a")
        acted = trio.current_time()
        await trio.sleep(0.001)
        await world.pleg.update_one("a")
        status = await world.cache.get_newer_than("a", acted)
        assert trio.current_time() - acted < 0.01
        assert len(status.containers) == 1
        # A look that finds nothing new reads no statuses, and is news all the same.
        calls = dict(world.service.calls)
        acted = trio.current_time()
        await trio.sleep(0.001)
        await world.pleg.update_one("a")
        assert await world.cache.get_newer_than("a", acted) == status
        assert trio.current_time() - acted < 0.01
        assert world.service.calls.get("ContainerStatus") == calls.get("ContainerStatus")


async def test_only_what_changed_is_read_again(autojump_clock: Clock) -> None:
    """A pod of ten containers that start one by one is ten statuses, not 55; asked to, all are read."""
    world = World()
    async with world.running():
        world.add_pod("a", 1)
        await trio.sleep(2)
        for number in range(1, 10):
            world.add_container("a", f"c{number}")
            await trio.sleep(2)
        assert world.service.calls["ContainerStatus"] == 10
        assert world.known() == world.truth()
        world.sim.kill(world.containers["a"][3], world.service.now_ns())
        await trio.sleep(2)
        assert world.service.calls["ContainerStatus"] == 11
        assert world.known() == world.truth()
        await world.pleg.update_one("a", inspect=True)
        assert world.service.calls["ContainerStatus"] == 21
        world.pleg.request_look("a", inspect=True)
        await world.pleg.update_one("a")  # of another, who is content with less
        assert world.service.calls["ContainerStatus"] == 31


async def test_a_look_that_is_under_way_is_that_of_its_lists(autojump_clock: Clock) -> None:
    """Who has acted later needs another one."""
    world = World()
    world.add_pod("a")
    async with world.running():
        await trio.sleep(2.5)
        acted = trio.current_time()
        world.kill("a")
        world.fault(Fault(method="ContainerStatus", kind=Kind.SLOW, seconds=5, count=1))
        assert not world.pleg.is_look_coming("a", acted)
        await trio.sleep(1)
        assert world.pleg.is_look_coming("a", acted)
        assert not world.pleg.is_look_coming("a", trio.current_time())
        assert not world.pleg.is_look_coming("b", acted)


@pytest.mark.parametrize(
    ("seen", "ready", "known", "kept"),
    [
        (("2",), False, ("1",), ("2",)),
        ((), False, ("1",), ("1",)),
        ((), True, ("1",), ()),
        ((), False, None, ()),
    ],
)
def test_the_addresses_of_a_pod_outlive_its_sandbox(
    seen: tuple[str, ...], ready: bool, known: tuple[str, ...] | None, kept: tuple[str, ...]
) -> None:
    pod = PodStatus(uid="u", name="n", namespace="ns")
    old, new = (
        SandboxStatus(id=id, name="n", namespace="ns", uid="u", attempt=0, ready=ready, created_at_ns=0)
        for id, ready in (("old", False), ("new", ready))
    )
    before = None if known is None else replace(pod, ips=known)
    assert keep_ips(replace(pod, ips=seen, sandboxes=(new, old)), before).ips == kept


async def test_a_look_says_which_sandboxes_are_ready_unless_all_is_to_be_read(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, ready = World(), list[Sequence[str]]()
    read = world.reader.read_pod_status

    async def reads(parts: PodParts) -> PodStatus:
        ready.append(parts.ready)
        return await read(parts)

    monkeypatch.setattr(world.reader, "read_pod_status", reads)
    async with world.running():
        world.add_pod("a")
        await world.pleg.update_one("a")
        await world.pleg.update_one("a", inspect=True)
        world.sim.stop_sandbox(world.sandboxes["a"], world.service.now_ns())
        await world.pleg.update_one("a")
        assert [tuple(ids) for ids in ready] == [(world.sandboxes["a"],), (), ()]


async def test_a_slow_runtime_is_not_asked_the_same_again_and_again(autojump_clock: Clock) -> None:
    """Slow lists overtake the looks, which then go round again; they read nothing twice."""
    world = World()
    world.fault(Fault(Kind.SLOW, "List*", seconds=1.5), Fault(Kind.SLOW, "*Status", seconds=1.5))
    async with world.running():
        world.add_pod("a", 0)
        for number in range(20):
            world.add_container("a", f"c{number}")
            world.pleg.request_look("a")
            await trio.sleep(2)
        await trio.sleep(20)
        assert world.known() == world.truth()
        assert world.service.calls["ContainerStatus"] == 20


async def test_lists_that_agree_send_no_look_round_again(autojump_clock: Clock) -> None:
    """Else a slow runtime, always amid a relist, would be asked about its pods for ever."""
    world = World()
    for number in range(100):
        world.add_pod(f"p{number}", 2)
    async with world.running():
        await trio.sleep(10)
        world.fault(Fault(Kind.SLOW, "ListPodSandbox", seconds=3.0), Fault(Kind.SLOW, "*Status", seconds=2.0))
        for number in range(100):
            world.sim.kill(world.containers[f"p{number}"][0], world.service.now_ns())
            world.pleg.request_look(f"p{number}")
        before = world.service.calls["PodSandboxStatus"]
        await trio.sleep(60)
        assert world.known() == world.truth()
        assert world.service.calls["PodSandboxStatus"] - before == 100


async def test_a_look_that_goes_round_again_tells_each_event_once(autojump_clock: Clock) -> None:
    world = World(duration=RelistDuration(period=3600.0))
    async with world.running():
        world.add_pod("a", 2)
        world.pleg.request_look("a")
        await world.events_for(2)
        world.fault(Fault(Kind.SLOW, "*Status", seconds=1.5))
        first, second = world.containers["a"]
        world.sim.kill(first, world.service.now_ns())
        for number in range(10):
            if number == 5:
                world.sim.kill(second, world.service.now_ns())
            world.pleg.request_look("a")
            await trio.sleep(1)
        told = [event.data for event in await world.events_for(10) if event.type is DIED]
        assert sorted(told) == sorted([first, second])
        assert world.known() == world.truth()


async def test_the_metrics_follow(autojump_clock: Clock) -> None:
    world = World()
    for number in range(3):
        world.add_pod(f"p{number}", 2)
    async with world.running():
        await trio.sleep(2)
        assert world.metrics.running_pods._value.get() == 3
        assert world.metrics.running_containers.labels("running")._value.get() == 6
        world.kill("p0")
        await trio.sleep(2)
        assert world.metrics.running_containers.labels("running")._value.get() == 4
        assert world.metrics.running_containers.labels("exited")._value.get() == 2


async def test_relists_are_counted_from_the_last_one_that_succeeded(autojump_clock: Clock) -> None:
    """And the relist of one pod has a histogram of its own."""
    world = World()
    world.add_pod("a")
    async with world.running():
        await trio.sleep(0.5)
        interval = world.metrics.relist_interval
        world.fault(Fault(Kind.FAIL, "List*"))
        await trio.sleep(3.2)
        seen = interval._sum.get()
        await trio.sleep(1.2)
        assert interval._sum.get() - seen > 3  # not one second more, but all since the last good one
        assert world.metrics.pod_relist_duration._sum.get() == 0
    world = World()
    world.add_pod("a")
    async with world.running():
        await world.pleg.update_one("uid-a")
        counts = [bucket.get() for bucket in world.metrics.pod_relist_duration._buckets]
        assert sum(counts) == 1


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_a_look_raises_stays_with_its_pod(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """It is repeated with back-off, others are looked at, and what happened is told when it succeeds."""
    world, bad = World(), [True]
    read = world.reader.read_pod_status

    async def reads(parts: PodParts) -> PodStatus:
        if parts.uid == "bad" and bad[0]:
            raise SHAPES[shape]()
        return await read(parts)

    monkeypatch.setattr(world.reader, "read_pod_status", reads)
    async with world.running():
        world.add_pod("bad")
        world.add_pod("good")
        await trio.sleep(5)
        assert world.cache.get("good") is not None
        world.kill("good")
        assert by_type(await world.events_for(5), DIED) == set(world.containers["good"])
        bad[0] = False
        told = await world.events_for(60)
        assert by_type(told, STARTED) == {world.sandboxes["bad"], *world.containers["bad"]}
        assert world.known() == world.truth()


async def test_who_asks_for_a_pod_while_the_runtime_is_away_is_told_as_soon_as_it_is_back(
    autojump_clock: Clock,
) -> None:
    """Not that it was away, after which a worker would leave the pod alone for a while. However long looks
    have failed, it is not their pause that is waited for.
    """
    world = World(limits=LookLimits(retries=Pauses(100.0, 100.0)))
    world.add_pod("a")
    async with world.running() as nursery:
        await world.events_for(1)
        world.fault(Fault(Kind.FAIL, "*", code="UNAVAILABLE"))
        await trio.sleep(5)
        asked = trio.current_time()
        told: list[tuple[float, PodStatus]] = []

        async def ask() -> None:
            await world.pleg.update_one("a")
            told.append((trio.current_time(), await world.cache.get_newer_than("a", asked)))

        nursery.start_soon(ask)
        await trio.sleep(115)
        assert told == []
        world.service.faults.clear()
        back = trio.current_time()
        await trio.sleep(30)
        [(moment, status)] = told
        assert status == world.cache.get("a")
        assert moment - back <= 5

"""The feed: one look for all readers, promptly, and none while nobody reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from tests.nodepage.nodes import FakeNode, container_status, facts
from trio_kubelet.common.clock import TrioClock
from trio_kubelet.cri.caller import CallMetrics
from trio_kubelet.grpc.errors import Code
from trio_kubelet.kube.metrics import RequestMetrics
from trio_kubelet.nodepage.charts import Charts, Tally, Turns, rates
from trio_kubelet.nodepage.doors import LogTail, Use
from trio_kubelet.nodepage.feed import LINGER, Feed, Reader
from trio_kubelet.nodepage.rows import PodFacts, Work
from trio_kubelet.nodepage.session import BadMessage, Session
from trio_kubelet.nodepage.shown import ShownPods
from trio_kubelet.pleg.metrics import PLEGMetrics

DEEP = b'{"a":' + b"[" * 5000  # than a decoder goes


class Client:
    """The other end of a session."""

    def __init__(self, feed: Feed) -> None:
        self._out, self._in = trio.open_memory_channel[bytes](0)
        self._asked, self._asking = trio.open_memory_channel[bytes](10)
        self.session = Session(feed, self._out.send, self._receive)

    async def _receive(self) -> bytes | None:
        try:
            return await self._asking.receive()
        except trio.EndOfChannel:
            return None

    async def ask(self, **what: Any) -> None:
        await self._asked.send(
            json.dumps({"from" if k == "number" else k: v for k, v in what.items()}).encode()
        )

    async def get(self) -> Any:
        with trio.fail_after(100):
            return json.loads(await self._in.receive())

    async def until(self, name: str) -> Any:
        """The next message that has something of that name."""
        with trio.fail_after(100):
            while name not in (message := await self.get()):
                pass
            return message

    async def told(self, uid: str, *names: str) -> Any:
        """What is told of that pod under each of these names, in whatever order."""
        found: dict[str, Any] = {}
        with trio.fail_after(100):
            while found.keys() < set(names):
                message = await self.get()
                found |= {name: of for name, of in message.items() if name in names and of["uid"] == uid}
        return found

    def leave(self) -> None:
        self._asked.close()


class Stuck(FakeNode):
    """On which use cannot be measured, and no log read, for the time being."""

    def __init__(self, pods: int) -> None:
        super().__init__(pods)
        self.goes_on = trio.Event()

    async def use(self, uids: Sequence[str]) -> dict[str, dict[str, Use]]:
        await self.goes_on.wait()
        return await super().use(uids)

    async def log_tail(self, uid: str, container: str, previous: bool, before: LogTail | None) -> LogTail:
        await self.goes_on.wait()
        return await super().log_tail(uid, container, previous, before)


@asynccontextmanager
async def feeding(node: FakeNode) -> AsyncIterator[tuple[Feed, trio.Nursery]]:
    feed = Feed(
        node=node, shown=ShownPods({"name": "n"}), charts=Charts(CollectorRegistry()), clock=TrioClock(0)
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        yield feed, nursery
        nursery.cancel_scope.cancel()


async def reader(feed: Feed, nursery: trio.Nursery) -> Client:
    """One that has its first snapshot."""
    client = Client(feed)
    nursery.start_soon(client.session.run)
    await client.ask(number=-1)
    await client.get()
    return client


async def test_a_change_is_told_at_once_and_as_a_difference(autojump_clock: MockClock) -> None:
    node = FakeNode(20)
    async with feeding(node) as (feed, nursery):
        client = Client(feed)
        nursery.start_soon(client.session.run)
        await client.ask(number=-1)
        assert len((await client.get())["pods"]) == 20
        await trio.sleep(3)
        while "pods" in (await client.get()):
            pass
        began = trio.current_time()
        node.put(facts("pod-007", container_status("main", restarts=1)))
        message = await client.until("pods")
        assert list(message["pods"]) == ["uid-pod-007"]
        assert trio.current_time() - began <= 0.1


async def test_twenty_readers_cost_one_look(autojump_clock: MockClock) -> None:
    node = FakeNode(50)
    async with feeding(node) as (feed, nursery):
        clients = [Client(feed) for _ in range(20)]
        for client in clients:
            nursery.start_soon(client.session.run)
            await client.ask(number=-1)
            await client.get()
        await trio.sleep(3)
        looks = node.looks
        node.put(facts("pod-001", container_status("main", restarts=1)))
        for client in clients:
            await client.until("pods")
        assert node.looks == looks + 1


async def test_an_event_that_comes_when_nobody_reads_any_more_keeps_its_place(
    autojump_clock: MockClock,
) -> None:
    async with feeding(FakeNode(1)) as (feed, _):
        looker = Reader()
        await feed.join(looker)
        await trio.sleep(0.5)
        feed.leave(looker)
        await trio.sleep(LINGER)
        for reason in ("Killing", "Pulled", "Started"):
            feed.event({"reason": reason})
            await trio.sleep(5)
        await feed.join(Reader())
        said = json.loads(feed.shown.snapshot())["events"]
        assert [event["reason"] for event in said] == ["Killing", "Pulled", "Started"]


async def test_readers_who_come_together_cost_one_look(autojump_clock: MockClock) -> None:
    node = FakeNode(100)
    async with feeding(node) as (feed, nursery):
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(20):
            nursery.start_soon(feed.join, Reader())
        await trio.testing.wait_all_tasks_blocked()
        assert node.looks == 200  # and one for what changed meanwhile without a word


async def test_what_changes_while_the_first_reader_comes_is_told_at_once(autojump_clock: MockClock) -> None:
    class Busy(FakeNode):
        """Of which a pod changes while the last one is looked at."""

        def facts(self, uid: str) -> PodFacts | None:
            if uid == "uid-pod-099" and self.pods["uid-pod-000"].pod.metadata.labels is None:
                changed = facts("pod-000", container_status("main", restarts=1))
                changed.pod.metadata.labels = {}
                self.put(changed)
            return super().facts(uid)

    node = FakeNode(100)
    async with feeding(node) as (feed, nursery):
        (await reader(feed, nursery)).leave()
        await trio.sleep(61.2)  # it has just ceased to look
        node.__class__ = Busy
        await feed.join(Reader())
        await trio.sleep(0.1)
        assert feed.shown.rows["uid-pod-000"].restarts == 1


async def test_what_nobody_tells_of_is_found_within_ten_seconds(autojump_clock: MockClock) -> None:
    node = FakeNode(3)
    async with feeding(node) as (feed, nursery):
        client = await reader(feed, nursery)
        node.put(facts("new"), tell=False)
        node.drop("uid-pod-001")
        began = trio.current_time()
        message = await client.until("gone")
        assert message["gone"] == ["uid-pod-001"]
        assert list(message["pods"]) == ["uid-new"]
        assert trio.current_time() - began < 12


async def test_a_round_at_another_step_is_told_within_a_second(autojump_clock: MockClock) -> None:
    node = FakeNode(3)
    async with feeding(node) as (feed, nursery):
        client = await reader(feed, nursery)
        for step in ("volumes", ""):
            node.steps = {"uid-pod-001": step} if step else {}
            node.put(facts("pod-001", work=Work(stage="syncing", step=step)), tell=False)
            began = trio.current_time()
            message = await client.until("pods")
            assert bool(message["pods"]["uid-pod-001"].get("waits")) is bool(step)
            assert trio.current_time() - began < 1.5


async def test_while_nothing_happens_no_pod_is_looked_at(autojump_clock: MockClock) -> None:
    node = FakeNode(500)
    node.used = {"main": Use(0, 4096)}
    async with feeding(node) as (feed, nursery):
        client = await reader(feed, nursery)
        await client.ask(see=["uid-pod-001"])
        await client.until("use")
        looks, stamps = node.looks, node.stamps
        began = trio.current_time()
        while trio.current_time() < began + 100:
            message = await client.get()
            assert message.keys() <= {"n", "points"}
        assert node.looks == looks
        assert node.stamps - stamps <= 11 * 500


async def test_nothing_is_looked_at_while_nobody_reads_and_all_is_true_for_the_next(
    autojump_clock: MockClock,
) -> None:
    node = FakeNode(3)
    async with feeding(node) as (feed, nursery):
        first = Client(feed)
        nursery.start_soon(first.session.run)
        await first.ask(number=-1)
        number = (await first.get())["n"]
        first.leave()
        await trio.sleep(200)
        looks = node.looks
        node.put(facts("pod-001", container_status("main", restarts=5)))
        node.drop("uid-pod-002")
        feed.event({"reason": "Killing"})
        for count in range(1, 1000):
            feed.event({"reason": "BackOff", "count": count})
        await trio.sleep(100)
        assert node.looks == looks
        second = Client(feed)
        nursery.start_soon(second.session.run)
        await second.ask(number=number, life=feed.shown.life)
        snapshot = await second.get()
        assert sorted(snapshot["pods"]) == ["uid-pod-000", "uid-pod-001"]
        assert snapshot["pods"]["uid-pod-001"]["restarts"] == 5
        assert snapshot["events"] == [{"reason": "Killing"}, {"reason": "BackOff", "count": 999}]
        assert snapshot["points"]


async def test_a_reader_that_comes_back_soon_goes_on(autojump_clock: MockClock) -> None:
    node = FakeNode(3)
    async with feeding(node) as (feed, nursery):
        first = Client(feed)
        nursery.start_soon(first.session.run)
        await first.ask(number=-1)
        snapshot = await first.get()
        first.leave()
        await trio.sleep(5)
        node.put(facts("pod-001", container_status("main", restarts=5)))
        second = Client(feed)
        nursery.start_soon(second.session.run)
        await second.ask(number=snapshot["n"], life=snapshot["life"])
        while True:
            message = await second.get()
            assert "life" not in message
            if "pods" in message:
                break


async def test_a_reader_that_takes_nothing_holds_up_nobody(autojump_clock: MockClock) -> None:
    node = FakeNode(3)
    async with feeding(node) as (feed, nursery):
        stuck, lively = Client(feed), Client(feed)
        for client in (stuck, lively):
            nursery.start_soon(client.session.run)
            await client.ask(number=-1)
        await lively.get()
        for restarts in range(1, 40):
            node.put(facts("pod-001", container_status("main", restarts=restarts)))
            message = await lively.until("pods")
            assert message["pods"]["uid-pod-001"]["restarts"] == restarts
        assert "life" in await stuck.get()


async def test_only_pods_in_view_are_measured(autojump_clock: MockClock) -> None:
    node = FakeNode(30)
    node.used = {"main": Use(12, 4096)}
    async with feeding(node) as (feed, nursery):
        client = Client(feed)
        nursery.start_soon(client.session.run)
        await client.ask(number=-1)
        await client.ask(see=["uid-pod-001", "uid-pod-002"])
        message = await client.until("use")
        assert message["use"] == {
            uid: {"main": {"cpu": 12, "memory": 4096}} for uid in ("uid-pod-001", "uid-pod-002")
        }
        await client.ask(see=[f"uid-{number}" for number in range(5000)])
        await trio.sleep(6)
        assert max(map(len, node.asked_use)) <= 80


async def test_use_that_cannot_be_measured_holds_up_nothing(autojump_clock: MockClock) -> None:
    """A page without a word for 15 seconds takes the node for silent."""
    node = Stuck(2)
    async with feeding(node) as (feed, nursery):
        client = await reader(feed, nursery)
        await client.ask(see=["uid-pod-001"])
        began = trio.current_time()
        for _ in range(10):
            assert (await client.until("points"))["points"]
        assert trio.current_time() - began < 40
        node.used = {"main": Use(12, 4096)}
        node.goes_on.set()
        assert (await client.until("use"))["use"] == {"uid-pod-001": {"main": {"cpu": 12, "memory": 4096}}}


async def test_a_feed_that_is_started_anew_measures_again(autojump_clock: MockClock) -> None:
    """What ended it may have come while use was being measured, or of that."""
    node = Stuck(2)
    node.used = {"main": Use(12, 4096)}
    feed = Feed(
        node=node, shown=ShownPods({"name": "n"}), charts=Charts(CollectorRegistry()), clock=TrioClock(0)
    )
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(10):
            async with trio.open_nursery() as first:
                first.start_soon(feed.run)
                client = await reader(feed, nursery)
                await client.ask(see=["uid-pod-001"])
                while True:
                    await client.get()
        node.goes_on.set()
        nursery.start_soon(feed.run)
        assert (await client.until("use"))["use"] == {"uid-pod-001": {"main": {"cpu": 12, "memory": 4096}}}
        nursery.cancel_scope.cancel()


async def test_where_a_reader_compares_all_pods_all_are_measured(autojump_clock: MockClock) -> None:
    node = FakeNode(500)
    async with feeding(node) as (feed, nursery):
        client = await reader(feed, nursery)

        async def look_on(seconds: float) -> None:
            began = trio.current_time()
            while trio.current_time() < began + seconds:
                await client.get()

        await client.ask(see=["uid-pod-001"], compare=True)
        await look_on(20)
        node.asked_use.clear()
        await look_on(100)
        assert {len(uids) for uids in node.asked_use} == {500}
        assert 8 <= len(node.asked_use) <= 11
        await client.ask(see=["uid-pod-001"])
        await look_on(20)
        assert node.asked_use[-1] == ["uid-pod-001"]


async def test_many_readers_of_different_pods_cost_no_more_than_a_few(autojump_clock: MockClock) -> None:
    node = FakeNode(500)
    async with feeding(node) as (feed, _):
        for first in range(0, 500, 25):
            reader = Reader()
            reader.sees = tuple(f"uid-pod-{number:03}" for number in range(first, first + 25))
            await feed.join(reader)
        await trio.sleep(20)
        node.asked_use.clear()
        await trio.sleep(100)
        assert {len(uids) for uids in node.asked_use} == {500}  # a rate needs two readings in a row
        assert 8 <= len(node.asked_use) <= 11


async def test_one_pod_in_full(autojump_clock: MockClock) -> None:
    node = FakeNode(2)
    uid = "uid-pod-001"
    node.stories[uid] = [{"at": 1, "cause": "worker", "text": "StartContainer", "count": 1}]
    node.logs[f"{uid}/main"] = "one\n"
    async with feeding(node) as (feed, nursery):
        client = Client(feed)
        nursery.start_soon(client.session.run)
        await client.ask(number=-1, open={"uid": uid, "container": "main"})
        told = await client.told(uid, "detail", "story", "log")
        assert told["detail"]["manifest"]["metadata"]["name"] == "pod-001"
        assert told["story"]["entries"] == node.stories[uid]
        assert told["log"]["text"] == "one\n"
        node.logs[f"{uid}/main"] = "one\ntwo\n"
        assert (await client.until("log"))["log"]["text"] == "one\ntwo\n"
        await client.ask(open=None)
        await trio.sleep(2)
        node.logs[f"{uid}/main"] = "three\n"
        with trio.move_on_after(30) as scope:
            await client.until("log")
        assert scope.cancelled_caught


async def test_a_log_that_cannot_be_read_holds_up_nothing_else(autojump_clock: MockClock) -> None:
    node = Stuck(2)
    async with feeding(node) as (feed, nursery):
        client = await reader(feed, nursery)
        for uid in node.pods:
            began = trio.current_time()
            await client.ask(open={"uid": uid, "container": "main"})
            await client.told(uid, "detail", "story")
            assert trio.current_time() - began < 1
        node.logs[f"{uid}/main"] = "one\n"
        node.goes_on.set()
        assert (await client.told(uid, "log"))["log"]["text"] == "one\n"


async def test_a_log_that_cannot_be_read_holds_up_no_other_log(autojump_clock: MockClock) -> None:
    """Nor is it told once it can be: the reader is elsewhere."""
    node = Stuck(2)
    hung, other = node.pods
    node.logs[f"{other}/main"] = "one\n"
    async with feeding(node) as (feed, nursery):
        client = await reader(feed, nursery)
        await client.ask(open={"uid": hung, "container": "main"})
        await client.told(hung, "detail", "story")
        stuck, node.goes_on = node.goes_on, trio.Event()
        node.goes_on.set()
        await client.ask(open={"uid": other, "container": "main"})
        began = trio.current_time()
        assert (await client.told(other, "log"))["log"]["text"] == "one\n"
        assert trio.current_time() - began < 1
        stuck.set()


async def test_while_nothing_is_written_a_log_is_not_told_and_seldom_looked_at(
    autojump_clock: MockClock,
) -> None:
    node = FakeNode(2)
    uid = "uid-pod-001"
    node.logs[f"{uid}/main"] = "one\n"
    async with feeding(node) as (feed, nursery):
        client = await reader(feed, nursery)
        await client.ask(open={"uid": uid, "container": "main"})
        await client.told(uid, "detail", "story", "log")
        node.tails.clear()
        began = trio.current_time()
        while trio.current_time() < began + 100:
            assert (await client.get()).keys().isdisjoint({"detail", "story", "log"})
        assert {before.text for before in node.tails if before is not None} == {"one\n"}
        assert None not in node.tails
        assert len(node.tails) <= 55
        node.logs[f"{uid}/main"] = "one\ntwo\n"
        began = trio.current_time()
        assert (await client.until("log"))["log"]["text"] == "one\ntwo\n"
        assert trio.current_time() <= began + 2


async def test_a_pod_that_is_opened_again_is_told_again(autojump_clock: MockClock) -> None:
    """The page has forgotten it, even where it went to another and back before that was told."""
    node = FakeNode(2)
    uid = "uid-pod-000"
    mine, other = {"uid": uid, "container": "main"}, {"uid": "uid-pod-001", "container": "main"}
    node.logs[f"{uid}/main"] = "one\n"
    async with feeding(node) as (feed, nursery):
        client = Client(feed)
        nursery.start_soon(client.session.run)

        await client.ask(number=-1, open=mine)
        assert (await client.told(uid, "detail", "story", "log"))["log"]["text"] == "one\n"
        await trio.sleep(2)
        for detour in (None, other):
            await client.ask(open=detour)
            await client.ask(open=mine)
            assert (await client.told(uid, "detail", "story", "log"))["log"]["text"] == "one\n"
            await trio.sleep(2)
        await client.ask(open={**mine, "previous": True})
        await client.ask(open=mine)
        while (await client.until("log"))["log"]["previous"]:
            pass


@pytest.mark.parametrize("said", [b"", b"[]", b'{"see": 5}', b"\xff", b'{"open": {}}', DEEP])
async def test_a_reader_that_says_nonsense_ends_alone(said: bytes, autojump_clock: MockClock) -> None:
    async with feeding(FakeNode(1)) as (feed, _):
        client = Client(feed)
        await client._asked.send(said)
        with pytest.raises(BadMessage):
            await client.session.run()
        assert not feed._readers


async def test_who_says_nothing_does_not_stay(autojump_clock: MockClock) -> None:
    async with feeding(FakeNode(1)) as (feed, _):
        with pytest.raises(trio.TooSlowError):
            await Client(feed).session.run()


def test_rates() -> None:
    before = {"relist": Tally(10, 1.0), "api": Tally(5, 1.0)}
    now = {"relist": Tally(14, 1.2), "api": Tally(5, 1.0)}
    assert rates(before, now, 2.0) == {"relist": 2.0, "relist_ms": 50.0}


def test_what_the_agent_measures_is_charted() -> None:
    """The metrics of the relist, the runtime and the API server, as those who feed them make them."""
    registry = CollectorRegistry()
    pleg, calls, requests = PLEGMetrics(registry), CallMetrics(registry), RequestMetrics(registry)
    charts = Charts(registry)
    charts.point(0)
    pleg.relist_duration.observe(0.002)
    pleg.pod_relist_duration.observe(0.001)
    pleg.event_latency.observe(0.003)
    calls("Status", 0.004, Code.OK)
    requests.request_duration.labels("GET", "api").observe(0.005)
    point = charts.point(1)
    assert point is not None
    names = ("relist", "look", "event", "runtime", "api")
    assert [point.get(f"{name}_ms") for name in names] == [2, 1, 3, 4, 5]


async def test_points_come_from_the_agents_own_metrics_and_its_loop() -> None:
    registry = CollectorRegistry()
    metrics = PLEGMetrics(registry)
    charts = Charts(registry)
    trio.lowlevel.add_instrument(charts.turns)
    try:
        assert charts.point(0) is None
        metrics.relist_duration.observe(0.25)
        await trio.sleep(0.01)
        await trio.sleep(0.01)
        point = charts.point(5_000_000)
    finally:
        trio.lowlevel.remove_instrument(charts.turns)
    assert point is not None
    assert point["at"] == 5
    assert point["relist_ms"] == 250
    assert point["turn"] > 0
    assert point["longest"] > 0


def test_turns_know_the_longest() -> None:
    turns = Turns()
    turns.after_io_wait(0)
    turns.before_io_wait(0)
    tally, longest = turns.take()
    assert tally.times == 1
    assert longest > 0
    assert turns.take()[1] == 0


def test_a_use_that_is_not_known_is_left_out() -> None:
    assert msgspec.json.encode(Use(None, 5)) == b'{"memory":5}'

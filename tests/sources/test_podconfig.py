"""PodConfig: order of deliveries, readiness, back-pressure."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.sources.pods import pod
from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import TrioClock
from trio_kubelet.podinfo.updates import PodOperation, PodUpdate
from trio_kubelet.sources.merge import Merge
from trio_kubelet.sources.podconfig import PodConfig, deliveries

Op = PodOperation


class Events:
    """Remembers the events recorded."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def record(self, pod: Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        self.seen.append((pod.metadata.uid, reason, message))


def config() -> PodConfig:
    return PodConfig(clock=TrioClock(0))


def brief(update: PodUpdate) -> tuple[PodOperation, list[str]]:
    return update.op, [each.metadata.uid for each in update.pods]


ALL_CHANGES = Merge(
    known={},
    adds=(pod("add"),),
    updates=(pod("update"),),
    deletes=(pod("delete"),),
    removes=(pod("remove"),),
    reconciles=(pod("reconcile"),),
)


@pytest.mark.parametrize(
    ("result", "first_set", "expected"),
    [
        (
            ALL_CHANGES,
            True,
            [
                (Op.REMOVE, ["remove"]),
                (Op.ADD, ["add"]),
                (Op.UPDATE, ["update"]),
                (Op.DELETE, ["delete"]),
                (Op.RECONCILE, ["reconcile"]),
            ],
        ),
        (Merge(known={}), True, [(Op.ADD, [])]),
        (Merge(known={}), False, []),
        (
            Merge(known={}, removes=(pod("r"),), reconciles=(pod("c"),)),
            True,
            [(Op.REMOVE, ["r"]), (Op.ADD, []), (Op.RECONCILE, ["c"])],
        ),
    ],
)
def test_deliveries(result: Merge, first_set: bool, expected: list[tuple[PodOperation, list[str]]]) -> None:
    got = deliveries(result, "file", first_set=first_set)
    assert [brief(update) for update in got] == expected


async def test_sources_are_merged_on_their_own(autojump_clock: trio.testing.MockClock) -> None:
    merged = config()
    file, api = merged.channel("file"), merged.channel("api")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(merged.run)
        await file.send(PodUpdate(Op.SET, "file", (pod("a"),)))
        assert brief(await merged.updates().receive()) == (Op.ADD, ["a"])
        await api.send(PodUpdate(Op.SET, "api", (pod("x", "pod-a"), pod("b"))))
        update = await merged.updates().receive()
        assert (update.source, *brief(update)) == ("api", Op.ADD, ["x", "b"])
        await file.send(PodUpdate(Op.SET, "file", ()))
        assert brief(await merged.updates().receive()) == (Op.REMOVE, ["a"])
        nursery.cancel_scope.cancel()


async def test_a_source_is_ready_when_its_set_was_consumed(autojump_clock: trio.testing.MockClock) -> None:
    merged = config()
    file, _ = merged.channel("file"), merged.channel("api")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(merged.run)
        await trio.testing.wait_all_tasks_blocked()
        assert not merged.source_ready("file")
        assert merged.source_ready("http"), "a source that is not configured keeps nobody waiting"
        await file.send(PodUpdate(Op.ADD, "file", (pod("a"),)))
        await merged.updates().receive()
        merged.add_source("file")
        assert not merged.source_ready("file"), "only a SET tells everything a source wants"
        await file.send(PodUpdate(Op.SET, "file", ()))
        await merged.updates().receive()
        assert merged.source_ready("file")
        assert merged.manifests_ready(), "the API server has no manifests"
        assert not merged.all_ready()
        another = merged.channel("another of manifests")
        assert not merged.manifests_ready()
        await another.send(PodUpdate(Op.SET, "another of manifests", ()))
        while (await merged.updates().receive()).source != "another of manifests":
            pass  # what is left of the file's
        merged.add_source("another of manifests")
        assert merged.manifests_ready()
        assert merged.sources() == {"file", "api", "another of manifests"}
        nursery.cancel_scope.cancel()


async def test_an_empty_first_set_is_told(autojump_clock: trio.testing.MockClock) -> None:
    merged = config()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(merged.run)
        await trio.testing.wait_all_tasks_blocked()
        file = merged.channel("file")  # registered late, while it runs
        await file.send(PodUpdate(Op.SET, "file", ()))
        assert brief(await merged.updates().receive()) == (Op.ADD, [])
        await file.send(PodUpdate(Op.SET, "file", ()))
        assert not merged.all_ready(), "who took it has not said so"
        merged.add_source("file")
        assert merged.all_ready()
        with trio.move_on_after(5) as nothing_more:
            await merged.updates().receive()
        assert nothing_more.cancelled_caught
        nursery.cancel_scope.cancel()


async def test_a_flood_holds_up_its_own_source_only(autojump_clock: trio.testing.MockClock) -> None:
    merged = config()
    flood, quiet = merged.channel("flood"), merged.channel("quiet")
    sent = 0

    async def pour() -> None:
        nonlocal sent
        for number in range(1000):
            await flood.send(PodUpdate(Op.ADD, "flood", (pod(f"f{number}"),)))
            sent += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(merged.run)
        nursery.start_soon(pour)
        await trio.testing.wait_all_tasks_blocked()
        assert sent < 5, "nobody consumes, so the source waits"
        await quiet.send(PodUpdate(Op.SET, "quiet", (pod("q"),)))
        await trio.testing.wait_all_tasks_blocked()
        first = [(await merged.updates().receive()).source for _ in range(3)]
        assert "quiet" in first
        nursery.cancel_scope.cancel()


async def test_every_change_is_delivered_in_the_order_of_its_source(
    autojump_clock: trio.testing.MockClock,
) -> None:
    merged = config()
    names = ["one", "two", "three"]
    channels = {name: merged.channel(name) for name in names}

    async def feed(name: str) -> None:
        for number in range(50):
            await channels[name].send(PodUpdate(Op.SET, name, (pod(f"{name}-{number}", name),)))

    live: dict[str, set[str]] = {name: set() for name in names}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(merged.run)
        for name in names:
            nursery.start_soon(feed, name)
        while not all(f"{name}-49" in live[name] for name in names):
            op, uids = brief(update := await merged.updates().receive())
            if op is Op.REMOVE:
                live[update.source] -= set(uids)
            else:
                live[update.source] |= set(uids)
            assert len(live[update.source]) <= 1, "the old one goes before the new one comes"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("copy", "same"), [(pod("b", "web"), 'name "web"'), (pod("a", "copy"), 'UID "a"')], ids=["name", "UID"]
)
async def test_a_duplicate_is_an_event(copy: Pod, same: str, autojump_clock: trio.testing.MockClock) -> None:
    events = Events()
    merged = PodConfig(recorder=events, clock=TrioClock(0))
    file = merged.channel("file")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(merged.run)
        await file.send(PodUpdate(Op.SET, "file", (pod("a", "web"), copy)))
        assert brief(await merged.updates().receive()) == (Op.ADD, ["a"])
        nursery.cancel_scope.cancel()
    meta = copy.metadata
    message = f"Error validating pod {meta.name}_default({meta.uid}) from file due to duplicate pod {same}"
    message += ", ignoring"
    assert events.seen == [(meta.uid, "FailedValidation", message)]


async def test_of_a_manifest_and_an_object_of_the_server_with_one_uid_that_counts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Whichever came first; the manifest is told each time it would have been taken."""
    events = Events()
    merged = PodConfig(recorder=events, clock=TrioClock(0))
    file, api, updates = merged.channel("file"), merged.channel("api"), merged.updates()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(merged.run)
        await file.send(PodUpdate(Op.SET, "file", (pod("a", "copy"), pod("b"))))
        assert brief(await updates.receive()) == (Op.ADD, ["a", "b"])
        await api.send(PodUpdate(Op.SET, "api", (pod("a", "web"), pod("c"))))
        assert brief(await updates.receive()) == (Op.REMOVE, ["a"])
        assert brief(await updates.receive()) == (Op.ADD, ["a", "c"])
        await file.send(PodUpdate(Op.SET, "file", (pod("a", "copy", image="other"), pod("b"))))
        assert brief(await updates.receive()) == (Op.UPDATE, [])
        await api.send(PodUpdate(Op.SET, "api", (pod("a", "web", image="newer"), pod("c"))))
        assert brief(await updates.receive()) == (Op.UPDATE, ["a"])
        await api.send(PodUpdate(Op.REMOVE, "api", (pod("a", "web"),)))
        assert brief(await updates.receive()) == (Op.REMOVE, ["a"])
        given = await updates.receive()
        assert (given.source, *brief(given)) == ("file", Op.ADD, ["a"])
        assert given.pods[0].spec.containers is not None
        assert given.pods[0].spec.containers[0].image == "other"
        await api.send(PodUpdate(Op.ADD, "api", (pod("a", "web"),)))
        await updates.receive()
        await updates.receive()
        await file.send(PodUpdate(Op.SET, "file", (pod("b"),)))
        assert brief(await updates.receive()) == (Op.REMOVE, [])
        await api.send(PodUpdate(Op.REMOVE, "api", (pod("a", "web"),)))
        assert brief(await updates.receive()) == (Op.REMOVE, ["a"])
        with pytest.raises(trio.WouldBlock):
            updates.receive_nowait()
        nursery.cancel_scope.cancel()
    message = 'Error validating pod copy_default(a) from file due to duplicate pod UID "a", ignoring'
    assert events.seen == [("a", "FailedValidation", message)] * 3


async def test_of_manifests_of_two_sources_with_one_uid_the_first_counts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """They were taken for one pod, which ended when either of them went."""
    events = Events()
    merged = PodConfig(recorder=events, clock=TrioClock(0))
    file, http, api = (merged.channel(source) for source in ("file", "http", "api"))
    updates = merged.updates()

    def manifest(source: str, image: str = "busybox") -> PodUpdate:
        return PodUpdate(Op.SET, source, (pod("a", source, image=image),))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(merged.run)

        async def told() -> tuple[str, PodOperation, list[str]]:
            update = await updates.receive()
            return update.source, update.op, [each.metadata.name for each in update.pods]

        await file.send(manifest("file"))
        assert await told() == ("file", Op.ADD, ["file"])
        await http.send(manifest("http"))
        assert await told() == ("http", Op.ADD, [])
        await http.send(manifest("http", "other"))
        assert await told() == ("http", Op.UPDATE, [])
        await api.send(PodUpdate(Op.SET, "api", (pod("a", "web"),)))
        assert await told() == ("file", Op.REMOVE, ["file"])
        assert await told() == ("api", Op.ADD, ["web"])
        await api.send(PodUpdate(Op.SET, "api", ()))
        assert await told() == ("api", Op.REMOVE, ["web"])
        assert await told() == ("file", Op.ADD, ["file"])
        await file.send(PodUpdate(Op.SET, "file", ()))
        assert await told() == ("file", Op.REMOVE, ["file"])
        assert await told() == ("http", Op.ADD, ["http"])
        await file.send(manifest("file"))
        assert await told() == ("file", Op.ADD, [])
        await file.send(PodUpdate(Op.SET, "file", ()))
        assert await told() == ("file", Op.REMOVE, [])
        await http.send(PodUpdate(Op.SET, "http", ()))
        assert await told() == ("http", Op.REMOVE, ["http"])
        nursery.cancel_scope.cancel()
    message = 'Error validating pod {0}_default(a) from {0} due to duplicate pod UID "a", ignoring'
    ignored = [
        ("a", "FailedValidation", message.format(source)) for source in ("http", "http", "file", "file")
    ]
    assert events.seen == ignored


async def test_before_it_runs_no_source_is_ready() -> None:
    """All of no sources are ready, which housekeeping took for leave to clean up."""
    config = PodConfig()
    assert not config.all_ready()
    assert not config.source_ready("file")
    assert not config.manifests_ready()
    config.channel("file")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(config.run)
        await trio.testing.wait_all_tasks_blocked()
        assert not config.all_ready()
        assert config.source_ready("api")  # which is not configured
        nursery.cancel_scope.cancel()

"""What the device manager gives, tells and writes down, with plugins that do as they should."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from tests.devices.plugin_process import RESOURCE
from tests.devices.test_faults import Node, allocator_of, counts, wants
from tests.placement.giving import give
from trio_kubelet.devices.checkpoint import FILE_NAME
from trio_kubelet.devices.manager import EXPIRY_PERIOD
from trio_kubelet.devices.proto import plugin_pb2 as api
from trio_kubelet.devices.values import GRACE, Counts, Device, DevicePluginOptions
from trio_kubelet.placement.doors import AllocationError

Clock = trio.testing.MockClock

WAITING = "Waiting for pods to end that have what this one asks for"


class Plugin:
    """Implements `DevicePlugin`."""

    def __init__(self) -> None:
        self.asked: list[Sequence[str]] = []

    async def options(self) -> DevicePluginOptions:
        return DevicePluginOptions()

    async def watch(self, listed: Callable[[Sequence[Device]], None]) -> None:
        raise AssertionError("the tests tell the devices")

    async def preferred(
        self, available: Collection[str], must_include: Collection[str], size: int
    ) -> Sequence[str]:
        raise AssertionError("it did not ask for it")

    async def allocate(self, devices: Sequence[str]) -> bytes | None:
        await trio.lowlevel.checkpoint()
        self.asked.append(devices)
        return api.ContainerAllocateResponse().SerializeToString()

    async def pre_start(self, devices: Sequence[str]) -> None:
        raise AssertionError("it did not ask for it")


async def plug(node: Node, *devices: Device) -> Plugin:
    """A plugin registers, and lists these devices."""
    plugin = Plugin()
    await node.manager.inventory.connect(RESOURCE, plugin)
    node.manager.inventory.listed(RESOURCE, plugin, devices)
    return plugin


@asynccontextmanager
async def writing(node: Node) -> AsyncIterator[None]:
    """What is given is written down meanwhile."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.manager.run)
        yield
        nursery.cancel_scope.cancel()


async def test_a_resource_without_plugin_stays_on_the_node_for_a_while(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    node = Node(tmp_path)
    plugin = await plug(node, Device("a"), Device("b"))
    async with writing(node):
        await node.give("one", 1)
        changes = node.changes
        node.manager.inventory.disconnect(RESOURCE, plugin)
        assert node.changes == changes + 1, "the Node is told"
        assert counts(node) == (2, 0)
        assert node.manager.least_allocatable() == {RESOURCE: 1}, "what a pod has counts"
        await trio.sleep(GRACE - 1)
        assert counts(node) == (2, 0)
        await trio.sleep(EXPIRY_PERIOD + 2)
        assert node.manager.counts() == Counts(removed=frozenset({RESOURCE}))
        assert node.changes == changes + 2
        with pytest.raises(AllocationError, match=f"cannot allocate unregistered device {RESOURCE}"):
            await node.give("two", 1)
        await plug(node, Device("a"))
        assert node.manager.counts() == Counts({RESOURCE: 1}, {RESOURCE: 1})


async def test_a_pod_is_admitted_when_what_it_has_is_written_down(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    node = Node(tmp_path)
    await plug(node, Device("a"))
    async with writing(node):
        await node.give("one", 1)
        assert "uid-one" in (tmp_path / FILE_NAME).read_text()


async def test_devices_of_pods_that_are_over_are_given_to_others(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    node = Node(tmp_path)
    await plug(node, Device("a"))
    async with writing(node):
        assert await node.give("one", 1) == {"a"}
        with pytest.raises(AllocationError, match=r"Requested: 1, Available: 0"):
            await node.give("two", 1)
        node.pods.clear()
        assert await node.give("three", 1) == {"a"}
        assert not node.manager.has_devices("uid-one")


async def test_devices_of_a_pod_nobody_wants_are_free_when_it_has_ended(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    node = Node(tmp_path)
    await plug(node, Device("dev-0", True, ()))
    async with writing(node):
        devices = await node.give("gone", 1)
        node.pods.clear()  # its manifest was removed, or it was deleted by force
        node.running.add("uid-gone")
        with pytest.raises(AllocationError, match="unavailable"):
            await node.give("next", 1)
        assert node.manager.leaving() == {"uid-gone"}
        node.running.clear()
        assert node.manager.leaving() == frozenset()
        assert await node.give("next", 1) == devices


async def test_a_pod_waits_for_what_one_that_nobody_wants_still_has(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    node = Node(tmp_path)
    await plug(node, Device("dev-0", True, ()))
    allocator = allocator_of(node)
    ends = 40.0

    async def end() -> None:
        await trio.sleep(ends)
        node.running.clear()

    async with writing(node), trio.open_nursery() as nursery:
        await node.give("old", 1)
        node.running.add("uid-old")
        pod, _ = wants("new", 1)
        node.pods = [pod]
        nursery.start_soon(end)
        assert await allocator.allocate(pod) is None
        assert trio.current_time() == pytest.approx(ends, abs=1)
        assert node.events == [("new", "Normal", "WaitingForPodsToEnd", WAITING)]
        other, _ = wants("other", 1)
        node.pods.append(other)
        refused = await allocator.allocate(other)
        assert refused is not None, "nobody ends who has one"
        assert refused[0] == "UnexpectedAdmissionError"


async def test_a_pod_that_asks_for_another_number_is_refused_and_has_no_hints(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    node = Node(tmp_path)
    await plug(node, *(Device(id, nodes=(0,)) for id in "abc"))
    async with writing(node):
        await node.give("one", 2)
        less = wants("one", 1)
        with pytest.raises(AllocationError) as caught:
            await give(node.manager, *less, None)
    assert str(caught.value) == (
        f'pod "uid-one" container "main" changed request for resource "{RESOURCE}" from 2 to 1'
    )
    assert node.manager.hints(*less) == node.manager.pod_hints(less[0]) == {RESOURCE: []}


async def test_hints_are_for_what_is_free_or_what_the_pod_has(tmp_path: Path, autojump_clock: Clock) -> None:
    node = Node(tmp_path)
    await plug(node, Device("a", nodes=(0,)), Device("b", nodes=(1,)), Device("c", nodes=(1,)))
    async with writing(node):
        assert await node.give("one", 1) == {"a"}
    for name, number, hints in (
        ("one", 1, [(0b01, True), (0b11, False)]),
        ("two", 1, [(0b10, True), (0b11, False)]),
        ("two", 2, [(0b10, True), (0b11, False)]),
        ("two", 3, []),
    ):
        pod, container = wants(name, number)
        assert node.manager.hints(pod, container) == {RESOURCE: hints}
        assert node.manager.pod_hints(pod) == {RESOURCE: hints}


@pytest.mark.parametrize("scope", ["container", "pod"])
async def test_what_pods_have_that_are_over_is_free_for_hints(
    tmp_path: Path, autojump_clock: Clock, scope: str
) -> None:
    node = Node(tmp_path)
    await plug(node, Device("a", nodes=(0,)))
    pod, container = wants("two", 1)
    async with writing(node):
        await node.give("one", 1)
        for hints in ([], [(0b1, True)]):
            found = node.manager.pod_hints(pod) if scope == "pod" else node.manager.hints(pod, container)
            assert found == {RESOURCE: hints}
            node.pods.clear()


async def test_devices_that_are_near_no_node_have_no_hints(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await plug(node, Device("a"))
    pod, container = wants("one", 1)
    assert node.manager.hints(pod, container) == node.manager.pod_hints(pod) == {RESOURCE: None}


async def test_the_health_of_what_a_container_has(tmp_path: Path, autojump_clock: Clock) -> None:
    node = Node(tmp_path)
    plugin = await plug(node, Device("a"), Device("b"))
    async with writing(node):
        await node.give("one", 1)
        assert node.manager.health("uid-one", "main") == {RESOURCE: {"a": True}}
        node.manager.inventory.listed(RESOURCE, plugin, [Device("a", healthy=False), Device("b")])
        assert node.sick == [{"uid-one"}]
        assert node.manager.health("uid-one", "main") == {RESOURCE: {"a": False}}
        node.manager.inventory.listed(RESOURCE, plugin, [Device("b")])
        assert node.manager.health("uid-one", "main") == {RESOURCE: {"a": True}}, "nobody lists it"


async def test_a_pod_that_is_admitted_again_keeps_what_it_has_if_that_is_healthy(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    node = Node(tmp_path)
    plugin = await plug(node, Device("a"), Device("b"))
    pod, container = wants("one", 1)
    async with writing(node):
        await node.give("one", 1)
        await give(node.manager, pod, container, None)
        assert plugin.asked == [["a"]]
        node.manager.inventory.listed(RESOURCE, plugin, [Device("a", healthy=False), Device("b")])
        with pytest.raises(AllocationError, match="previously allocated devices are no longer healthy"):
            await give(node.manager, pod, container, None)


async def test_for_no_devices_no_plugin_is_asked(tmp_path: Path, autojump_clock: Clock) -> None:
    node = Node(tmp_path)
    plugin = await plug(node, Device("a"))
    pod, container = wants("none", 0)
    await give(node.manager, pod, container, None)
    assert plugin.asked == []
    assert not node.manager.has_devices("uid-none")


@pytest.mark.parametrize("restart", [None, "Always"])
async def test_what_an_init_container_had_is_for_those_after_it(
    tmp_path: Path, autojump_clock: Clock, restart: str | None
) -> None:
    """Unless it goes on running beside them."""
    node = Node(tmp_path)
    await plug(node, Device("a"))
    pod, main = wants("one", 1)
    first = msgspec.structs.replace(main, name="first", restart_policy=restart)
    pod.spec.init_containers = [first]
    node.pods.append(pod)
    async with writing(node):
        await give(node.manager, pod, first, None)
        if restart is None:
            await give(node.manager, pod, main, None)
        else:
            with pytest.raises(AllocationError, match="Requested: 1, Available: 0"):
                await give(node.manager, pod, main, None)
    of_main = node.manager.of_container("uid-one", "main")
    assert [each.devices for each in of_main.values()] == ([{"a"}] if restart is None else [])


async def test_what_an_init_container_had_goes_to_one_of_those_after_it(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    node = Node(tmp_path)
    await plug(node, Device("a"), Device("b"))
    pod, main = wants("one", 1)
    before, first, second, third = (
        msgspec.structs.replace(main, name=name) for name in ("0th", "1st", "2nd", "3rd")
    )
    pod.spec.init_containers, pod.spec.containers = [before, first], [main, second, third]
    node.pods.append(pod)
    async with writing(node):
        for container in (before, first, main, second):
            await give(node.manager, pod, container, None)
        with pytest.raises(AllocationError, match="Requested: 1, Available: 0"):
            await give(node.manager, pod, third, None)
    names = ("0th", "1st", "main", "2nd")
    had = [node.manager.of_container("uid-one", name)[RESOURCE].devices for name in names]
    assert had == [{"a"}, {"a"}, {"a"}, {"b"}]


class Choosy(Plugin):
    """It would rather give the last ones."""

    async def options(self) -> DevicePluginOptions:
        return DevicePluginOptions(preferred_allocation_available=True)

    async def preferred(
        self, available: Collection[str], must_include: Collection[str], size: int
    ) -> Sequence[str]:
        return sorted(available)[-size:]


async def test_what_a_plugin_would_rather_give_an_init_container_is_for_those_after_it(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    """Though others had been taken for all of them by then."""
    node, plugin = Node(tmp_path), Choosy()
    await node.manager.inventory.connect(RESOURCE, plugin)
    node.manager.inventory.listed(RESOURCE, plugin, [Device("a"), Device("b")])
    pod, main = wants("one", 1)
    pod.spec.init_containers = [msgspec.structs.replace(main, name="first")]
    node.pods.append(pod)
    async with writing(node):
        assert await allocator_of(node).allocate(pod) is None
        assert plugin.asked == [["b"], ["b"]]
        assert await node.give("two", 1) == {"a"}

"""Plugins that do what they should not, each a process of its own: the others are unharmed, and nothing is
given twice.
"""

from __future__ import annotations

import json
import os
import random
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from tests.devices.day import FlakyPlugin
from tests.devices.plugin_process import RESOURCE, PluginProcess, sample_plugin
from tests.placement.giving import give
from tests.pods.build import make_pod
from tests.shapes import SHAPES
from trio_kubelet.api import v1
from trio_kubelet.common.inotify import DirectoryWatch, WatchError
from trio_kubelet.common.lanes import WorkHangs
from trio_kubelet.devices import inventory as inventory_module
from trio_kubelet.devices import manager as manager_module
from trio_kubelet.devices import plugin as plugin_module
from trio_kubelet.devices import registration
from trio_kubelet.devices.assignments import Assignment, Key
from trio_kubelet.devices.checkpoint import FILE_NAME, Data, data_of, encode
from trio_kubelet.devices.doors import DevicePluginError
from trio_kubelet.devices.inventory import Inventory
from trio_kubelet.devices.manager import DeviceManager
from trio_kubelet.devices.proto import plugin_pb2 as api
from trio_kubelet.devices.registration import (
    PLUGIN_TYPE,
    DevicePluginHandler,
    DevicePlugins,
    clear_sockets,
)
from trio_kubelet.devices.values import GRACE, Device, DevicePluginOptions
from trio_kubelet.grpc.errors import GrpcError
from trio_kubelet.grpc.loop import open_asyncio_loop
from trio_kubelet.placement.allocator import Allocator, TopologyPolicy
from trio_kubelet.placement.doors import AllocationError
from trio_kubelet.placement.merging import NUMANodes
from trio_kubelet.placement.metrics import AlignmentMetrics
from trio_kubelet.plugins.doors import PluginError
from trio_kubelet.plugins.states import PluginInfo

OTHER = "example.com/other"
REGISTRATIONS = "kubelet_device_plugin_registration_total"


def wants(name: str, number: int, resource: str = RESOURCE) -> tuple[v1.Pod, v1.Container]:
    """A pod whose only container wants so many devices."""
    limits = {resource: str(number)}
    container = v1.Container(name="main", resources=v1.ResourceRequirements(limits=limits))
    return make_pod(name, containers=[container]), container


def test_who_is_not_root_sees_which_sockets_there_are(tmp_path: Path) -> None:
    """The directory's mode is that of a kubelet's: pods look in it for the socket at which they register."""
    before = os.umask(0o022)
    try:
        clear_sockets(str(tmp_path / "device-plugins"))
    finally:
        os.umask(before)
    assert (tmp_path / "device-plugins").stat().st_mode & 0o777 == 0o755


def test_what_cannot_be_cleared_away_keeps_no_plugin_from_registering(tmp_path: Path) -> None:
    """Plugins' pods make what they like in the directory of their sockets."""
    (tmp_path / "a").symlink_to("a")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "b.sock"))
    clear_sockets(str(tmp_path))
    assert os.listdir(tmp_path) == ["a"]


class Node:
    """A node with device plugins and pods, as far as devices go."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pods: list[v1.Pod] = []
        self.running: set[str] = set()
        self.changes = 0
        self.events: list[tuple[str, str, str, str]] = []
        self.sick: list[Collection[str]] = []
        self.registry = CollectorRegistry()
        self.manager = DeviceManager(
            directory=str(directory),
            pods=self,
            recorder=self,
            registry=self.registry,
            numa_nodes=(0, 1),
            claims=True,
            counts_changed=self._changed,
            health_changed=self.sick.append,
        )
        self.plugins: DevicePlugins

    def _changed(self) -> None:
        self.changes += 1

    def active(self) -> Collection[v1.Pod]:
        return self.pods

    def all_known(self) -> bool:
        return True

    def is_known(self, uid: str) -> bool:
        return True

    def runs(self, uid: str) -> bool:
        return uid in self.running

    def ending(self) -> Collection[str]:
        return self.running.difference(pod.metadata.uid for pod in self.pods)

    def record(self, pod: v1.Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        self.events.append((pod.metadata.name, type, reason, message))

    async def give(self, name: str, number: int, resource: str = RESOURCE) -> frozenset[str]:
        pod, container = wants(name, number, resource)
        self.pods.append(pod)
        try:
            await give(self.manager, pod, container, None)
        except AllocationError:
            self.pods.remove(pod)
            raise
        return self.manager.of_container(pod.metadata.uid, "main")[resource].devices


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: those of sockets are short."""
    with tempfile.TemporaryDirectory(prefix="tk-") as made:
        yield Path(made)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Node]:
    node = Node(directory)
    async with open_asyncio_loop() as loop, trio.open_nursery() as nursery:
        node.plugins = DevicePlugins(loop=loop, directory=str(directory), manager=node.manager)
        await node.manager.load()
        nursery.start_soon(node.manager.run)
        await nursery.start(node.plugins.run)
        yield node
        nursery.cancel_scope.cancel()


def allocator_of(node: Node) -> Allocator:
    """What gives pods their devices, and nothing else."""
    return Allocator(
        providers=[node.manager],
        policy=TopologyPolicy("none", "container", NUMANodes((0, 1), {0: (10, 21), 1: (21, 10)})),
        registry=CollectorRegistry(),
        alignment=AlignmentMetrics(CollectorRegistry()),
        runs=node.runs,
        recorder=node,
    )


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 (another process is waited for)
            await trio.sleep(0.005)


def counts(node: Node, resource: str = RESOURCE) -> tuple[int | None, int | None]:
    found = node.manager.counts()
    return found.capacity.get(resource), found.allocatable.get(resource)


@pytest.mark.alone
async def test_health_counts_at_once_and_the_socket_is_made_again(directory: Path) -> None:
    async with running(directory) as node, sample_plugin(directory, 4) as plugin:
        await until(lambda: counts(node) == (4, 4))
        given = await node.give("one", 1)
        began = time.monotonic()
        await plugin.tell(health=dict.fromkeys(given, False))
        await until(lambda: counts(node) == (4, 3))
        assert time.monotonic() - began < 1, "0.2 s on an idle machine"
        assert [set(each) for each in node.sick] == [{"uid-one"}]
        assert node.manager.health("uid-one", "main") == {RESOURCE: dict.fromkeys(given, False)}
        (directory / "kubelet.sock").unlink()
        await until(lambda: len(plugin.calls("registered")) == 2)
        assert node.plugins.healthy() is None
        await until(lambda: counts(node) == (4, 3))
        plugin.process.kill()
        await until(lambda: counts(node) == (4, 0))


async def test_a_sick_device_stays_sick_when_its_plugin_stays_away(
    directory: Path, autojump_clock: trio.testing.MockClock
) -> None:
    key, assigned = Key("uid-one", "main", RESOURCE), Assignment({-1: ["dev-0"]}, b"")
    (directory / FILE_NAME).write_bytes(encode(data_of([(key, assigned)], {RESOURCE: ["dev-0"]})))
    manager = Node(directory).manager
    await manager.load()
    assert manager.health("uid-one", "main") == {RESOURCE: {"dev-0": True}}, "nobody says otherwise"
    plugin = FlakyPlugin(random.Random(0))
    await manager.inventory.connect(RESOURCE, plugin)
    manager.inventory.listed(RESOURCE, plugin, [Device("dev-0", healthy=False)])
    manager.inventory.disconnect(RESOURCE, plugin)
    await trio.sleep(GRACE + 1)
    manager.inventory.expire()
    assert RESOURCE not in manager.inventory
    assert manager.health("uid-one", "main") == {RESOURCE: {"dev-0": False}}


async def test_the_socket_is_made_again_when_its_directory_was_replaced(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_LOOK", 3600.0)  # that is seen at once
    plugins = directory / "plugins"
    async with running(plugins):
        for number in range(3):  # the watch is a new one each time
            os.rename(plugins, directory / f"old-{number}")
            await until(lambda: (plugins / "kubelet.sock").exists())


@pytest.mark.parametrize(
    ("in_the_way", "error"),
    [("plugins", "plugins: file exists"), ("plugins/kubelet.sock/x", "is a directory")],
)
async def test_where_no_socket_can_be_made_health_tells_why(
    directory: Path, in_the_way: str, error: str
) -> None:
    (directory / in_the_way).parent.mkdir(parents=True, exist_ok=True)
    (directory / in_the_way).touch()
    place = directory / "plugins"
    async with open_asyncio_loop() as loop:
        plugins = DevicePlugins(loop=loop, directory=str(place), manager=Node(place).manager)
        for _ in range(2):
            with pytest.raises((OSError, ExceptionGroup)):
                await plugins.run()
            told = plugins.healthy() or ""
            assert told.startswith("device registration error: device plugin registration gRPC server failed")
            assert told.endswith(error)
        os.rename(place, directory / "old")
        async with trio.open_nursery() as nursery:
            await nursery.start(plugins.run)
            assert plugins.healthy() is None
            nursery.cancel_scope.cancel()


async def test_a_plugin_of_the_registry_is_taken_and_goes_with_its_socket(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plugins may be found by the plugin watcher, too, as those of other types are."""
    plugin = PluginInfo(
        type=PLUGIN_TYPE, name=OTHER, endpoint=f"{directory}/sample.sock", versions=("v1alpha", "v1beta1")
    )
    other = msgspec.structs.replace(plugin, endpoint=f"{directory}/other.sock")
    async with running(directory) as node, sample_plugin(directory, 2):
        handler = DevicePluginHandler(node.plugins)
        await until(lambda: counts(node) == (2, 2))
        handler.validate(plugin)
        await handler.register(plugin)
        await until(lambda: counts(node, OTHER) == (2, 2))
        monkeypatch.setattr(plugin_module, "DIAL_SECONDS", 0.2)
        with pytest.raises(PluginError, match="failed to dial device plugin"):
            await handler.register(other)
        await handler.deregister(other)
        await trio.testing.wait_all_tasks_blocked()
        assert counts(node, OTHER) == (2, 2), "the one that was taken is still there"
        for _ in range(2):
            await handler.deregister(plugin)
            await until(lambda: counts(node, OTHER) == (2, 0))
        assert counts(node) == (2, 2)
    with pytest.raises(PluginError, match="the agent is not ready"):
        await handler.register(plugin)
    old = msgspec.structs.replace(plugin, versions=("v1alpha", "v1"))
    with pytest.raises(PluginError) as refused:
        handler.validate(old)
    assert str(refused.value) == (
        "manager version, v1beta1, is not among plugin supported versions [v1alpha v1]"
    )
    with pytest.raises(PluginError) as refused:
        handler.validate(msgspec.structs.replace(plugin, name="cpu"))
    assert str(refused.value) == ('invalid name of device plugin socket: the ResourceName "cpu" is invalid')


async def test_a_socket_whose_directory_cannot_be_watched_is_looked_at(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_watch(directory: str) -> DirectoryWatch:
        raise WatchError("too many watches")

    monkeypatch.setattr(registration, "DirectoryWatch", no_watch)
    monkeypatch.setattr(registration, "_LOOK", 0.01)
    async with running(directory):
        for _ in range(2):
            (directory / "kubelet.sock").unlink()
            await until(lambda: (directory / "kubelet.sock").exists())


async def test_a_version_nobody_knows_and_a_name_that_is_none_are_refused(directory: Path) -> None:
    async with (
        running(directory) as node,
        sample_plugin(directory, 1, "--version", "v9") as versioned,
        sample_plugin(directory, 1, "--endpoint", "b.sock", resource="cpu") as named,
    ):
        await until(lambda: versioned.calls("refused") and named.calls("refused"))
        assert versioned.calls("refused")[0]["error"] == (
            'rpc error: code = Unknown desc = requested API version "v9" is not supported by kubelet. '
            'Supported version is ["v1beta1"]'
        )
        assert named.calls("refused")[0]["error"] == (
            'rpc error: code = Unknown desc = the ResourceName "cpu" is invalid'
        )
        assert node.manager.counts().capacity == {}
        assert node.registry.get_sample_value(REGISTRATIONS, {"resource_name": "cpu"}), "calls are counted"


async def test_names_without_end_are_few_series(directory: Path) -> None:
    async with running(directory) as node:
        for name in ("x" * 10**6, *(f"example.com/{number}" for number in range(2000))):
            node.manager.count_registration(name)
        samples = [each for family in node.registry.collect() for each in family.samples]
        counted = [each for each in samples if each.name == REGISTRATIONS]
    assert len(counted) == 1001
    assert max(len(each.labels["resource_name"]) for each in counted) < 100
    assert sum(each.value for each in counted) == 2001


async def test_resources_without_end_are_refused(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(inventory_module, "MOST_RESOURCES", 2)
    inventory = Inventory(numa_nodes=(0,), changed=lambda *_: None)
    plugin = FlakyPlugin(random.Random(0))
    await inventory.connect("example.com/here", plugin)
    await inventory.connect("example.com/gone", plugin)
    inventory.disconnect("example.com/gone", plugin)
    await trio.sleep(GRACE + 1)
    inventory.expire()
    with pytest.raises(DevicePluginError, match=r"no room for example\.com/new: 2 resources"):
        await inventory.connect("example.com/new", plugin)
    for name in ("example.com/here", "example.com/gone"):
        await inventory.connect(name, plugin)
    assert inventory.counts().capacity.keys() == {"example.com/here", "example.com/gone"}


async def test_a_plugin_may_register_before_it_listens(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = api.RegisterRequest(version="v1beta1", endpoint="sample.sock", resource_name=OTHER)
    async with running(directory) as node:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.plugins.register, late)
            await until(lambda: node.registry.get_sample_value(REGISTRATIONS, {"resource_name": OTHER}))
            await trio.sleep(0.2)
            assert not node.manager.counts().capacity
            async with sample_plugin(directory, 1):
                await until(lambda: node.manager.counts().capacity.get(OTHER) == 1)
        monkeypatch.setattr(plugin_module, "DIAL_SECONDS", 0.2)
        never = api.RegisterRequest(version="v1beta1", endpoint="none.sock", resource_name=OTHER)
        with pytest.raises(GrpcError, match="failed to dial device plugin: context deadline exceeded"):
            await node.plugins.register(never)


async def test_the_last_of_two_plugins_for_a_resource_counts(directory: Path) -> None:
    async with running(directory) as node, sample_plugin(directory, 2, "--endpoint", "a.sock") as first:
        await until(lambda: counts(node) == (2, 2))
        first_given = await node.give("one", 1)
        async with sample_plugin(directory, 3, "--endpoint", "b.sock") as second:
            await until(lambda: counts(node) == (3, 3))
            await first.tell(devices=7)
            assert not first_given & await node.give("two", 2)
            assert second.calls("allocate")
            assert counts(node) == (3, 3), "nobody listens to the first any more"
            first.process.kill()
            await trio.sleep(0.2)
            assert counts(node) == (3, 3)


@pytest.fixture
def at_work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Plugins in memory are asked, each with one device; the sockets of those that are followed."""
    followed: list[str] = []

    class Plugin:
        def __init__(self, endpoint: str) -> None:
            self.endpoint = endpoint

        async def options(self) -> DevicePluginOptions:
            return DevicePluginOptions()

        async def watch(self, listed: Callable[[Sequence[Device]], None]) -> None:
            followed.append(self.endpoint)
            try:
                listed([Device("dev-0")])
                if self.endpoint in SHAPES:
                    raise SHAPES[self.endpoint]()
                await trio.sleep_forever()
            finally:
                followed.remove(self.endpoint)

    monkeypatch.setattr(registration, "connect", lambda _, endpoint: nullcontext(endpoint))
    monkeypatch.setattr(plugin_module, "GrpcPlugin", Plugin)
    return followed


async def test_of_two_plugins_for_a_resource_one_is_followed(directory: Path, at_work: list[str]) -> None:
    async with running(directory) as node:
        plugins = node.plugins
        await plugins.connect(RESOURCE, "first")
        await until(lambda: at_work == ["first"])
        await plugins.connect(OTHER, "other")
        await plugins.connect(RESOURCE, "second")
        await until(lambda: at_work == ["other", "second"])
        plugins.disconnect(RESOURCE, "first")
        await trio.testing.wait_all_tasks_blocked()
        assert at_work == ["other", "second"]
        plugins.disconnect(RESOURCE, "second")
        await until(lambda: at_work == ["other"])
        assert (counts(node), counts(node, OTHER)) == ((1, 0), (1, 1))


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_one_plugins_list_raises_the_others_stay(
    shape: str, directory: Path, at_work: list[str]
) -> None:
    async with running(directory) as node:
        await node.plugins.connect(OTHER, "other")
        await node.plugins.connect(RESOURCE, shape)
        await until(lambda: counts(node) == (1, 0))
        assert at_work == ["other"]
        assert counts(node, OTHER) == (1, 1)


async def test_a_plugin_that_hangs_fails_or_crashes_harms_nobody_else(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_module, "CALL_SECONDS", 6.0)
    async with (
        running(directory) as node,
        sample_plugin(directory, 2) as bad,
        sample_plugin(directory, 2, "--endpoint", "b.sock", resource=OTHER),
    ):
        await until(lambda: counts(node) == (2, 2) == counts(node, OTHER))
        await bad.tell(do="hang")
        async with trio.open_nursery() as nursery:

            async def hangs() -> None:
                with pytest.raises(AllocationError, match="context deadline exceeded"):
                    await node.give("hangs", 2)

            nursery.start_soon(hangs)
            await until(lambda: bad.calls("allocate"))
            with trio.fail_after(5):
                await node.give("meanwhile", 2, OTHER)
        await bad.tell(do="fail")
        with pytest.raises(AllocationError, match="rpc error: code = Internal desc = no such luck"):
            await node.give("fails", 2)
        await bad.tell(do="crash")
        with pytest.raises(AllocationError, match="rpc error: code = Unavailable"):
            await node.give("crashes", 1)
        await until(lambda: counts(node) == (2, 0))
        async with sample_plugin(directory, 2):
            await until(lambda: counts(node) == (2, 2))
            assert len(await node.give("again", 2)) == 2, "nothing was kept for pods that were refused"


async def admit_with_crash(node: Node, plugin: PluginProcess, refused: list[tuple[str, str] | None]) -> None:
    """Admits a pod whose plugin dies when it is asked about it."""
    await plugin.tell(do="crash")
    pod, _ = wants("one", 2)
    node.pods.append(pod)
    refused.append(await allocator_of(node).allocate(pod))


async def test_a_plugin_that_is_lost_while_it_is_asked_is_waited_for(directory: Path) -> None:
    """As one that its vendor's program starts anew: the pod is not refused, but asks when it is back."""
    async with running(directory) as node:
        async with sample_plugin(directory, 2) as dying, trio.open_nursery() as nursery:
            await until(lambda: counts(node) == (2, 2))
            refused = list[tuple[str, str] | None]()
            nursery.start_soon(admit_with_crash, node, dying, refused)
            await until(lambda: dying.calls("allocate"))
            await until(lambda: node.events)
            assert [event[2] for event in node.events] == ["WaitingForDevicePlugin"]
            async with sample_plugin(directory, 2):
                await until(lambda: refused)
        assert refused == [None]
        assert len(node.manager.of_container("uid-one", "main")[RESOURCE].devices) == 2


async def test_a_pod_that_plugins_die_of_is_refused(directory: Path) -> None:
    async with running(directory) as node, trio.open_nursery() as nursery:
        async with sample_plugin(directory, 2) as first:
            await until(lambda: counts(node) == (2, 2))
            refused = list[tuple[str, str] | None]()
            nursery.start_soon(admit_with_crash, node, first, refused)
            await until(lambda: node.events)
        async with sample_plugin(directory, 2, "--do", "crash"):
            await until(lambda: refused)
    [refusal] = refused
    assert refusal is not None
    assert refusal[0] == "UnexpectedAdmissionError"
    assert "rpc error: code = Unavailable" in refusal[1]


async def test_a_plugin_that_answers_what_nobody_asked_for_or_nothing(directory: Path) -> None:
    """It names devices that it was not offered; what an init container leaves has to be among those it may
    choose. Another resource with such a device is unharmed.
    """
    async with (
        running(directory) as node,
        sample_plugin(directory, 4, "--preferred") as liar,
        sample_plugin(directory, 1000, "--endpoint", "b.sock", resource=OTHER),
    ):
        await until(lambda: counts(node) == (4, 4) and counts(node, OTHER) == (1000, 1000))
        assert await node.give("one", 2) == {"dev-2", "dev-3"}, "as it prefers, of what there is"
        await liar.tell(do="nothing")
        with pytest.raises(AllocationError, match="no containers return in allocation response"):
            await node.give("none", 1)
        await liar.tell(do="work")
        node.pods.clear()
        asks = [
            v1.Container(name=name, resources=v1.ResourceRequirements(limits={RESOURCE: number}))
            for name, number in (("init", "1"), ("main", "2"))
        ]
        pod = make_pod("two", containers=asks[1:], spec={"init_containers": asks[:1]})
        node.pods.append(pod)
        for each in asks:
            await give(node.manager, pod, each, None)
        [left] = node.manager.of_container("uid-two", "init")[RESOURCE].devices
        mine = node.manager.of_container("uid-two", "main")[RESOURCE].devices
        assert left in mine
        assert liar.calls("preferred")[-1]["must"] == [left]
        assert "dev-999" not in mine
        assert len(await node.give("other", 1000, OTHER)) == 1000


async def test_a_plugin_that_dies_between_allocate_and_the_start(directory: Path) -> None:
    """What it answered is written down: the container starts with it. One that wants to hear of the start
    first has to be there, and nothing is asked of it again when it is back.
    """
    async with running(directory) as node:
        async with (
            sample_plugin(directory, 2) as plain,
            sample_plugin(directory, 2, "--endpoint", "b.sock", "--pre-start", resource=OTHER) as careful,
        ):
            await until(lambda: counts(node) == (2, 2) == counts(node, OTHER))
            devices = await node.give("plain", 1)
            await node.give("careful", 1, OTHER)
            plain.process.kill()
            careful.process.kill()
            await until(lambda: counts(node) == (2, 0) == counts(node, OTHER))
        plain_pod, careful_pod = node.pods
        given = await node.manager.given(plain_pod, (plain_pod.spec.containers or [])[0])
        assert given.annotations["example.com/devices"] == ",".join(devices)
        with pytest.raises(AllocationError, match="PreStartContainer rpc failed"):
            await node.manager.given(careful_pod, (careful_pod.spec.containers or [])[0])
        async with sample_plugin(directory, 2, "--endpoint", "b.sock", "--pre-start", resource=OTHER) as back:
            await until(lambda: counts(node, OTHER) == (2, 2))
            await node.manager.given(careful_pod, (careful_pod.spec.containers or [])[0])
            await until(lambda: bool(back.calls("pre-start")))
            assert not back.calls("allocate")


async def test_two_resources_with_the_same_device_ids_are_two(directory: Path) -> None:
    async with (
        running(directory) as node,
        sample_plugin(directory, 1) as one,
        sample_plugin(directory, 1, "--endpoint", "b.sock", resource=OTHER),
    ):
        await until(lambda: counts(node) == (1, 1) == counts(node, OTHER))
        assert await node.give("one", 1) == await node.give("other", 1, OTHER) == {"dev-0"}
        with pytest.raises(AllocationError, match="Requested: 1, Available: 0"):
            await node.give("late", 1)
        await one.tell(health={"dev-0": False})
        await until(lambda: counts(node) == (1, 0))
        assert counts(node, OTHER) == (1, 1), "the other's device of that name is as well as before"


async def test_ten_thousand_devices_that_flap(directory: Path) -> None:
    async with (
        running(directory) as node,
        sample_plugin(directory, 10_000) as plugin,
        sample_plugin(directory, 2, "--endpoint", "b.sock", resource=OTHER),
    ):
        await until(lambda: counts(node) == (10_000, 10_000) and counts(node, OTHER) == (2, 2))
        for number in range(10):
            await plugin.tell(health={"dev-1": bool(number % 2)})
            await trio.sleep(0.1)
        assert await node.give("other", 1, OTHER)
        assert len(await node.give("many", 5000)) == 5000
        await until(lambda: counts(node) == (10_000, 10_000))
        data = json.loads((directory / "kubelet_internal_checkpoint").read_text())["Data"]
        [entry] = [each for each in data["PodDeviceEntries"] if each["ResourceName"] == RESOURCE]
        assert len(entry["DeviceIDs"]["0"]) == 5000


async def test_numa_nodes_that_the_machine_does_not_have_give_no_hints(directory: Path) -> None:
    async with running(directory) as node, sample_plugin(directory, 2, "--nodes", "1", "63", "100000"):
        await until(lambda: counts(node) == (2, 2))
        hints = node.manager.hints(*wants("one", 1))
        assert hints == {RESOURCE: [(0b10, True)]}
        assert await node.give("one", 2)


async def test_what_a_damaged_checkpoint_says_is_not_believed(directory: Path) -> None:
    file = directory / "kubelet_internal_checkpoint"
    async with running(directory) as node, sample_plugin(directory, 2):
        await until(lambda: counts(node) == (2, 2))
        given = await node.give("one", 1)
    written = file.read_text()
    async with running(directory) as node:
        assert node.manager.of_container("uid-one", "main")[RESOURCE].devices == given
        assert counts(node) == (0, 0), "nothing is on offer before the plugin is back"
    file.write_text(written[:-20])
    async with running(directory) as node, sample_plugin(directory, 2):
        await until(lambda: counts(node) == (2, 2))
        node.running.add("uid-one")
        one, container = wants("one", 1)
        node.pods.append(one)
        await give(node.manager, one, container, None)  # it runs, and goes on
        with pytest.raises(AllocationError, match="the checkpoint was damaged"):
            await node.give("two", 1)
        node.running.clear()
        node.pods.remove(one)
        assert await node.give("two", 2)
    for damaged in (written[: len(written) // 2], written.replace("main", "Main"), "[]", ""):
        file.write_text(damaged)
        async with running(directory) as node:
            assert not node.manager.has_devices("uid-one")


async def test_a_disk_that_hangs_keeps_no_pod_out_whose_devices_are_known_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of a damaged checkpoint goes when the next agent finds nothing in doubt."""

    class Hanging:
        async def run(self, *work: object) -> object:
            raise WorkHangs("node-files: no end within 60 s")

    (directory / FILE_NAME).write_text("[]")
    async with running(directory) as node, sample_plugin(directory, 1):
        await until(lambda: counts(node) == (1, 1))
        monkeypatch.setattr(manager_module, "NODE_FILES", Hanging())
        await node.manager.ready(wants("one", 1)[0])
        assert await node.give("one", 1) == {"dev-0"}


WAITING = f"Waiting for the device plugin of {RESOURCE}, at most {GRACE:.0f} s"


async def test_after_a_restart_a_pod_waits_for_the_plugin_that_was_there_before(directory: Path) -> None:
    """It is told once and admitted when the plugin is back; a pod that runs does not wait."""
    async with running(directory) as node, sample_plugin(directory, 2):
        await until(lambda: counts(node) == (2, 2))
        kept = await node.give("runs", 1)
    async with running(directory) as node, trio.open_nursery() as nursery:
        admitted: dict[str, frozenset[str]] = {}

        async def admit(name: str) -> None:
            pod, container = wants(name, 1)
            node.pods.append(pod)
            await node.manager.ready(pod)
            await give(node.manager, pod, container, None)
            admitted[name] = node.manager.of_container(pod.metadata.uid, "main")[RESOURCE].devices

        node.running.add("uid-runs")
        with trio.fail_after(30):
            await admit("runs")
        assert node.events == []
        nursery.start_soon(admit, "late")
        await until(lambda: node.events)
        await trio.sleep(0.2)
        assert admitted == {"runs": kept}, "the other waits"
        async with sample_plugin(directory, 2):
            await until(lambda: "late" in admitted)
        assert admitted == {"runs": kept, "late": frozenset({"dev-0", "dev-1"}) - kept}
        assert node.events == [("late", "Normal", "WaitingForDevicePlugin", WAITING)]


async def test_a_plugin_that_does_not_come_back_is_waited_for_so_long(
    directory: Path, autojump_clock: trio.testing.MockClock
) -> None:
    (directory / FILE_NAME).write_bytes(encode(Data(None, {RESOURCE: ["dev-0"]})))
    node = Node(directory)
    await node.manager.load()
    pod, container = wants("one", 1)
    began = trio.current_time()
    await node.manager.ready(pod)
    assert trio.current_time() - began == pytest.approx(GRACE)
    assert node.events == [("one", "Normal", "WaitingForDevicePlugin", WAITING)]
    with pytest.raises(AllocationError, match="no healthy devices present"):
        await give(node.manager, pod, container, None)


async def test_sockets_of_plugins_that_are_gone_are_removed_at_the_start(directory: Path) -> None:
    (directory / "keep.txt").write_text("no socket")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(directory / "stale.sock"))
    stale.close()
    async with running(directory):
        assert sorted(os.listdir(directory)) == ["keep.txt", "kubelet.sock"]

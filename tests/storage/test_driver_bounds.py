"""What drivers say of themselves has bounds, and one that does not answer holds up no other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TypeVar, cast

import pytest
import trio
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.loop import open_asyncio_loop
from trio_kubelet.grpc.server import Service, serve
from trio_kubelet.plugins.doors import PluginError
from trio_kubelet.plugins.proto import registration_pb2 as registration
from trio_kubelet.plugins.registration import registrations
from trio_kubelet.plugins.states import PluginInfo
from trio_kubelet.podinfo.doors import ObjectError
from trio_kubelet.storage.calls import GrpcCalls
from trio_kubelet.storage.csi import messages
from trio_kubelet.storage.csi.context import CSIContext
from trio_kubelet.storage.csi.driver import CSIDriverClient
from trio_kubelet.storage.csi.limits import AttachLimits
from trio_kubelet.storage.csi.registration import CSIDrivers, CSIPlugins, newest_version
from trio_kubelet.storage.doors import NodeInfo, StorageObjectsDoor
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.metrics import CSIMetrics
from trio_kubelet.storage.proto import csi_pb2 as csi
from trio_kubelet.storage.specs import CSI, Spec

M = TypeVar("M", bound=Message)


class Calls:
    """Implements `storage.doors.DriverCalls`: sockets that were called and not forgotten; `silent` ones never
    answer, `late` ones after 30 s, `broken` ones fail.
    """

    def __init__(self) -> None:
        self.kept: set[str] = set()
        self.silent: set[str] = set()
        self.late: set[str] = set()
        self.broken: set[str] = set()

    async def call(
        self, endpoint: str, method: str, request: Message, response: type[M], timeout: float
    ) -> M:
        self.kept.add(endpoint)
        if endpoint in self.silent:
            await trio.sleep(timeout)
            raise GrpcError(Code.DEADLINE_EXCEEDED, "context deadline exceeded", method)
        if endpoint in self.late:
            await trio.sleep(30)
        if endpoint in self.broken:
            raise GrpcError(Code.INTERNAL, "no", method)
        return response.FromString(csi.NodeGetInfoResponse(node_id="here").SerializeToString())

    def forget(self, endpoint: str) -> None:
        self.kept.discard(endpoint)


def plugin_of(name: str, endpoint: str, version: str = "1.0.0") -> PluginInfo:
    return PluginInfo(type="CSIPlugin", name=name, endpoint=endpoint, versions=(version,))


def test_versions_are_compared_in_one_pass() -> None:
    """Zeros at the end were taken off one by one, each time with a copy: hours for what one message holds."""
    for _ in within_cpu(1.0):
        assert newest_version(["1" + ".0" * 30_000, "1.0", "1.0.1" + ".0" * 30_000])[:3] == (1, 0, 1)
        assert newest_version(["1" + ".0" * 30_000] * 2)[:2] == (1, 0)


async def test_an_answer_with_a_million_capabilities_is_not_read(tmp_path: Path) -> None:
    path = str(tmp_path / "d.sock")
    many = b"\x0a\x00" * (1 << 20)

    async def capabilities(request: csi.NodeGetCapabilitiesRequest) -> bytes:
        return many

    node = Service(csi.DESCRIPTOR, "Node", {"NodeGetCapabilities": capabilities})
    async with open_asyncio_loop() as loop, trio.open_nursery() as nursery:
        await nursery.start(serve, loop, path, [node])
        with GrpcCalls(loop) as calls, trio.fail_after(60):
            driver = CSIDriverClient("d", f"unix://{path}", calls)
            with pytest.raises(OperationError, match="received message larger than max"):
                await driver.abilities()
            many = csi.NodeGetCapabilitiesResponse(
                capabilities=[
                    csi.NodeServiceCapability(rpc=csi.NodeServiceCapability.RPC(type=messages.STAGE))
                ]
            ).SerializeToString()
            assert await driver.abilities() == {messages.STAGE}
        nursery.cancel_scope.cancel()


async def test_a_plugin_with_a_million_versions_is_not_read(tmp_path: Path) -> None:
    path = str(tmp_path / "p.sock")

    async def info(request: registration.InfoRequest) -> registration.PluginInfo:
        return registration.PluginInfo(type="CSIPlugin", name="d", supported_versions=["1"] * (1 << 20))

    service = Service(registration.DESCRIPTOR, "Registration", {"GetInfo": info})
    async with open_asyncio_loop() as loop, trio.open_nursery() as nursery:
        await nursery.start(serve, loop, path, [service])
        with trio.fail_after(60):
            async with registrations(loop)(path) as connection:
                with pytest.raises(PluginError, match="received message larger than max"):
                    await connection.get_info()
        nursery.cancel_scope.cancel()


async def test_of_sockets_without_a_driver_nothing_is_kept() -> None:
    calls = Calls()
    drivers = CSIDrivers()
    plugins = CSIPlugins(drivers=drivers, calls=calls, writer=None, called=lambda *_: None)
    calls.broken.add("/broken")
    with pytest.raises(PluginError):
        await plugins.register(plugin_of("d", "/broken"))
    assert calls.kept == set()
    await plugins.register(plugin_of("d", "/old"))
    await plugins.register(plugin_of("d", "/new", "1.1.0"))
    await plugins.deregister(plugin_of("d", "/old"))
    assert calls.kept == {"/new"}
    await plugins.register(plugin_of("other", "/new"))
    await plugins.deregister(plugin_of("other", "/new"))
    assert calls.kept == {"/new"}
    await plugins.deregister(plugin_of("d", "/new", "1.1.0"))
    assert calls.kept == set()


async def test_of_two_drivers_of_a_name_the_faster_one_stays(autojump_clock: MockClock) -> None:
    """The slower one took its place; when that went there was none, though the other was at work."""
    calls, told, drivers = Calls(), Told(), CSIDrivers()
    plugins = CSIPlugins(drivers=drivers, calls=calls, writer=told, called=lambda *_: None)
    slow, fast = plugin_of("d", "/slow"), plugin_of("d", "/fast")
    calls.late.add("/slow")

    async def refused() -> None:
        with pytest.raises(PluginError, match="already registered with a higher supported version"):
            await plugins.register(slow)
        await plugins.deregister(slow)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refused)
        await trio.sleep(10)
        await plugins.register(fast)
    assert drivers.get("d", "").endpoint == "/fast"
    assert told.installed == ["d"], "what the slower one says of the node is not written down"
    assert calls.kept == {"/fast"}


class Told:
    """Implements `storage.doors.NodeInfoWriter`."""

    def __init__(self) -> None:
        self.drivers: list[str] = []
        self.installed: list[str] = []

    async def install(self, driver: str, info: NodeInfo) -> None:
        self.installed.append(driver)

    async def update(self, driver: str, info: NodeInfo) -> None:
        self.drivers.append(driver)

    async def uninstall(self, driver: str) -> None: ...


class Objects:
    """Every driver wants its limit told each ten seconds."""

    async def driver(self, name: str) -> v1.CSIDriver | None:
        spec = v1.CSIDriverSpec(node_allocatable_update_period_seconds=10)
        return v1.CSIDriver(metadata=v1.ObjectMeta(name=name), spec=spec)


async def test_limits_are_told_while_another_driver_does_not_answer(autojump_clock: MockClock) -> None:
    calls, told, drivers = Calls(), Told(), CSIDrivers()
    calls.silent.add("/silent")
    drivers.put(CSIDriverClient("silent", "/silent", calls))
    drivers.put(CSIDriverClient("well", "/well", calls))
    limits = AttachLimits(
        context=CSIContext("here", cast(StorageObjectsDoor, Objects())), drivers=drivers, writer=told
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limits.run)
        await trio.sleep(95)
        assert told.drivers == ["well"] * 9
        drivers.remove("well")
        await trio.sleep(95)
        assert told.drivers == ["well"] * 9
        calls.silent.clear()
        drivers.put(CSIDriverClient("well", "/well", calls))
        await trio.sleep(155)
        assert told.drivers.count("well") > 20
        assert "silent" in told.drivers
        nursery.cancel_scope.cancel()


class Periods:
    """What each driver wants; of others nothing is known."""

    def __init__(self, **seconds: int | None) -> None:
        self.seconds = seconds

    async def driver(self, name: str) -> v1.CSIDriver | None:
        if name not in self.seconds:
            return None
        spec = v1.CSIDriverSpec(node_allocatable_update_period_seconds=self.seconds[name])
        return v1.CSIDriver(metadata=v1.ObjectMeta(name=name), spec=spec)


async def test_each_limit_is_told_after_its_own_period(autojump_clock: MockClock) -> None:
    told, drivers, wanted = Told(), CSIDrivers(), Periods(often=1, seldom=100, never=None, late=10)
    for name in ("often", "seldom", "never", "unknown"):
        drivers.put(CSIDriverClient(name, f"/{name}", Calls()))
    limits = AttachLimits(
        context=CSIContext("here", cast(StorageObjectsDoor, wanted)), drivers=drivers, writer=told
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limits.run)
        await trio.sleep(150)
        drivers.put(CSIDriverClient("late", "/late", Calls()))  # nobody is followed twice for it
        await trio.sleep(155)
        # Never more often than every ten seconds.
        assert Counter(told.drivers) == {"often": 30, "seldom": 3, "late": 15}
        wanted.seconds["never"] = 10
        await trio.sleep(80)
        assert "never" in told.drivers
        nursery.cancel_scope.cancel()


class Attachments(Objects):
    """The attachment of every volume: none, one with this error, or one that cannot be read."""

    def __init__(
        self, error: v1.VolumeError | None = None, seconds: int | None = 10, *, found: bool | None = True
    ) -> None:
        self.error = error
        self.seconds = seconds
        self.found = found

    async def driver(self, name: str) -> v1.CSIDriver | None:
        return v1.CSIDriver(spec=v1.CSIDriverSpec(node_allocatable_update_period_seconds=self.seconds))

    async def attachment(self, name: str) -> v1.VolumeAttachment | None:
        if self.found is None:
            raise ObjectError("the API server is away")
        if not self.found:
            return None
        return v1.VolumeAttachment(status=v1.VolumeAttachmentStatus(attach_error=self.error))


@pytest.mark.parametrize(
    ("objects", "ephemeral", "exhausted"),
    [
        (Attachments(v1.VolumeError(error_code=8)), False, True),
        (Attachments(v1.VolumeError(error_code=8)), True, False),
        (Attachments(v1.VolumeError(error_code=8), seconds=None), False, False),
        (Attachments(v1.VolumeError(error_code=13)), False, False),
        (Attachments(v1.VolumeError()), False, False),
        (Attachments(), False, False),
        (Attachments(found=False), False, False),
        (Attachments(found=None), False, False),
    ],
)
async def test_a_limit_is_told_anew_when_a_node_has_too_many_volumes(
    objects: Attachments, ephemeral: bool, exhausted: bool
) -> None:
    told, drivers = Told(), CSIDrivers()
    drivers.put(CSIDriverClient("d", "/d", Calls()))
    context = CSIContext("here", cast(StorageObjectsDoor, objects))
    limits = AttachLimits(context=context, drivers=drivers, writer=told)
    source = v1.CSIPersistentVolumeSource(driver="d", volume_handle="h")
    spec = Spec(unique_name="n", name="pv", plugin=CSI, source=source, driver="d", ephemeral=ephemeral)
    assert await limits.exhausted(spec) is exhausted
    assert told.drivers == ["d"] * exhausted


async def test_of_a_driver_that_is_not_there_no_limit_is_told() -> None:
    told = Told()
    context = CSIContext("here", cast(StorageObjectsDoor, Attachments(v1.VolumeError(error_code=8))))
    source = v1.CSIPersistentVolumeSource(driver="d", volume_handle="h")
    spec = Spec(unique_name="n", name="pv", plugin=CSI, source=source, driver="d")
    assert await AttachLimits(context=context, drivers=CSIDrivers(), writer=told).exhausted(spec)
    assert told.drivers == []


async def test_nothing_is_told_of_a_driver_that_went_while_it_was_asked(autojump_clock: MockClock) -> None:
    calls, told, drivers = Calls(), Told(), CSIDrivers()
    calls.late.add("/late")
    drivers.put(CSIDriverClient("late", "/late", calls))
    context = CSIContext("here", cast(StorageObjectsDoor, Objects()))
    limits = AttachLimits(context=context, drivers=drivers, writer=told)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limits.run)
        await trio.sleep(20)
        drivers.remove("late")
        await trio.sleep(200)
        assert told.drivers == []
        nursery.cancel_scope.cancel()


def test_names_without_end_are_few_series() -> None:
    """A driver that registers under one name after the other is asked about the node each time."""
    registry = CollectorRegistry()
    called = CSIMetrics(registry).called
    for name in ("x" * 50_000, *(f"{number}.example.com" for number in range(1000))):
        called(name, "/csi.v1.Node/NodeGetInfo", Code.OK, 0.1, False)
    called("0.example.com", "/csi.v1.Node/NodeGetInfo", Code.OK, 0.1, False)
    samples = [each for family in registry.collect() for each in family.samples]
    calls = {each.labels["driver_name"]: each.value for each in samples if each.name.endswith("_count")}
    assert len(calls) == 201
    assert (calls["0.example.com"], calls["other"]) == (2, 801)

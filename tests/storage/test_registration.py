"""Which versions drivers may register with, and what they are told otherwise."""

from __future__ import annotations

from typing import TypeVar

import pytest
from google.protobuf.message import Message

from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.plugins.doors import PluginError
from trio_kubelet.plugins.states import PluginInfo
from trio_kubelet.storage.csi.registration import CSIDrivers, CSIPlugins, newest_version
from trio_kubelet.storage.doors import NodeInfo, NodeInfoWriter
from trio_kubelet.storage.proto import csi_pb2 as csi

DRIVER = "disks.example"
ENDPOINT = "/d.sock"
NONE = "could not find a highest supported version from versions"
M = TypeVar("M", bound=Message)


class Calls:
    """Implements `storage.doors.DriverCalls` for drivers that say who the node is unless `broken`."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.forgotten: list[str] = []

    async def call(
        self, endpoint: str, method: str, request: Message, response: type[M], timeout: float
    ) -> M:
        assert method == "/csi.v1.Node/NodeGetInfo"
        if self.broken:
            raise GrpcError(Code.INTERNAL, "no node")
        return response.FromString(csi.NodeGetInfoResponse(node_id="here").SerializeToString())

    def forget(self, endpoint: str) -> None:
        self.forgotten.append(endpoint)


class Cluster:
    """Implements `storage.doors.NodeInfoWriter`."""

    def __init__(self) -> None:
        self.written: list[str] = []

    async def install(self, driver: str, info: NodeInfo) -> None:
        if driver not in self.written:
            self.written.append(driver)

    async def update(self, driver: str, info: NodeInfo) -> None: ...

    async def uninstall(self, driver: str) -> None:
        self.written.remove(driver)


class Refused(Cluster):
    """An API server that does not like what a driver says, but for the first `liked` times."""

    def __init__(self, liked: int = 0) -> None:
        super().__init__()
        self.liked = liked

    async def install(self, driver: str, info: NodeInfo) -> None:
        await super().install(driver, info)
        self.liked -= 1
        if self.liked < 0:
            raise PluginError("too long")


def plugins_of(writer: NodeInfoWriter | None = None) -> CSIPlugins:
    return CSIPlugins(drivers=CSIDrivers(), calls=Calls(), writer=writer, called=lambda *_: None)


def plugin_of(*versions: str, endpoint: str = ENDPOINT) -> PluginInfo:
    return PluginInfo(type="CSIPlugin", name=DRIVER, endpoint=endpoint, versions=versions)


@pytest.mark.parametrize(
    ("versions", "newest"),
    [
        (["1.0.0"], (1, 0, 0)),
        (["0.3.0", "v1.2", "2.0.0"], (1, 2)),
        (["1.10.0", "1.9.9"], (1, 10, 0)),
        (["1.0", "1.0.0"], (1, 0, 0)),
        (["1.0.0", "1.0"], (1, 0)),  # of equal ones the last
        (["1.4.0-rc1+x", "nonsense"], (1, 4, 0)),
    ],
)
def test_the_newest_version_that_is_understood(versions: list[str], newest: tuple[int, ...]) -> None:
    assert newest_version(versions) == newest


@pytest.mark.parametrize(
    ("versions", "why"),
    [
        (["2.0.0", "3.1.0"], f"{NONE} ([2.0.0 3.1.0]) reported: <nil>"),
        (["one", "1"], f'{NONE} ([one 1]) reported: could not parse "one" as version'),
        (["1"], f'{NONE} ([1]) reported: illegal version string "1"'),
        (
            ["01.0"],
            f'{NONE} ([01.0]) reported: illegal zero-prefixed version component "01" in "01.0"',
        ),
        (["0.3.0"], "highest supported version reported is 0.3.0, must be v1.x"),
        (["0.0", "0.0.0"], "highest supported version reported is 0.0.0, must be v1.x"),
    ],
)
def test_a_driver_without_such_a_version_is_told_why(versions: list[str], why: str) -> None:
    shown = " ".join(f'"{version}"' for version in versions)
    with pytest.raises(PluginError) as error:
        plugins_of().validate(plugin_of(*versions))
    assert str(error.value) == (
        f"validation failed for CSI Driver {DRIVER} at endpoint {ENDPOINT}: kubernetes.io/csi: "
        f'ValidatePlugin for CSI driver "{DRIVER}" failed. None of the versions specified [{shown}] are '
        f"supported. err={why}"
    )


@pytest.mark.parametrize(
    ("version", "taken"), [("1.0.0", False), ("1.2", False), ("1.2.0.0", False), ("1.2.1", True)]
)
async def test_only_a_newer_driver_takes_the_place_of_one_that_is_registered(
    version: str, taken: bool
) -> None:
    plugins = plugins_of()
    await plugins.register(plugin_of("1.2.0"))
    if taken:
        await plugins.register(plugin_of(version))
        return
    with pytest.raises(PluginError, match=r'already registered with a higher supported version: "1\.2\.0"'):
        await plugins.register(plugin_of(version))
    await plugins.deregister(plugin_of("1.2.0"))
    await plugins.register(plugin_of(version))


async def test_nothing_stays_written_of_a_driver_that_could_not_be_written_down_whole() -> None:
    writer = Refused()
    with pytest.raises(PluginError, match="too long"):
        await plugins_of(writer).register(plugin_of("1.0.0"))
    assert writer.written == []


async def test_a_driver_at_work_stays_written_down_when_a_newer_one_is_refused() -> None:
    drivers, writer = CSIDrivers(), Refused(liked=1)
    plugins = CSIPlugins(drivers=drivers, calls=Calls(), writer=writer, called=lambda *_: None)
    await plugins.register(plugin_of("1.0.0"))
    newer = plugin_of("1.1.0", endpoint="/new.sock")
    with pytest.raises(PluginError, match="too long"):
        await plugins.register(newer)
    await plugins.deregister(newer)
    assert drivers.get(DRIVER).endpoint == ENDPOINT
    assert writer.written == [DRIVER]


def test_a_driver_has_to_name_a_version() -> None:
    with pytest.raises(PluginError, match=r"failed\. Plugin returned an empty list for supported versions$"):
        plugins_of().validate(plugin_of())


async def test_a_driver_that_goes_is_neither_kept_nor_written_down() -> None:
    drivers, calls, writer, told = CSIDrivers(), Calls(), Cluster(), list[str]()
    drivers.changed.listen(told.append)
    plugins = CSIPlugins(drivers=drivers, calls=calls, writer=writer, called=lambda *_: None)
    plugin = plugin_of("1.0.0")
    await plugins.register(plugin)
    assert (drivers.names(), writer.written, told) == ([DRIVER], [DRIVER], [DRIVER])
    await plugins.deregister(plugin)
    assert (drivers.names(), writer.written, told) == ([], [], [DRIVER, DRIVER])
    assert calls.forgotten == [ENDPOINT]


async def test_a_driver_that_came_back_at_another_socket_stays_when_the_first_one_goes() -> None:
    drivers, calls, writer = CSIDrivers(), Calls(), Cluster()
    plugins = CSIPlugins(drivers=drivers, calls=calls, writer=writer, called=lambda *_: None)
    await plugins.register(plugin_of("1.0.0"))
    await plugins.register(plugin_of("1.1.0", endpoint="/new.sock"))
    await plugins.deregister(plugin_of("1.0.0"))
    assert drivers.has("/new.sock")
    assert not drivers.has(ENDPOINT)
    assert writer.written == [DRIVER]
    assert calls.forgotten == [ENDPOINT]


async def test_a_driver_that_does_not_say_who_the_node_is_is_refused() -> None:
    drivers, calls, writer = CSIDrivers(), Calls(broken=True), Cluster()
    plugins = CSIPlugins(drivers=drivers, calls=calls, writer=writer, called=lambda *_: None)
    with pytest.raises(PluginError, match="no node"):
        await plugins.register(plugin_of("1.0.0"))
    assert (drivers.names(), writer.written, calls.forgotten) == ([], [], [ENDPOINT])
    await plugins.deregister(plugin_of("1.0.0"))  # it goes without having been taken
    assert (drivers.names(), writer.written, set(calls.forgotten)) == ([], [], {ENDPOINT})
    calls.broken = False
    await plugins.register(plugin_of("1.0.0"))
    assert drivers.names() == [DRIVER]

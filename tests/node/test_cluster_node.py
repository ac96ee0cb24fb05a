"""The whole room over a simulated runtime and API server; and its small parts on their own."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.store import Change, Refused, Tree
from tests.node.nodes import RECORDED, profile
from tests.node.world import Said
from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.eviction.monitor import PressureMonitor, PressureSettings
from trio_kubelet.eviction.signals import SignalPlaces
from trio_kubelet.eviction.thresholds import Signal, Threshold
from trio_kubelet.machine.system import os_image
from trio_kubelet.node.addresses import AddressError, NodeIPs, find_addresses, parse_node_ip_flag
from trio_kubelet.node.cluster_node import ClusterNode
from trio_kubelet.node.csi_node import MIGRATED, csi_node
from trio_kubelet.node.look import NodeLook
from trio_kubelet.node.own_node import host_ips
from trio_kubelet.node.runtime_health import RuntimeFeatures, RuntimeHealth, features_of
from trio_kubelet.server.http.messages import Request
from trio_kubelet.sim.door import sim_services
from trio_kubelet.sim.faults import Fault, Faults, Kind
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.service import SimService

Clock = trio.testing.MockClock
CLOCK = TrioClock(1_763_700_000 * NANOSECONDS)


class World:
    """A node over doors in memory; name service and signals are left out."""

    def __init__(self) -> None:
        self.server = APIServer()
        self.faults = Faults()
        self.service = SimService(SimRuntime(), CLOCK, faults=self.faults)
        services = sim_services(self.service)
        self.health = RuntimeHealth(services.runtime)
        self.said = Said()
        self.address: str | None = "192.0.2.2"
        self.name_takes = 0.0  # seconds
        self.signals: dict[str, Signal] = {}
        places = SignalPlaces(memory=1, root_dir="/", pods_cgroup="/")
        self.pressure = PressureMonitor(
            PressureSettings(places=places, thresholds=(Threshold("memory.available", "100Mi"),)),
            services.images,
            lambda places: self.signals,
            self.said,
        )
        self.node = ClusterNode(
            door=SimulatedDoor(self.server),
            profile=profile(),
            config=KubeletConfiguration(),
            root_dir="/nonexistent",
            runtime=services.runtime,
            images=services.images,
            health=self.health,
            pressure=self.pressure,
            events=self.said,
            clock=CLOCK,
            registry=CollectorRegistry(),
            look=self._look,
        )

    def _look(self, *args: object, **kwargs: object) -> NodeLook:
        return NodeLook(*args, **kwargs, addresses=self._addresses)  # type: ignore[arg-type]

    async def _addresses(self, name: str, flag: NodeIPs) -> tuple[str, ...]:
        await trio.sleep(self.name_takes)
        if self.address is None:
            raise AddressError("nobody knows")
        return (self.address,)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.service.run)
            await nursery.start(self.health.run)
            await nursery.start(self.node.run)
            yield
            nursery.cancel_scope.cancel()

    def get(self, resource: str, namespace: str = "") -> Tree:
        return self.server.store.get(resource, namespace, "node-a")

    def ready(self) -> Tree:
        return self.condition("Ready")

    def condition(self, kind: str) -> Tree:
        found: Tree = next(c for c in self.get("nodes")["status"]["conditions"] if c["type"] == kind)
        return found


async def test_from_nothing_to_ready(autojump_clock: Clock) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.service.run)
        await nursery.start(world.node.run)
        await trio.sleep(3)
        errors = "container runtime status check may not have completed yet, network state unknown"
        assert errors in world.ready()["message"]
        await nursery.start(world.health.run)
        await trio.sleep(1)
        assert world.ready()["status"] == "True"
        uid = world.get("nodes")["metadata"]["uid"]
        assert world.get("nodes")["status"]["nodeInfo"]["containerRuntimeVersion"].count("://") == 1
        owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": uid}
        csi = world.get("csinodes")
        assert csi["metadata"]["ownerReferences"] == [owner]
        assert csi["spec"] == {"drivers": []}
        lease = world.get("leases", "kube-node-lease")
        assert lease["metadata"]["ownerReferences"] == [owner]
        patch: Tree = {"spec": {"podCIDRs": ["10.0.0.0/24"]}}
        world.server.store.patch("nodes", "", "node-a", patch, True)
        await trio.sleep(3)
        world.server.store.delete("nodes", "", "node-a")
        world.server.store.delete("csinodes", "", "node-a")
        await trio.sleep(5)
        new_uid = world.get("nodes")["metadata"]["uid"]
        assert new_uid != uid
        assert world.get("csinodes")["metadata"]["ownerReferences"][0]["uid"] == new_uid
        nursery.cancel_scope.cancel()


async def test_a_node_under_pressure_says_so_from_the_start(autojump_clock: Clock) -> None:
    world, said = World(), set[str]()
    world.signals = {"memory.available": Signal(1 << 20, 1 << 30)}

    def watch(change: Change) -> None:
        if change.resource == "nodes" and change.new is not None:
            conditions = change.new.get("status", {}).get("conditions", ())
            said.update(c["status"] for c in conditions if c["type"] == "MemoryPressure")

    world.server.store.on_change = watch
    async with trio.open_nursery() as nursery:
        await nursery.start(world.service.run)
        await nursery.start(world.node.run)
        await trio.sleep(3)
        nursery.cancel_scope.cancel()
    assert said == {"True"}


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_it_comes_right(seed: int, autojump_clock: Clock) -> None:
    world, rng = World(), random.Random(seed)
    server, store = world.server, world.server.store

    def set_fault(name: str, value: object) -> None:
        setattr(server, name, value)

    def refuse(request: Request) -> Refused | None:
        code = rng.choice((403, 409, 429, 500, 503))
        return Refused(code, "Some", "no") if rng.random() < 0.5 else None

    def delete(resource: str, namespace: str = "") -> None:
        with contextlib.suppress(Refused):
            store.delete(resource, namespace, "node-a")

    def meddle() -> None:
        with contextlib.suppress(Refused):
            conditions = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
            store.patch("nodes", "", "node-a", {"status": {"conditions": conditions}}, True, "status")
            labels = {"kubernetes.io/arch": "other", "x": str(rng.random())}
            store.patch("nodes", "", "node-a", {"metadata": {"labels": labels}}, True)
            store.patch("leases", "kube-node-lease", "node-a", {"spec": {"holderIdentity": "x"}}, True)

    doings = (
        lambda: set_fault("down", not server.down),
        lambda: set_fault("silent", not server.silent),
        lambda: set_fault("lose_answers", not server.lose_answers),
        lambda: set_fault("latency", rng.choice((0.0, 0.5, 12.0))),
        lambda: set_fault("refuse", rng.choice((refuse, lambda request: None))),
        server.break_watches,
        store.compact,
        meddle,
        lambda: delete("nodes"),
        lambda: delete("csinodes"),
        lambda: delete("leases", "kube-node-lease"),
        lambda: setattr(world, "address", rng.choice((None, "192.0.2.2", "192.0.2.3"))),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(world.service.run)
        await nursery.start(world.health.run)
        nursery.start_soon(world.node.run)
        for _ in range(40):
            await trio.sleep(rng.expovariate(0.2))
            rng.choice(doings)()
        for name, value in (("down", False), ("silent", False), ("lose_answers", False), ("latency", 0.0)):
            set_fault(name, value)
        set_fault("refuse", lambda request: None)
        world.address = "192.0.2.7"
        await trio.sleep(120)
        node = world.get("nodes")
        assert world.ready()["status"] == "True"
        assert node["metadata"]["labels"]["kubernetes.io/arch"] == "amd64"
        assert node["status"]["addresses"][0]["address"] == "192.0.2.7"
        uid = node["metadata"]["uid"]
        assert world.node.own.uid == uid
        lease = world.get("leases", "kube-node-lease")
        assert [owner["uid"] for owner in lease["metadata"]["ownerReferences"]] == [uid]
        age = CLOCK.now_ns() - parse_rfc3339(lease["spec"]["renewTime"])
        assert 0 <= age < 11 * NANOSECONDS
        nursery.cancel_scope.cancel()


async def test_not_ready_before_there_is_a_csi_node(autojump_clock: Clock) -> None:
    world = World()

    def refuse(request: Request) -> Refused | None:
        return Refused(403, "Forbidden", "no") if "/csinodes" in request.path else None

    world.server.refuse = refuse
    async with world.running():
        await trio.sleep(0.2)
        assert (world.ready()["status"], "CSINode" in world.ready()["message"]) == ("False", True)
        await trio.sleep(30)
        assert world.ready()["message"] == "failed to initialize CSINode: no"
        world.server.refuse = lambda request: None
        await trio.sleep(17)
        assert world.ready()["status"] == "True"


async def test_a_runtime_that_does_not_list_its_images_holds_up_no_condition(autojump_clock: Clock) -> None:
    world = World()
    world.service.runtime.images.pull("busybox")
    async with world.running():
        await trio.sleep(3)
        shown = world.get("nodes")["status"]["images"]
        assert shown
        world.faults.add(Fault(Kind.HANG, "ListImages"))
        calls = world.service.calls["ListImages"]
        while world.service.calls["ListImages"] == calls:  # noqa: ASYNC110
            await trio.sleep(0.1)
        world.signals = {"memory.available": Signal(1 << 20, 1 << 30)}
        await world.pressure.look()
        await trio.sleep(4)
        assert world.condition("MemoryPressure")["status"] == "True"
        await trio.sleep(60)
        assert world.get("nodes")["status"]["images"] == shown
        assert world.service.calls["ListImages"] - calls <= 8


async def test_a_name_service_that_does_not_answer_holds_up_no_condition(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        await trio.sleep(3)
        world.name_takes = math.inf
        await trio.sleep(30)
        world.signals = {"memory.available": Signal(1 << 20, 1 << 30)}
        await world.pressure.look()
        await trio.sleep(4)
        assert world.condition("MemoryPressure")["status"] == "True"
        assert world.get("nodes")["status"]["addresses"] == RECORDED["status"]["addresses"]


async def test_addresses_that_cannot_be_found_stay(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        await trio.sleep(3)
        world.address = None
        await trio.sleep(30)
        assert world.get("nodes")["status"]["addresses"] == RECORDED["status"]["addresses"]
        world.address = "192.0.2.9"
        await trio.sleep(12)
        assert world.get("nodes")["status"]["addresses"][0]["address"] == "192.0.2.9"
        assert world.node.own.host_ips() == ("192.0.2.9",)


async def test_the_runtime_may_be_away_for_half_a_minute(autojump_clock: Clock) -> None:
    service = SimService(SimRuntime(), CLOCK)
    health = RuntimeHealth(sim_services(service).runtime)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        await nursery.start(health.run)
        assert health.node_errors() == []
        nursery.start_soon(service.restart, 100.0)
        await trio.sleep(20)
        assert health.runtime_error() is None
        assert health.node_errors() == []
        await trio.sleep(20)
        health.watch_pleg(lambda: "slow")
        assert health.node_errors() == ["container runtime is down", "PLEG is not healthy: slow"]
        await trio.sleep(80)
        health.watch_pleg(lambda: None)
        assert health.node_errors() == []
        nursery.cancel_scope.cancel()


def test_features_of_the_runtime() -> None:
    assert features_of(cri.StatusResponse()) is None
    told = cri.StatusResponse(features=cri.RuntimeFeatures(supplemental_groups_policy=True))
    assert features_of(told) == RuntimeFeatures(supplemental_groups_policy=True)


# CSINode


def test_drivers_of_others_stay() -> None:
    driver = v1.CSINodeDriver(name="d", node_id="n")
    there = v1.CSINode(metadata=v1.ObjectMeta(annotations={"a": "b"}), spec=v1.CSINodeSpec(drivers=[driver]))
    node = csi_node(there, "node-a", "u")
    assert node.spec.drivers == [driver]
    annotations = node.metadata.annotations or {}
    assert annotations["a"] == "b"
    assert annotations["storage.alpha.kubernetes.io/migrated-plugins"].split(",") == sorted(MIGRATED)
    assert csi_node(node, "node-a", "u") == node


# Addresses and system


@pytest.mark.parametrize(
    "text", ["1.2.3.4,5.6.7.8", "1.2.3.4,fd00::1,fd00::2", "0.0.0.0,fd00::1", "1.2.3.4,x,::"]
)
def test_node_ips_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError):
        parse_node_ip_flag(text)


@pytest.mark.parametrize(
    ("text", "addresses", "ipv6_first", "given"),
    [
        ("", (), False, False),
        ("::", (), True, True),
        ("0.0.0.0", (), False, True),
        ("fd00::1, 1.2.3.4", ("fd00::1", "1.2.3.4"), True, True),
    ],
)
def test_node_ip_flag(text: str, addresses: tuple[str, ...], ipv6_first: bool, given: bool) -> None:
    flag = parse_node_ip_flag(text)
    assert (flag.addresses, flag.ipv6_first, flag.given) == (addresses, ipv6_first, given)


@pytest.mark.parametrize(
    ("text", "addresses", "ignored"),
    [
        ("x", (), ("x",)),
        (",", (), ("", "")),
        ("1.2.3.4,", ("1.2.3.4",), ("",)),
        ("nonsense,fd00::1", ("fd00::1",), ("nonsense",)),
        ("1.2.3.4/24", (), ("1.2.3.4/24",)),
        ("1.2.3", (), ("1.2.3",)),
        ("1..3.4", (), ("1..3.4",)),
        ("fe80::1%eth0", (), ("fe80::1%eth0",)),
        ("010.0.00.1", ("10.0.0.1",), ()),
        ("::ffff:10.0.0.1,fd00::1", ("10.0.0.1", "fd00::1"), ()),
    ],
)
def test_parts_of_the_flag_that_are_no_addresses_are_passed_over(
    text: str, addresses: tuple[str, ...], ignored: tuple[str, ...]
) -> None:
    flag = parse_node_ip_flag(text)
    assert (flag.addresses, flag.ignored, flag.given) == (addresses, ignored, bool(addresses))


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("127.0.0.1", "loopback"),
        ("224.0.0.1", "multicast"),
        ("fe80::1", "link-local"),
        ("203.0.113.7", "not found in the host's network interfaces"),
    ],
)
def test_addresses_a_node_may_not_have(address: str, problem: str) -> None:
    with pytest.raises(AddressError, match=problem):
        find_addresses("n", NodeIPs((address,)))


def test_a_name_that_is_an_address() -> None:
    assert find_addresses("203.0.113.7", NodeIPs()) == ("203.0.113.7",)


def test_host_ips_of_a_node() -> None:
    def node(*addresses: tuple[str, str]) -> v1.Node:
        listed = [v1.NodeAddress(type=kind, address=address) for kind, address in addresses]
        return v1.Node(status=v1.NodeStatus(addresses=listed))

    assert host_ips(None) == host_ips(node(("Hostname", "n"))) == ()
    mixed = node(("ExternalIP", "203.0.113.1"), ("InternalIP", "10.0.0.1"), ("ExternalIP", "2001:db8::1"))
    assert host_ips(mixed) == ("10.0.0.1", "2001:db8::1")
    assert host_ips(node(("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2"))) == ("10.0.0.1",)


def test_names_of_systems() -> None:
    assert os_image('NAME="x"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n').startswith("Debian GNU/Linux")
    assert os_image("NAME=x") == "Linux"
    assert os_image("") == "Unknown"

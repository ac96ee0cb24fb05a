"""Claims of pods with drivers over gRPC, claims and slices in memory."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
import trio
from prometheus_client import CollectorRegistry

from tests.dra.sample_driver import SampleDriver
from tests.pods.build import make_pod
from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.common.state_file import read_state
from trio_kubelet.dra import drivers as drivers_module
from trio_kubelet.dra.checkpoint import FILE_NAME, decode
from trio_kubelet.dra.claims import ClaimError, ResourceClaim
from trio_kubelet.dra.doors import DriverError
from trio_kubelet.dra.manager import DraManager
from trio_kubelet.grpc.loop import AsyncioLoop, open_asyncio_loop
from trio_kubelet.plugins.manager import PluginManager
from trio_kubelet.plugins.registration import registrations

GPU, NIC = "gpu.example.com", "nic.example.com"


@pytest.fixture
def tmp_path() -> Iterator[pathlib.Path]:
    """A short one: the paths of sockets are short."""
    with tempfile.TemporaryDirectory(prefix="tk-") as directory:
        yield pathlib.Path(directory)


class World:
    """An API server with claims, pods that are active, and what pods were told of."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.claims: dict[str, dict[str, object]] = {}
        self.wiped: list[str] = []
        self.pods: list[v1.Pod] = []
        self.running: set[str] = set()  # UIDs of those that run though nobody wants them
        self.sick: list[Collection[str]] = []
        self.registry = CollectorRegistry()
        self.clock = SystemClock()

    async def claim(self, namespace: str, name: str) -> ResourceClaim:
        await trio.lowlevel.checkpoint()
        if name not in self.claims:
            raise ClaimError(f"fetch ResourceClaim {name}: not found")
        return msgspec.convert(self.claims[name], ResourceClaim)

    async def delete_slices(self, driver: str) -> None:
        await trio.lowlevel.checkpoint()
        self.wiped.append(driver)

    def active(self) -> Collection[v1.Pod]:
        return self.pods

    def all_known(self) -> bool:
        return True

    def ending(self) -> Collection[str]:
        return self.running

    def holds(self, uid: str) -> bool:
        """Whether the pod has a claim, as it is written down."""
        content = read_state(str(self.root / FILE_NAME))
        return content is not None and any(uid in claim.pods for claim in decode(content))

    def add_claim(self, name: str, *drivers: str, pods: Collection[str], owner: str = "") -> None:
        self.claims[name] = {
            "metadata": {
                "uid": f"uid-{name}",
                "name": name,
                "namespace": "default",
                "ownerReferences": [{"uid": owner, "controller": True}] if owner else None,
            },
            "status": {
                "allocation": {"devices": {"results": [{"driver": each} for each in drivers]}},
                "reservedFor": [{"uid": f"uid-{pod}"} for pod in pods],
            },
        }

    def figure(self, name: str, **labels: str) -> float | None:
        """What the metrics of the last manager say."""
        return self.registry.get_sample_value(name, labels)

    def manager(self, loop: AsyncioLoop) -> DraManager:
        self.registry = CollectorRegistry()
        return DraManager(
            root_dir=str(self.root),
            loop=loop,
            objects=self,
            pods=self,
            registry=self.registry,
            extended=True,
            of_groups=False,
            messages=True,
            health_changed=self.sick.append,
            clock=self.clock,
        )


@asynccontextmanager
async def running(
    world: World, *drivers: SampleDriver
) -> AsyncIterator[tuple[DraManager, AsyncioLoop, trio.Nursery]]:
    """A manager with drivers that are registered through the plugin watcher."""
    async with open_asyncio_loop() as loop, trio.open_nursery() as nursery:
        manager = world.manager(loop)
        await manager.load()
        nursery.start_soon(manager.run)
        nursery.start_soon(manager.drivers.run)
        plugins = PluginManager(
            directory=str(world.root / "plugins_registry"),
            handlers={"DRAPlugin": manager.drivers},
            open_registration=registrations(loop),
            registry=CollectorRegistry(),
        )
        nursery.start_soon(plugins.run)
        for driver in drivers:
            socket = str(world.root / "plugins_registry" / f"{driver.name}.sock")
            (world.root / "plugins_registry").mkdir(exist_ok=True)
            await nursery.start(partial(driver.serve, loop, socket))
            await until(partial(len, driver.told))
            assert driver.told == [(True, "")]
        yield manager, loop, nursery
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 (processes beyond a socket are waited for)
            await trio.sleep(0.01)


def pod_with(name: str, *claims: str, template: str = "", request: str = "") -> v1.Pod:
    pod = make_pod(name)
    named = [v1.PodResourceClaim(name=each, resource_claim_name=each) for each in claims]
    asked = [v1.ResourceClaim(name=each, request=request) for each in claims]
    status = pod.status
    if template:
        named.append(v1.PodResourceClaim(name="made", resource_claim_template_name="template"))
        asked.append(v1.ResourceClaim(name="made"))
        made = [v1.PodResourceClaimStatus(name="made", resource_claim_name=template)]
        status = msgspec.structs.replace(status, resource_claim_statuses=made)
    container = v1.Container(name="main", resources=v1.ResourceRequirements(claims=asked))
    spec = msgspec.structs.replace(pod.spec, resource_claims=named, containers=[container])
    return msgspec.structs.replace(pod, spec=spec, status=status)


def is_registered(manager: DraManager, driver: str) -> bool:
    try:
        manager.drivers.get(driver)
    except DriverError:
        return False
    return True


def main(pod: v1.Pod) -> v1.Container:
    assert pod.spec.containers
    return pod.spec.containers[0]


@pytest.mark.parametrize("service", ["v1.DRAPlugin", "v1beta1.DRAPlugin"])
async def test_claims_are_prepared_in_one_call_for_each_driver_and_given_back(
    tmp_path: pathlib.Path, service: str
) -> None:
    world = World(tmp_path)
    gpu = SampleDriver(GPU, str(tmp_path / "gpu.sock"), service)
    nic = SampleDriver(NIC, str(tmp_path / "nic.sock"), service)
    world.add_claim("one", GPU, pods=["web"])
    world.add_claim("two", GPU, NIC, pods=["web"])
    pod = pod_with("web", "one", "two")
    async with running(world, gpu, nic) as (manager, _, _nursery):
        await manager.prepare(pod)
        assert gpu.diary == [("prepare", ("one", "two"))]
        assert nic.diary == [("prepare", ("two",))]
        assert manager.cdi_ids(pod, main(pod)) == (
            f"{GPU}/dev=one",
            f"{GPU}/dev=two",
            f"{NIC}/dev=two",
        )
        await manager.prepare(pod)  # a sandbox that is made anew
        assert len(gpu.diary) == 1
        await manager.unprepare(pod)
        await manager.unprepare(pod)
        assert gpu.diary[1:] == [("unprepare", ("one", "two"))]
        assert not world.holds(pod.metadata.uid)


async def test_a_claim_that_stands_for_extended_resources_is_prepared_and_given_back(
    tmp_path: pathlib.Path,
) -> None:
    """The pod's spec names no claim: the scheduler has made it."""
    world, gpu = World(tmp_path), SampleDriver(GPU, str(tmp_path / "gpu.sock"))
    world.add_claim("made", GPU, pods=["web"])
    mapping = v1.ContainerExtendedResourceRequest(
        container_name="main", resource_name="example.com/gpu", request_name="gpu"
    )
    claim = v1.PodExtendedResourceClaimStatus(resource_claim_name="made", request_mappings=[mapping])
    wanted = v1.ResourceRequirements(requests={"example.com/gpu": "1"})
    pod = make_pod("web", containers=[v1.Container(name="main", resources=wanted)])
    pod = msgspec.structs.replace(
        pod, status=msgspec.structs.replace(pod.status, extended_resource_claim_status=claim)
    )
    async with running(world, gpu) as (manager, _, _nursery):
        await manager.prepare(pod)
        assert manager.cdi_ids(pod, main(pod)) == (f"{GPU}/dev=made",)
        await manager.unprepare(pod)
        assert gpu.diary == [("prepare", ("made",)), ("unprepare", ("made",))]


async def test_a_shared_claim_is_prepared_once_and_given_back_by_the_last(tmp_path: pathlib.Path) -> None:
    world, gpu = World(tmp_path), SampleDriver(GPU, str(tmp_path / "gpu.sock"))
    world.add_claim("shared", GPU, pods=["one", "two"])
    one, two = pod_with("one", "shared"), pod_with("two", "shared")
    async with running(world, gpu) as (manager, _, nursery):
        async with trio.open_nursery() as both:
            both.start_soon(manager.prepare, one)
            both.start_soon(manager.prepare, two)
        assert gpu.diary == [("prepare", ("shared",))]
        await manager.unprepare(one)
        assert len(gpu.diary) == 1
        await manager.unprepare(two)
        assert gpu.diary[1:] == [("unprepare", ("shared",))]
        nursery.cancel_scope.cancel()


async def test_a_claim_that_was_given_back_in_part_is_prepared_anew(tmp_path: pathlib.Path) -> None:
    """One driver has given it back, the other failed, and then another pod wants the claim."""
    world = World(tmp_path)
    gpu, nic = (SampleDriver(name, str(tmp_path / f"{name[:3]}.sock")) for name in (GPU, NIC))
    world.add_claim("both", GPU, NIC, pods=["one", "two"])
    one, two = pod_with("one", "both"), pod_with("two", "both")
    async with running(world, gpu, nic) as (manager, _, _nursery):
        await manager.prepare(one)
        nic.broken = True
        with pytest.raises(ClaimError, match="broken"):
            await manager.unprepare(one)
        assert gpu.diary == [("prepare", ("both",)), ("unprepare", ("both",))]
        nic.broken = False
        await manager.prepare(two)
        assert gpu.diary[2:] == [("prepare", ("both",))]
        await manager.unprepare(one)
        assert gpu.diary[3:] == [], "it is another pod's now"


async def test_what_is_in_use_outlives_the_agent(tmp_path: pathlib.Path) -> None:
    world, gpu = World(tmp_path), SampleDriver(GPU, str(tmp_path / "gpu.sock"))
    world.add_claim("one", GPU, pods=["web"])
    pod = pod_with("web", "one", request="gpu")
    async with running(world, gpu) as (manager, _, _nursery):
        await manager.prepare(pod)
    gpu.told.clear()
    gpu.changed = trio.Event()
    async with running(world, gpu) as (manager, _, _nursery):
        assert world.holds(pod.metadata.uid)
        for who in (GPU, "<any>"):
            assert world.figure("dra_resource_claims_in_use", driver_name=who) == 1
        assert manager.cdi_ids(pod, main(pod)) == (f"{GPU}/dev=one",)
        await manager.unprepare(pod)
    assert gpu.diary == [("prepare", ("one",)), ("unprepare", ("one",))]


async def test_a_pod_whose_status_names_no_claim_gives_its_back(tmp_path: pathlib.Path) -> None:
    """kubernetes 139772: «ResourceClaim not created yet», and the pod never ended."""
    world, gpu = World(tmp_path), SampleDriver(GPU, str(tmp_path / "gpu.sock"))
    world.add_claim("web-made", GPU, pods=["web"], owner="uid-web")
    pod = pod_with("web", template="web-made")
    async with running(world, gpu) as (manager, _, _nursery):
        await manager.unprepare(pod_with("other", template="other-made"))
        await manager.prepare(pod)
        await manager.unprepare(msgspec.structs.replace(pod, status=v1.PodStatus()))
    assert gpu.diary == [("prepare", ("web-made",)), ("unprepare", ("web-made",))]
    assert not world.holds(pod.metadata.uid)


async def test_what_a_pod_may_not_use_is_refused_with_the_kubelets_words(tmp_path: pathlib.Path) -> None:
    world, gpu = World(tmp_path), SampleDriver(GPU, str(tmp_path / "gpu.sock"))
    world.add_claim("others", GPU, pods=["other"])
    world.add_claim("foreign", GPU, pods=["web"], owner="uid-other")
    world.add_claim("own", GPU, pods=["web"], owner="uid-web")
    world.add_claim("driverless", "gone.example.com", pods=["web"])
    texts = [
        (
            pod_with("web", "others"),
            "pod web (uid-web) is not allowed to use ResourceClaim others (uid-others)",
        ),
        (
            pod_with("web", template="foreign"),
            "ResourceClaim default/foreign was not created for Pod default/web (Pod is not owner)",
        ),
        (pod_with("web", "driverless"), "DRA driver gone.example.com is not registered"),
        (pod_with("web", "missing"), "fetch ResourceClaim missing: not found"),
    ]
    async with running(world, gpu) as (manager, _, _nursery):
        for pod, text in texts:
            with pytest.raises(ClaimError) as caught:
                await manager.prepare(pod)
            assert str(caught.value) == f"prepare dynamic resources: {text}"
            assert not world.holds("uid-web"), "such a pod may go without any driver"
        await manager.prepare(pod_with("web", template="own"))
        assert gpu.diary == [("prepare", ("own",))]


async def test_each_pod_that_starts_or_stops_counts(tmp_path: pathlib.Path) -> None:
    """Also one that claims nothing, as with the kubelet."""
    world, pod = World(tmp_path), make_pod("plain")
    async with running(world) as (manager, _, _nursery):
        await manager.prepare(pod)
        await manager.unprepare(pod)
        for name in ("PrepareResources", "UnprepareResources"):
            counted = "dra_operations_duration_seconds_count"
            assert world.figure(counted, operation_name=name, is_error="false") == 1


async def test_a_driver_that_fails_is_asked_again(tmp_path: pathlib.Path) -> None:
    world, gpu = World(tmp_path), SampleDriver(GPU, str(tmp_path / "gpu.sock"))
    world.add_claim("one", GPU, pods=["web"])
    pod = pod_with("web", "one")
    async with running(world, gpu) as (manager, _, _nursery):
        gpu.refuse = {"one": "no such device"}
        with pytest.raises(ClaimError, match="failed for ResourceClaim one: no such device"):
            await manager.prepare(pod)
        gpu.refuse, gpu.mute = {}, {"one"}
        with pytest.raises(ClaimError, match="NodePrepareResources skipped 1 ResourceClaims"):
            await manager.prepare(pod)
        gpu.mute, gpu.broken = set(), True
        with pytest.raises(
            ClaimError, match="NodePrepareResources: rpc error: code = Internal desc = broken"
        ):
            await manager.prepare(pod)
        gpu.broken, gpu.more = False, ["uid-foreign"]
        with pytest.raises(ClaimError, match="returned result for unknown claim UID uid-foreign"):
            await manager.prepare(pod)
        gpu.more = ()
        assert world.holds(pod.metadata.uid), "the driver may have done something"
        assert world.figure("dra_resource_claims_in_use", driver_name="<any>") == 0
        assert world.figure("dra_resource_claims_in_use", driver_name=GPU) is None
        gpu.refuse = {"one": "in use"}
        with pytest.raises(ClaimError, match="NodeUnprepareResources failed for ResourceClaim one: in use"):
            await manager.unprepare(pod)
        gpu.refuse, gpu.forget = {}, {"one"}
        with pytest.raises(ClaimError, match="NodeUnprepareResources skipped 1 ResourceClaims"):
            await manager.unprepare(pod)
        assert world.holds(pod.metadata.uid)
        gpu.forget = set()
        await manager.unprepare(pod)
        assert gpu.diary[-1] == ("unprepare", ("one",))
        assert not world.holds(pod.metadata.uid)


async def test_health_is_told_to_the_pods_that_use_a_device(tmp_path: pathlib.Path) -> None:
    world, gpu = World(tmp_path), SampleDriver(GPU, str(tmp_path / "gpu.sock"))
    world.add_claim("one", GPU, pods=["web"])
    pod = pod_with("web", "one", request="gpu")
    registered = str(tmp_path / "plugins_registry" / "gpu.sock")
    async with running(world) as (manager, loop, _nursery):

        def told() -> tuple[str, str, str | None]:
            [status] = manager.health(pod, main(pod).name)
            assert status.name == "claim:one/gpu"
            [resource] = status.resources or []
            return resource.resource_id, resource.health, resource.message

        await until((tmp_path / "plugins_registry").exists)
        async with trio.open_nursery() as alive:
            await alive.start(partial(gpu.serve, loop, registered))
            await until(lambda: gpu.told)
            await manager.prepare(pod)
            assert told() == (f"{GPU}/dev=one", "Unknown", None)
            gpu.now(**{"one-0": 2})
            await until(lambda: world.sick)
            assert [set(each) for each in world.sick] == [{"uid-web"}]
            assert told() == (f"{GPU}/dev=one", "Unhealthy", "as the driver says")
            alive.cancel_scope.cancel()
        await until(lambda: len(world.sick) > 1)
        assert set(world.sick[-1]) == {"uid-web"}
        assert told() == (f"{GPU}/dev=one", "Unknown", None), "who is not there says nothing any more"


async def test_health_of_thousands_of_containers_and_claims_is_told_in_one_pass(
    tmp_path: pathlib.Path,
) -> None:
    """It is, whenever the pod's status is made."""
    names = [f"c{number}" for number in range(4000)]
    containers = [
        v1.Container(name=name, resources=v1.ResourceRequirements(claims=[v1.ResourceClaim(name=name)]))
        for name in names
    ]
    pod = pod_with("web", *names)
    pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=containers))
    async with running(World(tmp_path)) as (manager, _, _nursery):
        for _ in within_cpu(0.5):
            assert not any(manager.health(pod, name) for name in names), "none is prepared"


async def test_what_was_heard_of_health_outlives_the_agent(tmp_path: pathlib.Path) -> None:
    world, gpu = World(tmp_path), SampleDriver(GPU, str(tmp_path / "gpu.sock"))
    world.add_claim("one", GPU, pods=["web"])
    pod = pod_with("web", "one", request="gpu")
    file = tmp_path / "dra_health_state"

    def told(manager: DraManager) -> tuple[str, str | None]:
        [resource] = manager.health(pod, main(pod).name)[0].resources or []
        return resource.health, resource.message

    async with running(world, gpu) as (manager, loop, _nursery):
        await manager.prepare(pod)
        gpu.now(**{"one-0": 2})
        await until(lambda: file.exists() and b"Unhealthy" in file.read_bytes())
        successor = world.manager(loop)
        await successor.load()
        assert told(successor) == ("Unhealthy", "as the driver says")
        file.write_text("{")
        another = world.manager(loop)
        await another.load()  # as the kubelet does: health is heard anew
        assert told(another) == ("Unknown", None)


async def test_slices_go_when_a_driver_stays_away(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers_module, "WIPE_PAUSES", Pauses(0.01, 0.01))
    world, gpu = World(tmp_path), SampleDriver(GPU, str(tmp_path / "gpu.sock"))
    async with running(world) as (manager, loop, nursery):
        await until(lambda: world.wiped == [""])
        for delay, wiped in ((1000, [""]), (0.2, ["", GPU])):
            monkeypatch.setattr(drivers_module, "WIPING_DELAY", delay)
            gpu.told.clear()
            async with trio.open_nursery() as alive:
                await alive.start(partial(gpu.serve, loop, str(tmp_path / "plugins_registry" / "gpu.sock")))
                await until(lambda: gpu.told)
                await trio.sleep(0.3)
                assert world.wiped == [""], "it is there"
                alive.cancel_scope.cancel()
            await until(lambda: not is_registered(manager, GPU))
            await until(lambda wiped=wiped: world.wiped == wiped)  # type: ignore[misc]
            await trio.sleep(0.3)
            assert world.wiped == wiped
        nursery.cancel_scope.cancel()


async def test_claims_of_pods_that_are_over_are_given_back_in_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.dra.manager.RECONCILE_PERIOD", 0.1)
    world, gpu = World(tmp_path), SampleDriver(GPU, str(tmp_path / "gpu.sock"))
    world.add_claim("one", GPU, pods=["web"])
    pod = pod_with("web", "one")
    world.pods = [pod]
    async with running(world, gpu) as (manager, _, _nursery):
        await manager.prepare(pod)
        await trio.sleep(0.3)
        assert world.holds(pod.metadata.uid)
        world.pods, world.running = [], {pod.metadata.uid}
        await trio.sleep(0.3)
        assert world.holds(pod.metadata.uid), "nobody wants it any more, and it is still ending"
        world.running.clear()
        await until(lambda: not world.holds(pod.metadata.uid))
        assert gpu.diary[-1] == ("unprepare", ("one",))


async def test_a_driver_that_hangs_holds_up_no_claim_of_another(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.dra.manager.RECONCILE_PERIOD", 0.1)
    world = World(tmp_path)
    gpu, nic = SampleDriver(GPU, str(tmp_path / "gpu.sock")), SampleDriver(NIC, str(tmp_path / "nic.sock"))
    pods = []
    for number, driver in enumerate((GPU, GPU, NIC)):
        world.add_claim(f"claim-{number}", driver, pods=[f"web-{number}"])
        pods.append(pod_with(f"web-{number}", f"claim-{number}"))
    world.pods = pods
    async with running(world, gpu, nic) as (manager, _, _nursery):
        for pod in pods:
            await manager.prepare(pod)
        gpu.hangs = True
        world.pods = []
        await until(lambda: not world.holds(pods[2].metadata.uid))
        assert all(world.holds(pod.metadata.uid) for pod in pods[:2])

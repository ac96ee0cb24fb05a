"""Variables of services, and runtime classes, followed at a test API server on virtual time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.test_reflector import eventually
from trio_kubelet.api import v1
from trio_kubelet.kube.runtime_classes import FollowedRuntimeClasses
from trio_kubelet.kube.services import FIRST_LIST_WAIT, ServiceInfo, Services, service_variables
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.updates import CONFIG_SOURCE_ANNOTATION

GOLDEN = Path(__file__).parents[1] / "golden" / "cluster-node.json"


def a_service(name: str, namespace: str, ip: str, *ports: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": ip, "ports": list(ports)},
    }


KUBERNETES = a_service("kubernetes", "default", "10.0.0.1", {"name": "https", "port": 443, "protocol": "TCP"})
SVC = a_service("svc", "default", "10.0.0.22", {"name": "http", "port": 80, "protocol": "TCP"})


def variables(*services: dict[str, Any], namespace: str = "default", links: bool = True) -> dict[str, str]:
    return service_variables(
        [msgspec.convert(service, ServiceInfo) for service in services], namespace, links
    )


def a_pod(namespace: str = "ns", links: bool = True, source: str = "api") -> v1.Pod:
    annotations = {CONFIG_SOURCE_ANNOTATION: source}
    meta = v1.ObjectMeta(name="p", namespace=namespace, uid="u", annotations=annotations)
    return v1.Pod(metadata=meta, spec=v1.PodSpec(enable_service_links=links))


def test_recorded_variables() -> None:
    recorded = json.loads(GOLDEN.read_text())["criContainerConfigs"]
    services = {"cfg/c": (SVC, KUBERNETES), "mir-node-a/c0": (KUBERNETES,)}
    for container, seen in services.items():
        envs = {entry["key"]: entry["value"] for entry in recorded[container]["envs"]}
        wanted = {key: value for key, value in envs.items() if key.startswith(("KUBERNETES_", "SVC_"))}
        assert variables(*seen) == wanted


def test_more_ports_than_a_program_can_have_are_an_error() -> None:
    ports = [{"port": number} for number in range(1, 201)]
    many = [a_service(f"s{number}", "ns", "10.0.0.2", *ports) for number in range(101)]
    assert len(variables(*many[:100], namespace="ns")) > 80_000 - 1
    with pytest.raises(ConfigError, match=r"namespace ns have more than 20000 ports, .* enableServiceLinks"):
        variables(*many, namespace="ns")
    assert variables(*many, namespace="ns", links=False) == {}


def test_names_ports_and_addresses() -> None:
    service = a_service(
        "my-db", "ns", "fd00::1", {"port": 53, "protocol": "UDP"}, {"name": "admin-ui", "port": 8080}
    )
    assert variables(service, namespace="ns") == {
        "MY_DB_SERVICE_HOST": "fd00::1",
        "MY_DB_SERVICE_PORT": "53",
        "MY_DB_SERVICE_PORT_ADMIN_UI": "8080",
        "MY_DB_PORT": "udp://[fd00::1]:53",
        "MY_DB_PORT_53_UDP": "udp://[fd00::1]:53",
        "MY_DB_PORT_53_UDP_PROTO": "udp",
        "MY_DB_PORT_53_UDP_PORT": "53",
        "MY_DB_PORT_53_UDP_ADDR": "fd00::1",
        "MY_DB_PORT_8080_TCP": "tcp://[fd00::1]:8080",
        "MY_DB_PORT_8080_TCP_PROTO": "tcp",
        "MY_DB_PORT_8080_TCP_PORT": "8080",
        "MY_DB_PORT_8080_TCP_ADDR": "fd00::1",
    }


def test_which_services_a_pod_sees() -> None:
    own = a_service("a", "ns", "10.0.0.2", {"port": 1})
    other = a_service("b", "other", "10.0.0.3", {"port": 1})
    headless = a_service("c", "ns", "None", {"port": 1})
    external = a_service("d", "ns", "", {"port": 1})
    look_alike = a_service("kubernetes", "ns", "10.0.0.9", {"port": 1})
    everything = (KUBERNETES, SVC, own, other, headless, external)

    def hosts(found: dict[str, str]) -> dict[str, str]:
        return {key.removesuffix("_SERVICE_HOST"): v for key, v in found.items() if key.endswith("_HOST")}

    assert hosts(variables(*everything, namespace="ns")) == {"A": "10.0.0.2", "KUBERNETES": "10.0.0.1"}
    assert hosts(variables(*everything, namespace="ns", links=False)) == {"KUBERNETES": "10.0.0.1"}
    assert hosts(variables(look_alike, namespace="ns", links=False)) == {}
    assert hosts(variables(KUBERNETES, look_alike, namespace="ns")) == {"KUBERNETES": "10.0.0.9"}


async def _following(task: Callable[[], Awaitable[None]], body: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task)
        await body()
        nursery.cancel_scope.cancel()


async def test_services_are_followed(autojump_clock: trio.testing.MockClock) -> None:
    server = APIServer()
    server.store.create("services", "default", KUBERNETES)
    services = Services(SimulatedDoor(server))

    async def body() -> None:
        assert (await services.variables(a_pod()))["KUBERNETES_SERVICE_HOST"] == "10.0.0.1"
        server.store.create("services", "ns", a_service("new", "ns", "10.0.0.5", {"port": 1}))
        await trio.sleep(1)
        assert (await services.variables(a_pod()))["NEW_SERVICE_HOST"] == "10.0.0.5"
        assert "NEW_SERVICE_HOST" not in await services.variables(a_pod(links=False))
        server.store.delete("services", "ns", "new")
        await trio.sleep(1)
        assert "NEW_SERVICE_HOST" not in await services.variables(a_pod())

    await _following(services.run, body)


async def test_without_the_server_static_pods_go_on_and_others_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = APIServer()
    server.down = True
    services = Services(SimulatedDoor(server))

    async def body() -> None:
        assert await services.variables(a_pod(source="file")) == {}
        began = trio.current_time()
        with pytest.raises(ConfigError, match="services have not yet been read at least once"):
            await services.variables(a_pod())
        assert trio.current_time() - began == pytest.approx(FIRST_LIST_WAIT)
        server.down = False
        await trio.sleep(60)
        assert await services.variables(a_pod()) == {}

    await _following(services.run, body)


async def test_runtime_classes_are_followed(autojump_clock: trio.testing.MockClock) -> None:
    server = APIServer()
    classes = FollowedRuntimeClasses(SimulatedDoor(server))

    async def body() -> None:
        with pytest.raises(ConfigError, match=r'^runtimeclass.node.k8s.io "gvisor" not found$'):
            classes.handler("gvisor")
        server.store.create("runtimeclasses", "", {"metadata": {"name": "gvisor"}, "handler": "runsc"})

        def is_there() -> bool:
            try:
                return classes.handler("gvisor") == "runsc"
            except ConfigError:
                return False

        await eventually(is_there, 2)
        assert classes.handlers() == {"gvisor": "runsc"}

    await _following(classes.run, body)

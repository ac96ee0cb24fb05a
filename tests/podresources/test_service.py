"""What the service answers."""

from __future__ import annotations

import contextlib
import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.podresources.doors import HeldClaim, HeldClaimDevice, HeldDevice, HeldMemory
from trio_kubelet.podresources.proto import api_pb2 as resources
from trio_kubelet.podresources.service import PodResourcesService

ROOT = pathlib.Path(__file__).parents[2]
PREFIX = "/v1.PodResourcesLister/"


def pod(name: str, *containers: str, init: tuple[v1.Container, ...] = ()) -> v1.Pod:
    spec = v1.PodSpec(
        containers=[v1.Container(name=each) for each in containers], init_containers=list(init) or None
    )
    return v1.Pod(metadata=v1.ObjectMeta(name=name, namespace="default", uid=name), spec=spec)


class Held:
    """A container `main` that has everything, and a device that nobody has."""

    def devices(self, pod: v1.Pod, container: v1.Container) -> list[HeldDevice]:
        if container.name != "main":
            return []
        return [
            HeldDevice("a.b/gpu", "dev-1", 1),
            HeldDevice("a.b/gpu", "dev-1", 0),
            HeldDevice("a.b/nic", "n"),
        ]

    def claims(self, pod: v1.Pod, container: v1.Container) -> list[HeldClaim]:
        if container.name != "main":
            return []
        device = HeldClaimDevice(
            driver="d", pool="p", device="gpu-0", share_id="s", cdi_ids=("d/gpu=0", "d/gpu=all")
        )
        return [HeldClaim(namespace="default", name="claim", devices=(device,))]

    def cpus(self, pod: v1.Pod, container: v1.Container) -> set[int]:
        return {11, 3, 2} if container.name in ("main", "proxy") else set()

    def allocatable_devices(self) -> list[HeldDevice]:
        return [HeldDevice("a.b/gpu", "dev-2")]

    def allocatable_cpus(self) -> set[int]:
        return {11, 3, 2, 1}

    def memory(self, pod: v1.Pod, container: v1.Container) -> list[HeldMemory]:
        both = [HeldMemory("memory", 7 << 30, (0, 1)), HeldMemory("hugepages-2Mi", 4 << 20, (0, 1))]
        return both if container.name == "main" else []

    def allocatable_memory(self) -> list[HeldMemory]:
        return [HeldMemory("memory", 2 << 30, (1,)), HeldMemory("memory", 1 << 30, (0,))]


def service(
    *active: v1.Pod, listed: tuple[v1.Pod, ...] | None = None
) -> tuple[PodResourcesService, CollectorRegistry]:
    registry = CollectorRegistry(auto_describe=False)
    service = PodResourcesService(
        active_pods=lambda: active,
        listed_pods=lambda: active if listed is None else listed,
        all_pods=lambda: (*active, *(listed or ())),
        holdings=Held(),
        registry=registry,
    )
    return service, registry


def count(registry: CollectorRegistry, name: str) -> float | None:
    return registry.get_sample_value(f"kubelet_pod_resources_endpoint_{name}", {"server_api_version": "v1"})


def test_the_committed_messages_are_those_of_the_table() -> None:
    table = json.loads((ROOT / "tools" / "podresources-v1.json").read_text())
    for name, fields in table["messages"].items():
        descriptor = resources.DESCRIPTOR.message_types_by_name[name]
        assert {f.number: f.name for f in descriptor.fields} == {n: field for n, field, *_ in fields}


def test_devices_and_claims_are_told() -> None:
    answers, _ = service(pod("web", "main", "log"))
    answer = resources.ListPodResourcesResponse.FromString(answers.call(PREFIX + "List", b""))
    main, log = answer.pod_resources[0].containers
    assert [
        (each.resource_name, list(each.device_ids), [node.ID for node in each.topology.nodes])
        for each in main.devices
    ] == [("a.b/gpu", ["dev-1"], [0]), ("a.b/gpu", ["dev-1"], [1]), ("a.b/nic", ["n"], [])]
    assert not main.devices[2].HasField("topology")
    [claim] = main.dynamic_resources
    [device] = claim.claim_resources
    assert (claim.claim_namespace, claim.claim_name) == ("default", "claim")
    assert (device.driver_name, device.pool_name, device.device_name, device.share_id) == (
        "d",
        "p",
        "gpu-0",
        "s",
    )
    assert [each.name for each in device.cdi_devices] == ["d/gpu=0", "d/gpu=all"]
    assert not log.devices
    assert not log.dynamic_resources
    call = answers.call(PREFIX + "GetAllocatableResources", b"")
    allocatable = resources.AllocatableResourcesResponse.FromString(call)
    assert [list(each.device_ids) for each in allocatable.devices] == [["dev-2"]]


def test_active_pods_are_listed_with_the_containers_that_go_on_running() -> None:
    sidecar = v1.Container(name="proxy", restart_policy="Always")
    answers, registry = service(pod("web", "main", "log", init=(v1.Container(name="prepare"), sidecar)))
    answer = resources.ListPodResourcesResponse.FromString(answers.call(PREFIX + "List", b""))
    assert [(each.namespace, each.name) for each in answer.pod_resources] == [("default", "web")]
    assert [each.name for each in answer.pod_resources[0].containers] == ["proxy", "main", "log"]
    assert count(registry, "requests_total") == 1
    assert count(registry, "requests_list") == 1


def test_cpus_of_their_own_are_told_in_order() -> None:
    sidecar = v1.Container(name="proxy", restart_policy="Always")
    answers, _ = service(pod("web", "main", "log", init=(sidecar,)))
    expected = {"proxy": [2, 3, 11], "main": [2, 3, 11], "log": []}
    every = resources.ListPodResourcesResponse.FromString(answers.call(PREFIX + "List", b""))
    assert {each.name: list(each.cpu_ids) for each in every.pod_resources[0].containers} == expected
    request = resources.GetPodResourcesRequest(pod_name="web", pod_namespace="default")
    call = answers.call(PREFIX + "Get", request.SerializeToString())
    one = resources.GetPodResourcesResponse.FromString(call).pod_resources
    assert {each.name: list(each.cpu_ids) for each in one.containers} == expected
    call = answers.call(PREFIX + "GetAllocatableResources", b"")
    assert list(resources.AllocatableResourcesResponse.FromString(call).cpu_ids) == [1, 2, 3, 11]


def test_memory_is_told_by_kind_and_node() -> None:
    answers, _ = service(pod("web", "main", "log"))
    every = resources.ListPodResourcesResponse.FromString(answers.call(PREFIX + "List", b""))
    main, log = every.pod_resources[0].containers
    assert [(each.memory_type, each.size, [n.ID for n in each.topology.nodes]) for each in main.memory] == [
        ("hugepages-2Mi", 4 << 20, [0, 1]),
        ("memory", 7 << 30, [0, 1]),
    ]
    assert not log.memory
    call = answers.call(PREFIX + "GetAllocatableResources", b"")
    allocatable = resources.AllocatableResourcesResponse.FromString(call).memory
    assert [(each.size, [n.ID for n in each.topology.nodes]) for each in allocatable] == [
        (1 << 30, [0]),
        (2 << 30, [1]),
    ]


def test_only_active_pods_can_be_asked_for() -> None:
    answers, _ = service(pod("web", "main"), listed=(pod("over", "main"),))
    request = resources.GetPodResourcesRequest(pod_name="web", pod_namespace="default")
    answer = answers.call(PREFIX + "Get", request.SerializeToString())
    assert resources.GetPodResourcesResponse.FromString(answer).pod_resources.name == "web"
    every = resources.ListPodResourcesResponse.FromString(answers.call(PREFIX + "List", b""))
    assert [each.name for each in every.pod_resources] == ["over"]
    with pytest.raises(GrpcError, match="not found"):
        answers.call(PREFIX + "Get", request.SerializeToString().replace(b"web", b"new"))


def test_the_older_version_tells_the_devices_of_all_pods_without_sidecars() -> None:
    sidecar = v1.Container(name="proxy", restart_policy="Always")
    answers, registry = service(pod("web", "main", init=(sidecar,)), listed=(pod("over", "log"),))
    call = answers.call("/v1alpha1.PodResourcesLister/List", b"")
    web, over = resources.ListPodResourcesResponse.FromString(call).pod_resources
    device = resources.ContainerDevices
    devices = [
        *[device(resource_name="a.b/gpu", device_ids=["dev-1"])] * 2,
        device(resource_name="a.b/nic", device_ids=["n"]),
    ]
    main = resources.ContainerResources(name="main", devices=devices)
    assert web == resources.PodResources(name="web", namespace="default", containers=[main])
    assert [each.name for each in over.containers] == ["log"]
    labels = {"server_api_version": "v1alpha1"}
    name = "kubelet_pod_resources_endpoint_requests"
    assert registry.get_sample_value(f"{name}_total", labels) == 1
    assert registry.get_sample_value(f"{name}_list", labels) is None


def test_an_unknown_pod_is_an_error_in_the_kubelets_words() -> None:
    answers, registry = service()
    request = resources.GetPodResourcesRequest(pod_name="foo", pod_namespace="default")
    with pytest.raises(GrpcError, match=r"desc = pod foo in namespace default not found$") as caught:
        answers.call(PREFIX + "Get", request.SerializeToString())
    assert caught.value.code == Code.UNKNOWN
    assert (count(registry, "errors_get"), count(registry, "requests_get")) == (1, 1)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1.PodResourcesLister/Watch", "unknown method Watch for service v1.PodResourcesLister"),
        ("/v1alpha1.PodResourcesLister/Get", "unknown method Get for service v1alpha1.PodResourcesLister"),
        ("/v1beta1.PodResourcesLister/List", "unknown service v1beta1.PodResourcesLister"),
        ("", "unknown service "),
    ],
)
def test_what_is_not_there(path: str, message: str) -> None:
    answers, registry = service()
    with pytest.raises(GrpcError) as caught:
        answers.call(path, b"")
    assert (caught.value.code, caught.value.message) == (Code.UNIMPLEMENTED, message)
    assert count(registry, "requests_total") is None


@given(st.binary(max_size=100), st.sampled_from(["List", "Get", "GetAllocatableResources"]))
def test_any_request_gets_an_answer_or_an_error(request: bytes, method: str) -> None:
    answers, _ = service(pod("web", "main"))
    with contextlib.suppress(GrpcError):
        assert isinstance(answers.call(PREFIX + method, request), bytes)

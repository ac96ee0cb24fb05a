"""What the pod resources service answers. Pure but for the counters.

CPUs are those that containers have to themselves, so there are none without a CPU policy; likewise memory.
Which pods and containers are listed is the kubelet's rule; CPUs and memory are in order, while the kubelet's
are in none. Of the older v1alpha1 there is List: devices alone, of all pods, without sidecars. Its messages
are those of v1 with fewer fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.common.metrics import MetricMaker, PlainCounter
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.podresources.doors import HeldClaim, HeldDevice, HeldMemory, Holdings
from trio_kubelet.podresources.proto import api_pb2 as resources

SERVICE: Final = "v1.PodResourcesLister"
OLDER_SERVICE: Final = "v1alpha1.PodResourcesLister"
_VERSION: Final = "v1"
_OLDER_VERSION: Final = "v1alpha1"

_Request = TypeVar("_Request", bound=Message)


def pod_resources(pod: v1.Pod, holdings: Holdings) -> resources.PodResources:
    """A pod's containers with what they have: init containers that go on running first, then the others."""
    init = [each for each in pod.spec.init_containers or () if is_sidecar(each)]
    return resources.PodResources(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        containers=[
            resources.ContainerResources(
                name=each.name,
                devices=container_devices(holdings.devices(pod, each)),
                cpu_ids=sorted(holdings.cpus(pod, each)),
                memory=container_memory(holdings.memory(pod, each)),
                dynamic_resources=[dynamic_resource(claim) for claim in holdings.claims(pod, each)],
            )
            for each in (*init, *(pod.spec.containers or ()))
        ],
    )


def device_resources(pod: v1.Pod, holdings: Holdings) -> resources.PodResources:
    """A pod's containers with their devices, as v1alpha1 tells them."""
    return resources.PodResources(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        containers=[
            resources.ContainerResources(
                name=each.name,
                devices=[
                    resources.ContainerDevices(resource_name=device.resource, device_ids=[device.id])
                    for device in sorted(holdings.devices(pod, each))
                ],
            )
            for each in pod.spec.containers or ()
        ],
    )


def container_devices(held: Iterable[HeldDevice]) -> list[resources.ContainerDevices]:
    """One entry for each device and NUMA node, as the kubelet makes them; in order."""
    found = []
    for device in sorted(held, key=lambda each: (each.resource, each.id, each.node or 0)):
        entry = resources.ContainerDevices(resource_name=device.resource, device_ids=[device.id])
        if device.node is not None:
            entry.topology.nodes.add().ID = device.node
        found.append(entry)
    return found


def container_memory(held: Iterable[HeldMemory]) -> list[resources.ContainerMemory]:
    """One entry for each kind and the NUMA nodes it is on, in order."""
    found = []
    for each in sorted(held, key=lambda each: (each.nodes, each.kind)):
        entry = resources.ContainerMemory(memory_type=each.kind, size=each.size)
        entry.topology.SetInParent()
        for node in each.nodes:
            entry.topology.nodes.add().ID = node
        found.append(entry)
    return found


def dynamic_resource(claim: HeldClaim) -> resources.DynamicResource:
    """A claim with its devices."""
    return resources.DynamicResource(
        claim_name=claim.name,
        claim_namespace=claim.namespace,
        claim_resources=[
            resources.ClaimResource(
                cdi_devices=[resources.CDIDevice(name=name) for name in device.cdi_ids],
                driver_name=device.driver,
                pool_name=device.pool,
                device_name=device.device,
                share_id=device.share_id,
            )
            for device in claim.devices
        ],
    )


class PodResourcesService:
    """Answers the calls of the service; errors are GrpcError.

    `active_pods` run or will run here; `listed_pods` are those that a list shows, `all_pods` those that a
    list of v1alpha1 does.
    """

    def __init__(
        self,
        *,
        active_pods: Callable[[], Iterable[v1.Pod]],
        listed_pods: Callable[[], Iterable[v1.Pod]],
        all_pods: Callable[[], Iterable[v1.Pod]],
        holdings: Holdings,
        registry: CollectorRegistry,
    ) -> None:
        make = MetricMaker(registry)
        self._active_pods = active_pods
        self._listed_pods = listed_pods
        self._all_pods = all_pods
        self._holdings = holdings
        self._requests = make.counter(
            "kubelet_pod_resources_endpoint_requests",
            "Requests to the pod resources service.",
            ["server_api_version"],
        )

        def of_methods(what: str, meaning: str) -> dict[str, PlainCounter]:
            return {
                method: make.plain_counter(
                    f"kubelet_pod_resources_endpoint_{what}_{method}",
                    f"Requests to one method of the pod resources service{meaning}.",
                    ["server_api_version"],
                )
                for method in ("list", "get_allocatable", "get")
            }

        self._by_method = of_methods("requests", "")
        self._errors = of_methods("errors", " that failed")

    def call(self, path: str, request: bytes) -> bytes:
        """The answer to one call, `/SERVICE/METHOD` with its request."""
        service, _, method = path.removeprefix("/").rpartition("/")
        if service not in (SERVICE, OLDER_SERVICE):
            raise GrpcError(Code.UNIMPLEMENTED, f"unknown service {service}")
        match service, method:
            case "v1.PodResourcesLister", "List":
                return self._answer(self._list, resources.ListPodResourcesRequest, request, "list")
            case "v1.PodResourcesLister", "GetAllocatableResources":
                kind = resources.AllocatableResourcesRequest
                return self._answer(self._allocatable, kind, request, "get_allocatable")
            case "v1.PodResourcesLister", "Get":
                return self._answer(self._get, resources.GetPodResourcesRequest, request, "get")
            case "v1alpha1.PodResourcesLister", "List":
                asked = _decoded(resources.ListPodResourcesRequest, request)
                self._requests.labels(_OLDER_VERSION).inc()
                return self._older_list(asked).SerializeToString()
        raise GrpcError(Code.UNIMPLEMENTED, f"unknown method {method} for service {service}")

    def _answer(
        self, answer: Callable[..., Message], kind: type[Message], request: bytes, counted: str
    ) -> bytes:
        message = _decoded(kind, request)
        self._requests.labels(_VERSION).inc()
        self._by_method[counted].labels(_VERSION).inc()
        try:
            return answer(message).SerializeToString()
        except GrpcError:
            self._errors[counted].labels(_VERSION).inc()
            raise

    def _list(self, _: resources.ListPodResourcesRequest) -> resources.ListPodResourcesResponse:
        pods = [pod_resources(pod, self._holdings) for pod in self._listed_pods()]
        return resources.ListPodResourcesResponse(pod_resources=pods)

    def _older_list(self, _: resources.ListPodResourcesRequest) -> resources.ListPodResourcesResponse:
        pods = [device_resources(pod, self._holdings) for pod in self._all_pods()]
        return resources.ListPodResourcesResponse(pod_resources=pods)

    def _allocatable(
        self, _: resources.AllocatableResourcesRequest
    ) -> resources.AllocatableResourcesResponse:
        devices = container_devices(self._holdings.allocatable_devices())
        cpus = sorted(self._holdings.allocatable_cpus())
        memory = container_memory(self._holdings.allocatable_memory())
        return resources.AllocatableResourcesResponse(devices=devices, cpu_ids=cpus, memory=memory)

    def _get(self, request: resources.GetPodResourcesRequest) -> resources.GetPodResourcesResponse:
        wanted = request.pod_namespace, request.pod_name
        active = self._active_pods()
        pod = next((pod for pod in active if (pod.metadata.namespace, pod.metadata.name) == wanted), None)
        if pod is None:
            text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            raise GrpcError(Code.UNKNOWN, text)
        return resources.GetPodResourcesResponse(pod_resources=pod_resources(pod, self._holdings))


def _decoded(kind: type[_Request], request: bytes) -> _Request:
    """A request. Raises GrpcError."""
    try:
        return kind.FromString(request)
    except DecodeError as exc:
        raise GrpcError(Code.INTERNAL, f"grpc: error unmarshalling request: {exc}") from None

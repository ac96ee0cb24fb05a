"""Sums over the containers of a pod are those of the rule, told once more and more slowly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.podinfo.amounts import Amounts, add, amounts, raise_to
from trio_kubelet.podinfo.totals import container_requests, is_limited, pod_limits
from trio_kubelet.pods.status import resources as shown

NAMES = ("cpu", "memory", "example.com/gpu")
LISTS = st.dictionaries(
    st.sampled_from(NAMES), st.sampled_from(["0", "1", "250m", "1Ki", "1024", "0Mi", "2e3"]), max_size=3
)
CONTAINERS = st.lists(
    st.builds(
        lambda resources, sidecar: v1.Container(
            name="c",
            restart_policy="Always" if sidecar else None,
            resources=v1.ResourceRequirements(requests=resources, limits=resources),
        ),
        LISTS,
        st.booleans(),
    ),
    max_size=6,
)


def steps(spec: v1.PodSpec) -> list[list[v1.Container]]:
    """Who runs together, at each moment."""
    sidecars: list[v1.Container] = []
    together = []
    for container in spec.init_containers or ():
        together.append([container, *sidecars])
        if container.restart_policy == "Always":
            sidecars = [*sidecars, container]
    return [[*(spec.containers or ()), *sidecars], *together]


@given(CONTAINERS, CONTAINERS)
def test_sums_are_of_the_hungriest_moment(init: list[v1.Container], regular: list[v1.Container]) -> None:
    spec = v1.PodSpec(containers=regular, init_containers=init)
    most: Amounts = {}
    for together in steps(spec):
        total: Amounts = {}
        for container in together:
            add(total, amounts(container.resources.requests))
        raise_to(most, total)
    pod = v1.Pod(spec=spec)
    assert container_requests(spec) == pod_limits(pod) == most
    assert amounts(shown.pod_requests(pod)) == amounts(shown.pod_limits(pod)) == most
    for name in NAMES:
        moments = [[container] for container in regular] + steps(spec)[1:]
        assert is_limited(pod, name) is all(
            any(amounts(container.resources.limits).get(name) for container in together)
            for together in moments
        )


def test_many_resources_of_a_sidecar_are_not_added_to_each_init_container() -> None:
    many = {f"example.com/r{number}": "1" for number in range(2000)}
    resources = v1.ResourceRequirements(requests=many, limits=many)
    sidecar = v1.Container(name="s", restart_policy="Always", resources=resources)
    init = [sidecar, *(v1.Container(name=f"i{number}") for number in range(2000))]
    pod = v1.Pod(spec=v1.PodSpec(containers=[v1.Container(name="c")], init_containers=init))
    for _ in within_cpu(0.3):
        assert container_requests(pod.spec) == amounts(many)
        assert not is_limited(pod, "cpu")
        assert shown.pod_requests(pod) == shown.pod_limits(pod) == many

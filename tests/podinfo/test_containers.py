"""Containers of a pod, looked up by their names."""

from __future__ import annotations

import pytest

from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.podinfo import downward, restarts
from trio_kubelet.podinfo.doors import ConfigError

POD = v1.Pod(
    spec=v1.PodSpec(
        containers=[v1.Container(name="web", image="a")],
        init_containers=[v1.Container(name="setup")],
        ephemeral_containers=[v1.EphemeralContainer(name="debug", image="b")],
    )
)


def test_a_container_is_named_by_where_it_stands() -> None:
    names = ("web", "setup", "debug", "gone")
    assert [restarts.field_path(POD, name) for name in names] == [
        "spec.containers{web}",
        "spec.initContainers{setup}",
        "spec.ephemeralContainers{debug}",
        "implicitly required container gone",
    ]


def test_a_container_is_found_among_all_kinds() -> None:
    assert restarts.find_container(POD, "web") == v1.Container(name="web", image="a")
    assert restarts.find_container(POD, "debug") == v1.Container(name="debug", image="b")
    assert restarts.find_container(POD, "gone") is None


@pytest.mark.parametrize("name", ["debug", "gone"])
def test_the_downward_api_knows_no_ephemeral_containers(name: str) -> None:
    with pytest.raises(ConfigError, match=f"container {name} not found"):
        downward.find_container(POD, name)


def test_another_pod_has_other_containers() -> None:
    for number in range(100):
        other = v1.Pod(spec=v1.PodSpec(init_containers=[v1.Container(name="web", image=str(number))]))
        assert restarts.field_path(other, "web") == "spec.initContainers{web}"
        assert downward.find_container(other, "web").image == str(number)


def test_thousands_of_containers_are_found_at_once() -> None:
    """Each event about a container, and each variable about another, looked at all of them."""
    many = [v1.Container(name=f"c{number}") for number in range(10_000)]
    pod = v1.Pod(spec=v1.PodSpec(containers=many))
    for _ in within_cpu(0.5):
        for each in many:
            restarts.field_path(pod, each.name)
            assert restarts.find_container(pod, each.name) is downward.find_container(pod, each.name) is each

"""Resources of running containers change in place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.runtime.pods import container, pod, seen
from tests.runtime.world import World, world
from trio_kubelet.api import v1
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.runtime.configs.context import NodeContext
from trio_kubelet.runtime.configs.resources import container_resources
from trio_kubelet.runtime.manager import SyncContext
from trio_kubelet.runtime.resize import (
    Resources,
    can_resize_in_place,
    in_force,
    plan_resize,
    resources_of,
    with_resources,
)
from trio_kubelet.runtime.results import Reason, SyncAction
from trio_kubelet.runtime.types import ContainerResources
from trio_kubelet.sim.faults import Kind

MIB = 1 << 20


def sized(name: str = "web", **limits: str) -> v1.Container:
    return container(name, resources=v1.ResourceRequirements(limits=dict(limits)))


def linux(here: World, name: str = "web") -> cri.LinuxContainerResources:
    return here.container(name).config.linux.resources


async def test_more_of_everything(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(cpu="100m", memory="64Mi")))
        web = here.container("web").id
        result = await here.sync(pod(sized(cpu="200m", memory="128Mi")))
        assert result.ok, str(result)
        assert [r.action for r in result.results] == [SyncAction.RESIZE_POD_IN_PLACE]
        assert (linux(here).cpu_quota, linux(here).memory_limit_in_bytes) == (20_000, 128 * MIB)
        assert here.container("web").id == web
        assert [resource for _, resource in here.pod_limits.applied] == ["memory", "cpu"]
        assert (await here.sync(pod(sized(cpu="200m", memory="128Mi")))).results == []


async def test_one_gives_and_another_takes(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized("a", cpu="100m"), sized("b", cpu="300m")))
        here.fail("UpdateContainerResources", skip=1)
        result = await here.sync(pod(sized("a", cpu="300m"), sized("b", cpu="100m")))
        # What was to shrink did so before the other could fail to grow.
        assert [r.reason for r in result.failures] == [Reason.RESIZE_POD_IN_PLACE_ERROR]
        assert (linux(here, "a").cpu_quota, linux(here, "b").cpu_quota) == (10_000, 10_000)
        await here.sync_ok(pod(sized("a", cpu="300m"), sized("b", cpu="100m")))
        assert (linux(here, "a").cpu_quota, linux(here, "b").cpu_quota) == (30_000, 10_000)


async def test_a_pod_that_cannot_grow_leaves_its_containers_alone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(cpu="100m")))
        here.pod_limits.failure = "cgroup is busy"
        [failure] = (await here.sync(pod(sized(cpu="200m")))).failures
        assert failure.message == "cgroup is busy"
        assert linux(here).cpu_quota == 10_000
        here.pod_limits.failure = ""
        await here.sync_ok(pod(sized(cpu="200m")))
        assert linux(here).cpu_quota == 20_000


async def test_no_limit_below_what_is_in_use(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(memory="64Mi")))
        [failure] = (await here.sync(pod(sized(memory="1Ki")))).failures
        assert failure.reason is Reason.RESIZE_POD_IN_PLACE_ERROR
        assert failure.message.startswith("cannot decrease memory limits: attempting to set container")
        assert linux(here).memory_limit_in_bytes == 64 * MIB


def sized_pod(*containers: v1.Container, **limits: str) -> v1.Pod:
    return pod(*containers, resources=v1.ResourceRequirements(limits=dict(limits)))


async def test_what_a_pod_may_use_as_a_whole(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It is the limit of each container that has none of its own."""
    async with world(tmp_path) as here:
        before = sized_pod(container("a"), sized("b", cpu="100m"), cpu="500m", memory="64Mi")
        await here.sync_ok(before)
        assert (await here.sync(before)).results == []
        assert here.pod_limits.applied == []
        after = sized_pod(container("a"), sized("b", cpu="100m"), cpu="1", memory="64Mi")
        result = await here.sync(after)
        assert [r.action for r in result.results] == [SyncAction.RESIZE_POD_IN_PLACE]
        assert (linux(here, "a").cpu_quota, linux(here, "b").cpu_quota) == (100_000, 10_000)
        assert [resource for _, resource in here.pod_limits.applied] == ["cpu"]
        assert (await here.sync(after)).results == []


async def test_a_pods_own_limit_changes_though_no_container_does(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        each = (sized("a", cpu="100m", memory="32Mi"), sized("b", cpu="100m", memory="32Mi"))
        await here.sync_ok(sized_pod(*each, cpu="500m", memory="64Mi"))
        smaller = sized_pod(*each, cpu="400m", memory="128Mi")
        here.pod_limits.failure = "cgroup is busy"
        assert not (await here.sync(smaller)).ok
        here.pod_limits.failure = ""
        await here.sync_ok(smaller)
        assert [resource for _, resource in here.pod_limits.applied] == ["memory", "cpu"]
        assert (await here.sync(smaller)).results == []


async def test_a_pods_own_limit_that_changed_while_no_agent_ran(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(sized_pod(container("a"), cpu="500m"))
        here.runtime = here.another_runtime()
        after = sized_pod(container("a"), cpu="1")
        await here.sync_ok(after)
        assert linux(here, "a").cpu_quota == 100_000
        assert "cpu" in [resource for _, resource in here.pod_limits.applied]
        assert (await here.sync(after)).results == []


async def test_a_change_made_while_no_agent_ran(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(cpu="100m", memory="64Mi")))
        web = here.container("web").id
        for wanted, actions in (("100m", []), ("150m", [SyncAction.RESIZE_POD_IN_PLACE])):
            successor = here.another_runtime()
            a_pod = pod(sized(cpu=wanted, memory="64Mi"))
            result = await successor.sync_pod(a_pod, await here.status(a_pod), SyncContext())
            assert [r.action for r in result.results] == actions
        assert here.container("web").id == web


async def test_a_change_that_only_seemed_to_fail_is_made_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(cpu="100m")))
        here.fail("UpdateContainerResources", Kind.AMBIGUOUS, code="UNAVAILABLE")
        assert not (await here.sync(pod(sized(cpu="200m")))).ok
        await here.sync_ok(pod(sized(cpu="200m")))
        assert linux(here).cpu_quota == 20_000


def test_static_pods_do_not_take_part() -> None:
    a_pod = pod(sized(cpu="200m"))
    a_pod.metadata.annotations = {"kubernetes.io/config.source": "file"}
    assert not can_resize_in_place(a_pod)
    assert plan_resize(a_pod, sized(cpu="200m"), seen("web", "running"), Resources()) is None


def reported(linux: cri.LinuxContainerResources) -> ContainerResources:
    return ContainerResources(
        cpu_period=linux.cpu_period or None,
        cpu_quota=linux.cpu_quota or None,
        cpu_shares=linux.cpu_shares or None,
        memory_limit_in_bytes=linux.memory_limit_in_bytes or None,
    )


NODE = NodeContext(node_name="n")
resources = st.builds(
    Resources,
    cpu_limit=st.integers(0, 64_000),
    cpu_request=st.integers(0, 64_000),
    memory_limit=st.integers(0, 1 << 40),
    memory_request=st.integers(0, 1 << 40),
)


@given(resources)
def test_what_was_started_as_it_is_wanted_looks_unchanged(wanted: Resources) -> None:
    asking = with_resources(container("web"), wanted)
    assert resources_of(asking) == wanted
    linux = container_resources(pod(asking), asking, NODE)
    assert in_force(wanted, reported(linux), linux) == wanted


@pytest.mark.parametrize("shares_off", [-20, 20])
def test_rounded_shares_are_no_change(shares_off: int) -> None:
    asking = sized(cpu="500m")
    linux = container_resources(pod(asking), asking, NODE)
    seen_by_runtime = reported(linux)
    assert seen_by_runtime.cpu_shares is not None
    rounded = ContainerResources(
        cpu_period=seen_by_runtime.cpu_period,
        cpu_quota=seen_by_runtime.cpu_quota,
        cpu_shares=seen_by_runtime.cpu_shares + shares_off,
    )
    assert in_force(resources_of(asking), rounded, linux) == resources_of(asking)


def test_a_runtime_that_says_nothing() -> None:
    assert in_force(resources_of(sized(cpu="1")), None, cri.LinuxContainerResources()) is None

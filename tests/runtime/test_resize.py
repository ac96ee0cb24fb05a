"""Resources of running containers change in place."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.runtime.pods import container, pod, sidecar
from tests.runtime.world import World, world
from trio_kubelet.api import v1
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.observed.types import ContainerResources
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.runtime.configs.resources import container_resources
from trio_kubelet.runtime.doors import SyncContext
from trio_kubelet.runtime.pod_amounts import PodAmounts, merged, steps
from trio_kubelet.runtime.resize import ResourceName, Resources, in_force, resources_of, with_resources
from trio_kubelet.runtime.results import Reason, SyncAction
from trio_kubelet.sim.faults import Kind

DURATIONS = "kubelet_pod_resize_duration_milliseconds_count"
MIB = 1 << 20


def sized(name: str = "web", **limits: str) -> v1.Container:
    return container(name, resources=v1.ResourceRequirements(limits=dict(limits)))


def equal(name: str = "web", **amounts: str) -> v1.Container:
    """It asks for as much as it may use."""
    return container(name, resources=v1.ResourceRequirements(limits=dict(amounts), requests=dict(amounts)))


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
        assert here.measured(DURATIONS, success="true") == 1


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


async def test_an_older_one_of_the_name_that_still_runs_is_not_asked_what_is_in_force(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(cpu="100m")))
        here.service.runtime.kill(here.container("web").id, here.clock.now_ns())
        old = here.container("web")
        await trio.sleep(1)
        await here.sync_ok(pod(sized(cpu="200m")))
        old.state = cri.CONTAINER_RUNNING  # the runtime lost sight of it for a while
        assert (await here.sync(pod(sized(cpu="200m")))).results == []


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


async def test_what_is_left_of_a_pod_that_is_done_is_not_resized(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        web = container("web", command=["sleep", "5"])

        def with_sidecar(memory: str) -> v1.Pod:
            resources = v1.ResourceRequirements(limits={"memory": memory})
            return pod(web, init=(sidecar("log", resources=resources),), policy="Never")

        await here.until_running(with_sidecar("64Mi"), "log", "web")
        await trio.sleep(5)
        result = await here.sync(with_sidecar("32Mi"))
        assert result.ok, str(result)
        assert [r.action for r in result.results] == [SyncAction.KILL_CONTAINER, SyncAction.KILL_POD_SANDBOX]


async def test_no_limit_below_what_is_in_use(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(memory="64Mi")))
        [failure] = (await here.sync(pod(sized(memory="1Ki")))).failures
        assert failure.reason is Reason.RESIZE_POD_IN_PLACE_ERROR
        assert failure.message.startswith("cannot decrease memory limits: attempting to set container")
        assert linux(here).memory_limit_in_bytes == 64 * MIB
        assert here.measured(DURATIONS, success="false") == 1


def told(here: World) -> tuple[int, int, int, int]:
    """What the runtime knows of the pod as a whole."""
    linux = here.sandboxes[0].config.linux.resources
    return linux.cpu_shares, linux.cpu_quota, linux.cpu_period, linux.memory_limit_in_bytes


async def test_the_runtime_is_told_of_the_pod_as_a_whole(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        overhead = {"cpu": "250m", "memory": "1Mi"}
        await here.sync_ok(pod(equal(cpu="1", memory="64Mi"), overhead=overhead))
        await here.sync_ok(pod(equal(cpu="2", memory="128Mi"), overhead=overhead))
        assert told(here) == (2048, 200_000, 100_000, 128 * MIB)
        linux = here.sandboxes[0].config.linux.overhead
        assert (linux.cpu_shares, linux.cpu_quota, linux.memory_limit_in_bytes) == (256, 25_000, MIB)
        assert here.pod_limits.amounts["uid-1"] == PodAmounts(
            cpu_shares=2304, cpu_quota=225_000, cpu_period=100_000, memory=129 * MIB
        )


async def test_a_pod_that_is_not_changed_as_a_whole_is_not_told_of(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """One container gives what another takes."""
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized("a", cpu="100m"), sized("b", cpu="300m")))
        await here.sync_ok(pod(sized("a", cpu="300m"), sized("b", cpu="100m")))
        assert here.pod_limits.applied == []
        assert told(here) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("code", "message"),
    [("UNIMPLEMENTED", "unknown method"), ("UNKNOWN", "not implemented yet")],
)
async def test_a_runtime_that_cannot_be_told(
    code: str, message: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(cpu="100m", memory="64Mi")))
        here.fail("UpdatePodSandboxResources", code=code, message=message, count=9)
        await here.sync_ok(pod(sized(cpu="200m", memory="128Mi")))
        assert (linux(here).cpu_quota, linux(here).memory_limit_in_bytes) == (20_000, 128 * MIB)


async def test_a_runtime_that_refuses(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(cpu="100m", memory="64Mi")))
        here.fail("UpdatePodSandboxResources", code="UNKNOWN", message="no room")
        [failure] = (await here.sync(pod(sized(cpu="200m", memory="128Mi")))).failures
        assert failure.message == (
            "failed to notify runtime for UpdatePodSandboxResources (resource=memory); resize rejected: "
            f'updatePodSandboxResources failed for sanboxID "{here.sandboxes[0].id}": '
            "rpc error: code = Unknown desc = no room"
        )
        assert here.pod_limits.applied == []
        assert linux(here).memory_limit_in_bytes == 64 * MIB
        await here.sync_ok(pod(sized(cpu="200m", memory="128Mi")))
        assert linux(here).memory_limit_in_bytes == 128 * MIB


async def test_a_change_that_was_not_made_is_taken_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(cpu="100m", memory="64Mi")))
        here.pod_limits.failure = "cgroup is busy"
        [failure] = (await here.sync(pod(sized(cpu="200m", memory="128Mi")))).failures
        assert failure.message == "cgroup is busy"
        assert told(here) == (2, 10_000, 100_000, 64 * MIB)


async def test_where_pods_have_no_cgroups_of_the_agents_the_runtime_is_told_all_the_same(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(cpu="100m", memory="64Mi")))
        here.pod_limits.known = False
        await here.sync_ok(pod(sized(cpu="50m", memory="32Mi")))
        assert told(here) == (2, 5000, 100_000, 32 * MIB)


async def test_what_is_in_use_has_to_be_known(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(memory="64Mi")))
        here.fail("ContainerStats", message="busy")
        [failure] = (await here.sync(pod(sized(memory="32Mi")))).failures
        assert failure.message == 'unable to read memory usage for pod "web_default(uid-1)"'


async def test_a_limit_beside_which_the_runtime_tells_no_use_stays(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(memory="64Mi")))
        status = await here.status(pod())
        here.service.runtime.kill(here.container("web").id, here.service.now_ns())
        smaller = pod(sized(memory="32Mi"))
        [failure] = (await here.runtime.sync_pod(smaller, status, SyncContext())).failures
        assert failure.message == 'cannot decrease memory limits: missing container "web" memory usage'
        assert linux(here).memory_limit_in_bytes == 64 * MIB


async def test_no_pod_limit_below_what_is_in_use(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized("a", memory="64Mi"), sized("b", memory="64Mi")))
        here.pod_limits.in_use = 100 * MIB
        [failure] = (await here.sync(pod(sized("a", memory="1Ki"), sized("b", memory="32Mi")))).failures
        assert failure.message.startswith(
            f"cannot decrease memory limits: [attempting to set pod memory limit ({32 * MIB + 1024}) below "
            f'current usage ({100 * MIB}), attempting to set container "a" memory limit (1024) below current'
        )
        assert failure.message.endswith("]")
        [failure] = (await here.sync(pod(sized("a", memory="48Mi"), sized("b", memory="48Mi")))).failures
        assert failure.message == (
            f"cannot decrease memory limits: attempting to set pod memory limit ({96 * MIB}) below current "
            f"usage ({100 * MIB})"
        )


def amounts(none: st.SearchStrategy[int | None]) -> st.SearchStrategy[PodAmounts]:
    return st.builds(
        PodAmounts,
        memory=none | st.integers(1, 1 << 40),
        cpu_shares=st.integers(2, 262_144),
        cpu_quota=none | st.integers(1000, 10_000_000),
        cpu_period=st.just(100_000),
    )


@given(amounts(st.just(-1)), amounts(st.none()))
def test_steps_lead_to_what_is_wanted_and_containers_never_have_more_than_their_pod(
    old: PodAmounts, new: PodAmounts
) -> None:
    def bounds(found: PodAmounts) -> tuple[float, float, float]:
        memory, quota = (inf if x is None or x < 0 else x for x in (found.memory, found.cpu_quota))
        return memory, quota, found.cpu_shares or 0

    now = old
    for resource in ResourceName:
        todo = steps(resource, old, new)
        for step in todo.before:
            assert all(a >= b for a, b in zip(bounds(merged(now, step)), bounds(now), strict=True))
            now = merged(now, step)
        middle = now
        for step in todo.after:
            now = merged(now, step)
            assert all(a <= b for a, b in zip(bounds(now), bounds(middle), strict=True))
    assert bounds(now) == bounds(new)
    assert not any(
        step for r in ResourceName for step in (*steps(r, now, new).before, *steps(r, now, new).after)
    )


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


async def test_a_pod_with_resources_of_its_own_is_not_resized_by_the_next_agent(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        a_pod = sized_pod(container("a"), sized("b", cpu="100m"), cpu="500m", memory="64Mi")
        await here.sync_ok(a_pod)
        here.runtime = here.another_runtime()
        assert (await here.sync(a_pod)).results == []


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


@pytest.mark.parametrize("whose", ["container", "pod"])
async def test_a_pod_none_of_whose_containers_runs_has_its_new_limit_before_they_start(
    whose: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """What a container may use is of no avail in a pod that may not: it would run out of memory again."""

    def with_memory(memory: str) -> v1.Pod:
        if whose == "container":
            return pod(sized(memory=memory))
        return sized_pod(container("web"), memory=memory)

    async with world(tmp_path) as here:
        await here.sync_ok(with_memory("64Mi"))
        here.service.runtime.kill(here.container("web").id, here.service.now_ns(), 137)
        result = await here.sync(with_memory("128Mi"), resizing=True)
        assert [r.action for r in result.results] == [
            SyncAction.RESIZE_POD_IN_PLACE,
            SyncAction.START_CONTAINER,
        ]
        assert here.pod_limits.amounts["uid-1"].memory == 128 * MIB
        assert (await here.sync(with_memory("128Mi"))).results == []


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


async def test_a_resize_that_was_made_in_part_is_made_whole_by_the_next_agent(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """One died after the containers, before the pod as a whole; the runtime shows no difference any more."""
    async with world(tmp_path) as here:
        await here.sync_ok(pod(sized(cpu="200m", memory="128Mi")))
        before = here.pod_limits.amounts["uid-1"]
        after = pod(sized(cpu="100m", memory="64Mi"))
        await here.sync_ok(after)
        wanted, here.pod_limits.amounts["uid-1"] = here.pod_limits.amounts["uid-1"], before
        here.runtime = here.another_runtime()
        assert (await here.sync(after)).results == []
        result = await here.sync(after, resizing=True)
        assert [r.action for r in result.results] == [SyncAction.RESIZE_POD_IN_PLACE]
        assert here.pod_limits.amounts["uid-1"] == wanted


async def test_what_was_made_of_a_resize_that_failed_is_taken_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The pod's limit had grown, and its container could not."""
    async with world(tmp_path) as here:
        before = pod(sized(cpu="100m", memory="64Mi"))
        await here.sync_ok(before)
        amounts = here.pod_limits.amounts["uid-1"]
        here.fail("UpdateContainerResources")
        assert not (await here.sync(pod(sized(cpu="200m", memory="128Mi")))).ok
        assert here.pod_limits.amounts["uid-1"].memory == 128 * MIB
        await here.sync_ok(before)
        assert here.pod_limits.amounts["uid-1"] == amounts
        assert (await here.sync(before)).results == []


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


async def test_a_static_pod_that_keeps_its_uid(tmp_path: Path, autojump_clock: MockClock) -> None:
    def static(cpu: str) -> v1.Pod:
        a_pod = pod(sized(cpu=cpu))
        a_pod.metadata.annotations = {"kubernetes.io/config.source": "file"}
        return a_pod

    async with world(tmp_path) as here:
        await here.sync_ok(static("100m"))
        web = here.container("web").id
        here.runtime = here.another_runtime()
        assert (await here.sync(static("100m"))).results == []
        await here.sync_ok(static("200m"))
        assert linux(here).cpu_quota == 20_000
        assert here.container("web").id == web


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
@example(Resources(cpu_limit=5, cpu_request=1))  # of which no runtime knows: the least quota is 1 ms
def test_what_was_started_as_it_is_wanted_looks_unchanged(wanted: Resources) -> None:
    asking = with_resources(container("web"), wanted)
    assert resources_of(asking) == wanted
    linux = container_resources(pod(asking), asking, NODE)
    assert in_force(wanted, reported(linux), linux) == wanted


def reporting(shares: int) -> ContainerResources:
    return ContainerResources(cpu_period=100_000, cpu_shares=shares)


@given(st.integers(1, 255_000))
def test_shares_read_back_from_a_weight_are_no_change(milli: int) -> None:
    """As libcontainer makes a weight of shares, and runtimes make shares of it."""
    asking = container("web", resources=v1.ResourceRequirements(requests={"cpu": f"{milli}m"}))
    linux = container_resources(pod(asking), asking, NODE)
    weight = 1 + (linux.cpu_shares - 2) * 9999 // 262142
    read = reporting((weight - 1) * 262142 // 9999 + 2)
    assert in_force(resources_of(asking), read, linux) == resources_of(asking)


def test_a_small_change_is_one() -> None:
    asking = container("web", resources=v1.ResourceRequirements(requests={"cpu": "20m"}))
    linux = container_resources(pod(asking), asking, NODE)
    found = in_force(resources_of(asking), reporting(10), linux)
    assert found is not None
    assert found.cpu_request == 9


def test_a_limit_is_read_by_the_period_it_was_set_with() -> None:
    asking = sized(cpu="200m")
    short = ContainerResources(cpu_period=10_000, cpu_quota=5_000, cpu_shares=204)
    found = in_force(resources_of(asking), short, container_resources(pod(asking), asking, NODE))
    assert found is not None
    assert found.cpu_limit == 500


def test_other_resources_stay_as_they_are() -> None:
    asking = with_resources(sized(cpu="1", **{"hugepages-2Mi": "4Mi"}), Resources(cpu_limit=2000))
    assert asking.resources.limits == {"cpu": "2000m", "hugepages-2Mi": "4Mi"}


def test_a_runtime_that_says_nothing() -> None:
    assert in_force(resources_of(sized(cpu="1")), None, cri.LinuxContainerResources()) is None

"""The tree of a real machine: pods come, change and end; agents are killed; others meddle."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.cgroups.machine import DRIVERS, Agents, agents, cgroup_root, shell, sleeper_in, wait_for
from tests.cgroups.planned import planned_tree
from trio_kubelet.api import v1
from trio_kubelet.cgroups.drivers import SET_PROPERTIES, START_UNIT
from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.cgroups.limits import Limits, cpu_shares, cpu_weight
from trio_kubelet.cgroups.plan import CgroupSettings, Reserved
from trio_kubelet.cgroups.units import new_slice, properties, unit_name, with_whole_percents
from trio_kubelet.dbus.bus import SYSTEM_BUS, SYSTEMD, MessageBus
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.pods.doors import CgroupError
from trio_kubelet.runtime.configs.resources import UNLIMITED
from trio_kubelet.runtime.pod_amounts import PodAmounts, Steps, shrinks_memory, steps
from trio_kubelet.runtime.resize import ResourceName

pytestmark = pytest.mark.node

SETTINGS = CgroupSettings(pids_limit=77, node_cpu=1500, node_memory=1 << 30, node_pids=5000)


@dataclasses.dataclass
class Place:
    root: str
    driver: str


@pytest.fixture(params=DRIVERS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with cgroup_root(request.param) as root:
        yield Place(root, request.param)


@pytest.fixture
def systemd() -> Iterator[str]:
    with cgroup_root("systemd") as root:
        yield root


def pod(uid: str, *resources: dict[str, Any]) -> v1.Pod:
    containers = [{"name": f"c{i}", "resources": entry} for i, entry in enumerate(resources)]
    return msgspec.convert({"metadata": {"uid": uid}, "spec": {"containers": containers}}, v1.Pod)


GUARANTEED = pod(
    "aaaa-1",
    {"limits": {"cpu": "125m", "memory": "64Mi"}, "requests": {"cpu": "125m", "memory": "64Mi"}},
)
BURSTABLE = pod("bbbb-2", {"requests": {"cpu": "250m"}, "limits": {"cpu": "500m", "memory": "64Mi"}})
BEST_EFFORT = pod("cccc-3", {})
PODS = [GUARANTEED, BURSTABLE, BEST_EFFORT]


def deviations(world: Agents, pods: list[v1.Pod]) -> dict[str, Limits]:
    """Where the machine's tree is not the plan."""
    found = {}
    for path, limits in planned_tree(pods, world.node, world.settings).items():
        wanted = with_whole_percents(limits) if world.node.cgroup_driver == "systemd" else limits
        if (off := world.tree.differing(path, wanted)) != Limits() or not world.tree.exists(path):
            found[path] = off
    return found


async def becomes_the_plan(world: Agents, pods: list[v1.Pod]) -> None:
    """What the classes have follows a little after their pods."""
    await wait_for(lambda: not deviations(world, pods))
    assert deviations(world, pods) == {}


async def made_by_an_agent_that_stops(world: Agents) -> None:
    """The cgroups of all pods."""
    async with world.agent() as first:
        await first.start()
        for one in PODS:
            await first.ensure(one)
        await becomes_the_plan(world, PODS)


async def test_the_tree_is_the_plan(place: Place) -> None:
    async with agents(place.root, place.driver, SETTINGS) as world, world.agent() as cgroups:
        await cgroups.start()
        for one in PODS:
            assert not await cgroups.ensure(one, running=["c0"])  # its containers are to be ended first
            assert await cgroups.ensure(one)
        await becomes_the_plan(world, PODS)
        assert await cgroups.pods() == {"aaaa-1", "bbbb-2", "cccc-3"}
        await cgroups.remove("aaaa-1")
        await cgroups.remove("bbbb-2")
        await becomes_the_plan(world, [BEST_EFFORT])
        assert await cgroups.pods() == {"cccc-3"}
        await cgroups.remove("cccc-3")
        await cgroups.remove("cccc-3")
        assert await cgroups.pods() == set()


async def test_a_pod_is_resized_and_ends_with_what_is_in_it(place: Place) -> None:
    async with agents(place.root, place.driver, SETTINGS) as world, world.agent() as cgroups:
        await cgroups.start()
        await cgroups.ensure(BURSTABLE)
        more = pod("bbbb-2", {"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "128Mi"}})
        path = next(path for path in planned_tree([more], world.node, SETTINGS) if "bbbb" in path)

        def in_force() -> tuple[int | None, ...]:
            limits = world.tree.limits(path)
            return limits.cpu_shares, limits.cpu_quota, limits.memory

        def shares(value: int) -> int:
            return cpu_shares(cpu_weight(value)) if world.tree.is_v2 else value

        assert in_force() == (shares(256), 50_000, 64 << 20)
        wanted = cgroups.wanted(more)
        assert wanted == PodAmounts(cpu_shares=512, cpu_quota=100_000, cpu_period=100_000, memory=128 << 20)
        await cgroups.apply(more, PodAmounts(memory=wanted.memory))
        assert in_force() == (shares(256), 50_000, 128 << 20)
        await cgroups.apply(more, PodAmounts(cpu_quota=wanted.cpu_quota, cpu_period=wanted.cpu_period))
        assert in_force() == (shares(256), 100_000, 128 << 20)
        await cgroups.apply(more, PodAmounts(cpu_shares=wanted.cpu_shares))
        assert in_force() == (shares(512), 100_000, 128 << 20)
        await cgroups.update_classes([more])
        assert deviations(world, [more]) == {}

        await cgroups.apply(more, PodAmounts(cpu_quota=UNLIMITED, memory=UNLIMITED))
        lifted = await cgroups.current(more)
        assert lifted.cpu_quota == UNLIMITED
        assert steps(ResourceName.MEMORY, lifted, PodAmounts()) == Steps()
        assert shrinks_memory(lifted, wanted)
        with sleeper_in(f"{path}/container") as sleeper:
            assert (await cgroups.memory_in_use(more) or 0) >= 0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, lambda: sleeper.wait())  # PID 1 would reap it
                await cgroups.remove("bbbb-2")
            assert sleeper.returncode in (-9, -15)  # systemd asks first
        assert await cgroups.pods() == set()
        assert not world.tree.exists_somewhere(path)


async def test_cgroups_reserved_for_others_are_limited_and_stay_so(place: Place) -> None:
    """They have to be there: who they belong to makes them."""
    limits = Limits(cpu_shares=256, memory=64 << 20, pids=50)
    theirs = f"{place.root}-daemons" if place.driver == "systemd" else f"{place.root}/daemons"
    settings = msgspec.structs.replace(SETTINGS, reserved=(Reserved("kube reserved", theirs, limits),))
    async with agents(place.root, place.driver, settings) as world:
        path = f"{place.root}.slice{theirs}.slice" if place.driver == "systemd" else theirs
        async with world.agent() as cgroups:
            why = rf'Failed to enforce Kube Reserved Cgroup Limits on "{theirs}": cgroup .* does not exist'
            with pytest.raises(CgroupError, match=why):
                await cgroups.start()
        if place.driver == "systemd":
            await shell(f"systemctl start {theirs[1:]}.slice")
        else:
            world.tree.create(theirs)
        async with world.agent() as cgroups:
            assert await cgroups.start() == [f"Updated limits on kube reserved cgroup {theirs}"]
            assert world.tree.differing(path, limits) == Limits()
            world.tree.apply(path, Limits(memory=128 << 20, pids=7))
            await cgroups.update_classes([])
            assert world.tree.differing(path, limits) == Limits()


async def test_memory_is_kept_from_the_classes_below(place: Place) -> None:
    kept = msgspec.structs.replace(SETTINGS, kept_percent=50, allocatable_memory=1 << 30)
    async with agents(place.root, place.driver, kept) as world, world.agent() as cgroups:
        await cgroups.start()
        for one in PODS:
            await cgroups.ensure(one)
        await becomes_the_plan(world, PODS)
        names = ("/besteffort", "-besteffort.slice")
        path = next(path for path in planned_tree(PODS, world.node, kept) if path.endswith(names))
        assert world.tree.limits(path).memory == (1 << 30) - (32 << 20)


async def test_limits_of_pods_that_are_not_there(place: Place) -> None:
    async with agents(place.root, place.driver) as world, world.agent() as cgroups:
        await cgroups.start()
        with pytest.raises(ConfigError, match="failed to set limits"):
            await cgroups.apply(BURSTABLE, PodAmounts(memory=1 << 30))
        with pytest.raises(ConfigError, match="unable to get pod cgroup config"):
            await cgroups.current(BURSTABLE)
        with pytest.raises(ConfigError, match="unable to read memory usage"):
            await cgroups.memory_in_use(BURSTABLE)
        await trio.sleep(0.3)  # systemd does later what it was asked for
        assert await cgroups.pods() == set()


async def test_the_next_agent_takes_the_tree_over(place: Place) -> None:
    async with agents(place.root, place.driver, SETTINGS) as world:
        await made_by_an_agent_that_stops(world)
        async with world.agent() as second:
            await second.start()
            assert deviations(world, PODS) == {}
            for one in PODS:
                assert await second.ensure(one, running=["c0"])
            await second.update_classes(PODS)
            assert deviations(world, PODS) == {}
            await second.update_classes([BEST_EFFORT])  # the others are over
            for uid in ("aaaa-1", "bbbb-2", "cccc-3"):
                await second.remove(uid)
            assert await second.pods() == set()


async def test_a_class_has_what_an_earlier_agent_gave_it_until_all_pods_are_known(place: Place) -> None:
    """Those of the API server run on while that is away."""
    async with agents(place.root, place.driver, SETTINGS) as world:
        await made_by_an_agent_that_stops(world)
        names = ("burstable", "burstable.slice")
        path = next(path for path in planned_tree(PODS, world.node, SETTINGS) if path.endswith(names))
        before = world.tree.limits(path).cpu_shares
        async with world.agent() as second:
            await second.start()
            await second.ensure(GUARANTEED, running=["c0"])
            await trio.sleep(0.3)  # what is asked for is given soon after
            assert world.tree.limits(path).cpu_shares == before
            await second.update_classes([GUARANTEED], all_known=False)
            assert world.tree.limits(path).cpu_shares == before
            await second.update_classes([GUARANTEED])
            assert (world.tree.limits(path).cpu_shares or 0) < (before or 0)


@pytest.mark.parametrize("checkpoints", [1, 2, 3, 5, 8, 13, 21, 34])
async def test_an_agent_that_is_killed_on_its_way_is_followed_by_a_whole_one(
    place: Place, checkpoints: int
) -> None:
    """However far it came, the next one makes the tree whole and leaves nothing over."""
    async with agents(place.root, place.driver, SETTINGS) as world:
        async with world.agent() as first:
            with trio.move_on_after(checkpoints * 0.002):
                await first.start()
                for one in PODS:
                    await first.ensure(one)
        async with world.agent() as second:
            await second.start()
            for one in PODS:
                await second.ensure(one)
            await second.update_classes(PODS)
            assert deviations(world, PODS) == {}
            with trio.move_on_after(checkpoints * 0.002):
                await second.remove("aaaa-1")
        async with world.agent() as third:
            await third.start()
            for uid in ("aaaa-1", "bbbb-2", "cccc-3"):
                await third.remove(uid)
            assert await third.pods() == set()


async def test_a_pod_that_comes_to_ask_for_no_quantity_counts_as_it_did(place: Place) -> None:
    """Only a broken API server gives one out; the agent ended of it within a minute."""
    broken = pod("bbbb-2", {"requests": {"cpu": "1..0"}, "limits": {"cpu": "500m", "memory": "64Mi"}})
    async with agents(place.root, place.driver, SETTINGS) as world, world.agent() as cgroups:
        await cgroups.start()
        for one in PODS:
            await cgroups.ensure(one)
        await cgroups.remove("aaaa-1")
        await cgroups.update_classes([broken, BEST_EFFORT])
        assert deviations(world, [BURSTABLE, BEST_EFFORT]) == {}


async def test_what_others_change_is_put_right(place: Place) -> None:
    async with agents(place.root, place.driver, SETTINGS) as world, world.agent() as cgroups:
        await cgroups.start()
        for one in PODS:
            await cgroups.ensure(one)
        await becomes_the_plan(world, PODS)
        path = next(path for path in planned_tree(PODS, world.node, SETTINGS) if "aaaa" in path)
        world.tree.apply(path, Limits(memory=1 << 30, pids=3, cpu_quota=70_000, cpu_period=100_000))
        assert list(deviations(world, PODS)) == [path]
        await cgroups.update_classes(PODS)
        assert deviations(world, PODS) == {}


async def test_pods_that_use_more_than_all_may_do_not_keep_an_agent_from_starting(place: Place) -> None:
    settings = CgroupSettings(node_memory=16 << 20, node_pids=5000)
    async with agents(place.root, place.driver, settings) as world, world.agent() as cgroups:
        if world.tree.is_v2:
            pytest.skip("the kernel of cgroup v2 takes such a limit, and kills")
        parent = next(path for path in planned_tree([], world.node, settings) if path.endswith("/kubepods"))
        world.tree.create(f"{parent}/podu")
        with hog_in(f"{find_hierarchies()['memory']}{parent}/podu", 48):
            await cgroups.start()
            assert cgroups.unlimited.startswith(
                f'Failed to update Node Allocatable Limits ["{place.root[1:]}" "kubepods"]: '
                "unable to set memory limit to 16777216 (current usage: "
            )
            assert world.tree.differing(parent, Limits(pids=5000)) == Limits()
            told = list[str]()
            cgroups.limited.listen(lambda: told.append(cgroups.unlimited))
            await cgroups.update_classes([])
            assert cgroups.unlimited
        await cgroups.update_classes([])
        assert told == [""]
        assert world.tree.limits(parent).memory == 16 << 20


@contextmanager
def hog_in(directory: str, mebibytes: int) -> Iterator[None]:
    """A process in a cgroup that uses so much memory."""
    code = (
        f"import os, time; open({directory + '/cgroup.procs'!r}, 'w').write(str(os.getpid())); "
        f"held = b'x' * ({mebibytes} << 20); print(flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"\n"
            yield
        finally:
            process.kill()


async def test_a_controller_that_was_taken_away_is_given_again(place: Place) -> None:
    async with agents(place.root, place.driver, SETTINGS) as world, world.agent() as cgroups:
        if not world.tree.is_v2:
            pytest.skip("needs cgroup v2")
        await cgroups.start()
        await cgroups.ensure(BEST_EFFORT)
        path = next(path for path in planned_tree([BEST_EFFORT], world.node, SETTINGS) if "cccc" in path)
        await shell(f"echo -pids > /sys/fs/cgroup{path.rpartition('/')[0]}/cgroup.subtree_control")
        assert list(deviations(world, [BEST_EFFORT])) == [path]
        await cgroups.update_classes([BEST_EFFORT])
        await becomes_the_plan(world, [BEST_EFFORT])


async def test_slices_have_the_properties_of_the_plan(systemd: str) -> None:
    async with agents(systemd, "systemd", SETTINGS) as world, world.agent() as cgroups:
        await cgroups.start()
        for one in PODS:
            await cgroups.ensure(one)
        await becomes_the_plan(world, PODS)
        names = (
            "CPUWeight",
            "CPUQuotaPerSecUSec",
            "MemoryMax",
            "TasksMax",
            "Delegate",
            "DefaultDependencies",
        )
        seen = {}
        for path in planned_tree(PODS, world.node, SETTINGS):
            shown = await shell(f"systemctl show -p {','.join(names)} {unit_name(path)}")
            properties = dict(line.split("=", 1) for line in shown.splitlines())
            seen[unit_name(path).removeprefix(systemd[1:] + "-kubepods")] = [properties[n] for n in names]
        assert seen == {
            ".slice": ["59", "infinity", str(1 << 30), "5000", "no", "no"],
            "-burstable.slice": ["10", "infinity", "infinity", "infinity", "no", "no"],
            "-besteffort.slice": ["1", "infinity", "infinity", "infinity", "no", "no"],
            "-podaaaa_1.slice": ["5", "130ms", str(64 << 20), "77", "no", "no"],
            "-burstable-podbbbb_2.slice": ["10", "500ms", str(64 << 20), "77", "no", "no"],
            "-besteffort-podcccc_3.slice": ["1", "infinity", "infinity", "77", "no", "no"],
        }


async def test_slices_that_a_kubelet_made_are_kept_and_given_back(systemd: str) -> None:
    """Made as its library does, the slice first and then its limits: none is made anew, neither by the agent
    that takes them over nor at its end.
    """
    bus = MessageBus(SYSTEM_BUS)
    async with agents(systemd, "systemd", SETTINGS, (bus,)) as world:
        planned = planned_tree(PODS, world.node, SETTINGS)
        for path, limits in planned.items():
            await bus.call(START_UNIT, unit_name(path), "replace", new_slice(path), [], seconds=30)
            await wait_for(lambda path=path: world.tree.exists(path))  # type: ignore[misc]
            wanted = properties(with_whole_percents(limits), v2=world.tree.is_v2)
            await bus.call(SET_PROPERTIES, unit_name(path), True, wanted, seconds=30)

        async def identities() -> dict[str, tuple[str, int]]:
            show = "systemctl show --value -p InvocationID"
            return {
                path: (await shell(f"{show} {unit_name(path)}"), os.stat(f"/sys/fs/cgroup{path}").st_ino)
                for path in planned
            }

        before = await identities()
        async with world.agent() as cgroups:
            await cgroups.start()
            assert await cgroups.pods() == {"aaaa-1", "bbbb-2", "cccc-3"}
            for one in PODS:
                assert await cgroups.ensure(one, running=["c0"])
            await cgroups.update_classes(PODS)
            await becomes_the_plan(world, PODS)
            assert await identities() == before
        assert await identities() == before


async def test_controllers_that_systemd_takes_away_stay_away(systemd: str) -> None:
    """systemd takes `cpuset` from slices below which nothing asks for it, at each new slice. Giving it back
    each time would cost every pod's start 0.1 s and more.
    """
    async with agents(systemd, "systemd", SETTINGS) as world, world.agent() as cgroups:
        if not world.tree.is_v2:
            pytest.skip("needs cgroup v2")
        await cgroups.start()
        for number in range(3):
            await cgroups.ensure(pod(f"dddd-{number}", {"requests": {"cpu": "100m"}}))
        (burstable,) = (path for path in planned_tree([], world.node, SETTINGS) if "burstable" in path)
        given = (await shell(f"cat /sys/fs/cgroup{burstable}/cgroup.subtree_control")).split()
        assert "cpuset" not in given
        assert {"cpu", "memory", "pids"} <= set(given)


async def test_systemd_is_reloaded_and_slices_are_stopped_and_changed(systemd: str) -> None:
    async with agents(systemd, "systemd", SETTINGS) as world, world.agent() as cgroups:
        await cgroups.start()
        for one in PODS:
            await cgroups.ensure(one)
        await shell("systemctl daemon-reload")
        await becomes_the_plan(world, PODS)
        paths = {path[-10:]: path for path in planned_tree(PODS, world.node, SETTINGS)}
        guaranteed, burstable = paths["aaa_1.slice"[-10:]], paths["bbb_2.slice"[-10:]]
        await shell(f"systemctl set-property --runtime {unit_name(guaranteed)} MemoryMax=512M CPUWeight=7")
        await shell(f"systemctl stop {unit_name(burstable)}")
        assert not await cgroups.ensure(BURSTABLE, running=["a debugger"])  # of whom it knows nothing
        assert await cgroups.ensure(BURSTABLE)
        await cgroups.update_classes(PODS)
        await becomes_the_plan(world, PODS)
        await shell("systemctl daemon-reload")
        await becomes_the_plan(world, PODS)
        shown = await shell(f"systemctl show -p MemoryMax {unit_name(guaranteed)}")
        assert shown == f"MemoryMax={64 << 20}"


async def test_without_the_bus_systemds_own_socket_does(systemd: str, tmp_path: Path) -> None:
    buses = (MessageBus(str(tmp_path / "nowhere")), MessageBus(SYSTEMD, direct=True))
    async with agents(systemd, "systemd", SETTINGS, buses) as world, world.agent() as cgroups:
        await cgroups.start()
        await cgroups.ensure(GUARANTEED)
        await becomes_the_plan(world, [GUARANTEED])
        await cgroups.remove("aaaa-1")
        assert await cgroups.pods() == set()


async def test_a_bus_that_is_away_fails_only_what_needs_it(systemd: str, tmp_path: Path) -> None:
    socket = tmp_path / "bus"
    async with agents(systemd, "systemd", SETTINGS, (MessageBus(str(socket)),)) as world:
        async with world.agent() as cgroups:
            with pytest.raises(CgroupError, match="no such file"):
                await cgroups.start()
            socket.symlink_to(SYSTEM_BUS)
            await cgroups.start()
            await cgroups.ensure(GUARANTEED)
            socket.unlink()
        later = agents(systemd, "systemd", SETTINGS, (MessageBus(str(socket)),))
        async with later as next_world, next_world.agent() as cgroups:
            await cgroups.start()  # what is there is kept
            await cgroups.ensure(GUARANTEED)
            with pytest.raises(CgroupError):
                await cgroups.ensure(BURSTABLE)
            socket.symlink_to(SYSTEM_BUS)
            await cgroups.ensure(BURSTABLE)
            await cgroups.update_classes(PODS[:2])
            assert deviations(world, PODS[:2]) == {}

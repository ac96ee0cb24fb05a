"""A node under pressure, with real containers: who is evicted, how soon, and that nobody else is touched.

Pods come from an API server, as the node never evicts static ones. Thresholds are absolute and concern what
the pods of this node may have together, or small filesystems of its own: the machine itself is in no danger.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import PATIENCE, Manifest, Node, container, wait_until
from tests.containerd.scenes import Journal, say, uptime
from tests.containerd.test_pod_objects import Cluster, described
from tests.disks import disk
from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.machine.cgroup_reader import cgroup_reader
from trio_kubelet.machine.facts import read_machine
from trio_kubelet.machine.node_reader import processes_of_machine
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.standalone import node as standalone_node
from trio_kubelet.standalone.containerd import write_config
from trio_kubelet.standalone.layout import NodeLayout

MIB = 1024**2
POOL = 800 * MIB
"""What the pods of the node may have together."""
LEFT = 400 * MIB
"""Below this much left of it, somebody is evicted."""


def pool_config(pool: int = POOL, left: int = LEFT, **more: object) -> dict[str, object]:
    """A node whose pods have `pool` bytes together, of which `left` have to stay free."""
    reserved = read_machine("/").memory - pool
    return {
        "systemReserved": {"memory": str(reserved)},
        "evictionHard": {"memory.available": f"{left // MIB}Mi"},
        "imageGCHighThresholdPercent": 100,
        **more,
    }


def hog(mebibytes: int, word: str) -> Manifest:
    """Takes that much memory some time after it was started, says so, and holds it until SIGTERM."""
    grow = f"head -c {mebibytes}m /dev/zero | tail & wait; sleep 3600 & wait"
    return container(script=f"trap '{say(word + '-end')}; exit 0' TERM; sleep 2; {say(word)}; {grow}")


class PodsPool:
    """What the pods of a node have left of what they may have, read as the agent reads it."""

    def __init__(self, node: Node, pool: int = POOL, threshold: int = LEFT) -> None:
        self._pool = pool
        self._threshold = threshold
        names = CgroupNames(node.layout.cgroup_root, "cgroupfs", True)
        self._cgroup = names.literal(names.node())
        self._reader = cgroup_reader(find_hierarchies(), SystemClock())
        self.crossed_at = 0.0
        self.least = pool

    def left(self) -> int:
        """Bytes."""
        use = self._reader.use(self._cgroup)
        return use.memory_limit - use.working_set if use is not None else self._pool

    async def watch(self) -> None:
        """Notes when less than the threshold is left for the first time (as the journal measures time), and
        how much is left when it is least.
        """
        while True:
            left = self.left()
            self.least = min(self.least, left)
            if left < self._threshold and not self.crossed_at:
                self.crossed_at = uptime()
            await trio.sleep(0.01)


@asynccontextmanager
async def cluster_node(
    new_node: NewNode, directory: Path, config: dict[str, object]
) -> AsyncIterator[tuple[Cluster, Node]]:
    cluster = Cluster()
    async with new_node() as node, cluster.serving(node, directory) as path:
        await node.start_agent(f"--kubeconfig={path}", "-v=3", config=config)
        yield cluster, node


def journal_pod(
    cluster: Cluster, node: Node, journal: Journal, name: str, *containers: Manifest, **spec: Any
) -> None:
    made: dict[str, Any] = journal.pod(name, *containers)["spec"]
    cluster.pod(node, name, *made.pop("containers"), volumes=made["volumes"], **spec)


def status_of(cluster: Cluster, node: Node, name: str) -> dict[str, Any]:
    return dict((cluster.shown(f"{name}-{node.name}") or {}).get("status") or {})


@pytest.mark.node
async def test_the_pod_that_eats_memory_goes_and_twenty_stay(new_node: NewNode, tmp_path: Path) -> None:
    async with cluster_node(new_node, tmp_path, pool_config()) as (cluster, node):
        journal = Journal.of(node, "memory")
        calm = [f"calm-{number}" for number in range(20)]
        for name in calm:
            cluster.pod(node, name, container())
        before = {name: [each.id for each in await node.wait_running(name, "main")] for name in calm}
        pool = PodsPool(node)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.watch)
            journal_pod(cluster, node, journal, "hog", hog(600, "hog"))
            await journal.until("hog", "hog-end", timeout=60)
            nursery.cancel_scope.cancel()
        [ended] = journal.times("hog-end")
        assert ended - pool.crossed_at <= 1.0 * PATIENCE
        print(f"from the crossing to SIGTERM: {ended - pool.crossed_at:.2f} s")

        def told() -> bool:
            status = status_of(cluster, node, "hog")
            return status.get("phase") == "Failed" and status.get("reason") == "Evicted"

        await wait_until(told, 30, "the status of the pod says so")
        status = status_of(cluster, node, "hog")
        assert status["message"].startswith(
            "The node was low on resource: memory. Threshold quantity: 400Mi, "
        )
        assert "Container main was using " in status["message"]
        [shown] = status["containerStatuses"]
        assert shown["state"]["terminated"]["reason"] in ("Completed", "Error"), "as the container ended"
        [target] = [each for each in status["conditions"] if each["type"] == "DisruptionTarget"]
        assert (target["status"], target["reason"]) == ("True", "TerminationByKubelet")
        assert target["message"] == status["message"]
        await wait_until(lambda: cluster.events("EvictionThresholdMet"), 10, "the event of the node")
        assert cluster.events("EvictionThresholdMet") == ["Attempting to reclaim memory"]
        events = [
            change.new
            for change in cluster.store.history
            if change.resource == "events" and change.new and change.new["reason"] == "Evicted"
        ]
        assert len(events) == 1
        assert events[0]["metadata"]["annotations"]["starved_resource"] == "memory"
        assert {name: [each.id for each in await node.running(name)] for name in calm} == before
        story = await described(node, "describe", "pod", f"hog-{node.name}")
        assert "allocatableMemory.available is " in story
        assert "number 1 of 21 to go: uses " in story
        assert "next: default/calm-" in story
        await refused_while_pressed(cluster, node)


async def refused_while_pressed(cluster: Cluster, node: Node) -> None:
    """The condition stays for five minutes; a pod that reserves no memory is not taken meanwhile."""
    cluster.pod(node, "late", container())

    await wait_until(partial(is_evicted, cluster, node, "late"), 20, "a best-effort pod is refused")
    assert (
        status_of(cluster, node, "late")["message"]
        == "Pod was rejected: The node had condition: [MemoryPressure]. "
    )


@pytest.mark.node
@pytest.mark.parametrize("when", ["before the crossing", "before SIGTERM"])
async def test_an_agent_that_is_started_under_pressure_evicts_the_same_pod(
    new_node: NewNode, tmp_path: Path, when: str
) -> None:
    """Killed before the threshold is crossed, and as soon as it is: the next agent has to look at its pods
    first, when all of them are unknown to it. One pod goes, once.
    """
    cluster = Cluster()
    async with new_node() as node, cluster.serving(node, tmp_path) as path:
        start = partial(node.start_agent, f"--kubeconfig={path}", "-v=3", config=pool_config())
        await start()
        journal = Journal.of(node, "restart")
        calm = [f"calm-{number}" for number in range(10)]
        for name in calm:
            cluster.pod(node, name, container())
        journal_pod(cluster, node, journal, "hog", hog(600, "hog"))
        before = {name: [each.id for each in await node.wait_running(name, "main")] for name in calm}
        await node.wait_running("hog", "main")
        pool = PodsPool(node)
        if when == "before the crossing":
            await node.kill_agent()
        await wait_until(lambda: pool.left() < LEFT, 60, "the threshold is crossed", 0.001)
        if when == "before SIGTERM":
            await node.kill_agent()
            if "hog-end" in journal.words():
                pytest.skip("the agent had sent SIGTERM before this test had its turn to kill it")
        await start()
        await wait_until(partial(is_evicted, cluster, node, "hog"), 60, "the hog is evicted")
        await journal.until("hog-end")
        await trio.sleep(3)
        assert {name: [each.id for each in await node.running(name)] for name in calm} == before
        assert len(cluster.events("Evicted")) == 1
        status = status_of(cluster, node, "hog")
        assert status["phase"] == "Failed"
        [shown] = status["containerStatuses"]
        assert shown["state"]["terminated"]["exitCode"] == 0, "as the container ended"


@pytest.mark.node
async def test_a_fast_leak_costs_nobody_else_a_container(new_node: NewNode, tmp_path: Path) -> None:
    """As fast as the machine can: one pod with a limit and one without."""
    async with cluster_node(new_node, tmp_path, pool_config()) as (cluster, node):
        calm = [f"calm-{number}" for number in range(5)]
        for name in calm:
            cluster.pod(node, name, container())
        before = {name: [each.id for each in await node.wait_running(name, "main")] for name in calm}
        limited = container(script="tail /dev/zero")
        limited["resources"] = {"limits": {"memory": "100Mi"}, "requests": {"memory": "100Mi"}}
        cluster.pod(node, "limited", limited, restartPolicy="Never")
        cluster.pod(node, "leak", container(script="tail /dev/zero"), restartPolicy="Never")
        for name in ("limited", "leak"):
            await wait_until(partial(is_over, cluster, node, name), 60, f"{name} ends")
        await trio.sleep(2)
        assert {name: [each.id for each in await node.running(name)] for name in calm} == before
        [shown] = status_of(cluster, node, "limited")["containerStatuses"]
        assert shown["state"]["terminated"]["reason"] == "OOMKilled"


def is_over(cluster: Cluster, node: Node, name: str) -> bool:
    status = status_of(cluster, node, name)
    states = [each.get("state") or {} for each in status.get("containerStatuses") or ()]
    return status.get("phase") == "Failed" or any("terminated" in state for state in states)


async def test_an_empty_dir_over_its_limit(new_node: NewNode, tmp_path: Path) -> None:
    config: dict[str, object] = {"volumeStatsAggPeriod": "1s", "evictionHard": {"memory.available": "1Mi"}}
    async with cluster_node(new_node, tmp_path, config) as (cluster, node):
        greedy = container(script="head -c 20m /dev/zero > /data/file; sleep 3600 & wait")
        greedy["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        modest = container(script="head -c 2m /dev/zero > /data/file; sleep 3600 & wait")
        modest["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        volumes = [{"name": "data", "emptyDir": {"sizeLimit": "10Mi"}}]
        cluster.pod(node, "greedy", greedy, volumes=volumes)
        cluster.pod(node, "modest", modest, volumes=volumes)
        logger = container(script="head -c 20m /dev/zero | tr '\\0' 'x' | fold; sleep 3600 & wait")
        logger["resources"] = {"limits": {"ephemeral-storage": "10Mi"}}
        cluster.pod(node, "logger", logger)

        [before] = await node.wait_running("modest", "main")
        for name in ("greedy", "logger"):
            await wait_until(partial(is_evicted, cluster, node, name), 60, f"{name} is evicted")
        message = status_of(cluster, node, "greedy")["message"]
        assert message == 'Usage of EmptyDir volume "data" exceeds the limit "10Mi". '
        message = status_of(cluster, node, "logger")["message"]
        assert message == "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. "
        assert [each.id for each in await node.running("modest", "main")] == [before.id]
        assert not is_evicted(cluster, node, "modest")


@contextmanager
def small_disk(at: Path, scratch: Path) -> Iterator[None]:
    """A filesystem of 64 MB, mounted there."""
    with disk(at, scratch / "disk.img", 64, ["mkfs.ext4", "-q", "-N", "4096"]):
        yield


def writer(mebibytes: int, path: str) -> Manifest:
    return container(script=f"sleep 3; head -c {mebibytes}m /dev/zero > {path}; sleep 3600 & wait")


def with_volume(each: Manifest) -> Manifest:
    return {**each, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}


@pytest.mark.parametrize("what", ["bytes", "inodes", "no inodes"])
async def test_the_pod_that_fills_the_nodes_disk_goes(new_node: NewNode, tmp_path: Path, what: str) -> None:
    cluster = Cluster()
    """Even when not one inode is left, for the agent has to write, too."""
    threshold = {
        "bytes": {"nodefs.available": "20Mi"},
        "inodes": {"nodefs.inodesFree": "1500"},
        "no inodes": {"nodefs.inodesFree": "1"},
    }[what]
    config: dict[str, object] = {"evictionHard": threshold, "imageGCHighThresholdPercent": 100}
    volumes: list[dict[str, Any]] = [{"name": "data", "emptyDir": {}}]
    async with new_node() as node, cluster.serving(node, tmp_path) as path:
        with small_disk(Path(node.layout.agent_root), tmp_path):
            await node.start_agent(f"--kubeconfig={path}", "-v=3", config=config)
            for number in range(3):
                cluster.pod(node, f"calm-{number}", with_volume(writer(2, "/data/f")), volumes=volumes)
            before = {f"calm-{n}": (await node.wait_running(f"calm-{n}", "main"))[0].id for n in range(3)}
            files = f"for i in $(seq {3500 if what == 'inodes' else 5000}); do : > /data/$i; done"
            greedy = container(script=f"sleep 3; {files}; sleep 3600 & wait")
            cluster.pod(
                node,
                "greedy",
                with_volume(writer(40, "/data/f") if what == "bytes" else greedy),
                volumes=volumes,
            )
            await wait_until(partial(is_evicted, cluster, node, "greedy"), 60, "the greedy pod is evicted")
            resource = "ephemeral-storage" if what == "bytes" else "inodes"
            message = status_of(cluster, node, "greedy")["message"]
            assert message.startswith(f"The node was low on resource: {resource}. Threshold quantity: ")
            await trio.sleep(2)
            assert {name: (await node.running(name, "main"))[0].id for name in before} == before
            await node.kill_agent()


async def test_the_pod_that_fills_the_images_disk_goes(
    new_node: NewNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of images and writable layers; what nobody uses is removed first, and is not enough."""
    with ExitStack() as stack:
        original = write_config

        async def mounted_first(layout: NodeLayout, *rest: Any) -> Any:
            stack.enter_context(small_disk(Path(layout.containerd_root), tmp_path))
            return await original(layout, *rest)

        monkeypatch.setattr(standalone_node, "write_config", mounted_first)
        config: dict[str, object] = {
            "evictionHard": {"imagefs.available": "20Mi"},
            "imageGCHighThresholdPercent": 100,
        }
        async with cluster_node(new_node, tmp_path, config) as (cluster, node):
            for number in range(3):
                cluster.pod(node, f"calm-{number}", writer(1, "/f"))
            before = {f"calm-{n}": (await node.wait_running(f"calm-{n}", "main"))[0].id for n in range(3)}
            cluster.pod(node, "greedy", writer(35, "/f"))
            await wait_until(partial(is_evicted, cluster, node, "greedy"), 60, "the greedy pod is evicted")
            message = status_of(cluster, node, "greedy")["message"]
            assert message.startswith(
                "The node was low on resource: ephemeral-storage. Threshold quantity: 20Mi, "
            )
            assert "Container main was using " in message
            await trio.sleep(2)
            assert {name: (await node.running(name, "main"))[0].id for name in before} == before
            stack.close()


@pytest.mark.alone  # the processes of the whole machine are counted
async def test_the_pod_with_most_processes_goes(new_node: NewNode, tmp_path: Path) -> None:
    """The threshold lies a little below what the machine has left now; the pod's processes stay few."""
    machine = processes_of_machine(SystemClock())
    assert machine.limit is not None
    assert machine.running is not None
    left = machine.limit - machine.running
    config: dict[str, object] = {"evictionHard": {"pid.available": str(left - 700)}}
    async with cluster_node(new_node, tmp_path, config) as (cluster, node):
        for number in range(3):
            cluster.pod(node, f"calm-{number}", container())
        before = {f"calm-{n}": (await node.wait_running(f"calm-{n}", "main"))[0].id for n in range(3)}
        fork = "for i in $(seq 1000); do sleep 3600 & done; wait"
        cluster.pod(node, "forks", container(script=f"sleep 3; {fork}"))
        await wait_until(partial(is_evicted, cluster, node, "forks"), 60, "the pod that forks is evicted")
        message = status_of(cluster, node, "forks")["message"]
        assert message.startswith(f"The node was low on resource: pids. Threshold quantity: {left - 700}, ")
        await trio.sleep(2)
        assert {name: (await node.running(name, "main"))[0].id for name in before} == before


def is_evicted(cluster: Cluster, node: Node, name: str) -> bool:
    return status_of(cluster, node, name).get("reason") == "Evicted"


@contextmanager
def no_more_processes(agent: int) -> Iterator[Path]:
    """The agent can start neither a thread nor a process."""
    hierarchies = find_hierarchies()
    cgroup = Path(hierarchies.get("pids") or hierarchies[""]) / f"tk-full-{agent}"
    cgroup.mkdir()
    (cgroup / "cgroup.procs").write_text(str(agent))
    (cgroup / "pids.max").write_text((cgroup / "pids.current").read_text())
    try:
        yield cgroup
    finally:
        (cgroup / "pids.max").write_text("max")
        (cgroup.parent / "cgroup.procs").write_text(str(agent))
        cgroup.rmdir()


@pytest.mark.node
async def test_an_agent_that_can_start_no_process_evicts(new_node: NewNode, tmp_path: Path) -> None:
    """What it needs for that is there before the process table is full."""
    async with cluster_node(new_node, tmp_path, pool_config()) as (cluster, node):
        for number in range(3):
            cluster.pod(node, f"calm-{number}", container())
        before = {f"calm-{n}": (await node.wait_running(f"calm-{n}", "main"))[0].id for n in range(3)}
        journal = Journal.of(node, "full")
        journal_pod(cluster, node, journal, "hog", hog(600, "hog"))
        await node.wait_running("hog", "main")
        assert node.agent is not None
        with no_more_processes(node.agent.process.pid) as cgroup:
            await journal.until("hog-end", timeout=60)
            await wait_until(partial(is_evicted, cluster, node, "hog"), 60, "its status says so")
            refused = (cgroup / "pids.events").read_text() if (cgroup / "pids.events").exists() else ""
            print(f"refused meanwhile: {refused.strip()}")
        assert {name: (await node.running(name, "main"))[0].id for name in before} == before

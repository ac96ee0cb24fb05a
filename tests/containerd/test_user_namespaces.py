"""Pods with a user namespace of their own on a real runtime.

Runs in the machine of `make test-node`, where the second containerd has a runc that can do it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cgroups.machine import has_systemd
from tests.containerd.conftest import NewNode
from tests.containerd.harness import Manifest, Node, container, pod, running_node, wait_until
from tests.containerd.scenes import uid_of
from tests.containerd.test_pod_objects import Cluster
from tests.disks import counting_disk
from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.standalone.node import Provisions
from trio_kubelet.volumes.project_quotas import counted

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(
        not has_systemd() or "" not in find_hierarchies() or shutil.which("getsubids") is None,
        reason="needs systemd, cgroup v2 and getsubids",
    ),
]
LENGTH = 65536
MIB = 1 << 20
VOLUME = "volumes/kubernetes.io~empty-dir/data"


@pytest.fixture
def systemd_node(
    request: pytest.FixtureRequest, provisions: Callable[[str], Provisions], tmp_path: Path
) -> NewNode:
    made = provisions(request.param)
    if request.param.startswith("2") and made.containerd.oci_runtime is None:
        pytest.skip("the runc of this machine may know no user namespaces")
    return lambda: running_node(made, tmp_path, systemd=True)


def with_namespace(name: str) -> Manifest:
    mounts = [{"name": "data", "mountPath": "/data"}]
    return pod(
        name,
        container(volumeMounts=mounts),
        hostUsers=False,
        volumes=[{"name": "data", "emptyDir": {}}],
    )


def subordinate_ids() -> tuple[int, int]:
    """The first id of the kubelet's range and how many there are, in the first line of getsubids."""
    said = subprocess.run(["getsubids", "kubelet"], check=True, capture_output=True, text=True).stdout
    _, _, first, length = said.splitlines()[0].split()
    return int(first), int(length)


async def mapping(node: Node, name: str) -> tuple[int, int]:
    """Which id of the node the first of the pod's is, and how many it has, as its process sees it."""
    (running,) = await node.wait_running(name)
    inside, outside, length = (await node.exec(running.id, "cat", "/proc/self/uid_map")).split()
    assert inside == "0"
    groups = (await node.exec(running.id, "cat", "/proc/self/gid_map")).split()
    assert groups == [inside, outside, length]
    return int(outside), int(length)


@pytest.mark.parametrize("systemd_node", ["2.1"], indirect=True)
async def test_each_pod_has_ids_of_its_own_and_keeps_them(systemd_node: NewNode) -> None:
    first, length = subordinate_ids()
    async with systemd_node() as node:
        await node.start_agent()
        node.write(with_namespace("one"))
        node.write(with_namespace("two"))
        node.write(pod("plain"))
        seen = {name: await mapping(node, name) for name in ("one", "two")}
        assert await mapping(node, "plain") == (0, 2**32 - 1)
        starts = {begin for begin, _ in seen.values()}
        assert len(starts) == 2
        for begin in starts:
            assert first <= begin < first + length
            assert (begin - first) % LENGTH == 0
        assert {size for _, size in seen.values()} == {LENGTH}

        (running,) = await node.running("one")
        assert (await node.exec(running.id, "id", "-u")).strip() == "0"
        await node.exec(running.id, "touch", "/data/made")
        assert (await node.exec(running.id, "stat", "-c", "%u", "/data/made")).strip() == "0"
        uid = await uid_of(node, "one")
        directory = node.layout.agent_root / "pods" / uid
        record = json.loads((directory / "userns").read_text())
        expected = [{"hostId": seen["one"][0], "containerId": 0, "length": LENGTH}]
        assert record == {"uidMappings": expected, "gidMappings": expected}

        await node.kill_agent()
        await node.start_agent()
        await node.kill_container(running.id)
        await node.wait_running("one", besides=[running.id])
        assert await mapping(node, "one") == seen["one"]
        assert json.loads((directory / "userns").read_text()) == record
        node.remove("one")
        await node.wait_gone("one")
        await wait_until(lambda: not directory.exists(), 60, "the pod's directory is gone")


@pytest.mark.parametrize("systemd_node", ["1.7"], indirect=True)
async def test_a_runtime_without_them_is_told_so(systemd_node: NewNode) -> None:
    async with systemd_node() as node:
        agent = await node.start_agent("-v=2")
        node.write(with_namespace("refused"))
        node.write(pod("plain"))
        await node.wait_running("plain")
        said = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"

        def told() -> bool:
            text = agent.log_text()
            return f"Failed to create pod sandbox: {said}" in text and "FailedCreatePodSandBox" in text

        await wait_until(told, 30, "the event says why")
        status = await node.pod_status("refused")
        assert status["phase"] == "Pending"
        assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}


def projects() -> str:
    """The paths that have numbers."""
    return Path("/etc/projects").read_text()


def writing(mebibytes: int) -> Manifest:
    mounts = [{"name": "data", "mountPath": "/data"}]
    script = f"head -c {mebibytes}m /dev/zero > /data/file; sleep 3600 & wait"
    return container(script=script, volumeMounts=mounts)


@pytest.mark.parametrize("kind", ["xfs", "ext4"])
@pytest.mark.parametrize("systemd_node", ["2.1"], indirect=True)
async def test_the_filesystem_counts_what_they_have(systemd_node: NewNode, tmp_path: Path, kind: str) -> None:
    """With the gate, and for these pods alone: others could give their files to another project."""
    cluster = Cluster()
    config: dict[str, object] = {
        "featureGates": {"LocalStorageCapacityIsolationFSQuotaMonitoring": True},
        "volumeStatsAggPeriod": "1s",
        "evictionHard": {"memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
    }
    data: list[dict[str, Any]] = [{"name": "data", "emptyDir": {}}]
    limited: list[dict[str, Any]] = [{"name": "data", "emptyDir": {"sizeLimit": "10Mi"}}]
    async with systemd_node() as node, cluster.serving(node, tmp_path) as path:
        root = Path(node.layout.agent_root)

        def shown(name: str) -> Manifest:
            return cluster.store.get("pods", "default", f"{name}-{node.name}")

        def volume(name: str) -> str:
            return str(root / "pods" / shown(name)["metadata"]["uid"] / VOLUME)

        def holds(name: str, least: int) -> bool:
            found = counted(volume(name))
            return found is not None and found.used >= least

        with counting_disk(kind, root, tmp_path):
            await node.start_agent(f"--kubeconfig={path}", config=config)
            cluster.pod(node, "mine", writing(3), volumes=data, hostUsers=False)
            cluster.pod(node, "plain", writing(3), volumes=data)
            cluster.pod(node, "greedy", writing(20), volumes=limited, hostUsers=False)
            for name in ("mine", "plain"):
                await node.wait_running(name)
            await wait_until(lambda: holds("mine", 3 * MIB), 60, "the filesystem has counted")
            assert counted(volume("plain")) is None
            assert volume("mine") in projects()
            assert volume("plain") not in projects()

            async def told() -> bool:
                used = await uses(node)
                return all(used.get(f"{name}-{node.name}", 0) >= 3 * MIB for name in ("mine", "plain"))

            await wait_until(told, 60, "the summary shows both")
            await wait_until(
                lambda: (shown("greedy").get("status") or {}).get("reason") == "Evicted", 60, "it is evicted"
            )
            message = shown("greedy")["status"]["message"]
            assert message == 'Usage of EmptyDir volume "data" exceeds the limit "10Mi". '

            await node.kill_agent()
            await node.start_agent(f"--kubeconfig={path}", config=config)
            await wait_until(told, 60, "the next agent shows both")
            text = await node.metrics()
            for source in ("fsquota", "du"):
                name = "kubelet_volume_metric_collection_duration_seconds_count"
                assert f'{name}{{metric_source="{source}"}}' in text
            gone = volume("mine")
            cluster.store.delete("pods", "default", f"mine-{node.name}", {"gracePeriodSeconds": 1})
            await wait_until(lambda: not Path(gone).exists(), 60, "the volume is gone")
            await wait_until(lambda: gone not in projects(), 60, "and its number")
            await node.kill_agent()


async def uses(node: Node) -> dict[str, int]:
    """Bytes in the volumes of each pod, as the summary has them."""
    answer = await node.get(node.ports.read_only, "/stats/summary")
    return {
        each["podRef"]["name"]: sum(volume.get("usedBytes", 0) for volume in each.get("volume") or ())
        for each in answer.json()["pods"]
    }

"""Claims in containers of a real containerd: data that outlives pods, devices, shared and growing volumes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, container, wait_until
from tests.containerd.scenes import until_nothing_left
from tests.containerd.test_pod_objects import Cluster
from tests.kube.store import Refused
from tests.storage.drivers import DriverProcess, mounted_below
from tests.storage.test_flex import install
from tests.storage.world import DRIVER, Claims, csi_unique
from trio_kubelet.storage import loop
from trio_kubelet.volumes.files import unmount_all

SEEN_SECONDS = 2.0


class Scene:
    """A node of a cluster with a CSI driver."""

    def __init__(
        self,
        node: Node,
        cluster: Cluster,
        claims: Claims,
        driver: DriverProcess,
        kubeconfig: str,
        verbosity: int,
        config: Mapping[str, object] | None,
    ) -> None:
        self.kubeconfig = kubeconfig
        self._verbosity = verbosity
        self._config = config
        self.node = node
        self.cluster = cluster
        self.claims = claims
        self.driver = driver

    async def restart(self) -> Scene:
        """Starts the agent."""
        flags = f"--kubeconfig={self.kubeconfig}", f"-v={self._verbosity}"
        await self.node.start_agent(*flags, config=self._config)
        return self

    async def start(self, name: str, *claims: str, script: str = "", devices: tuple[str, ...] = ()) -> str:
        """A pod with claims at `/CLAIM`, running; its UID."""
        volumes = [
            {"name": each, "persistentVolumeClaim": {"claimName": each}} for each in (*claims, *devices)
        ]
        main = container(
            "a",
            script,
            volumeMounts=[{"name": each, "mountPath": f"/{each}"} for each in claims],
            volumeDevices=[{"name": each, "devicePath": f"/dev/{each}"} for each in devices],
        )
        made = self.cluster.pod(self.node, name, main, volumes=volumes)
        await self.node.wait_running(name, "a")
        return str(made["metadata"]["uid"])

    async def run(self, name: str, *command: str) -> str:
        """What a command in the pod's container says."""
        (found,) = await self.node.running(name, "a")
        return await self.node.exec(found.id, *command)

    async def stop(self, name: str, uid: str) -> None:
        """The pod is deleted and nothing of it is left."""
        full = f"{name}-{self.node.name}"
        self.cluster.store.delete("pods", "default", full, {"gracePeriodSeconds": 1})
        await wait_until(lambda: self.cluster.shown(full) is None, 30, "the pod is deleted")
        await until_nothing_left(self.node, name, uid)

    def staged(self) -> list[str]:
        """What is mounted below the agent's plugins directory."""
        return mounted_below(self.node.layout.agent_root / "plugins")


@asynccontextmanager
async def scene(
    new_node: NewNode,
    directory: Path,
    config: Mapping[str, object] | None = None,
    verbosity: int = 4,
    **spec: Any,
) -> AsyncIterator[Scene]:
    """A running node with a registered driver."""
    cluster = Cluster()
    claims = Claims(cluster.server)
    claims.driver(**spec)
    async with new_node() as node, cluster.serving(node, directory) as kubeconfig:
        registry = node.layout.agent_root / "plugins_registry"
        registry.mkdir(parents=True)
        driver = DriverProcess(DRIVER, directory / "driver", registry / f"{DRIVER}-reg.sock")
        driver.start()
        try:
            yield await Scene(node, cluster, claims, driver, kubeconfig, verbosity, config).restart()
        finally:
            driver.kill()
            root = node.layout.agent_root
            for bound in (root / "plugins/kubernetes.io/csi/volumeDevices").glob("*/dev/*"):
                loop.detach(str(bound))
            unmount_all(str(root / "plugins"))
            driver.clean()


async def test_data_outlives_its_pod(new_node: NewNode, tmp_path: Path) -> None:
    async with scene(new_node, tmp_path) as s:
        s.claims.claim("data")
        first = await s.start("one", "data")
        await s.run("one", "sh", "-c", "echo kept > /data/file")
        assert "ext4" in await s.run("one", "grep", " /data ", "/proc/mounts")
        await s.stop("one", first)
        await wait_until(lambda: not s.staged(), 30, "the volume is unstaged")
        second = await s.start("two", "data")
        assert await s.run("two", "cat", "/data/file") == "kept\n"
        await s.stop("two", second)
        node = s.cluster.store.get("csinodes", "", s.node.name)
        assert [each["name"] for each in node["spec"]["drivers"]] == [DRIVER]


async def test_a_block_device_outlives_its_pod(new_node: NewNode, tmp_path: Path) -> None:
    async with scene(new_node, tmp_path) as s:
        s.claims.claim("raw", mode="Block")
        first = await s.start("one", devices=("raw",))
        await s.run("one", "sh", "-c", "echo kept | dd of=/dev/raw conv=notrunc 2>/dev/null")
        await s.stop("one", first)
        second = await s.start("two", devices=("raw",))
        assert await s.run("two", "dd", "if=/dev/raw", "bs=5", "count=1") == "kept\n"
        await s.stop("two", second)
        await wait_until(lambda: not s.staged(), 30, "the device is unmapped")


async def test_two_pods_share_a_claim_and_its_use_is_told(new_node: NewNode, tmp_path: Path) -> None:
    async with scene(new_node, tmp_path, {"volumeStatsAggPeriod": "8s"}) as s:
        s.claims.claim("shared", modes=("ReadWriteMany",))
        first = await s.start("one", "shared")
        second = await s.start("two", "shared")
        await s.run("one", "sh", "-c", "echo seen > /shared/file")
        assert await s.run("two", "cat", "/shared/file") == "seen\n"
        await s.stop("one", first)
        assert await s.run("two", "cat", "/shared/file") == "seen\n"

        async def told() -> bool:
            return (
                'kubelet_volume_stats_capacity_bytes{namespace="default",persistentvolumeclaim="shared"}'
                in (await s.node.metrics())
            )

        await wait_until(told, 30, "the claim's use is in the metrics")
        await s.stop("two", second)


async def test_a_pod_with_twenty_volumes(new_node: NewNode, tmp_path: Path) -> None:
    names = tuple(f"v{number}" for number in range(20))
    async with scene(new_node, tmp_path) as s:
        s.driver.set(size=4 << 20)
        for name in names:
            s.claims.claim(name, size="4Mi")
        uid = await s.start("many", *names)
        assert (await s.run("many", "grep", "-c", " /v[0-9]* ext4", "/proc/mounts")).strip() == "20"
        await s.stop("many", uid)
        await wait_until(lambda: not s.staged(), 60, "all volumes are unstaged")


def root_of(container: str) -> str:
    """What a container sees as its root, from outside."""
    for found in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            if container in found.read_text():
                return str(found.parent / "root")
    raise AssertionError(f"no process of {container}")


def filesystem_size(path: str) -> int:
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


def device_size(path: str) -> int:
    with open(path, "rb") as file:
        return file.seek(0, os.SEEK_END)


@pytest.mark.parametrize("kind", ["filesystem", "device"])
async def test_a_volume_grows_in_its_running_container(new_node: NewNode, tmp_path: Path, kind: str) -> None:
    """Between the driver's answer and what the container sees nothing of the agent stands."""
    size = filesystem_size if kind == "filesystem" else device_size
    async with scene(new_node, tmp_path, config={"syncFrequency": "2s"}) as s:
        if kind == "filesystem":
            s.driver.set(fs="tmpfs")
            s.claims.claim("c")
            uid = await s.start("p", "c")
        else:
            s.claims.claim("c", mode="Block")
            uid = await s.start("p", devices=("c",))
        (before,) = await s.node.running("p", "a")
        path = f"{root_of(before.id)}/{'c' if kind == 'filesystem' else 'dev/c'}"
        assert size(path) < 64 << 20
        s.claims.grow("c", "64Mi")
        with trio.fail_after(120):
            while size(path) < 64 << 20:  # noqa: ASYNC110 - nobody tells of it
                await trio.sleep(0.01)
        seen = time.time()
        await wait_until(lambda: "NodeExpandVolume" in s.driver.methods(), 30, "the driver has answered")
        answered = next(c["at"] for c in s.driver.calls("end") if c["method"] == "NodeExpandVolume")
        print(f"on-line expansion of a {kind}: seen {seen - answered:+.3f} s after the driver's answer")
        assert seen - answered < SEEN_SECONDS
        (after,) = await s.node.running("p", "a")
        assert after.id == before.id
        await s.stop("p", uid)


async def test_a_running_pod_keeps_its_volume_when_the_agent_is_killed(
    new_node: NewNode, tmp_path: Path
) -> None:
    async with scene(new_node, tmp_path) as s:
        s.claims.claim("c")
        uid = await s.start("p", "c")
        (before,) = await s.node.running("p", "a")
        await s.run("p", "sh", "-c", "echo kept > /c/file")
        await s.node.kill_agent()
        await s.restart()
        await wait_until(lambda: s.driver.methods().count("NodePublishVolume") > 1, 60, "it was looked after")
        (after,) = await s.node.running("p", "a")
        assert after.id == before.id
        assert await s.run("p", "cat", "/c/file") == "kept\n"
        assert "NodeUnpublishVolume" not in s.driver.methods("begin")
        await s.stop("p", uid)
        await wait_until(lambda: not s.staged(), 30, "the volume is unstaged")


async def test_a_volume_is_attached_between_being_in_use_and_being_mounted(
    new_node: NewNode, tmp_path: Path
) -> None:
    """What the attach-detach controller sees: it may detach when the volume is in use no longer."""
    async with scene(new_node, tmp_path, attachRequired=True) as s:
        s.claims.claim("disk")
        name = csi_unique("disk")

        def status() -> Any:
            try:
                return s.cluster.store.get("nodes", "", s.node.name)["status"]
            except Refused:  # it has not joined yet
                return {}

        volumes = [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]
        main = container("a", volumeMounts=[{"name": "disk", "mountPath": "/disk"}])
        made = s.cluster.pod(s.node, "p", main, volumes=volumes)
        await wait_until(lambda: name in (status().get("volumesInUse") or []), 30, "it is called in use")
        assert s.driver.methods("begin") == []
        s.claims.attach("disk", node=s.node.name)
        s.cluster.store.set_status(
            "nodes", "", s.node.name, volumesAttached=[{"name": name, "devicePath": ""}]
        )
        await s.node.wait_running("p", "a")
        await s.stop("p", made["metadata"]["uid"])
        await wait_until(lambda: name not in (status().get("volumesInUse") or []), 30, "it may be detached")
        assert s.driver.methods()[-1] == "NodeUnstageVolume"
        assert s.staged() == []


async def test_a_flexvolume_driver_that_comes_later(new_node: NewNode, tmp_path: Path) -> None:
    drivers = tmp_path / "drivers"
    async with scene(new_node, tmp_path, config={"volumePluginDir": str(drivers)}) as s:
        volumes = [{"name": "v", "flexVolume": {"driver": "vendor/disk"}}]
        main = container("a", volumeMounts=[{"name": "v", "mountPath": "/v"}])
        made = s.cluster.pod(s.node, "p", main, volumes=volumes)

        def told() -> bool:
            assert s.node.agent is not None
            return "err=no volume plugin matched" in s.node.agent.log_text()

        await wait_until(told, 30, "the driver is missed")
        install(drivers)
        await s.node.wait_running("p", "a", timeout=60)
        assert "tmpfs" in await s.run("p", "grep", " /v ", "/proc/mounts")
        await s.stop("p", made["metadata"]["uid"])


async def test_a_part_of_a_claim_is_bound_below_its_volumes_name(new_node: NewNode, tmp_path: Path) -> None:
    async with scene(new_node, tmp_path) as s:
        s.claims.claim("data")
        volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
        main = container("a", volumeMounts=[{"name": "d", "mountPath": "/part", "subPath": "deep/er"}])
        made = s.cluster.pod(s.node, "p", main, volumes=volumes)
        await s.node.wait_running("p", "a")
        await s.run("p", "sh", "-c", "echo kept > /part/file")
        uid = str(made["metadata"]["uid"])
        pod = s.node.layout.agent_root / "pods" / uid
        assert str(pod / "volume-subpaths/pv-data/a/0") in mounted_below(pod)
        assert (pod / "volumes/kubernetes.io~csi/pv-data/mount/deep/er/file").read_text() == "kept\n"
        await s.stop("p", uid)
        await wait_until(lambda: not s.staged(), 30, "the volume is unstaged")


async def test_a_volume_stays_until_its_container_has_ended_though_the_agent_was_killed(
    new_node: NewNode, tmp_path: Path
) -> None:
    """113979: a pod in a grace of 60 s, agent killed and started."""
    ending = "touch /c/ending; until [ -e /c/now ]; do sleep 0.1; done; echo whole > /c/last; exit 0"
    async with scene(new_node, tmp_path) as s:
        s.claims.claim("c")
        volumes = [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}]
        script = f"trap '{ending}' TERM; while :; do sleep 0.1; done"
        main = container("a", script, volumeMounts=[{"name": "c", "mountPath": "/c"}])
        made = s.cluster.pod(s.node, "p", main, volumes=volumes, terminationGracePeriodSeconds=60)
        uid, full = str(made["metadata"]["uid"]), f"p-{s.node.name}"
        await s.node.wait_running("p", "a")
        mounted = s.node.layout.agent_root / "pods" / uid / "volumes/kubernetes.io~csi/pv-c/mount"
        s.cluster.store.delete("pods", "default", full, {"gracePeriodSeconds": 60})
        await wait_until(lambda: (mounted / "ending").exists(), 30, "the container was told to end")
        await s.node.kill_agent()
        published = s.driver.methods().count("NodePublishVolume")
        await s.restart()
        await trio.sleep(5)
        assert str(mounted) in mounted_below(s.node.layout.agent_root / "pods")
        assert await s.node.running("p", "a")
        assert "NodeUnpublishVolume" not in s.driver.methods("begin")
        assert s.driver.methods().count("NodePublishVolume") <= published + 1
        (mounted / "now").touch()
        await wait_until(lambda: s.cluster.shown(full) is None, 60, "the pod is deleted")
        await until_nothing_left(s.node, "p", uid)
        again = await s.start("q", "c")
        assert await s.run("q", "cat", "/c/last") == "whole\n"
        await s.stop("q", again)

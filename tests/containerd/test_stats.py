"""Stats of real containers: what the pages say against what the kernel's files and the script say."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import msgspec
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, container, pod, wait_until
from trio_kubelet.api import v1
from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.common.caching import PATIENCE
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.machine.facts import read_machine
from trio_kubelet.machine.system import read_system
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podresources.proto import api_pb2 as resources
from trio_kubelet.standalone.cleanup import read_processes
from trio_kubelet.stats.collector import StatsSettings
from trio_kubelet.stats.room import StatsRoom, machine_labels
from trio_kubelet.stats.volumes import VolumeMeter

GOLDEN = Path(__file__).parents[1] / "golden" / "stats-summary-sample.json"
MIB = 1 << 20
BUSY = "while :; do :; done"
LAYER_KIB, DATA_KIB = 3000, 2000
WRITER = (
    f"echo hello; dd if=/dev/zero of=/layer bs=1k count={LAYER_KIB};"
    f" dd if=/dev/zero of=/data/file bs=1k count={DATA_KIB}; sleep 100000"
)


@asynccontextmanager
async def stats_of(node: Node) -> AsyncIterator[StatsRoom]:
    """Stats over the node's runtime, beside the agent that runs its pods."""
    root, clock = str(node.layout.agent_root), SystemClock()
    facts = read_machine(root)
    pods = [msgspec.convert(each, v1.Pod) for each in await node.pods()]
    settings = StatsSettings(
        node_name=node.name,
        root_dir=root,
        pod_logs_dir=str(node.layout.pod_logs),
        names=CgroupNames(node.layout.cgroup_root),
        memory_capacity=facts.memory,
        swap_capacity=facts.swap,
        max_age=0.5,
        disk_max_age=0.5,
        details_max_age=0.5,
    )
    meter = VolumeMeter(lambda: pods, root, clock, 1)
    machine = machine_labels(facts, read_system("/etc/machine-id", "/proc/sys/kernel/random/boot_id"))
    async with open_cri(node.layout.endpoint) as cri, trio.open_nursery() as nursery:
        await nursery.start(meter.run)
        room = StatsRoom(cri.runtime, cri.images, find_hierarchies(), clock, settings, machine, meter)
        nursery.start_soon(room.run)
        yield room
        nursery.cancel_scope.cancel()


async def page(pieces: AsyncIterator[bytes]) -> str:
    return b"".join([piece async for piece in pieces]).decode()


async def summary(stats: StatsRoom) -> Any:
    return json.loads(await page(stats.pages.summary_page()))


def named(found: Any, node: Node, name: str) -> Any:
    return next(each for each in found["pods"] if each["podRef"]["name"] == f"{name}-{node.name}")


HAS_ETH0 = os.path.exists("/sys/class/net/eth0")
"""Of a node the one interface of this name is shown, as by the kubelet."""


def keys(value: object, path: str = "") -> set[str]:
    if isinstance(value, dict):
        return {key for name, each in value.items() for key in keys(each, f"{path}.{name}")}
    if isinstance(value, list):
        return {path}.union(*(keys(each, f"{path}[]") for each in value))
    return {path}


def cpu_of(node: Node, uid: str) -> int:
    """CPU of a pod by the kernel, in nanoseconds."""
    for directory in node.cgroups(f"pod{uid}"):
        if (usage := directory / "cpuacct.usage").exists():
            return int(usage.read_text())
        if (stat := directory / "cpu.stat").exists() and "usage_usec" in stat.read_text():
            return int(stat.read_text().split()[1]) * 1000
    raise AssertionError(f"no cgroup of pod {uid}")


async def test_figures_of_containers_that_work_agree_with_the_kernels(new_node: NewNode) -> None:
    async with new_node() as node:
        await node.start_agent()
        limits = {"limits": {"cpu": "200m", "memory": "64Mi"}}
        node.write(pod("busy", container(script=BUSY, resources=limits)))
        mounts = [{"name": "data", "mountPath": "/data"}]
        volumes = [{"name": "data", "emptyDir": {}}]
        node.write(pod("writer", container(script=WRITER, volumeMounts=mounts), volumes=volumes))
        await node.wait_running("busy")
        await node.wait_running("writer")
        async with stats_of(node) as stats:
            before = named(await summary(stats), node, "busy")["cpu"]["usageCoreNanoSeconds"]

            async def measured() -> Any:
                found = await summary(stats)
                written = named(found, node, "writer")
                layer = written["containers"][0].get("rootfs", {}).get("usedBytes", 0)
                taken = [each["usedBytes"] for each in written.get("volume", ()) if each["name"] == "data"]
                works = named(found, node, "busy")
                # Other programs may leave it less than its limit for a while.
                rates = [each["cpu"].get("usageNanoCores", 0) for each in (works, *works["containers"])]
                moved = works["cpu"]["usageCoreNanoSeconds"] > before and min(rates) > 0.1e9
                # Either may have been looked at while it was being written.
                whole = layer >= LAYER_KIB << 10 and taken and taken[0] >= DATA_KIB << 10
                return found if moved and whole else None

            # containerd looks at the writable layers every ten seconds
            found = await wait_until(measured, 40, "layer and volume measured", interval=2)
            busy, writer = named(found, node, "busy"), named(found, node, "writer")
            assert before < busy["cpu"]["usageCoreNanoSeconds"] <= cpu_of(node, busy["podRef"]["uid"])
            assert busy["cpu"]["usageNanoCores"] < 0.3e9
            main = busy["containers"][0]
            assert main["cpu"]["usageNanoCores"] < 0.3e9
            assert main["memory"]["availableBytes"] == 64 * MIB - main["memory"]["workingSetBytes"]
            assert busy["process_stats"]["process_count"] == 1
            assert busy["network"]["name"] == "eth0"
            assert writer["ephemeral-storage"]["usedBytes"] >= (LAYER_KIB + DATA_KIB) << 10
            assert writer["containers"][0]["logs"]["usedBytes"] >= 4096
            recorded = json.loads(await trio.to_thread.run_sync(GOLDEN.read_text))
            wanted = keys(recorded)
            if not HAS_ETH0:
                wanted = {key for key in wanted if not key.startswith(".node.network")}
            assert wanted <= keys(found)

            text = await page(stats.pages.resource_metrics_page())
            families = {each.name: each.samples for each in text_string_to_metric_families(text)}
            used = {each.labels["pod"]: each.value for each in families["pod_cpu_usage_seconds"]}
            assert used[f"busy-{node.name}"] >= before / 1e9

            async def throttled() -> Any:
                text = await page(stats.pages.cadvisor_page())
                families = {each.name: each.samples for each in text_string_to_metric_families(text)}
                periods = families["container_cpu_cfs_throttled_periods"]
                (found,) = [each.value for each in periods if each.labels["container"] == "main"]
                return families if found > 0 else None

            families = await wait_until(throttled, 20, "the busy container was throttled", interval=1)
            received = families["container_network_receive_bytes"]
            of_pod = [each for each in received if each.labels["pod"] == f"busy-{node.name}"]
            # A kernel may give each network namespace tunnels of its own.
            (sandbox,) = [each for each in of_pod if each.labels["interface"] == "eth0"]
            assert {each.labels["container"] for each in of_pod} == {""}
            assert "pause" in sandbox.labels["image"]
        await node.stop_agent()


async def test_stats_go_on_over_restarts_of_agent_and_runtime(new_node: NewNode) -> None:
    async with new_node() as node:
        await node.start_agent()
        node.write(pod("busy", container(script=BUSY)))
        await node.wait_running("busy")
        async with stats_of(node) as stats:
            first = named(await summary(stats), node, "busy")
            await node.kill_agent()
            await node.restart_containerd(down=2)
            while_down = await summary(stats)
            assert named(while_down, node, "busy")["podRef"] == first["podRef"]
            await node.start_agent()

            async def answered() -> bool:
                return "resource_scrape_error 0" in await page(stats.pages.resource_metrics_page())

            await wait_until(answered, 30, "the runtime's figures again", interval=1)
            again = named(await summary(stats), node, "busy")
            assert again["cpu"]["usageCoreNanoSeconds"] > first["cpu"]["usageCoreNanoSeconds"]
            assert again["containers"][0]["startTime"] == first["containers"][0]["startTime"]
        await node.stop_agent()


async def test_a_shim_that_hangs_takes_only_what_it_alone_knows(new_node: NewNode) -> None:
    """Whoever scrapes a node gives up after some ten seconds."""
    async with new_node() as node:
        await node.start_agent()
        for name in ("hung", "busy"):
            node.write(pod(name, container(script=BUSY)))
            await node.wait_running(name)
        async with stats_of(node) as stats:

            async def complete() -> Any:
                found = await summary(stats)
                layers = [
                    named(found, node, name)["containers"][0].get("rootfs") for name in ("hung", "busy")
                ]
                return found if all(layers) else None

            before = await wait_until(complete, 30, "figures of the runtime", interval=1)
            [sandbox] = {each.pod_sandbox_id for each in await node.running("hung")}
            shims = [
                p.pid for p in read_processes() if "containerd-shim" in p.cmdline and sandbox in p.cmdline
            ]
            assert len(shims) == 1
            os.kill(shims[0], signal.SIGSTOP)
            try:
                for _ in range(3):
                    await trio.sleep(1)
                    began = trio.current_time()
                    found = await summary(stats)
                    assert trio.current_time() - began < PATIENCE + 1
                    for name in ("hung", "busy"):
                        now, then = (named(each, node, name) for each in (found, before))
                        used = now["containers"][0]["cpu"]["usageCoreNanoSeconds"]
                        assert used > then["containers"][0]["cpu"]["usageCoreNanoSeconds"]
                        assert now["containers"][0]["memory"]["workingSetBytes"] > 0
                        assert now["containers"][0]["rootfs"]["usedBytes"] >= 0
            finally:
                os.kill(shims[0], signal.SIGCONT)
        await node.stop_agent()


def resources_listed(path: str) -> list[str]:
    """What the pod resources socket tells: pods and their containers."""
    with grpc.insecure_channel(f"unix:{path}") as channel:
        answer = channel.unary_unary("/v1.PodResourcesLister/List")(b"", timeout=10)
    found = resources.ListPodResourcesResponse.FromString(answer).pod_resources
    return [f"{each.name}: {', '.join(c.name for c in each.containers)}" for each in found]


async def test_the_agent_serves_its_stats_and_the_resources_of_its_pods(new_node: NewNode) -> None:
    def let_go(pipe: Path) -> None:
        """Whoever reads it reads nothing, whoever comes after finds nothing."""
        with pipe.open("wb"):
            pipe.unlink()

    async def resources_told() -> list[str]:
        socket = f"{node.layout.agent_root}/pod-resources/kubelet.sock"
        return await trio.to_thread.run_sync(resources_listed, socket)

    async with new_node() as node:
        # Whoever reads the certificate waits: nothing but the node's main port may wait with it.
        certificate = node.layout.base / "certificates" / "kubelet.crt"
        certificate.parent.mkdir()
        os.mkfifo(certificate)
        await node.start_agent(f"--cert-dir={certificate.parent}")
        node.write(pod("quiet"))
        await node.wait_running("quiet")

        async def shown() -> Any:
            found = (await node.get(node.ports.read_only, "/stats/summary")).json()
            return found if found["pods"] else None

        found = await wait_until(shown, 20, "the pod in the summary", interval=1)
        assert found["node"]["nodeName"] == node.name
        assert named(found, node, "quiet")["containers"][0]["memory"]["workingSetBytes"] > 0
        for path, name in (
            ("/metrics/resource", "container_memory_working_set_bytes"),
            ("/metrics/cadvisor", "container_cpu_usage_seconds_total"),
        ):
            text = (await node.get(node.ports.read_only, path)).text
            assert f'pod="quiet-{node.name}"' in text
            assert f"\n{name}{{" in text
        # Each of the agent's servers opens when it is ready, and waits for no other.
        assert await wait_until(resources_told, 20, "resources") == [f"quiet-{node.name}: main"]
        assert not await node.main_port_open()
        await trio.to_thread.run_sync(let_go, certificate)
        await node.wait_main_port()
        await node.stop_agent()


async def test_without_the_main_port_the_others_are_served(new_node: NewNode) -> None:
    """`enableServer: false` is about the main port alone, as with the kubelet."""
    async with new_node() as node:
        await node.start_agent(config={"enableServer": False})
        node.write(pod("quiet"))
        await node.wait_running("quiet")

        async def told() -> list[str]:
            socket = f"{node.layout.agent_root}/pod-resources/kubelet.sock"
            return await trio.to_thread.run_sync(resources_listed, socket)

        assert await wait_until(told, 20, "resources") == [f"quiet-{node.name}: main"]
        pods = (await node.get(node.ports.read_only, "/pods")).json()["items"]
        assert [each["metadata"]["name"] for each in pods] == [f"quiet-{node.name}"]
        with pytest.raises(OSError):
            await trio.open_tcp_stream("127.0.0.1", node.ports.main)
        await node.stop_agent()

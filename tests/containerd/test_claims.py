"""A node of a cluster with plugins, on a real containerd: claims of pods, devices on the Node object."""

from __future__ import annotations

import contextlib
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import PATIENCE, Node, container, wait_until
from tests.containerd.test_pod_objects import Cluster
from tests.devices.plugin_process import RESOURCE, sample_plugin
from tests.dra.sample_driver import SampleDriver
from tests.kube.store import Refused, selector
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.loop import open_asyncio_loop

GPU = "gpu.example.com"


async def cdi_devices(node: Node, container_id: str) -> list[str]:
    """The CDI devices of a container's config, as the runtime was told."""
    request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
    answer = await node.call("ContainerStatus", request, cri.ContainerStatusResponse)
    config = json.loads(answer.info["info"])["config"]
    return [each["name"] for each in config.get("CDI_devices") or ()]


def claim_for(cluster: Cluster, name: str, pod_uid: str) -> None:
    """A claim that the scheduler has allocated and reserved for a pod."""
    cluster.store.create("resourceclaims", "default", {"metadata": {"name": name}})
    cluster.store.set_status(
        "resourceclaims",
        "default",
        name,
        allocation={"devices": {"results": [{"driver": GPU, "pool": "pool", "device": "gpu-0"}]}},
        reservedFor=[{"resource": "pods", "name": "p", "uid": pod_uid}],
    )


async def test_a_claim_is_prepared_kept_over_restarts_and_given_back(
    new_node: NewNode, tmp_path: Path
) -> None:
    cluster = Cluster()
    async with (
        new_node() as node,
        cluster.serving(node, tmp_path) as config,
        open_asyncio_loop() as loop,
        trio.open_nursery() as nursery,
    ):
        root = node.layout.agent_root
        for name, of in (("old", node.name), ("other", "another")):
            tree = {"metadata": {"name": name}, "spec": {"nodeName": of, "driver": "gone.example.com"}}
            cluster.store.create("resourceslices", "", tree)
        driver = SampleDriver(GPU, str(root / "plugins" / "gpu.sock"))
        await node.start_agent(f"--kubeconfig={config}")
        await nursery.start(partial(driver.serve, loop, str(root / "plugins_registry" / "gpu.sock")))
        await wait_until(lambda: driver.told == [(True, "")], what="the driver is registered")

        asked = {"claims": [{"name": "gpu", "request": "gpu"}]}
        claims = [{"name": "gpu", "resourceClaimName": "mine"}]
        made = cluster.pod(node, "p", container(resources=asked), resourceClaims=claims)
        uid, name = made["metadata"]["uid"], made["metadata"]["name"]
        await wait_until(
            lambda: cluster.events("FailedPrepareDynamicResources"),
            what="a missing claim is told",
        )
        claim_for(cluster, "mine", uid)
        [running] = await node.wait_running("p", timeout=60)
        assert driver.diary == [("prepare", ("mine",))]
        assert await cdi_devices(node, running.id) == [f"{GPU}/dev=mine"]

        def health() -> str:
            shown = (cluster.shown(name) or {}).get("status") or {}
            [main] = shown.get("containerStatuses") or [{}]
            [resource] = main.get("allocatedResourcesStatus") or [{}]
            [device] = resource.get("resources") or [{}]
            return f"{resource.get('name')} {device.get('health')}"

        driver.now(**{"mine-0": 2})
        await wait_until(lambda: health() == "claim:gpu/gpu Unhealthy", what="ill health is told")

        await node.kill_agent()
        driver.told.clear()
        await node.start_agent(f"--kubeconfig={config}")
        await wait_until(lambda: driver.told == [(True, "")], what="the driver is registered anew")
        await node.kill_container(running.id)
        [again] = await node.wait_running("p", besides=[running.id], timeout=60)
        assert await cdi_devices(node, again.id) == [f"{GPU}/dev=mine"]
        assert driver.diary == [("prepare", ("mine",))]

        cluster.store.delete("pods", "default", name, {"gracePeriodSeconds": 1})
        await node.wait_gone("p")
        await wait_until(lambda: driver.diary[1:] == [("unprepare", ("mine",))], what="it is given back")
        left = cluster.store.list(selector("resourceslices"))
        assert [each["metadata"]["name"] for each in left] == ["other"], "what an earlier driver left is gone"
        await node.stop_agent()
        nursery.cancel_scope.cancel()


@pytest.mark.alone
async def test_devices_and_their_health_are_on_the_node_at_once(new_node: NewNode, tmp_path: Path) -> None:
    cluster = Cluster()
    async with new_node() as node, cluster.serving(node, tmp_path) as config:
        await node.start_agent(f"--kubeconfig={config}")
        directory = node.layout.agent_root / "device-plugins"

        def shown() -> tuple[Any, Any]:
            with contextlib.suppress(Refused):
                status = cluster.store.get("nodes", "", node.name)["status"]
                return status["capacity"].get(RESOURCE), status["allocatable"].get(RESOURCE)
            return None, None  # the Node comes a moment after health

        async with sample_plugin(directory, 2) as plugin:
            await wait_until(lambda: shown() == ("2", "2"), what="the Node has devices")
            await trio.sleep(1.5)  # a node that has just started is not a node at rest
            began = time.monotonic()
            await plugin.tell(health={"dev-0": False})
            await wait_until(lambda: shown() == ("2", "1"), interval=0.005)
            took = time.monotonic() - began
            print(f"health of a device reached the Node after {took:.3f} s")
            assert took < 0.2 * PATIENCE + 0.4
        await wait_until(lambda: shown() == ("2", "0"), what="nothing is to be had without its plugin")
        await node.stop_agent()

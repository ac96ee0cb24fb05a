"""Device plugins and their pods on a real containerd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Manifest, Node, container, pod, wait_until
from tests.devices.plugin_process import RESOURCE, sample_plugin


def with_devices(number: int, name: str = "main", **fields: Any) -> Manifest:
    amounts = {RESOURCE: number}
    return container(name, resources={"limits": amounts, "requests": amounts}, **fields)


def plugins_of(node: Node) -> Path:
    return Path(node.layout.agent_root) / "device-plugins"


async def given_to(node: Node, name: str, main: str = "main") -> str:
    """The devices of a running container, as its processes see them."""
    [found] = await node.wait_running(name, main)
    return (
        await node.exec(found.id, "sh", "-c", "echo $DEVICES; ls /dev/given /plugin/kubelet.sock")
    ).strip()


def checkpoint(node: Node) -> dict[str, set[str]]:
    """Devices by container in the file of the kubelet's name."""
    data = json.loads((plugins_of(node) / "kubelet_internal_checkpoint").read_text())["Data"]
    return {
        entry["ContainerName"]: {id for ids in entry["DeviceIDs"].values() for id in ids}
        for entry in data["PodDeviceEntries"] or ()
    }


async def test_pods_get_devices_and_keep_them(new_node: NewNode) -> None:
    async with new_node() as node:
        await node.start_agent()
        async with sample_plugin(plugins_of(node), 3, "--pre-start", "--preferred") as plugin:
            await wait_until(lambda: plugin.calls("registered"))
            node.write(
                pod("one", with_devices(2), initContainers=[with_devices(1, "init", command=["true"])])
            )
            text = await given_to(node, "one")
            # The init container's device, then what the plugin prefers among what is there.
            assert text == "dev-2,dev-1\n/dev/given\n/plugin/kubelet.sock" or text.startswith("dev-")
            first = set(text.splitlines()[0].split(","))
            assert len(first) == 2
            assert checkpoint(node)["init"] <= first
            assert checkpoint(node)["main"] == first
            assert {tuple(each["ids"]) for each in plugin.calls("pre-start")} >= {tuple(sorted(first))}
            [before] = await node.running("one")
            annotations = (await node.container_status(before.id)).annotations
            assert annotations["example.com/devices"] == text.splitlines()[0]

            node.write(pod("many", with_devices(2)))
            status = await wait_until(lambda: node.pod_status("many"), what="many is known")
            status = await wait_until(lambda: failed(node, "many"), what="many is refused")
            assert status["reason"] == "UnexpectedAdmissionError"
            assert status["message"] == (
                "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
                f"{RESOURCE}. Requested: 2, Available: 1, which is unexpected"
            )

            await node.kill_agent()
            await node.start_agent()
            node.write(pod("two", with_devices(1)))
            second = (await given_to(node, "two")).splitlines()[0]
            assert second not in first
            assert [each.id for each in await node.running("one")] == [before.id]
            # "many" had been refused by an agent that is gone: admitted anew it is refused again.
            health = dict.fromkeys(first, False)
            await plugin.tell(health=health)
            await wait_until(lambda: sick(node, "one", first), what="the status tells of ill health")
        # Agent and plugin both start anew, the plugin later: what runs goes on, new pods wait for it.
        await node.kill_agent()
        await node.start_agent()
        node.remove("two")
        await node.wait_gone("two")
        node.write(pod("three", with_devices(1)))
        with trio.move_on_after(2):
            await node.wait_running("three", timeout=100)
        assert not await node.running("three")
        async with sample_plugin(plugins_of(node), 3) as plugin:
            third = (await given_to(node, "three")).splitlines()[0]
            assert third not in first
            assert [each.id for each in await node.running("one")] == [before.id]


async def test_a_device_is_free_when_the_pod_that_has_it_has_ended(new_node: NewNode) -> None:
    """Its manifest is another by then, or gone, and so may be the agent."""
    script = "trap 'sleep 4; exit' TERM; while :; do sleep 0.1; done"
    command = ["sh", "-c", script]

    def version(number: int) -> Manifest:
        env = [{"name": "VERSION", "value": str(number)}]
        main = with_devices(1, command=command, env=env)
        return pod("one", main, terminationGracePeriodSeconds=20)

    async with new_node() as node:
        await node.start_agent()
        async with sample_plugin(plugins_of(node), 1) as plugin:
            await wait_until(lambda: plugin.calls("registered"))
            node.write(version(1))
            [first] = await node.wait_running("one")
            node.write(version(2))
            [second] = await node.wait_running("one", besides=[first.id])
            assert await node.running() == [second]
            node.remove("one")
            await node.kill_agent()
            node.write(pod("two", with_devices(1)))
            await node.start_agent()
            [third] = await node.wait_running("two")
            assert await node.running() == [third]


async def failed(node: Node, name: str) -> dict[str, Any] | None:
    status = await node.pod_status(name)
    return status if status.get("phase") == "Failed" else None


async def sick(node: Node, name: str, ids: set[str]) -> bool:
    status = await node.pod_status(name)
    [main] = status["containerStatuses"]
    [resource] = main.get("allocatedResourcesStatus") or [{}]
    unwell = {each["resourceID"] for each in resource.get("resources", ()) if each["health"] == "Unhealthy"}
    return resource.get("name") == RESOURCE and unwell == ids

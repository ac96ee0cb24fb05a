"""The Pods service of an agent on a real containerd."""

from __future__ import annotations

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, pod, wait_until
from tests.podsapi.test_encoding import message
from trio_kubelet.grpc.channel import connect
from trio_kubelet.grpc.loop import open_asyncio_loop
from trio_kubelet.podsapi.proto import api_pb2 as api


async def test_a_pod_is_told_from_its_start_to_its_end(new_node: NewNode) -> None:
    async with new_node() as node:
        await node.start_agent(config={"featureGates": {"PodsAPI": True}})
        node.write(pod("web"))
        await node.wait_running("web")
        kinds = await seen(node)
        assert kinds[0] == api.INITIAL_SYNC_COMPLETE or kinds[:2] == [api.ADDED, api.INITIAL_SYNC_COMPLETE]
        assert kinds[-1] == api.DELETED


async def seen(node: Node) -> list[int]:
    """What a watcher hears while the pod is removed."""
    found: list[int] = []
    socket = node.layout.agent_root / "pods-api" / "pods-api.sock"
    await wait_until(socket.exists, 20, "the service is there, later than pods may run")
    async with open_asyncio_loop() as loop:
        with connect(loop, str(socket)) as channel:
            stream = channel.stream(
                "/v1alpha1.Pods/WatchPods", api.WatchPodsRequest(), api.WatchPodsEvent, opening=10.0
            )
            async with stream as events:
                async for event in events:
                    found.append(event.type)
                    if event.pod:
                        told = message("Pod", memoryview(event.pod))
                        assert told["metadata"]["name"] == f"web-{node.name}"
                    if event.type == api.INITIAL_SYNC_COMPLETE:
                        node.remove("web")
                    if event.type == api.DELETED:
                        return found
    return found

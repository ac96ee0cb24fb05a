"""Eviction on a real containerd: the agent in this process, so that its workers can be told to evict.

Nothing evicts by itself yet; what does will call the workers as this test does.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import EXITED, Node, container, pod, wait_until
from trio_kubelet import agent as composition
from trio_kubelet.api import v1
from trio_kubelet.common.service import ServiceManager
from trio_kubelet.config.flag_table import kubelet_flags
from trio_kubelet.config.load import load
from trio_kubelet.config.pflag import parse_command_line
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.standalone.agent import command_line, configuration

MESSAGE = "The node was low on resource: memory. "


def evicted(status: v1.PodStatus) -> v1.PodStatus:
    return msgspec.structs.replace(status, phase="Failed", reason="Evicted", message=MESSAGE)


async def test_an_evicted_pod_ends_as_failed_and_stays_ended(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents: list[NodeAgent] = []

    class Kept(NodeAgent):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            agents.append(self)

    monkeypatch.setattr(composition, "NodeAgent", Kept)
    async with new_node() as node, trio.open_nursery() as nursery:
        file = node.layout.base / "agent.json"
        file.write_text(configuration(node.layout, node.manifests, node.ports))
        words = command_line(node.layout, file)
        settings = load(parse_command_line(words[words.index(f"--config={file}") :], kubelet_flags()))
        nursery.start_soon(composition.run, settings.flags, settings.config, ServiceManager({}))
        node.write(pod("victim", container("one"), container("two")))
        node.write(pod("bystander"))
        before = await node.wait_running("victim", "one", "two")
        [bystander] = await node.wait_running("bystander")

        room = agents[0].room
        [victim] = [each for each in room.pods.pods() if each.metadata.name.startswith("victim")]
        with trio.fail_after(60):
            await room.workers.kill(victim, grace=1, evict=True, patch=evicted, cause="memory").wait()
        assert not await node.running("victim")
        await told(node, room.statuses.get, victim.metadata.uid)
        await wait_until(lambda: gone(node), 30, "its dead containers are pruned")

        room.handler.syncs([victim.metadata.uid], "test")  # whatever asks for it
        await trio.sleep(3)
        assert not await node.running("victim")
        assert len(before) == 2
        [still] = await node.running("bystander")
        assert still.id == bystander.id
        story = " ".join(entry.text for entry in room.story.entries(victim.metadata.uid))
        assert "memory" in story
        nursery.cancel_scope.cancel()


async def told(node: Node, get: Any, uid: str) -> None:
    """The status says so, here and on the read-only port."""

    async def says() -> bool:
        status = get(uid)
        shown = await node.pod_status("victim")
        return (status.phase, status.reason, status.message) == ("Failed", "Evicted", MESSAGE) and (
            shown.get("phase"),
            shown.get("reason"),
        ) == ("Failed", "Evicted")

    await wait_until(says, 20, "the status says Evicted")


async def gone(node: Node) -> bool:
    return not await node.containers("victim", state=EXITED)

"""Logs, exec and port-forward of a whole agent, on its own port and over its own TLS."""

from __future__ import annotations

import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, container, pod, wait_until
from tests.server.stream_clients import ask, channel_socket, command_query, spdy_command, unchunked

OPEN = {
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "enableServer": True,
}


async def test_an_agents_own_port(new_node: NewNode) -> None:
    """A log to the end of its container; a command by WebSocket and by SPDY, with its exit code."""
    async with new_node() as node:
        await node.start_agent("-v=4", config=OPEN)
        node.write(pod("steady"))
        node.write(
            pod("talker", container("main", "sleep 1; echo one; sleep 1; echo two"), restartPolicy="Never")
        )
        await node.wait_running("steady")
        await node.wait_main_port()

        async def started() -> bool:
            status = await node.pod_status("talker")
            return any(c.get("containerID") for c in status.get("containerStatuses", []))

        await wait_until(started, 30, "talker has a container")
        with trio.fail_after(120):
            await follow_and_run(node)


async def follow_and_run(node: Node) -> None:
    port, name = node.ports.main, f"talker-{node.name}"
    target = f"/containerLogs/default/{name}/main?follow=true"
    status, _, body = await ask(port, "GET", target, tls=True)
    assert (status, unchunked(body)) == (200, b"one\ntwo\n")
    query = command_query("sh", "-c", "read x; echo got $x; exit 4", input=True, output=True)
    path = f"/exec/default/steady-{node.name}/main?{query}"
    for protocol in ("v4.channel.k8s.io", "v5.channel.k8s.io"):
        async with channel_socket(port, path, protocol, tls=True) as socket:
            await socket.send(0, b"a line\n")
            said = await socket.to_the_end()
        assert (said.stdout, said.exit_code) == (b"got a line\n", 4), protocol
    async with spdy_command(port, path, "error", "stdin", "stdout", tls=True) as command:
        await command.send("stdin", b"a line\n", fin=True)
        said = await command.to_the_end()
    assert (said.stdout, said.exit_code) == (b"got a line\n", 4)

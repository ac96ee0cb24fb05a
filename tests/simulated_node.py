"""A node whose runtime is the simulated one, for tests of the agent as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.containerd.harness import wait_until
from trio_kubelet.standalone.agent import AgentPorts, command_line, configuration, free_ports
from trio_kubelet.standalone.cleanup import unmount
from trio_kubelet.standalone.node import new_layout

ROOT = Path(__file__).parents[1]


@asynccontextmanager
async def simulated_node(
    name: str, base: Path, settings: Mapping[str, object] = {}
) -> AsyncIterator[tuple[list[str], AgentPorts]]:
    """The agent's command line on such a node, without an API server, and its ports; `settings` are added to
    its configuration.
    """
    layout, ports = await new_layout(name, base), free_ports()
    manifests, config = base / "manifests", base / "agent.json"
    manifests.mkdir()
    extra = {"cgroupsPerQOS": False, "enforceNodeAllocatable": [], **settings}
    config.write_text(configuration(layout, manifests, ports, extra))
    command = [sys.executable, "-m", "trio_kubelet", "sim", f"--socket={layout.socket}"]
    runtime = await trio.lowlevel.open_process(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        await wait_until(layout.socket.exists, 60, "the simulated runtime's socket")
        yield command_line(layout, config), ports
    finally:
        runtime.kill()
        with trio.CancelScope(shield=True):
            await runtime.wait()
        unmount(layout.base)

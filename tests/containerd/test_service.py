"""The agent as a real service of systemd. Runs in the machine of `make test-node`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cgroups.machine import has_systemd, shell
from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, pod, wait_until
from trio_kubelet.standalone.agent import command_line, configuration

pytestmark = [pytest.mark.node, pytest.mark.skipif(not has_systemd(), reason="needs systemd")]

PACKAGED = Path(__file__).parents[2] / "packaging" / "trio-kubelet.service"


def first_threads(process: str) -> set[str]:
    """Those of the process's threads that come before other processes."""
    threads = (int(name) for name in os.listdir(f"/proc/{process}/task"))
    first = os.SCHED_RR | os.SCHED_RESET_ON_FORK
    return {str(thread) for thread in threads if os.sched_getscheduler(thread) == first}


async def shown(unit: str, name: str) -> str:
    return await shell(f"systemctl show --value -p {name} {unit}")


@asynccontextmanager
async def service(node: Node) -> AsyncIterator[str]:
    """The packaged unit, with this node's command and a shorter watchdog."""
    unit = f"tk-test-{os.getpid()}.service"
    config = node.layout.base / "agent.json"
    config.write_text(configuration(node.layout, node.manifests, node.ports))
    lines = [
        line
        for line in PACKAGED.read_text().splitlines()
        if not line.startswith(("Environment", "Conflicts", "After", "Wants"))
    ]
    command = shlex.join(command_line(node.layout, config))
    swaps = {
        "ExecStart": f"ExecStart={command}",
        "WatchdogSec": "WatchdogSec=6",
        "RestartSec": "RestartSec=0",
        "TimeoutStartSec": "TimeoutStartSec=60",
    }
    text = "\n".join(swaps.get(line.partition("=")[0], line) for line in lines)
    text = text.replace(
        "[Service]", f"[Service]\nEnvironment=PATH={os.environ['PATH']}\nWorkingDirectory={os.getcwd()}"
    )
    file = Path("/run/systemd/system") / unit
    file.write_text(text + "\n")
    try:
        await shell("systemctl daemon-reload")
        await shell(f"systemctl start {unit}")
        yield unit
    finally:
        file.unlink()
        await shell(
            f"systemctl kill -s KILL {unit} || true; systemctl stop {unit} || true; systemctl daemon-reload"
        )


async def test_ready_reload_watchdog_and_stop(new_node: NewNode) -> None:
    assert sys.executable
    async with new_node() as node:
        node.write(pod("stays"))
        async with service(node) as unit:
            # `systemctl start` returned, so the agent said that it is ready.
            assert await shown(unit, "ActiveState") == "active"
            (before,) = await node.wait_running("stays")

            async def told() -> bool:
                return await shown(unit, "StatusText") == "1 pod"

            await wait_until(told, 30, "the status line shows the pod")
            main = await shown(unit, "MainPID")

            async def comes_first() -> bool:
                return first_threads(main) == {main}

            await wait_until(comes_first, 30, "the event loop's thread, and no other, comes first")
            await shell(f"systemctl reload {unit}")

            async def healthy() -> bool:
                answer = await node.get(node.ports.healthz, "/healthz")
                return answer.status_code == 200

            await wait_until(healthy, 30, "the agent is back")
            assert await shown(unit, "MainPID") == main
            assert await shown(unit, "NRestarts") == "0"
            await wait_until(comes_first, 30, "so it does after that")

            await shell(f"kill -STOP {main}")

            async def another() -> bool:
                return (
                    await shown(unit, "MainPID") not in (main, "0") and await shown(unit, "NRestarts") != "0"
                )

            await wait_until(another, 60, "the watchdog had the agent started anew")
            await wait_until(healthy, 30, "the agent is back")
            await shell(f"systemctl stop {unit}")
            assert [c.id for c in await node.running()] == [before.id]

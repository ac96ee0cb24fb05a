"""A machine that goes down, with its own logind: pods end in order, then logind goes on.

The machine's way down is barred, so logind calls the shutdown off when the agent lets it go on; the node is
ready again then.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from tests.cgroups.machine import has_systemd
from tests.containerd.conftest import NewNode
from tests.containerd.harness import container, wait_until
from tests.containerd.scenes import Journal, living

pytestmark = [pytest.mark.node, pytest.mark.skipif(not has_systemd(), reason="needs systemd")]

DROP_IN = Path("/etc/systemd/logind.conf.d/99-kubelet.conf")


BARRED = Path("/run/systemd/system/poweroff.target.d/tk-test.conf")


@contextmanager
def no_way_down() -> Iterator[None]:
    """Nobody can ask for the unit that ends the machine meanwhile, so logind fails to."""
    BARRED.parent.mkdir(parents=True, exist_ok=True)
    BARRED.write_text("[Unit]\nRefuseManualStart=yes\n")
    subprocess.run(["systemctl", "daemon-reload"], check=True, timeout=60)
    try:
        yield
    finally:
        BARRED.unlink()
        subprocess.run(["systemctl", "daemon-reload"], check=True, timeout=60)
        DROP_IN.unlink(missing_ok=True)


async def test_pods_end_in_order_before_the_machine_does(new_node: NewNode) -> None:
    config = {"shutdownGracePeriod": "20s", "shutdownGracePeriodCriticalPods": "8s"}
    with no_way_down():
        async with new_node() as node:
            journal = Journal.of(node, "shutdown")
            await node.start_agent("-v=3", config=config)
            node.write(journal.pod("web", container(script=living("web"))))
            critical = journal.pod("critical", container(script=living("critical")), priority=2_000_000_000)
            node.write(critical)
            await journal.until("web", "critical")
            for name in ("web", "critical"):
                await node.wait_running(name, "main")
            await wait_until(inhibits, 30, "it delays a shutdown, which is asked for beside the pods")
            assert drop_in() == "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=20\n"

            await said_by("systemctl", "poweroff", "--no-block", "--no-wall")
            await journal.until("web-end", "critical-end")
            assert journal.times("web-end")[0] < journal.times("critical-end")[0]
            state = node.layout.agent_root / "graceful_node_shutdown_state"
            await wait_until(lambda: "0001-01-01" not in state.read_text(), 20, "it came to its end")
            assert node.agent is not None
            agent, cancelled = node.agent, "Shutdown manager detected shutdown cancellation"
            await wait_until(lambda: cancelled in agent.log_text(), 30, "it was called off")


async def said_by(*command: str) -> str:
    with trio.fail_after(60):
        done = await trio.run_process(list(command), capture_stdout=True, check=False)
    return done.stdout.decode()


async def inhibits() -> bool:
    listed = await said_by("systemd-inhibit", "--list", "--no-legend")
    return "Kubelet needs time to handle node shutdown" in listed


def drop_in() -> str:
    return DROP_IN.read_text()

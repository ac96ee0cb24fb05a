"""Pod cgroups on this machine's own hierarchies, by both drivers."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from trio_kubelet.cgroups.doors import CgroupDriver
from trio_kubelet.cgroups.drivers import CgroupfsDriver, SystemdDriver
from trio_kubelet.cgroups.files import CgroupTree, find_hierarchies
from trio_kubelet.cgroups.plan import CgroupSettings
from trio_kubelet.cgroups.pods import PodCgroups
from trio_kubelet.dbus.bus import SYSTEM_BUS, SYSTEMD, MessageBus
from trio_kubelet.dbus.doors import Bus
from trio_kubelet.podinfo.context import NodeContext

DRIVERS = ("cgroupfs", "systemd")


def has_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()


@contextlib.contextmanager
def cgroup_root(driver: str) -> Iterator[str]:
    """A cgroup root of this test's own; what a failed test leaves in it is removed."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if driver == "systemd" and not has_systemd():
        pytest.skip("needs systemd")
    name = f"tktest{secrets.token_hex(4)}"
    try:
        yield f"/{name}"
    finally:
        if driver == "systemd":
            subprocess.run(["systemctl", "stop", f"{name}.slice"], check=False, timeout=60)
        tree, path = CgroupTree(find_hierarchies()), f"/{name}.slice" if driver == "systemd" else f"/{name}"
        tree.kill(path)
        deadline = time.monotonic() + 5
        while not tree.remove(path) and time.monotonic() < deadline:
            time.sleep(0.05)


class Agents:
    """Makes what one agent after another is to the cgroups of a node."""

    def __init__(self, node: NodeContext, settings: CgroupSettings, buses: tuple[Bus, ...]) -> None:
        self.node = node
        self.settings = settings
        self.tree = CgroupTree(find_hierarchies())
        self._buses = buses

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[PodCgroups]:
        """An agent's cgroups; leaving it is what kill -9 is for it: nothing is put in order."""
        driver: CgroupDriver = CgroupfsDriver(self.tree)
        async with trio.open_nursery() as nursery:
            if self.node.cgroup_driver == "systemd":
                driver = systemd = SystemdDriver(self.tree, self._buses)
                await nursery.start(systemd.run)
            cgroups = PodCgroups(
                tree=self.tree, driver=driver, node=lambda: self.node, settings=self.settings
            )
            nursery.start_soon(cgroups.run)
            yield cgroups
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def agents(
    root: str,
    driver: str,
    settings: CgroupSettings | None = None,
    buses: tuple[MessageBus, ...] | None = None,
) -> AsyncIterator[Agents]:
    """Agents with this cgroup root and driver."""
    hierarchies = find_hierarchies()
    node = NodeContext(node_name="n", cgroup_root=root, cgroup_driver=driver, cgroup_v2="" in hierarchies)
    buses = (MessageBus(SYSTEM_BUS), MessageBus(SYSTEMD, direct=True)) if buses is None else buses
    async with trio.open_nursery() as nursery:
        for bus in buses:
            await nursery.start(bus.run)
        yield Agents(node, settings or CgroupSettings(), buses)
        nursery.cancel_scope.cancel()


async def shell(command: str) -> str:
    """The output of a command."""
    done = await trio.run_process(["sh", "-c", command], capture_stdout=True, check=True)
    return done.stdout.decode().strip()


async def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Waits until it holds, but not longer than so many seconds: what to say of it then is the caller's."""
    deadline = trio.current_time() + seconds
    while not condition() and trio.current_time() < deadline:  # noqa: ASYNC110
        await trio.sleep(0.02)


@contextlib.contextmanager
def sleeper_in(cgroup: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a new cgroup of one hierarchy, as a runtime makes them for containers."""
    hierarchies = find_hierarchies()
    inner = Path(f"{hierarchies.get('pids', hierarchies.get(''))}{cgroup}")
    inner.mkdir()
    process = subprocess.Popen(["sleep", "1000"])
    try:
        (inner / "cgroup.procs").write_text(str(process.pid))
        yield process
    finally:
        process.kill()
        process.wait()

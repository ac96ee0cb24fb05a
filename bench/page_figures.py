"""What readers of the node's page cost: CPU of a real agent process over the simulated runtime in another
process.

500 pods of two containers that only run, looked at by nobody, by one reader and by twenty, each of whom has
40 pods in its view. Prints JSON; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Request, TextMessage

from bench.node_figures import WITHOUT_CGROUPS, simulated
from tests.containerd.harness import Agent, container, pod, wait_until
from tests.simulation.test_idle_pods import all_run
from trio_kubelet.commands.client import SOCKET_NAME
from trio_kubelet.standalone.agent import command_line, configuration, free_ports
from trio_kubelet.standalone.node import new_layout

READERS = (0, 1, 20)
IN_VIEW = 40


async def read_page(path: str, take: Callable[[bytes], str | None]) -> None:
    """Reads the page's messages at a socket for ever; what `take` returns for one is sent."""
    wire, said = WSConnection(ConnectionType.CLIENT), b""
    async with await trio.open_unix_socket(path) as stream:
        await stream.send_all(wire.send(Request(host="localhost", target="/page/live")))
        while data := bytes(await stream.receive_some(1 << 20)):
            wire.receive_data(data)
            for event in wire.events():
                if isinstance(event, AcceptConnection):
                    await stream.send_all(wire.send(TextMessage(data='{"from": -1}')))
                elif isinstance(event, BytesMessage):
                    said += bytes(event.data)
                    if event.message_finished:
                        if (asked := take(said)) is not None:
                            await stream.send_all(wire.send(TextMessage(data=asked)))
                        said = b""


class PageReader:
    """Somebody who looks at the page."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._began = 0.0
        self.messages = 0
        self.bytes = 0
        self.first = 0
        self.first_after = 0.0

    async def run(self) -> None:
        """Takes all there is, for ever."""
        self._began = trio.current_time()
        await read_page(self._path, self._take)

    def _take(self, said: bytes) -> str | None:
        self.messages += 1
        self.bytes += len(said)
        if self.messages > 1:
            return None
        self.first, self.first_after = len(said), trio.current_time() - self._began
        return json.dumps({"see": sorted(json.loads(said)["pods"])[:IN_VIEW]})


async def figures(pods: int, seconds: float) -> dict[str, Any]:
    """CPU of the agent with so many readers, in percent of a core."""
    with tempfile.TemporaryDirectory(prefix="tk-") as scratch:
        layout = await new_layout(f"w{os.getpid() % 10**6}", Path(scratch))
        manifests, ports = layout.base / "manifests", free_ports()
        manifests.mkdir()
        for number in range(pods):
            containers = [container(name, imagePullPolicy="IfNotPresent") for name in ("main", "other")]
            (manifests / f"p{number}.json").write_text(json.dumps(pod(f"p{number}", *containers)))
        file, log = layout.base / "agent.json", layout.base / "agent.log"
        file.write_text(configuration(layout, manifests, ports, {**WITHOUT_CGROUPS, "maxPods": 2 * pods}))
        async with simulated(layout):
            with log.open("wb") as out:
                process = await trio.lowlevel.open_process(command_line(layout, file), stdout=out, stderr=out)
            try:
                agent = Agent(process, log)
                await wait_until(lambda: all_run(ports.read_only, 2 * pods), 240, "all run", interval=1)
                await trio.sleep(10)
                path = str(layout.agent_root / SOCKET_NAME)
                return {"pods": pods, **{str(n): await looked_at(agent, path, n, seconds) for n in READERS}}
            finally:
                with trio.CancelScope(shield=True):
                    process.kill()
                    await process.wait()


async def looked_at(agent: Agent, path: str, readers: int, seconds: float) -> dict[str, float]:
    """The share of a core while so many look."""
    people = [PageReader(path) for _ in range(readers)]
    async with trio.open_nursery() as nursery:
        for one in people:
            nursery.start_soon(one.run)
        await trio.sleep(6)
        before = sum(one.bytes for one in people)
        cpu, began = agent.cpu_seconds(), trio.current_time()
        await trio.sleep(seconds)
        passed = trio.current_time() - began
        share = (agent.cpu_seconds() - cpu) / passed
        nursery.cancel_scope.cancel()
    found = {"cpu_percent": round(100 * share, 2), "memory_mb": round(agent.rss_bytes() / 1e6, 1)}
    if people:
        found["bytes_per_second_each"] = round((sum(one.bytes for one in people) - before) / passed / readers)
        found["snapshot_bytes"] = people[0].first
        found["first_after_ms"] = round(1000 * max(one.first_after for one in people), 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    print(json.dumps(trio.run(figures, options.pods, options.seconds)))


if __name__ == "__main__":
    main()

"""From exec to healthy: how long a start of the agent takes; the last line is JSON.

`python -m bench.startup_figures --rounds 20`, as root. The agent is killed and started again on a simulated
runtime, without an API server; `/healthz` is asked every two milliseconds. In turn with it runs what any
agent of these libraries has to import at least (`import trio, httpx, msgspec`), so that the ratio means
something on a busy machine. CPU is that of the agent's process when it answers, in ticks of 10 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from bench.node_figures import WITHOUT_CGROUPS, Figures, simulated
from tests.containerd.harness import Agent
from trio_kubelet.standalone.agent import command_line, configuration, free_ports
from trio_kubelet.standalone.node import new_layout

LIBRARIES = "import trio, httpx, msgspec"
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"


def until_healthy(agent: Agent, port: int) -> None:
    """Returns when `/healthz` answers 200. Blocking."""
    while True:
        assert agent.process.poll() is None, agent.log_text()[-3000:]
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(REQUEST)
                if b" 200 " in connection.recv(64):
                    return
        except OSError:
            pass
        time.sleep(0.002)


async def start_once(command: list[str], log: Path, port: int) -> tuple[float, float]:
    """Seconds until the agent is healthy, and its CPU seconds until then."""
    began = time.monotonic()
    with log.open("wb") as out:
        process = await trio.lowlevel.open_process(command, stdout=out, stderr=out, start_new_session=True)
    agent = Agent(process, log)
    try:
        await trio.to_thread.run_sync(until_healthy, agent, port)
        took = time.monotonic() - began
        cpu = agent.cpu_seconds()
        await trio.sleep(0.5)  # the next start finds an agent that had settled
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
    return took, cpu


async def libraries_once() -> float:
    """Seconds of an interpreter that imports the libraries and ends."""
    began = time.monotonic()
    await trio.run_process([sys.executable, "-c", LIBRARIES])
    return time.monotonic() - began


async def measure(rounds: int) -> Figures:
    """Medians and minima."""
    with tempfile.TemporaryDirectory(prefix="tk-") as base:
        layout = await new_layout(f"s{os.getpid() % 10**6}", Path(base))
        manifests = layout.base / "manifests"
        manifests.mkdir()
        file, ports = layout.base / "agent.json", free_ports()
        file.write_text(configuration(layout, manifests, ports, WITHOUT_CGROUPS))
        command, log = command_line(layout, file), layout.base / "agent.log"
        took, cpu, libraries = list[float](), list[float](), list[float]()
        async with simulated(layout):
            for _ in range(rounds):
                libraries.append(await libraries_once())
                seconds, used = await start_once(command, log, ports.healthz)
                took.append(seconds)
                cpu.append(used)
    return {
        "healthy_s": statistics.median(took),
        "healthy_min_s": min(took),
        "healthy_cpu_min_s": min(cpu),
        "libraries_s": statistics.median(libraries),
        "libraries_min_s": min(libraries),
        "to_libraries": statistics.median(a / b for a, b in zip(took, libraries, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    subprocess.run([sys.executable, "-m", "trio_kubelet.precompile"], check=True)
    figures = trio.run(measure, rounds)
    for name, value in figures.items():
        print(f"{name:20} {value:8.3f}")
    load = os.getloadavg()[0]
    print(json.dumps({**{name: round(value, 4) for name, value in figures.items()}, "load": load}))


if __name__ == "__main__":
    main()

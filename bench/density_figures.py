"""Many real pods on one node: what they cost to start, keep, repair and look at; the last line is JSON.

`make bench-density`, as root. `--pods` pods of two containers with a probe each, on a private containerd.
The same sandboxes and containers by plain CRI calls in the same run are the time no agent can be faster than:
once by themselves, as many at a time as is fastest, and once with the probes' commands run as well, which
take the same CPUs. `--steps` numbers of pods make the curve in bench/results.

An exec probe costs the runtime some 40 ms of CPU: 500 pods of two containers, each probed every ten seconds,
are four cores' work for the probes alone. `--period` gives them as many seconds as the machine has cores for;
with `--oci-runtime /usr/bin/crun` in runc's place (1.9 or newer; it refuses a
machine where cgroup v2 is mounted beside v1) one costs a third of that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from bench.node_figures import Figures, at_rest
from bench.page_figures import read_page
from bench.plot import Point, draw
from bench.start_figures import (
    NAMES,
    Start,
    clear,
    plain,
    seconds_for_all,
    start_plainly,
    start_weighed,
    starts_of,
    until_placed_run,
    until_up,
    weights,
)
from tests.containerd.harness import Agent, Node, container, pod, running_node, wait_until
from trio_kubelet.commands.client import SOCKET_NAME
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.nodepage.feed import IDLE_BEAT
from trio_kubelet.standalone.node import Provisions, provide
from trio_kubelet.standalone.packages import DEFAULT_CONTAINERD

COMMAND = ["true"]
PAGES = ("/metrics", "/metrics/cadvisor", "/stats/summary", "/pods")
PROBES = re.compile(r"^prober_probe_total\{.*\} (\S+)$", re.MULTILINE)
REST = 30.0
PATIENCE = 600.0
PATHS = Path(__file__).parent / "results"


class Spans:
    """When what was measured took place. The event loop's longest turns in it are asked for afterwards, of
    the charts of the node's page: an agent whose page is read does more. While nobody reads, a point of a
    chart is about `IDLE_BEAT`, so what is found is the longest turn from that long before to that long after.
    """

    def __init__(self) -> None:
        self._spans: dict[str, tuple[float, float]] = {}

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """The block is the span with this name."""
        began = time.time()
        yield
        self._spans[name] = began, time.time()

    async def longest_turns(self, node: Node) -> Figures:
        """The longest turn in each span, in milliseconds, of an agent that has run since before them."""
        points: list[dict[str, float]] = []
        end, all_told = time.time(), trio.Event()

        def take(said: bytes) -> None:
            points.extend(json.loads(said).get("points", ()))
            if points and points[-1]["at"] > 1000 * end:
                all_told.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_page, str(node.layout.agent_root / SOCKET_NAME), take)
            with trio.fail_after(60):
                await all_told.wait()
            nursery.cancel_scope.cancel()
        return {
            name: max(
                point["longest"] for point in points if since <= point["at"] / 1000 <= until + IDLE_BEAT
            )
            for name, (since, until) in self._spans.items()
        }


async def timed(agent: Agent, work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Seconds that work takes, and the agent's CPU meanwhile."""
    cpu, began = agent.cpu_seconds(), time.monotonic()
    await work()
    return time.monotonic() - began, agent.cpu_seconds() - cpu


async def start(node: Node, agent: Agent, pods: int, period: int, spans: Spans) -> Figures:
    probe = {"exec": {"command": COMMAND}, "periodSeconds": period, "timeoutSeconds": 5}
    manifests = (
        pod(f"many-{number}", *(container(name, readinessProbe=probe) for name in NAMES))
        for number in range(pods)
    )
    written = [node.prepare(manifest) for manifest in manifests]
    with spans.span("start_turn_ms"):
        took, cpu = await until_placed_run(node, agent, written)
    return {"start_s": took, "start_cpu_ms_per_pod": 1000 * cpu / pods}


async def rest(node: Node, agent: Agent, spans: Spans) -> Figures:
    """What the agent takes while nothing changes and probes pass, and how many of these there are."""
    probes, began = await probes_counted(node), time.monotonic()
    with spans.span("idle_turn_ms"):
        share, memory = await at_rest(agent, REST)
    rate = (await probes_counted(node) - probes) / (time.monotonic() - began)
    return {"idle_cpu_percent": share, "idle_probes_per_s": rate, "memory_mb": memory}


async def probes_counted(node: Node) -> float:
    """Probes so far, however they ended."""
    answer = await node.get(node.ports.read_only, "/metrics/probes")
    return sum(float(count) for count in PROBES.findall(answer.raise_for_status().text))


async def repair(node: Node, agent: Agent, spans: Spans) -> Figures:
    """One death, then a fifth of all containers at once."""
    running = await node.running()
    victim = running[0]
    await node.kill_container(victim.id)
    pod_name = victim.labels["io.kubernetes.pod.name"].removesuffix(f"-{node.name}")
    [successor] = await node.wait_running(pod_name, victim.metadata.name, besides=[victim.id])
    ended = (await node.container_status(victim.id)).finished_at
    one = ((await node.container_status(successor.id)).started_at - ended) / 1e9
    await trio.sleep(15)
    running = [each for each in await node.running() if each.id != successor.id]  # its next death backs off
    victims = random.Random(1).sample(running, len(running) // 5)

    async def die_and_come_back() -> None:
        async with trio.open_nursery() as nursery:
            for each in victims:
                nursery.start_soon(node.kill_container, each.id)
        await wait_until(back, PATIENCE, "all are back", interval=0.2)

    dead = {each.id for each in victims}

    async def back() -> bool:
        now = await node.running()
        return len(now) == len(running) + 1 and not dead & {each.id for each in now}

    with spans.span("fifth_turn_ms"):
        took, cpu = await timed(agent, die_and_come_back)
    return {"death_s": one, "fifth_back_s": took, "fifth_cpu_s": cpu}


async def adopt(node: Node, pods: int) -> tuple[Agent, Figures]:
    """kill -9; the next agent knows and reports all pods and has restarted none."""
    before = {each.id for each in await node.running()}
    await node.kill_agent()
    began = time.monotonic()
    agent = await start_weighed(node, pods)
    healthy = time.monotonic() - began

    async def reported() -> bool:
        shown = [each["status"] for each in await node.pods()]
        running = [status for status in shown if status.get("phase") == "Running"]
        return len(running) == pods

    await wait_until(reported, PATIENCE, "all are reported", interval=0.1)
    took = time.monotonic() - began
    assert {each.id for each in await node.running()} == before, "a container was touched"
    return agent, {"healthy_s": healthy, "adopt_s": took}


async def pages(node: Node, agent: Agent) -> Figures:
    found: Figures = {}
    for path in PAGES:
        await node.get(node.ports.read_only, path)
        took, cpu = await timed(agent, partial(ask, node, path))
        name = path.strip("/").replace("/", "_")
        found |= {f"{name}_s": took, f"{name}_cpu_ms": 1000 * cpu}
    return found


async def ask(node: Node, path: str) -> None:
    (await node.get(node.ports.read_only, path)).raise_for_status()


async def remove_half(node: Node, agent: Agent, pods: int) -> Figures:
    names = [f"many-{number}" for number in range(0, pods, 2)]

    async def remove() -> None:
        for name in names:
            node.remove(name)
        await until_up(node, len(NAMES) * (pods - len(names)))
        for name in names:
            await node.wait_gone(name, timeout=PATIENCE)

    took, cpu = await timed(agent, remove)
    return {"half_gone_s": took, "half_gone_cpu_s": cpu}


async def without_agent(node: Node, runtime: RuntimeService, widths: Sequence[int], period: int) -> Figures:
    """The same sandboxes and containers by plain calls; the agent and its pods are taken away."""
    await node.kill_agent()
    starts = await starts_of(node)
    await clear(runtime, node)
    took = {width: await plain(runtime, node, starts, width) for width in widths}
    best = min(took, key=took.__getitem__)
    return {
        "plain_s": took[best],
        "plain_at_a_time": best,
        "plain_probed_s": await plain_and_probed(runtime, node, starts, best, period),
    }


async def plain_and_probed(
    runtime: RuntimeService, node: Node, starts: Sequence[Start], width: int, period: int
) -> float:
    """Seconds until all run by plain calls, while what runs is probed at once and each period."""

    async def probe(container_id: str) -> None:
        while True:
            await runtime.exec_sync(container_id, COMMAND, 5)
            await trio.sleep(period)

    async with trio.open_nursery() as probes:

        async def start(pod: Start) -> None:
            for made in await start_plainly(runtime, pod):
                probes.start_soon(probe, made)

        took = await seconds_for_all(starts, width, start)
        probes.cancel_scope.cancel()
    await clear(runtime, node)
    return took


async def provide_with(oci_runtime: Path | None) -> Provisions:
    """What a node is made of, with a binary in the place of runc if one is given."""
    provisions = await provide(DEFAULT_CONTAINERD, lambda text: print(text, file=sys.stderr))
    if oci_runtime is None:
        return provisions
    return replace(provisions, containerd=replace(provisions.containerd, oci_runtime=oci_runtime))


async def measure(
    pods: int, widths: Sequence[int], period: int, oci_runtime: Path | None, *, only_start: bool
) -> Figures:
    """All figures of one number of pods, on a node of their own."""
    provisions = await provide_with(oci_runtime)
    found: Figures = {"pods": pods, "period_s": period, "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as scratch, weights():
        async with (
            running_node(provisions, Path(scratch)) as node,
            open_cri(f"unix://{node.layout.socket}", direct=True) as services,
        ):
            agent = await start_weighed(node, pods)
            spans = Spans()
            await trio.sleep(1.5 * IDLE_BEAT)
            tell(found, await start(node, agent, pods, period, spans))
            if not only_start:
                await trio.sleep(20)
                tell(found, await rest(node, agent, spans))
                tell(found, await pages(node, agent))
                tell(found, await repair(node, agent, spans))
            tell(found, await spans.longest_turns(node))
            if not only_start:
                agent, adopted = await adopt(node, pods)
                tell(found, adopted)
            tell(found, await without_agent(node, services.runtime, widths, period))
            found["start_to_plain"] = found["start_s"] / found["plain_s"]
            found["start_to_plain_probed"] = found["start_s"] / found["plain_probed_s"]
            if not only_start:
                agent = await start_weighed(node, pods)
                await until_up(node, len(NAMES) * pods)
                tell(found, await remove_half(node, agent, pods))
                await node.stop_agent()
    return found


def tell(found: Figures, more: Figures) -> None:
    """Adds figures and says them at once, so that a run that is ended has them."""
    found |= more
    print(json.dumps(more), file=sys.stderr, flush=True)


def curve(found: Sequence[Figures]) -> str:
    """Seconds until all pods run, by their number (SVG)."""
    series: dict[str, list[Point]] = {
        "agent": [(each["pods"], 1000 * each["start_s"]) for each in found],
        "plain CRI calls": [(each["pods"], 1000 * each["plain_s"]) for each in found],
        "plain CRI calls and the probes' commands": [
            (each["pods"], 1000 * each["plain_probed_s"]) for each in found
        ],
    }
    return draw("pods of two containers, until all run", series)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--steps", default="25,50,100", help="further numbers of pods, for the curve")
    parser.add_argument("--widths", default="4,8", help="plain pods at a time; the fastest counts")
    parser.add_argument("--period", type=int, default=10, help="seconds between two probes of a container")
    parser.add_argument("--oci-runtime", type=Path, help="a binary in the place of runc")
    options = parser.parse_args()
    steps = [int(step) for step in options.steps.split(",") if step]
    widths = [int(width) for width in options.widths.split(",")]
    measured = partial(measure, widths=widths, period=options.period, oci_runtime=options.oci_runtime)
    found = [trio.run(partial(measured, step, only_start=True)) for step in steps]
    found.append(trio.run(partial(measured, options.pods, only_start=False)))
    if len(found) > 1:
        (PATHS / "density-start.svg").write_text(curve(found))
    for name, value in found[-1].items():
        print(f"{name:24} {value:10.3f}")
    print(json.dumps(found[-1]))


if __name__ == "__main__":
    main()

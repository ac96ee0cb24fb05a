"""An agent without an API server, as a process: what it says, and which metrics it has all the same."""

from __future__ import annotations

import re
import signal
from functools import partial
from pathlib import Path

import httpx
import trio

from tests.containerd.harness import wait_until
from tests.simulated_node import simulated_node

ALWAYS_THERE = (
    "kubelet_metrics_provider",
    "kubelet_pleg_pod_relist_duration_seconds",
    "kubelet_pod_watch_events_dropped_total",
    "kubelet_restarted_pods_total",
    "kubelet_sleep_action_terminated_early_total",
    "kubernetes_build_info",
)
"""Metrics of the kubelet that a page without pods shows, too."""
STARTUP = ("pre_kubelet_", "pre_registration_", "registration_", "post_registration_", "")


async def test_it_says_so_and_has_the_metrics_of_a_way_into_a_cluster(tmp_path: Path) -> None:
    async with simulated_node("alone", tmp_path) as (command, ports):
        log, page = tmp_path / "agent.log", ""
        with log.open("wb") as out:
            process = await trio.lowlevel.open_process(command, stdout=out, stderr=out)

        async def metrics() -> str:
            assert process.poll() is None, log.read_text()[-3000:]
            async with httpx.AsyncClient(trust_env=False, verify=False) as client:
                return (await client.get(f"http://127.0.0.1:{ports.read_only}/metrics")).text

        try:
            page = await wait_until(metrics, 60, "the metrics are there")
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
    assert '"No API server defined - no node status update will be sent"' in log.read_text()
    lines = page.splitlines()
    assert 'kubelet_node_name{node="alone"} 1' in lines
    for name in STARTUP:
        assert f"kubelet_node_startup_{name}duration_seconds 0" in lines
    assert "kubelet_pod_status_sync_duration_seconds_count 0" in lines
    assert re.search(r'kubelet_pod_status_sync_duration_seconds_bucket\{le="60"\} 0', page)
    for family in ALWAYS_THERE:
        assert any(line.startswith(f"# TYPE {family} ") for line in lines), family
    assert 'kubernetes_feature_enabled{name="EventedPLEG",stage="ALPHA"} 1' in lines


async def test_after_a_reload_scrapers_are_told_that_counters_began_anew(tmp_path: Path) -> None:
    async with simulated_node("reloaded", tmp_path) as (command, ports):
        log = tmp_path / "agent.log"
        with log.open("wb") as out:
            process = await trio.lowlevel.open_process(command, stdout=out, stderr=out)

        async def began(after: int = 0) -> int:
            assert process.poll() is None, log.read_text()[-3000:]
            async with httpx.AsyncClient(trust_env=False) as client:
                answer = await client.get(f"http://127.0.0.1:{ports.read_only}/metrics")
            found = int(answer.headers["Process-Start-Time-Unix"])
            return found if found > after else 0

        try:
            first = await wait_until(began, 60, "the first agent's moment")
            await trio.sleep(1)  # the header has whole seconds
            process.send_signal(signal.SIGHUP)
            await wait_until(partial(began, first), 60, "the next one's moment")
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


async def test_an_agent_makes_way_for_the_next_one_with_its_lock_file(tmp_path: Path) -> None:
    async with simulated_node("locked", tmp_path) as (command, ports):
        lock = [f"--lock-file={tmp_path}/lock", "--exit-on-lock-contention"]
        processes = []

        async def healthy() -> bool:
            async with httpx.AsyncClient(trust_env=False) as client:
                return (await client.get(f"http://127.0.0.1:{ports.healthz}/healthz")).text == "ok"

        try:
            with (tmp_path / "agent.log").open("wb") as out:
                for _ in range(2):
                    processes.append(
                        await trio.lowlevel.open_process([*command, *lock], stdout=out, stderr=out)
                    )
                    if len(processes) == 2:
                        with trio.fail_after(60):
                            assert await processes[0].wait() == 0
                    await wait_until(healthy, 60, "an agent is healthy")
            assert processes[1].poll() is None
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()

"""A malicious pod of each kind beside healthy ones: these are on time, the agent stays small, all can end."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, container, pod

Manifest = dict[str, Any]
GRACE = 3
DELAY = 1.0  # seconds a healthy pod may be later than without the others
MEMORY = 20 * 1024 * 1024
SERVE = "trap exit TERM; while :; do sleep 3600 & wait $!; done"


def _hook(**handler: Any) -> Manifest:
    return {"lifecycle": {"preStop": handler}}


def _env_file(name: str, make: str) -> Manifest:
    """A pod whose init container makes something of the file that the other's environment is read from."""
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    ref = {"fileKeyRef": {"volumeName": "v", "path": "env", "key": "K"}}
    return pod(
        name,
        container("main", SERVE, env=[{"name": "X", "valueFrom": ref}]),
        initContainers=[container("init", make, **mount)],
        volumes=[{"name": "v", "emptyDir": {}}],
    )


def _sub_path(name: str, make: str) -> Manifest:
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    part = {"volumeMounts": [{"name": "v", "mountPath": "/p", "subPath": "part"}]}
    return pod(
        name,
        container("main", SERVE, **part),
        initContainers=[container("init", make, **mount)],
        volumes=[{"name": "v", "emptyDir": {}}],
    )


def _probed(name: str, **probe: Any) -> Manifest:
    return pod(
        name, container("main", SERVE, livenessProbe={"periodSeconds": 1, "timeoutSeconds": 1, **probe})
    )


MALICIOUS: dict[str, Callable[[str], Manifest]] = {
    "env-fifo": lambda name: _env_file(name, "mkfifo /v/env"),
    "env-sparse": lambda name: _env_file(name, "truncate -s 1T /v/env"),
    "env-bytes": lambda name: _env_file(name, "printf 'K=\\047\\377\\047\\n' > /v/env"),
    "env-link": lambda name: _env_file(name, "ln -s /etc/shadow /v/env"),
    "subpath-fifo": lambda name: _sub_path(name, "mkfifo /v/part"),
    "subpath-link": lambda name: _sub_path(name, "ln -s / /v/part"),
    "hook-host": lambda name: pod(
        name, container("main", SERVE, **_hook(httpGet={"port": 1, "host": "a..b"}))
    ),
    "hook-label": lambda name: pod(
        name, container("main", SERVE, **_hook(httpGet={"port": 1, "host": "x" * 64 + ".example"}))
    ),
    "probe-host": lambda name: _probed(name, httpGet={"port": 1, "host": "a..b"}),
    "probe-label": lambda name: _probed(name, tcpSocket={"port": 1, "host": "x" * 64}),
    "probe-output": lambda name: _probed(name, exec={"command": ["sh", "-c", "head -c 30000000 /dev/zero"]}),
    "probe-most": lambda name: _probed(name, exec={"command": ["sh", "-c", "head -c 15000000 /dev/zero"]}),
    "host-ip": lambda name: pod(
        name, container("main", SERVE, ports=[{"containerPort": 1, "hostPort": 47811, "hostIP": "127.1"}])
    ),
    "message-huge": lambda name: pod(name, container("main", "truncate -s 1T /dev/termination-log; exit 1")),
    "hosts-huge": lambda name: pod(name, container("main", f"truncate -s 1T /etc/hosts; {SERVE}")),
    "log-flood": lambda name: pod(name, container("main", f"head -c 50000000 /dev/zero; {SERVE}")),
    "crash": lambda name: pod(name, container("main", "exit 1")),
    "deaf": lambda name: pod(name, container("main", "trap '' TERM; while :; do sleep 60; done")),
}


def _manifest(kind: str) -> Manifest:
    manifest = MALICIOUS[kind](kind)
    manifest["spec"]["terminationGracePeriodSeconds"] = GRACE
    return manifest


async def _starts(node: Node, *names: str) -> float:
    """Writes healthy pods and waits until they run; seconds for all."""
    began = trio.current_time()
    for name in names:
        node.write(pod(name, container("main", SERVE)))
    for name in names:
        await node.wait_running(name, timeout=120)
    return trio.current_time() - began


async def _beside(node: Node, kinds: list[str], healthy: int, rounds: int, *, quiet: bool = False) -> None:
    """`quiet`: nothing else is at work, so that each figure counts, not only those in the middle."""
    agent = await node.start_agent()
    names = [f"healthy-{number}" for number in range(healthy)]
    await _starts(node, *names)
    before = {each.id for each in await node.running()}
    alone = [await _starts(node, f"alone-{number}") for number in range(rounds)]
    small = agent.rss_bytes()
    for kind in kinds:
        node.write(_manifest(kind))
    await trio.sleep(15)  # their start is work for the machine, as that of as many other pods
    beside = []
    for number in range(rounds):
        await trio.sleep(2)
        beside.append(await _starts(node, f"beside-{number}"))
    usual = sorted(alone)[rounds // 2]
    delays = [each - usual for each in sorted(beside)]
    print(f"alone {[round(each, 2) for each in alone]}, beside {[round(each, 2) for each in beside]}")
    print(
        f"a healthy pod's start is delayed by {delays[rounds // 2]:.2f} s (median), {delays[-1]:.2f} s (most)"
    )
    sizes = []
    for _ in range(21):
        await trio.sleep(0.5)
        sizes.append(agent.rss_bytes() - small)
    print(
        f"grown by {max(sizes) >> 20} MB at most, {sorted(sizes)[10] >> 20} MB (median) from {small >> 20} MB"
    )
    took: dict[str, float] = {}
    for kind in kinds:  # one after the other: what is measured is the pod, not the machine
        began = trio.current_time()
        node.remove(kind)
        await node.wait_gone(kind, GRACE + 5)
        took[kind] = trio.current_time() - began
    print(f"ended within { ({kind: round(seconds, 1) for kind, seconds in took.items()}) } s")
    text = agent.log_text()
    assert re.findall(r"Unexpected error[^\n]*", text) == []
    assert {each.id for each in await node.running()} >= before
    assert delays[-1 if quiet else rounds // 2] <= DELAY
    assert not quiet or max(took.values()) <= GRACE + 5, took
    assert max(sizes) <= MEMORY
    assert agent.process.poll() is None


@pytest.mark.alone
async def test_a_malicious_pod_of_each_kind_harms_itself_alone(new_node: NewNode) -> None:
    async with new_node() as node:
        await _beside(node, list(MALICIOUS), healthy=5, rounds=3)


@pytest.mark.soak
async def test_beside_fifty_healthy_pods(new_node: NewNode) -> None:
    async with new_node() as node:
        await _beside(node, list(MALICIOUS), healthy=50, rounds=5, quiet=True)

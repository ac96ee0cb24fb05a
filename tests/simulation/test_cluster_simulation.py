"""Random lives of a node in a cluster: pods, runtime, agent and API server agree in the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.kube.store import Change
from tests.simulation.cluster import ClusterLife, ClusterNode
from tests.simulation.deterministic import simulate
from trio_kubelet.sim.answers import RUNTIME_NAME
from trio_kubelet.sim.faults import Fault, Kind

LIFE = 300.0  # simulated seconds of each seed
LONG_LIFE = 1000.0
BACK_WITHIN = 20.0  # simulated seconds after the API server's return until all is told

SEEDS = 20
SOAK_SEEDS = 300


def live(seed: int, base: Path, seconds: float) -> None:
    async def life() -> None:
        await ClusterLife(seed, base, seconds=seconds, faults=seed % 2 == 0).run()

    simulate(seed, life)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_life_in_a_cluster(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path, LIFE)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + SOAK_SEEDS))
def test_many_more_random_lives_in_a_cluster(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path, LONG_LIFE)


def test_a_restart_flips_no_ready_pod(tmp_path: Path) -> None:
    """kubernetes/kubernetes 100277: the new agent has probed nobody yet, and takes nobody out of service."""

    async def story() -> None:
        node = ClusterNode(1, tmp_path)
        names = [f"api{number}" for number in range(100)]
        for name in names:
            node.create(name, 2, 2, "Always", readiness=True)
        async with node.running() as nursery:
            await node.start_agent(nursery)
            await trio.sleep(60)
            assert not node.misreported()
            assert all(_is_ready(node, name) for name in names)
            for away in (0.0, 120.0):
                node.kill_agent()
                await trio.sleep(away)
                before = node.store.version
                await node.start_agent(nursery)
                await trio.sleep(120)
                assert node.store.version == before  # nothing was written at all

    simulate(1, story)


def test_a_restart_writes_nothing_about_a_pod_that_is_over(tmp_path: Path) -> None:
    """Its sandbox has ended, and with it the address that is shown; nobody but the API server knows it."""

    async def story() -> None:
        node = ClusterNode(1, tmp_path)
        node.create("api0", 1, 2, "Never")
        async with node.running() as nursery:
            await node.start_agent(nursery)
            await trio.sleep(10)
            [container] = node.running_containers()
            node.runtime.kill(container.id, node.service.now_ns())
            await trio.sleep(60)
            assert node.store.get("pods", "default", "api0")["status"]["podIP"]
            before = node.store.version
            node.kill_agent()
            await node.start_agent(nursery)
            await trio.sleep(60)
            assert node.store.version == before

    simulate(1, story)


@pytest.mark.parametrize("ready_for", [0.0, 3.0])
def test_a_restart_flips_no_pod_that_is_ready_since_a_moment(tmp_path: Path, ready_for: float) -> None:
    """A container that is as young as the agent has been said to be ready, too."""

    async def story() -> None:
        node = ClusterNode(1, tmp_path)
        names = [f"api{number}" for number in range(20)]
        for name in names:
            node.create(name, 2, 2, "Always", readiness=True)
        node.want("static", 1, probes=["startup", "readiness"])
        flipped: list[str] = []

        def watch(change: Change) -> None:
            if change.resource == "pods" and change.old is not None and change.new is not None:
                name = change.new["metadata"]["name"]
                if _shows_ready(change.old) and not _shows_ready(change.new):
                    flipped.append(name)

        node.store.on_change = watch
        async with node.running() as nursery:
            await node.start_agent(nursery)
            while not all(_is_ready(node, name) for name in (*names, "static-node")):  # noqa: ASYNC110
                await trio.sleep(0.1)
            await trio.sleep(ready_for)
            node.kill_agent()
            await node.start_agent(nursery)
            await trio.sleep(60)
            assert flipped == []

    simulate(1, story)


def _shows_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _is_ready(node: ClusterNode, name: str) -> bool:
    return _shows_ready(node.store.get("pods", "default", name))


@pytest.mark.parametrize("seed", [1, 8])
def test_an_hour_without_the_api_server(tmp_path: Path, seed: int) -> None:
    """No container notices, static pods are edited and removed meanwhile, and all is told afterwards. What
    was asked of a server that did not answer, and fails only when it is back, is no exception.
    """

    async def story() -> None:
        node = ClusterNode(seed, tmp_path)
        for number in range(20):
            node.create(f"api{number}", 1, 2, "Always", readiness=True)
        node.want("edited", 1)
        node.want("removed", 1)
        async with node.running() as nursery:
            await node.start_agent(nursery)
            await trio.sleep(60)
            assert not node.misreported()
            node.server.silent = True
            node.server.break_watches()
            api = {pod.metadata.uid for pod in node.api_pods()}
            running = {c.id for c in node.running_containers() if node.uid_of(c) in api}
            await trio.sleep(600)
            node.want("edited", 1)
            del node.desired["removed"]
            await node.publish()
            await trio.sleep(3000)
            assert running <= {c.id for c in node.running_containers()}
            assert not node.unmet()
            node.server.silent = False
            await trio.sleep(BACK_WITHIN)
            assert not node.misreported()

    simulate(seed, story)


def test_a_restart_without_the_api_server(tmp_path: Path) -> None:
    """Pods of the API run on though the new agent does not know them; later it takes them over."""

    async def story() -> None:
        node = ClusterNode(1, tmp_path)
        for number in range(10):
            node.create(f"api{number}", 1, 2, "Always", readiness=True)
        node.want("static", 1)
        async with node.running() as nursery:
            await node.start_agent(nursery)
            await trio.sleep(60)
            running = {c.id for c in node.running_containers()}
            node.kill_agent()
            node.server.down = True
            node.server.break_watches()
            await node.start_agent(nursery)
            node.want("late", 1)
            await node.publish()
            await trio.sleep(600)
            assert running < {c.id for c in node.running_containers()}
            assert not node.unmet()
            node.server.down = False
            await trio.sleep(BACK_WITHIN)
            assert running < {c.id for c in node.running_containers()}
            assert not node.misreported()

    simulate(1, story)


def test_a_resize_shows_at_once(tmp_path: Path) -> None:
    """Lists tell nothing of resources: the agent looks by itself, and not only with the next round."""

    async def story() -> None:
        node = ClusterNode(1, tmp_path)
        node.create("api0", 2, 2, "Always")
        _ask(node, "api0", "100m")
        async with node.running() as nursery:
            await node.start_agent(nursery)
            await trio.sleep(90)
            assert _granted(node, "api0") == {"100m"}
            running = {c.id for c in node.running_containers()}
            _ask(node, "api0", "200m")
            await trio.sleep(2)
            assert _granted(node, "api0") == {"200m"}
            conditions = node.store.get("pods", "default", "api0")["status"]["conditions"]
            assert not [c for c in conditions if c["type"].startswith("PodResize")]
            assert running == {c.id for c in node.running_containers()}

    simulate(1, story)


def test_containers_keep_their_ids_while_the_runtime_does_not_tell_its_state(tmp_path: Path) -> None:
    """The runtime's name is a part of the id: one that fails to answer does not become another."""

    async def story() -> None:
        node = ClusterNode(1, tmp_path)
        node.create("api0", 2, 2, "Always")
        async with node.running() as nursery:
            await node.start_agent(nursery)
            await trio.sleep(60)
            node.service.faults.add(Fault(Kind.FAIL, "Status"))
            await trio.sleep(10)
            node.runtime.kill(node.running_containers()[0].id, node.service.now_ns())
            await trio.sleep(5)
            statuses = node.store.get("pods", "default", "api0")["status"]["containerStatuses"]
            assert sum(status["restartCount"] for status in statuses) == 1
            assert {status["containerID"].partition("://")[0] for status in statuses} == {RUNTIME_NAME}

    simulate(1, story)


def _ask(node: ClusterNode, name: str, cpu: str) -> None:
    tree = node.store.get("pods", "default", name)
    resources = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}
    containers = [{**container, "resources": resources} for container in tree["spec"]["containers"]]
    node.store.patch("pods", "default", name, {"spec": {"containers": containers}}, strategic=False)


def _granted(node: ClusterNode, name: str) -> set[str]:
    """The CPU limits that the containers' statuses show."""
    statuses = node.store.get("pods", "default", name)["status"]["containerStatuses"]
    return {status["resources"]["limits"]["cpu"] for status in statuses}

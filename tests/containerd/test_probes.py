"""Probes that fail and recover, on a real node."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.containerd.harness import Node, container, wait_until
from tests.containerd.scenes import Journal, container_state, living, until_restarted
from trio_kubelet.standalone.images import WEB_IMAGE

WELL_AGAIN = "rm /journal/sick; exit 0"
"""How a container ends that a liveness probe found sick: what comes after it must not be."""


def probe(script: str, **fields: Any) -> dict[str, Any]:
    """An exec probe each second. It has time: a command that a busy machine holds up is no failure."""
    return {"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "timeoutSeconds": 60, **fields}


async def until_ready(node: Node, pod_name: str, ready: bool, timeout: float = 15) -> None:
    async def as_wanted() -> bool:
        conditions = (await node.pod_status(pod_name)).get("conditions") or []
        shown = {each["type"]: each["status"] for each in conditions}
        wanted = "True" if ready else "False"
        return shown.get("Ready") == wanted and shown.get("ContainersReady") == wanted

    await wait_until(as_wanted, timeout, f"{pod_name} ready: {ready}", interval=0.1)


async def test_a_failing_liveness_probe_restarts_its_container_alone(node: Node) -> None:
    journal = Journal.of(node, "live")
    alive = probe("test ! -e /journal/sick", failureThreshold=2)
    main = container("main", living("main", WELL_AGAIN), livenessProbe=alive)
    node.write(journal.pod("live", main, container("other", living("other"))))
    await journal.until("main", "other")
    [before] = await node.wait_running("live")
    await trio.sleep(2.5)
    assert "main-end" not in journal.words()
    (journal.directory / "sick").touch()
    await journal.until("main-end")
    await node.wait_running("live", besides=[before.id])
    await journal.until("main", "main")
    await until_restarted(node, "live")
    assert [word for word in journal.words() if word.startswith("other")] == ["other"]


async def test_readiness_comes_goes_and_comes_back(node: Node) -> None:
    journal = Journal.of(node, "ready")
    main = container(
        "main", living("main"), readinessProbe=probe("test -e /journal/open", failureThreshold=1)
    )
    node.write(journal.pod("ready", main))
    await journal.until("main")
    await until_ready(node, "ready", False)
    (journal.directory / "open").touch()
    await until_ready(node, "ready", True)
    (journal.directory / "open").unlink()
    await until_ready(node, "ready", False)
    (journal.directory / "open").touch()
    await until_ready(node, "ready", True)
    assert journal.words() == ["main"]


async def test_the_startup_probe_holds_liveness_back(node: Node) -> None:
    journal = Journal.of(node, "startup")
    main = container(
        "main",
        living("main", WELL_AGAIN),
        startupProbe=probe("test -e /journal/open", failureThreshold=60),
        livenessProbe=probe("echo asked >> /journal/asked; test ! -e /journal/sick", failureThreshold=1),
    )
    node.write(journal.pod("startup", main))
    await journal.until("main")

    async def not_started() -> bool:
        return (await container_state(node, "startup")).get("started") is False

    await wait_until(not_started, 10, "it is shown to run and not to have started up")
    await trio.sleep(2.5)
    assert not (journal.directory / "asked").exists()
    assert await not_started()
    (journal.directory / "open").touch()
    await wait_until((journal.directory / "asked").exists, 10)
    assert (await container_state(node, "startup")).get("started") is True
    (journal.directory / "sick").touch()
    await journal.until("main", "main-end", "main")


async def test_a_startup_probe_that_never_succeeds_restarts_its_container(node: Node) -> None:
    journal = Journal.of(node, "never-up")
    main = container("main", living("main"), startupProbe=probe("false", failureThreshold=2))
    node.write(journal.pod("never-up", main))
    await journal.until("main", "main-end", "main")


@pytest.mark.parametrize("kind", ["httpGet", "tcpSocket"])
async def test_network_probes_meet_the_pod(node: Node, kind: str) -> None:
    name = kind.lower()
    action = {"httpGet": {"path": "/", "port": "web"}, "tcpSocket": {"port": 8080}}[kind]
    main = {
        "name": "main",
        "image": WEB_IMAGE,
        "imagePullPolicy": "Never",
        "ports": [{"name": "web", "containerPort": 8080}],
        "readinessProbe": {kind: action, "periodSeconds": 1, "timeoutSeconds": 60},
        "livenessProbe": {kind: action, "periodSeconds": 1, "timeoutSeconds": 60},
    }
    manifest = Journal.of(node, name).pod(name, main)
    node.write(manifest)
    await until_ready(node, name, True)
    closed = {**main, "readinessProbe": {"tcpSocket": {"port": 8081}, "periodSeconds": 1}}
    manifest["spec"]["containers"] = [closed]
    [before] = await node.wait_running(name)
    node.write(manifest)
    await node.wait_running(name, besides=[before.id])
    await trio.sleep(1.5)
    await until_ready(node, name, False)
    assert (await container_state(node, name))["restartCount"] == 0

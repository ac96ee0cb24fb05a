"""A cluster's pod that reads config maps, secrets and tokens: from its creation to the last trace of it."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import PATIENCE, Node, container, wait_until
from tests.containerd.scenes import until_nothing_left
from tests.containerd.test_agent_streams import OPEN
from tests.containerd.test_sources import bound, kubeconfig
from tests.kube.apiserver import APIServer, serving
from tests.kube.certs import CA
from tests.kube.store import Refused, Tree
from tests.server.stream_clients import channel_socket, command_query
from trio_kubelet.common.clock import SystemClock

CANARY = "canary-7f3a"
"""In every secret value: it may be seen in containers and nowhere else."""
REFRESH_SECONDS = 2.0

MOUNTS = [
    {"name": "cm", "mountPath": "/cm"},
    {"name": "se", "mountPath": "/se"},
    {"name": "all", "mountPath": "/all"},
    {"name": "cm", "mountPath": "/part", "subPath": "greeting"},
]
ENV: list[dict[str, Any]] = [
    {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "greeting"}}},
    {"name": "NOPE", "valueFrom": {"secretKeyRef": {"name": "nope", "key": "x", "optional": True}}},
]
PROBE = {"exec": {"command": ["test", "-s", "/cm/greeting"]}, "periodSeconds": 1}
ENV_FROM = [{"prefix": "S_", "secretRef": {"name": "se"}}]
VOLUMES: list[dict[str, Any]] = [
    {"name": "cm", "configMap": {"name": "cm"}},
    {"name": "se", "secret": {"secretName": "se", "defaultMode": 0o440}},
    {
        "name": "all",
        "projected": {
            "sources": [
                {"configMap": {"name": "cm", "items": [{"key": "greeting", "path": "sub/hello"}]}},
                {"secret": {"name": "se"}},
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ]
        },
    },
]


class Cluster:
    """The API server as an operator uses it."""

    def __init__(self) -> None:
        self.ca = CA()
        self.server = APIServer(clock=SystemClock())
        self.store = self.server.store
        self.store.create("serviceaccounts", "default", {"metadata": {"name": "default"}})
        service = {"clusterIP": "10.9.0.1", "ports": [{"name": "https", "port": 443, "protocol": "TCP"}]}
        self.store.create("services", "default", {"metadata": {"name": "kubernetes"}, "spec": service})

    def put(self, resource: str, name: str, data: dict[str, str]) -> None:
        if resource == "secrets":
            data = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        try:
            old = self.store.get(resource, "default", name)
        except Refused:
            self.store.create(resource, "default", {"metadata": {"name": name}, "data": data})
        else:
            self.store.update(resource, "default", name, {"metadata": {**old["metadata"]}, "data": data})

    def pod(self, node: Node, name: str, *containers: Tree, **spec: Any) -> Tree:
        tree = bound(node, name)
        tree["spec"] |= {"containers": list(containers), "serviceAccountName": "default", **spec}
        return self.store.create("pods", "default", tree)

    def shown(self, name: str) -> Tree | None:
        with contextlib.suppress(Refused):
            return self.store.get("pods", "default", name)
        return None

    def ready(self, name: str) -> bool:
        conditions = ((self.shown(name) or {}).get("status") or {}).get("conditions") or []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def events(self, reason: str) -> list[str]:
        found = [change.new for change in self.store.history if change.resource == "events" and change.new]
        return [event["message"] for event in found if event["reason"] == reason]

    @property
    def followed(self) -> set[str]:
        """Paths of objects that are watched now."""
        return {f"{watch._wanted.resource}: {watch._wanted.fields[0][1]}" for watch in self.server.watches
                if watch._wanted.resource in ("configmaps", "secrets")}  # fmt: skip

    @asynccontextmanager
    async def serving(self, node: Node, directory: Path) -> AsyncIterator[str]:
        async with serving(self.server, self.ca.server_context(directory, ("127.0.0.1",))) as url:
            yield str(kubeconfig(directory, url, self.ca, node.name))


async def read(node: Node, pod_name: str, path: str, name: str = "a") -> str:
    (found,) = await node.running(pod_name, name)
    return await node.exec(found.id, "cat", path)


async def until_read(node: Node, pod_name: str, path: str, text: str, timeout: float) -> float:
    """Seconds until the file has that text."""
    began = time.monotonic()

    async def is_there() -> bool:
        with contextlib.suppress(AssertionError):
            return await read(node, pod_name, path) == text
        return False

    await wait_until(is_there, timeout, f"{path} shows {text}")
    return time.monotonic() - began


async def said_by(node: Node, pod_name: str, *command: str) -> tuple[bytes, int | None]:
    """Output and exit code of a command, asked for at the agent's own port."""
    path = f"/exec/default/{pod_name}/b?{command_query(*command, output=True)}"
    with trio.fail_after(60):
        async with channel_socket(node.ports.main, path, "v5.channel.k8s.io", tls=True) as socket:
            said = await socket.to_the_end()
    return said.stdout, said.exit_code


async def described(node: Node, *what: str) -> str:
    """What the command-line tool prints, asking the agent's local socket."""
    command = [sys.executable, "-m", "trio_kubelet", *what, "--root-dir", str(node.layout.agent_root)]
    return (await trio.run_process(command, stdin=subprocess.DEVNULL, capture_stdout=True)).stdout.decode()


async def test_a_pod_reads_its_objects_and_leaves_nothing(new_node: NewNode, tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.put("configmaps", "cm", {"greeting": "hello", "old": "1"})
    cluster.put("secrets", "se", {"user": f"u-{CANARY}"})
    async with new_node() as node, cluster.serving(node, tmp_path) as config:
        agent = await node.start_agent(f"--kubeconfig={config}", "-v=10", config=OPEN)
        each = [
            container(n, volumeMounts=MOUNTS, env=ENV, envFrom=ENV_FROM, readinessProbe=PROBE) for n in "abc"
        ]
        made = cluster.pod(node, "p", *each, volumes=VOLUMES, securityContext={"fsGroup": 2000})
        uid, full_name = made["metadata"]["uid"], made["metadata"]["name"]
        await node.wait_running("p", "a", "b", "c")
        await wait_until(lambda: cluster.ready(full_name), 30, "the pod is shown to be ready")
        await node.wait_main_port()
        assert await said_by(node, full_name, "cat", "/cm/greeting") == (b"hello", 0)
        (first,) = await node.running("p", "a")
        env = dict(line.split("=", 1) for line in (await node.exec(first.id, "env")).splitlines())
        assert env["GREETING"] == "hello"
        assert env["S_user"] == f"u-{CANARY}"
        assert env["KUBERNETES_SERVICE_HOST"] == "10.9.0.1"
        assert "NOPE" not in env
        assert await read(node, "p", "/all/sub/hello") == "hello"
        assert await read(node, "p", "/all/name") == f"p-{node.name}"
        token = await read(node, "p", "/all/token")
        assert token in cluster.server.tokens
        mode = await node.exec(first.id, "stat", "-L", "-c", "%a %u:%g", "/se/user", "/all/token", "/cm/old")
        assert mode.splitlines() == ["440 0:2000", "640 0:2000", "644 0:2000"]
        assert cluster.followed == {"configmaps: cm", "secrets: se", "secrets: nope"}

        cluster.put("configmaps", "cm", {"greeting": "good day"})
        cluster.put("secrets", "se", {"user": f"v-{CANARY}"})
        assert await until_read(node, "p", "/cm/greeting", "good day", 10) <= REFRESH_SECONDS * PATIENCE
        await until_read(node, "p", "/all/sub/hello", "good day", REFRESH_SECONDS)
        await until_read(node, "p", "/se/user", f"v-{CANARY}", REFRESH_SECONDS)
        assert await node.exec(first.id, "sh", "-c", "ls /cm") == "greeting\n"
        assert await read(node, "p", "/part") == "hello"

        cluster.store.delete("configmaps", "default", "cm")
        await wait_until(lambda: cluster.events("FailedMount"), 10, "a missing config map is told")
        assert await read(node, "p", "/cm/greeting") == "good day"
        assert [c.id for c in await node.running("p", "a")] == [first.id]

        pages = [agent.log_text(), await node.metrics(), json.dumps(await node.pods())]
        pages += [await described(node, "describe", "pod", full_name), await described(node, "get", "pods")]
        assert all(full_name in page for page in pages[2:])
        for page in pages:
            assert CANARY not in page
            assert token not in page

        cluster.store.delete("pods", "default", full_name, {"gracePeriodSeconds": 1})
        await wait_until(lambda: cluster.shown(full_name) is None, 30, "the pod is deleted")
        await wait_until(lambda: not cluster.followed, 10, "nothing is followed any more")
        await until_nothing_left(node, "p", uid)
        assert CANARY not in agent.log_text()


async def test_missing_objects_hold_a_pod_and_not_the_agent(new_node: NewNode, tmp_path: Path) -> None:
    cluster = Cluster()
    async with new_node() as node, cluster.serving(node, tmp_path) as config:
        await node.start_agent(f"--kubeconfig={config}")
        volume = container("a", volumeMounts=MOUNTS[:1])
        cluster.pod(node, "v", volume, volumes=VOLUMES[:1])
        cluster.pod(node, "e", container("a", env=ENV[:1]), imagePullSecrets=[{"name": "pull"}])
        cluster.pod(node, "free", container("a"))
        await node.wait_running("free", "a")
        message = 'MountVolume.SetUp failed for volume "cm" : configmap "cm" not found'
        await wait_until(lambda: message in cluster.events("FailedMount"), 20, "FailedMount")
        await wait_until(lambda: 'Error: configmap "cm" not found' in cluster.events("Failed"), 20, "Failed")
        pull = (
            "Unable to retrieve some image pull secrets (pull); attempting to pull the image may not succeed."
        )
        await wait_until(lambda: pull in cluster.events("FailedToRetrieveImagePullSecret"), 20, "pull secret")

        def waiting(name: str) -> str:
            shown = cluster.shown(f"{name}-{node.name}")
            statuses = (shown or {}).get("status", {}).get("containerStatuses") or [{}]
            return str(statuses[0].get("state", {}).get("waiting", {}).get("reason", ""))

        await wait_until(lambda: waiting("v") == "ContainerCreating", 20, "the volume's pod waits")
        await wait_until(lambda: waiting("e") == "CreateContainerConfigError", 20, "the variable's pod waits")
        cluster.put("configmaps", "cm", {"greeting": "hello"})
        began = time.monotonic()
        await node.wait_running("v", "a")
        await node.wait_running("e", "a")
        assert time.monotonic() - began < 10 * PATIENCE

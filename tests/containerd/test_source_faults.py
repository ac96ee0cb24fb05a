"""Sources that fail, on a real containerd: whose pods stay, whose go, whose clean-up goes on without them."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import yaml

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Manifest, Node, container, pod, wait_until
from tests.containerd.scenes import uid_of, until_nothing_left
from tests.containerd.test_sources import bound, kubeconfig
from tests.kube.apiserver import APIServer, serving
from tests.kube.certs import CA
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.server.http.messages import Request, Response
from trio_kubelet.server.http.serve import serve


class Document:
    """What a URL answers, and how often it was asked."""

    def __init__(self) -> None:
        self.status, self.body = 200, b""
        self.reads = 0

    def show(self, manifest: Manifest) -> None:
        self.status, self.body = 200, yaml.safe_dump(manifest).encode()

    async def answer(self, request: Request) -> Response:
        self.reads += 1
        return Response(status=self.status, body=self.body)

    async def until_read(self, times: int = 2) -> None:
        """Until it was asked so many times more, and once again, which ends the handling of the last."""
        reads = self.reads
        await wait_until(lambda: self.reads > reads + times, 20, "the URL is read")


@asynccontextmanager
async def at_url(document: Document) -> AsyncIterator[str]:
    listeners: list[Any] = list(await trio.open_tcp_listeners(0, host="127.0.0.1"))
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, listeners, document.answer)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/pod"
        nursery.cancel_scope.cancel()


async def running_id(node: Node, name: str) -> str:
    return str((await node.wait_running(name))[0].id)


async def test_bad_answers_of_a_url_leave_its_pods_and_an_empty_one_ends_them(new_node: NewNode) -> None:
    document = Document()
    async with new_node() as node, at_url(document) as url:
        node.write(pod("from-file"))
        document.show(pod("from-url"))
        await node.start_agent("-v=4", config={"staticPodURL": url, "httpCheckFrequency": "0.3s"})
        before = {name: await running_id(node, name) for name in ("from-url", "from-file")}
        uid = await uid_of(node, "from-url")

        broken = pod("from-url", container(image=""))
        bad: list[tuple[int, bytes]] = [
            (500, b"out of order"),
            (404, b""),
            (200, b"<html>Welcome to the hotel's network</html>"),
            (200, b"\0\xff{"),
            (200, yaml.safe_dump(broken).encode()),
            (204, b""),
        ]
        for document.status, document.body in bad:
            await document.until_read()
            for name, container_id in before.items():
                assert [c.id for c in await node.running(name)] == [container_id], (name, document.body)

        # A restart while the answers are bad: nothing has been said about the pod, so it stays.
        document.status = 500
        await node.stop_agent()
        await node.start_agent("-v=4", config={"staticPodURL": url, "httpCheckFrequency": "0.3s"})
        await document.until_read(8)
        assert [c.id for c in await node.running("from-url")] == [before["from-url"]]
        document.show(pod("from-url"))
        await document.until_read()
        assert [c.id for c in await node.running("from-url")] == [before["from-url"]]

        document.show(pod("from-url", container(env=[{"name": "EDITION", "value": "2"}])))
        await node.wait_running("from-url", besides=[before["from-url"]])
        document.status, document.body = 200, b""
        await until_nothing_left(node, "from-url", uid)
        assert await running_id(node, "from-file") == before["from-file"]
        await node.stop_agent()


async def test_static_pods_are_cleaned_up_while_the_api_server_is_away(
    new_node: NewNode, tmp_path: Path
) -> None:
    ca, server = CA(), APIServer(clock=SystemClock())
    server.authenticate = True
    async with (
        new_node() as node,
        serving(server, ca.server_context(tmp_path, ("127.0.0.1",))) as api,
    ):
        flags = (f"--kubeconfig={kubeconfig(tmp_path, api, ca, node.name)}", "-v=4")
        server.store.create("pods", "default", bound(node, "from-api"))
        for name in ("edited", "removed", "removed-later"):
            node.write(pod(name))
        await node.start_agent(*flags)
        names = ("from-api", "edited", "removed", "removed-later")
        before = {name: await running_id(node, name) for name in names}
        uids = {name: await uid_of(node, name) for name in names}

        await node.stop_agent()
        server.down = True
        server.break_watches()
        node.write(pod("edited", container(env=[{"name": "EDITION", "value": "2"}])))
        node.remove("removed")
        await node.start_agent(*flags)
        await node.wait_running("edited", besides=[before["edited"]])
        assert before["edited"] not in [c.id for c in await node.running("edited")]
        await until_nothing_left(node, "removed", uids["removed"])
        await wait_until(lambda: not node.pod_traces(uids["edited"]), 15, "nothing left of the first edition")
        node.remove("removed-later")
        await until_nothing_left(node, "removed-later", uids["removed-later"])
        assert [c.id for c in await node.running("from-api")] == [before["from-api"]]

        # It is back and does not know the API pod any more.
        server.store.delete("pods", "default", f"from-api-{node.name}", {"gracePeriodSeconds": 0})
        server.down = False
        await until_nothing_left(node, "from-api", uids["from-api"], timeout=60)
        await node.stop_agent()


async def test_changes_of_an_api_pod_reach_its_containers(new_node: NewNode, tmp_path: Path) -> None:
    ca, server = CA(), APIServer(clock=SystemClock())
    server.authenticate = True
    async with (
        new_node() as node,
        serving(server, ca.server_context(tmp_path, ("127.0.0.1",))) as api,
    ):
        await node.start_agent(f"--kubeconfig={kubeconfig(tmp_path, api, ca, node.name)}", "-v=4")
        server.store.create("pods", "default", bound(node, "changing"))
        first = await running_id(node, "changing")
        name = f"changing-{node.name}"

        async def counted() -> bool:
            return "kubelet_pod_start_sli_duration_seconds_count 1" in await node.metrics()

        # The runtime shows a container before the agent knows that it runs.
        await wait_until(counted, 20, "the start of the pod is counted")
        changed = tree(server, name)
        changed["metadata"]["labels"] = {"edition": "2"}
        server.store.update("pods", "default", name, changed)
        await wait_until(lambda: labels_seen(node, name), 15, "the label is in /pods")
        assert await running_id(node, "changing") == first

        changed = tree(server, name)
        image = changed["spec"]["containers"][0]["image"]
        changed["spec"]["containers"][0]["image"] = f"{image}-unknown"
        server.store.update("pods", "default", name, changed)
        await wait_until(lambda: replaced(node, first), 20, "the container of the old image has ended")
        changed = tree(server, name)
        changed["spec"]["containers"][0]["image"] = image
        server.store.update("pods", "default", name, changed)
        await node.wait_running("changing", besides=[first])
        await node.stop_agent()


def tree(server: APIServer, name: str) -> dict[str, Any]:
    return copy.deepcopy(server.store.get("pods", "default", name))


async def labels_seen(node: Node, name: str) -> bool:
    found = [item["metadata"] for item in await node.pods() if item["metadata"]["name"] == name]
    return bool(found) and (found[0].get("labels") or {}).get("edition") == "2"


async def replaced(node: Node, container_id: str) -> bool:
    return container_id not in [c.id for c in await node.running("changing")]

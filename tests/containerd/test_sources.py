"""The agent with all three sources at once: manifests, a URL, and an API server over TLS."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio
import yaml

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Manifest, Node, pod, wait_until
from tests.kube.apiserver import APIServer, serving
from tests.kube.certs import CA
from tests.kube.store import Selector
from trio_kubelet.api import v1
from trio_kubelet.api.defaults import set_pod_defaults
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.server.http.messages import Hijack, Request, Response
from trio_kubelet.server.http.serve import serve


class Page:
    """A document at a URL; `status` 0 hangs up."""

    def __init__(self) -> None:
        self.pods: list[Manifest] = []
        self.status = 200

    async def answer(self, request: Request) -> Response | Hijack:
        if not self.status:
            raise trio.BrokenResourceError
        body = json.dumps({"apiVersion": "v1", "kind": "PodList", "items": self.pods}).encode()
        return Response(status=self.status, body=body)


@asynccontextmanager
async def published(page: Page) -> AsyncIterator[str]:
    listeners: list[Any] = list(await trio.open_tcp_listeners(0, host="127.0.0.1"))
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, listeners, page.answer)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/pods"
        nursery.cancel_scope.cancel()


def kubeconfig(directory: Path, url: str, ca: CA, node_name: str) -> Path:
    certificate, key = ca.pair(f"system:node:{node_name}", ("system:nodes",))
    (directory / "node.pem").write_bytes(certificate + key)
    (directory / "ca.pem").write_bytes(ca.pem)
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority": "ca.pem"}}],
        "users": [{"name": "u", "user": {"client-certificate": "node.pem", "client-key": "node.pem"}}],
    }
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(tree))
    return path


def bound(node: Node, name: str) -> dict[str, Any]:
    """An API pod as the server has it: defaulted and bound to the node, named as the harness expects."""
    made = msgspec.convert(pod(f"{name}-{node.name}", nodeName=node.name), v1.Pod)
    set_pod_defaults(made)
    tree: dict[str, Any] = json.loads(msgspec.json.encode(made))
    return tree


async def test_pods_of_all_sources_run_and_a_failing_source_harms_nobody(
    new_node: NewNode, tmp_path: Path
) -> None:
    ca, page, server = CA(), Page(), APIServer(clock=SystemClock())
    server.authenticate = True
    async with (
        new_node() as node,
        published(page) as url,
        serving(server, ca.server_context(tmp_path, ("127.0.0.1",))) as api,
    ):
        node.write(pod("from-file"))
        page.pods = [pod("from-url")]
        server.store.create("pods", "default", bound(node, "from-api"))
        path = kubeconfig(tmp_path, api, ca, node.name)
        config = {"staticPodURL": url, "httpCheckFrequency": "1s"}
        await node.start_agent(f"--kubeconfig={path}", "-v=4", config=config)
        before = {}
        for name in ("from-file", "from-url", "from-api"):
            before[name] = (await node.wait_running(name))[0].id
        sources = {
            s.metadata.name.removesuffix(f"-{node.name}"): s.annotations["kubernetes.io/config.source"]
            for s in await node.sandboxes()
        }
        assert sources == {"from-file": "file", "from-url": "http", "from-api": "api"}

        # Both servers fail; a pod of each source is asked for meanwhile, and only the file's comes.
        page.status = 500
        server.down = True
        server.break_watches()
        node.write(pod("second-file"))
        page.pods = [pod("second-url")]
        server.store.create("pods", "default", bound(node, "second-api"))
        server.store.delete("pods", "default", f"from-api-{node.name}", {"gracePeriodSeconds": 0})
        await node.wait_running("second-file")
        await trio.sleep(3)
        for name, container_id in before.items():
            assert [c.id for c in await node.running(name)] == [container_id]
        assert not await node.running("second-url")

        page.status = 200
        server.down = False
        await node.wait_running("second-url")
        await node.wait_running("second-api")
        await node.wait_gone("from-url")
        await node.wait_gone("from-api")
        node.remove("from-file")
        await node.wait_gone("from-file")
        assert any(r.header("upgrade") for r in server.requests), "watched over a WebSocket"

        # A deletion with grace: the agent ends the pod and then takes it off the API server.
        server.store.delete("pods", "default", f"second-api-{node.name}")
        await wait_until(lambda: not known(server, node, "second-api"), 20, "second-api is deleted")
        assert not await node.running("second-api")
        await node.wait_gone("second-api")
        await node.stop_agent()


def known(server: APIServer, node: Node, name: str) -> bool:
    """Whether the API server still has the pod."""
    pods = server.store.list(Selector("pods"))
    return any(each["metadata"]["name"] == f"{name}-{node.name}" for each in pods)

"""The node's log and streaming endpoints, plain and over TLS, for a real containerd."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import trio

from tests.containerd.harness import Node
from tests.kube.certs import CA
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.server.http.router import Route, Router, WebService
from trio_kubelet.server.http.serve import ServerLimits, serve
from trio_kubelet.server.logs.container_logs import ContainerLogs
from trio_kubelet.server.logs.watch import LogWatch
from trio_kubelet.server.node_server import NodeServer
from trio_kubelet.server.streams.streaming import Streaming


class SeenPods:
    """The pods as an agent's /pods shows them, by name and by UID."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._pods: list[v1.Pod] = []

    async def look(self) -> None:
        answer = await self._node.get(self._node.ports.read_only, "/pods")
        self._pods = msgspec.json.decode(answer.content, type=v1.PodList).items or []

    def get_by_name(self, namespace: str, name: str) -> v1.Pod | None:
        wanted = (namespace, name)
        return next((p for p in self._pods if (p.metadata.namespace, p.metadata.name) == wanted), None)

    def get(self, uid: str) -> v1.PodStatus | None:
        return next((p.status for p in self._pods if p.metadata.uid == uid), None)


class NothingObserved:
    """So that every question goes to the runtime."""

    def get(self, uid: str) -> PodStatus | None:
        return None


@dataclass
class Shown:
    """Always the same certificate."""

    context: ssl.SSLContext

    def ssl_context(self) -> ssl.SSLContext:
        return self.context


@dataclass
class Endpoints:
    """Where the endpoints answer, and the pods they know."""

    port: int
    tls_port: int
    node: Node
    pods: SeenPods

    def path(self, kind: str, pod: str, *rest: str) -> str:
        return "/".join((f"/{kind}/default/{pod}-{self.node.name}", *rest))


@asynccontextmanager
async def endpoints(node: Node, idle_seconds: float = 600.0) -> AsyncIterator[Endpoints]:
    """Serves until the context is left."""
    pods = SeenPods(node)
    await pods.look()
    async with open_cri(node.layout.endpoint) as (runtime, _), trio.open_nursery() as nursery:
        watch = LogWatch()
        logs = ContainerLogs(
            pods=pods,
            statuses=pods,
            observed=NothingObserved(),
            runtime=runtime,
            watch=watch,
            clock=SystemClock(),
        )
        streaming = Streaming(pods=pods, runtime=runtime, idle_seconds=idle_seconds)
        router = Router()
        container = "/{podNamespace}/{podID}/{containerName}"
        handlers = {"exec": streaming.exec, "attach": streaming.attach, "run": streaming.run}
        for name, handler in handlers.items():
            router.add(
                WebService(f"/{name}", [Route(method, container, handler) for method in ("GET", "POST")])
            )
        forward = [Route(m, "/{podNamespace}/{podID}", streaming.port_forward) for m in ("GET", "POST")]
        router.add(WebService("/portForward", forward))
        router.add(WebService("/containerLogs", [Route("GET", container, logs.get)]))
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        context = CA().server_context(node.layout.base, ("127.0.0.1",))
        encrypted = NodeServer(handler=router, provider=Shown(context), host="127.0.0.1", port=0)
        await nursery.start(watch.run)
        await nursery.start(serve, listeners, router, ServerLimits(connections=512))
        await nursery.start(encrypted.run)
        yield Endpoints(listeners[0].socket.getsockname()[1], encrypted.ports[0], node, pods)
        nursery.cancel_scope.cancel()

"""A node in memory that belongs to a cluster: the pods room between a test API server and a fake runtime."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.kube.apiserver import APIServer, parse_path
from tests.kube.door import SimulatedDoor
from tests.kube.store import Change, Store
from tests.pods.admit_all import AdmitAll
from tests.pods.fake_runtime import EPOCH_NS
from tests.pods.shown import Shown
from tests.pods.world import World
from trio_kubelet.api import v1
from trio_kubelet.common.clock import TrioClock
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.podinfo.updates import (
    API_SOURCE,
    CONFIG_HASH_ANNOTATION,
    FILE_SOURCE,
    PodOperation,
    PodUpdate,
)
from trio_kubelet.pods.admission.admitter import Decision, Reject
from trio_kubelet.pods.admission.occupancy import Others
from trio_kubelet.pods.doors import Admitter, NoCluster, ProbeResults
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.mirrors import MirrorPods
from trio_kubelet.pods.refs import is_terminal_phase
from trio_kubelet.pods.status.reporter import NodeView
from trio_kubelet.pods.status.writer import StatusWriter
from trio_kubelet.server.http.messages import Request
from trio_kubelet.sources.apiserver import APISource
from trio_kubelet.sources.podconfig import PodConfig

NODE = "node"
CLIENT_TIMEOUT = 10.0


class Picky(AdmitAll):
    """Admits no pod whose name begins with `no`."""

    def admit(self, pod: v1.Pod, active: Others) -> Decision:
        if pod.metadata.name.startswith("no"):
            return Reject("NodeAffinity", "not here")
        return super().admit(pod, active)


class Mirrored(NoCluster):
    """A cluster that shows static pods."""

    def __init__(self, mirrors: MirrorPods) -> None:
        self.mirrors = mirrors


class Cluster(Shown):
    """An API server with one Node, and one agent at a time."""

    def __init__(self, *, registered: bool = True) -> None:
        self.clock = TrioClock(EPOCH_NS)
        self.server = APIServer(Store(self.clock), self.clock)
        self.store = self.server.store
        self.manifests: dict[str, v1.Pod] = {}  # static pods by name
        self.world: World | None = None
        self._file: trio.MemorySendChannel[PodUpdate] | None = None
        self.writer: StatusWriter | None = None
        self.config = PodConfig()  # the sources of the agent that runs, or ran last
        self.door = SimulatedDoor(self.server)
        if registered:
            self.register()

    @property
    def node(self) -> World:
        """The world of the agent that runs, or ran last."""
        assert self.world is not None
        return self.world

    @asynccontextmanager
    async def agent(
        self,
        *,
        admitter: Admitter | None = None,
        probes: ProbeResults | None = None,
        view: NodeView | None = None,
    ) -> AsyncIterator[World]:
        """An agent at work; leaving is killing it. The next one finds what it left behind."""
        config = self.config = PodConfig(clock=self.clock)
        client = KubeClient(self.door, CLIENT_TIMEOUT)
        pods = PodManager()
        mirrors = MirrorPods(client, NODE, pods)
        world = self.world = World(
            admitter=admitter,
            probes=probes,
            node=self.world,
            pod_config=config,
            pods=pods,
            cluster=Mirrored(mirrors),
            view=view,
        )
        room = world.room
        self.writer = StatusWriter(
            client=client,
            statuses=room.statuses,
            pods=room.pods,
            may_run=room.workers.could_have_running_containers,
            clock=self.clock,
            registry=world.registry,
        )
        self._file, api = config.channel(FILE_SOURCE), config.channel(API_SOURCE)
        source = APISource(self.door, NODE, api)
        synced = trio.Event()
        synced.set()
        async with trio.open_nursery() as nursery, world.running():
            nursery.start_soon(config.run)
            nursery.start_soon(self.writer.run)
            nursery.start_soon(mirrors.run)
            nursery.start_soon(source.run, synced)
            await self.publish()
            yield world
            nursery.cancel_scope.cancel()

    # What operators do

    def register(self) -> None:
        self.store.create("nodes", "", {"metadata": {"name": NODE}})

    def create(self, name: str, *, grace: int = 5, restart: str = "Always", **spec: Any) -> str:
        """A pod bound to the node; its UID."""
        container = {"name": "c", "image": "img"}
        pod = {
            "metadata": {"name": name, "generation": 1},
            "spec": {
                "nodeName": NODE, "containers": [container], "restartPolicy": restart,
                "terminationGracePeriodSeconds": grace, **spec,
            },
        }  # fmt: skip
        uid: str = self.store.create("pods", "default", pod)["metadata"]["uid"]
        return uid

    def delete(self, name: str, **options: Any) -> None:
        self.store.delete("pods", "default", name, options)

    async def manifest(self, name: str, version: str = "1", *, uid: str = "", **spec: Any) -> v1.Pod:
        """A static pod (again, in another version)."""
        uid = uid or f"{name}-{version}"
        fields = {"restart_policy": "Always", "termination_grace_period_seconds": 2, **spec}
        pod = v1.Pod(
            metadata=v1.ObjectMeta(
                name=name, namespace="default", uid=uid, annotations={CONFIG_HASH_ANNOTATION: uid}
            ),
            spec=v1.PodSpec(node_name=NODE, containers=[v1.Container(name="c", image="img")], **fields),
            status=v1.PodStatus(phase="Pending"),
        )
        self.manifests[name] = pod
        await self.publish()
        return pod

    async def publish(self) -> None:
        """The file source tells of all manifests."""
        if self._file is not None:
            update = PodUpdate(PodOperation.SET, FILE_SOURCE, tuple(self.manifests.values()))
            await self._file.send(update)

    # What is there to see

    def agrees(self, uid: str) -> bool:
        """Whether the server shows the last status of the pod."""
        pod = self.node.room.pods.get(uid)
        return pod is not None and self.shows(pod.metadata.name, self.node.room.statuses.get(uid))

    def requests(self, method: str, name: str = "") -> list[Request]:
        """The requests of the agent about a pod so far."""
        about = [r for r in self.server.requests if r.method == method]
        routes = [(r, parse_path(r.path)) for r in about]
        return [r for r, route in routes if route and route.resource == "pods" and route.name == name]

    def bodies(self, method: str, name: str = "") -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.requests(method, name)]

    def changes(self, name: str) -> list[Change]:
        return [c for c in self.store.history if (c.new or c.old or {})["metadata"]["name"] == name]

    async def until(self, true: Callable[[], bool], seconds: float = 60) -> None:
        await self.node.until(true, seconds)

    def check(self) -> None:
        """What must hold of every history: no pod comes back to life, no successor is deleted by mistake."""
        for change in self.store.history:
            if change.resource != "pods" or change.old is None or change.new is None:
                continue
            before, after = change.old["status"].get("phase", ""), change.new["status"].get("phase", "")
            assert not is_terminal_phase(before) or before == after, change.new["metadata"]["name"]
        for request in self.server.requests:
            if request.method == "DELETE":
                options = json.loads(request.body)
                assert options["gracePeriodSeconds"] == 0
                assert options["preconditions"]["uid"]

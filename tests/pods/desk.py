"""The status writer alone, between a test API server and statuses the test itself says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio
from prometheus_client import CollectorRegistry

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.store import EPOCH_NS, Selector, Store
from tests.pods.shown import Shown
from trio_kubelet.api import v1
from trio_kubelet.cluster import WRITE_TIMEOUT
from trio_kubelet.common.clock import TrioClock
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.podinfo.updates import API_SOURCE, CONFIG_SOURCE_ANNOTATION
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.refs import is_terminal_phase
from trio_kubelet.pods.status.conditions import condition
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.status.writer import StatusWriter


class Desk(Shown):
    """One agent's statuses. `look` is what the watch does: it brings in what the server shows."""

    def __init__(self, server: APIServer | None = None) -> None:
        self.clock = TrioClock(EPOCH_NS)
        self.server = server or APIServer(Store(self.clock), self.clock)
        self.store = self.server.store
        self.door = SimulatedDoor(self.server)
        self.may_run: set[str] = set()
        self.registry = CollectorRegistry()
        self.pods = PodManager()
        self.statuses = StatusManager(self.pods, self.clock)
        self.writer = StatusWriter(
            client=KubeClient(self.door, WRITE_TIMEOUT),
            statuses=self.statuses,
            pods=self.pods,
            may_run=self.may_run.__contains__,
            clock=self.clock,
            registry=self.registry,
        )
        self._known: dict[str, v1.Pod] = {}

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[Desk]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.writer.run)
            yield self
            nursery.cancel_scope.cancel()

    def create(self, name: str, **more: Any) -> str:
        pod = {
            "metadata": {"name": name, **more},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}], "restartPolicy": "Always"},
        }
        uid: str = self.store.create("pods", "default", pod)["metadata"]["uid"]
        return uid

    def look(self) -> None:
        """The source tells what the server shows now. What did not change stays the same object."""
        shown: dict[str, v1.Pod] = {}
        for tree in self.store.list(Selector("pods")):
            pod = msgspec.convert(tree, v1.Pod)
            pod.metadata.annotations = {
                **(pod.metadata.annotations or {}),
                CONFIG_SOURCE_ANNOTATION: API_SOURCE,
            }
            before = self._known.get(pod.metadata.uid)
            if before is not None and before.status == pod.status:
                pod = msgspec.structs.replace(pod, status=before.status)
            shown[pod.metadata.uid] = pod
        for pod in self._known.values():
            if pod.metadata.uid not in shown:
                self.pods.remove(pod)
                self.statuses.remove(pod.metadata.uid)
        for pod in shown.values():
            self.pods.set(pod)
        self._known = shown

    def pod(self, uid: str) -> v1.Pod | None:
        return self.pods.get(uid)

    def say(self, uid: str, phase: str = "Running", *, ready: bool = True, message: str = "") -> None:
        """The node's word about a pod; it never says that a pod which is over runs."""
        pod = self.pods.get(uid)
        if pod is None:
            return
        before = self.statuses.before(pod)
        if is_terminal_phase(before.phase):
            phase = before.phase
        ready = ready and not is_terminal_phase(phase)
        conditions = [condition(pod, kind, ready) for kind in ("Ready", "ContainersReady")]
        status = v1.PodStatus(phase=phase, message=message, conditions=conditions, qos_class="BestEffort")
        self.statuses.set(pod, status)

    def finish(self, uid: str) -> None:
        """Nothing of the pod is left on the node."""
        pod = self.pods.get(uid)
        self.may_run.discard(uid)
        if pod is not None:
            self.statuses.terminate(pod)

    def count(self, method: str) -> int:
        return sum(request.method == method for request in self.server.requests)

    def agrees(self, uid: str, name: str) -> bool:
        """Whether the server shows the last word about the pod."""
        return self.shows(name, self.statuses.get(uid))

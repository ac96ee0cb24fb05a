"""A node of a simulated cluster: the room's objects over the test API server and a look that a test sets."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio
from prometheus_client import CollectorRegistry

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.store import Refused, Tree
from tests.node.nodes import profile, seen
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.node.conditions import NodeHealth
from trio_kubelet.node.lease import LeaseSettings, NodeLease
from trio_kubelet.node.metrics import NodeMetrics
from trio_kubelet.node.own_node import OwnNode
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.node.reporter import NodeReporter, ReportTimes
from trio_kubelet.node.status import NodeObservation


class Said:
    """Remembers events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def record_node(self, type: str, reason: str, message: str) -> None:
        self.events.append((type, reason, message))

    @property
    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.events]


class World:
    """`see` is what the node sees of itself from now on."""

    def __init__(self, node: NodeProfile | None = None, times: ReportTimes = ReportTimes()) -> None:
        self.server = APIServer()
        self.profile = node or profile()
        self.door = SimulatedDoor(self.server)
        client = KubeClient(self.door, 10.0)
        self.own = OwnNode(self.door, self.profile)
        self.said = Said()
        self.registry = CollectorRegistry()
        self.see: dict[str, Any] = {}
        self.cidrs: list[str] = []
        self.cidr_works = True
        self.reporter = NodeReporter(
            client=client,
            own=self.own,
            profile=self.profile,
            look=lambda: self.look(),
            is_well=lambda: not self._now().health.not_ready,
            events=self.said,
            metrics=NodeMetrics(self.registry, self.server.clock, self.server.clock.now_ns() - 10**10),
            pod_cidr=self._take_cidr,
            times=times,
            rng=random.Random(1),
        )
        self.own.changed.listen(self.reporter.wake)
        self.lease = NodeLease(
            client, LeaseSettings("node-a"), self._uid, self.server.clock, random.Random(2)
        )

    def not_ready(self, *errors: str) -> None:
        self.see["health"] = NodeHealth(not_ready=errors)

    @property
    def node(self) -> Tree:
        return self.server.store.get("nodes", "", "node-a")

    @property
    def lease_object(self) -> Tree:
        return self.server.store.get("leases", "kube-node-lease", "node-a")

    def condition(self, kind: str = "Ready") -> Tree:
        found = [c for c in self.node["status"]["conditions"] if c["type"] == kind]
        assert len(found) == 1
        condition: Tree = found[0]
        return condition

    def writes(self, method: str = "PATCH", of: str = "/nodes/") -> int:
        return sum(1 for r in self.server.requests if r.method == method and of in r.path)

    def is_registered(self) -> bool:
        try:
            return bool(self.node)
        except Refused:
            return False

    def value(self, metric: str) -> float:
        return self.registry.get_sample_value(metric) or 0.0

    @asynccontextmanager
    async def running(self, *, lease: bool = False) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.own.run)
            nursery.start_soon(self.reporter.run)
            if lease:
                nursery.start_soon(self.lease.run)
            yield
            nursery.cancel_scope.cancel()

    def _now(self) -> NodeObservation:
        return seen(now_ns=self.server.clock.now_ns(), **self.see)

    async def look(self) -> NodeObservation:
        await trio.lowlevel.checkpoint()
        return self._now()

    async def _take_cidr(self, cidr: str) -> bool:
        self.cidrs.append(cidr)
        return self.cidr_works

    async def _uid(self) -> str:
        return self.own.uid


def patched(tree: Tree, **fields: object) -> Tree:
    """The tree with other top-level fields."""
    return {**msgspec.json.decode(msgspec.json.encode(tree)), **fields}

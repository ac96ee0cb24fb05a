"""Gives the containers of a pod that is admitted what they ask for, one after the other.

The order is the kubelet's: init containers first, in each container every provider in turn. What an init
container was given can so be given to a later container of its pod. Under a topology policy each container,
or the pod as a whole, gets one NUMA affinity first, which all providers keep to. Everything is taken in the
turn in which it was hinted at, and only then confirmed: a plugin that hangs, or a disk, holds up no other
pod. A pod that runs when an agent starts keeps what it has, whatever hints that makes now (a kubelet may
refuse it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.common.log import get_logger
from trio_kubelet.placement.doors import AllocationError, AskAgain, HintProvider, NotWritten
from trio_kubelet.placement.hints import Hint, Hints
from trio_kubelet.placement.merging import SINGLE_NUMA_NODE, NUMANodes, merge
from trio_kubelet.placement.metrics import AlignmentMetrics, TopologyMetrics
from trio_kubelet.placement.pod_level import PodLevel, has_pod_resources
from trio_kubelet.podinfo.doors import PodRecorderDoor

log = get_logger(__name__)

UNEXPECTED: Final = "UnexpectedAdmissionError"
NOT_ALIGNED: Final = "TopologyAffinityError"
NO_POLICY: Final = "none"
POD_SCOPE: Final = "pod"
WAITING: Final = "WaitingForPodsToEnd"
_WAITING_TEXT: Final = "Waiting for pods to end that have what this one asks for"
_LEAVING_PERIOD: Final = 0.25
"""Seconds between looks whether such a pod has ended."""
FOR_DISK: Final = "WaitingForDisk"
_DISK_PERIOD: Final = 5.0
"""Seconds between attempts to write down what a pod is given."""


class TopologyPolicy(msgspec.Struct, frozen=True):
    """`topologyManagerPolicy` and `topologyManagerScope` on this machine."""

    name: str = NO_POLICY
    scope: str = "container"
    machine: NUMANodes = NUMANodes((0,))
    pod_level: PodLevel = PodLevel.SHARED

    def refusal(self, pod: v1.Pod) -> str:
        """What a pod is told that cannot be aligned."""
        if self.pod_level is PodLevel.SHARED or not has_pod_resources(pod):
            return "Resources cannot be allocated with Topology locality"
        how = "with a container-level" if self.scope != POD_SCOPE else "under pod-scope"
        return f"Pod Scope pod with pod-level resources failed admission {how} topology manager"


class Allocator:
    """All providers of the node under its topology policy (kubelet: `topologymanager`)."""

    def __init__(
        self,
        *,
        providers: Sequence[HintProvider],
        policy: TopologyPolicy,
        registry: CollectorRegistry,
        alignment: AlignmentMetrics,
        runs: Callable[[str], bool],
        recorder: PodRecorderDoor,
    ) -> None:
        """`runs` says of a pod, by its UID, whether it runs: such a one is not aligned anew."""
        self._providers = providers
        self._policy = policy
        self._metrics = TopologyMetrics(registry)
        self._alignment = alignment
        self._runs = runs
        self._recorder = recorder
        if policy.name != NO_POLICY:
            alignment.show_nodes()

    async def allocate(self, pod: v1.Pod) -> tuple[str, str] | None:
        """Gives the pod everything; else reason and message of its refusal. What pods have that no source
        wants any more is waited for: a new version of a static pod is there before the old one has ended. So
        is a disk on which it can be written down.
        """
        self._metrics.requests.inc()
        began = trio.current_time()
        told = set[str]()
        try:
            while True:
                try:
                    await self._ask(pod)
                    break
                except NotWritten as exc:
                    self._tell_once(told, pod, "Warning", FOR_DISK, str(exc))
                    await trio.sleep(_DISK_PERIOD)
                    continue
                except AllocationError:
                    if not (leaving := self._leaving()):
                        raise
                self._tell_once(told, pod, "Normal", WAITING, _WAITING_TEXT)
                while leaving <= self._leaving():  # noqa: ASYNC110 (who ends wakes nobody here)
                    await trio.sleep(_LEAVING_PERIOD)
        except AllocationError as exc:
            if self._policy.name != NO_POLICY:
                self._metrics.errors.inc()
            if exc.reason:
                return exc.reason, str(exc)
            return UNEXPECTED, f"Allocate failed due to {exc}, which is unexpected"
        finally:
            self._metrics.duration.observe((trio.current_time() - began) * 1000)
        return None

    def _tell_once(self, told: set[str], pod: v1.Pod, kind: str, reason: str, message: str) -> None:
        if reason not in told:
            told.add(reason)
            self._recorder.record(pod, kind, reason, message)

    def passes(self, pod: v1.Pod) -> None:
        """Counts a pod that asks for nothing: it was aligned at no cost."""
        self._metrics.requests.inc()
        self._metrics.duration.observe(0)
        if self._policy.scope == POD_SCOPE:
            self._count(one_node=True)
        else:
            for _ in regular_containers(pod.spec):
                self._count(one_node=True)

    async def _ask(self, pod: v1.Pod) -> None:
        try:
            await self._give_all(pod)
        except AskAgain as exc:  # once: a plugin that dies of this pod would for ever
            log.info("Asking again for what a pod is to be given", pod=pod, err=exc)
            await self._give_all(pod)

    def _leaving(self) -> frozenset[str]:
        return frozenset().union(*(provider.leaving() for provider in self._providers))

    async def _give_all(self, pod: v1.Pod) -> None:
        for provider in self._providers:
            await provider.ready(pod)
        try:
            if self._policy.name == NO_POLICY or self._runs(pod.metadata.uid):
                await self._give(pod, lambda _: None)
            else:
                await self._give_aligned(pod)
        except BaseException:  # nobody wants it any more, too
            for provider in self._providers:
                provider.let_go(pod)
            raise

    async def _give_aligned(self, pod: v1.Pod) -> None:
        as_one = self._policy.scope == POD_SCOPE
        if as_one:
            whole = self._affinity(pod, [provider.pod_hints(pod) for provider in self._providers])
            await self._give(pod, lambda _: whole)
        else:
            await self._give(pod, lambda each: self._affinity(pod, self._hints(pod, each)))
        for _ in (pod,) if as_one else regular_containers(pod.spec):
            self._count(one_node=True)

    async def _give(self, pod: v1.Pod, affinity: Callable[[v1.Container], Hint | None]) -> None:
        """Nothing is waited for between the first hint and the last thing taken."""
        taken = list[tuple[v1.Container, Hint | None]]()
        for container in regular_containers(pod.spec):
            taken.append((container, where := affinity(container)))
            for provider in self._providers:
                provider.take(pod, container, where)
        for container, where in taken:
            for provider in self._providers:
                await provider.confirm(pod, container, where)

    def _hints(self, pod: v1.Pod, container: v1.Container) -> Sequence[Hints]:
        return [provider.hints(pod, container) for provider in self._providers]

    def _affinity(self, pod: v1.Pod, hints: Sequence[Hints]) -> Hint:
        best, admitted = merge(self._policy.name, self._policy.machine, hints)
        if not admitted:
            self._count(one_node=False)
            raise AllocationError(self._policy.refusal(pod), NOT_ALIGNED)
        return best

    def _count(self, *, one_node: bool) -> None:
        if self._policy.name == SINGLE_NUMA_NODE:  # only this policy promises it
            self._alignment.node(self._policy.scope, one=one_node)

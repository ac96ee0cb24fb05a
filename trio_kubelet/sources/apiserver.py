"""The API server as a source: the pods that are bound to this node, as a SET after each list, and after each
event of the watch what changed.

A reflector keeps the copy; this module only hands it over. Changes that come faster than PodConfig takes
them are told together, so a slow consumer never holds up the watch; an event costs the same beside a thousand
pods as beside ten. The copy survives every
outage, hence so do the pods; nothing is delivered before a first list was complete. Defaults are the
server's, and what PodConfig adds (source, first seen) it adds by itself, as in the kubelet
(`pkg/kubelet/config/apiserver.go`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec
import trio

from trio_kubelet.api.pod_rules import DEFAULT_RULES, PodRules, heeded
from trio_kubelet.api.v1 import ObjectMeta, Pod
from trio_kubelet.api.validation.formats import directory_name, dns_label, dns_subdomain
from trio_kubelet.common.log import get_logger
from trio_kubelet.kube.doors import APIDoor
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.podinfo.updates import API_SOURCE, PodOperation, PodUpdate

log = get_logger(__name__)

PODS_PATH = "/api/v1/pods"


def _nobody(pod: Pod) -> None:
    """Nobody measures pod starts."""


class APISource:
    """Delivers the node's pods into `send`.

    `observed` hears of each pod that is new or has changed, when it is first seen so, with its status as the
    server has it: what the pod start SLI is measured from (kubelet: `ObservedPodOnWatch`). `vanished` hears
    of each that is there no more. Pods are without what `rules` have the node not heed.
    """

    def __init__(
        self,
        door: APIDoor,
        node_name: str,
        send: trio.abc.SendChannel[PodUpdate],
        *,
        observed: Callable[[Pod], None] = _nobody,
        vanished: Callable[[Pod], None] = _nobody,
        rules: PodRules = DEFAULT_RULES,
        rng: random.Random | None = None,
    ) -> None:
        self._send = send
        self._observed = observed
        self._vanished = vanished
        self._rules = rules
        self._dirty = trio.Event()
        self._last: dict[str, Pod] = {}
        self._touched: dict[str, None] | None = None  # keys since the last delivery; None: all of them
        self._reflector: Reflector[WatchedPod] = Reflector(
            door,
            PODS_PATH,
            WatchedPod,
            params={"fieldSelector": f"spec.nodeName={node_name}"},
            changed=self._wake,
            touched=self._touch,
            rng=rng,
        )

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods by `namespace/name` as the server last told."""
        return self._reflector.objects

    def hurry(self) -> None:
        """The server answers others again: after a failure, try soon."""
        self._reflector.hurry()

    async def run(self, node_synced: trio.Event) -> None:
        """Follows the server until cancelled, once the node is known to it. May be started again."""
        await node_synced.wait()
        log.v(2).info("Watching the API server for pods")
        if self._reflector.synced.is_set():  # what was under way when this was ended is not known
            self._touch("")
            self._wake()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reflector.run)
            await self._deliver()

    def _wake(self) -> None:
        self._dirty.set()

    def _touch(self, key: str) -> None:
        if not key:
            self._touched = None
        elif self._touched is not None:
            self._touched[key] = None

    async def _deliver(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty = trio.Event()
            touched, self._touched = self._touched, {}
            objects = self._reflector.objects
            gone, changed = self._compare(objects.keys() | self._last.keys() if touched is None else touched)
            if touched is None:
                await self._tell(PodOperation.SET, objects.values())
                continue
            for operation, pods in ((PodOperation.REMOVE, gone), (PodOperation.UPDATE, changed)):
                if pods:
                    await self._tell(operation, pods)

    async def _tell(self, operation: PodOperation, pods: Iterable[Pod]) -> None:
        told = tuple(heeded(pod, self._rules) for pod in pods)
        await self._send.send(PodUpdate(operation, API_SOURCE, told))

    def _compare(self, keys: Collection[str]) -> tuple[list[Pod], list[Pod]]:
        """The pods of these keys that are there no more, and those that came or changed."""
        gone, changed = list[Pod](), list[Pod]()
        for key in keys:
            before, pod = self._last.pop(key, None), self._reflector.find(key)
            if before is not None and (pod is None or pod.metadata.uid != before.metadata.uid):
                gone.append(before)
                self._vanished(before)
            if pod is not None:
                self._last[key] = pod
                if pod is not before:
                    changed.append(pod)
                    self._observed(pod)
        return gone, changed


_NONE: Final = msgspec.Raw()


class WatchedMetadata(ObjectMeta):
    """The metadata with `managedFields`, which `/pods` shows and nobody here reads.

    Directories and cgroups are named by the rest: a pod without a usable identity is not read, for work on it
    would be work on others.
    """

    managed_fields: msgspec.Raw = _NONE

    def __post_init__(self) -> None:
        for field, value, check in (
            ("uid", self.uid, directory_name),
            ("name", self.name, dns_subdomain),
            ("namespace", self.namespace, dns_label),
        ):
            if problems := check(value):
                raise ValueError(f"metadata.{field}: {', '.join(problems)}")
        if self.managed_fields is not _NONE:
            # As decoded it is a part of the whole answer, which would stay in memory with it.
            self.managed_fields = self.managed_fields.copy()


def _no_metadata() -> WatchedMetadata:
    raise msgspec.ValidationError("metadata: is required")


class WatchedPod(Pod):
    """A pod as the watch brings it: what this agent only passes on stays as it came."""

    metadata: WatchedMetadata = msgspec.field(default_factory=_no_metadata)

"""The API server as a source: the pods that are bound to this node, as a SET after each change.

A reflector keeps the copy; this module only hands it over. Changes that come faster than PodConfig takes
them are told together in one SET, so a slow consumer never holds up the watch. The copy survives every
outage, hence so do the pods; nothing is delivered before a first list was complete. Defaults are the
server's, and what PodConfig adds (source, first seen) it adds by itself, as in the kubelet
(`pkg/kubelet/config/apiserver.go`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import trio

from trio_kubelet.api.v1 import ObjectMeta, Pod
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
    of each that is there no more.
    """

    def __init__(
        self,
        door: APIDoor,
        node_name: str,
        send: trio.abc.SendChannel[PodUpdate],
        *,
        observed: Callable[[Pod], None] = _nobody,
        vanished: Callable[[Pod], None] = _nobody,
        rng: random.Random | None = None,
    ) -> None:
        self._send = send
        self._observed = observed
        self._vanished = vanished
        self._dirty = trio.Event()
        self._last: Mapping[str, Pod] = {}
        self._reflector: Reflector[WatchedPod] = Reflector(
            door,
            PODS_PATH,
            WatchedPod,
            params={"fieldSelector": f"spec.nodeName={node_name}"},
            changed=self._wake,
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
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reflector.run)
            await self._deliver()

    def _wake(self) -> None:
        self._dirty.set()

    async def _deliver(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty = trio.Event()
            pods = dict(self._reflector.objects)
            uids = {pod.metadata.uid for pod in pods.values()}
            for pod in self._last.values():
                if pod.metadata.uid not in uids:
                    self._vanished(pod)
            for key, pod in pods.items():
                if self._last.get(key) is not pod:
                    self._observed(pod)
            self._last = pods
            await self._send.send(PodUpdate(PodOperation.SET, API_SOURCE, tuple(pods.values())))


_NONE: Final = msgspec.Raw()


class WatchedMetadata(ObjectMeta):
    """The metadata with `managedFields`, which `/pods` shows and nobody here reads."""

    managed_fields: msgspec.Raw = _NONE

    def __post_init__(self) -> None:
        if self.managed_fields is not _NONE:
            # As decoded it is a part of the whole answer, which would stay in memory with it.
            self.managed_fields = self.managed_fields.copy()


class WatchedPod(Pod):
    """A pod as the watch brings it: what this agent only passes on stays as it came."""

    metadata: WatchedMetadata = msgspec.field(default_factory=WatchedMetadata)

"""PodConfig: the sources' wishes, merged and delivered in order.

Each source has a channel and a task of its own. The task merges one update at a time (`merge`) and hands
the resulting updates over one by one, settled with those of the others (`Precedence`); the output has no
buffer, so a source that floods the consumer waits for its own updates while the others take their turn in
between. A task that is cancelled loses nothing but itself: PodConfig lives as long as the agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import Clock, SystemClock
from trio_kubelet.common.log import get_logger
from trio_kubelet.podinfo.doors import PodRecorderDoor
from trio_kubelet.podinfo.updates import API_SOURCE, PodOperation, PodUpdate, pod_source
from trio_kubelet.sources.merge import KnownPod, KnownPods, Merge, full_name
from trio_kubelet.sources.precedence import Precedence

log = get_logger(__name__)

_INPUT_BUFFER: Final = 1


def deliveries(result: Merge, source: str, *, first_set: bool) -> list[PodUpdate]:
    """A merge result as updates, in the order they are delivered.

    first_set: whether this update made the source known; it then says so even if it brought nothing.
    """
    updates = [
        PodUpdate(op, source, pods)
        for op, pods in (
            (PodOperation.REMOVE, result.removes),
            (PodOperation.ADD, result.adds),
            (PodOperation.UPDATE, result.updates),
            (PodOperation.DELETE, result.deletes),
        )
        if pods
    ]
    if first_set and not (result.adds or result.updates or result.deletes):
        updates.append(PodUpdate(PodOperation.ADD, source, ()))
    if result.reconciles:
        updates.append(PodUpdate(PodOperation.RECONCILE, source, result.reconciles))
    return updates


class PodConfig:
    """Merges any number of sources into one stream of updates.

    `run` has to be running; `channel` registers a source, before or after that.
    """

    def __init__(self, *, recorder: PodRecorderDoor | None = None, clock: Clock | None = None) -> None:
        self._recorder = recorder
        self._clock = clock or SystemClock()
        self._send, self._receive = trio.open_memory_channel[PodUpdate](0)
        self._inputs: dict[str, trio.MemorySendChannel[PodUpdate]] = {}
        self._known: dict[str, KnownPods] = {}
        self._set: set[str] = set()
        self._consumed: set[str] = set()
        self._nursery: trio.Nursery | None = None
        self._precedence = Precedence(lambda pod: self._tell_same(pod, pod_source(pod), _uid(pod)))
        self._turn = trio.Lock()  # one delivery after the other, in the order in which they are settled
        self._waiting: list[tuple[str, trio.MemoryReceiveChannel[PodUpdate]]] = []

    def updates(self) -> trio.MemoryReceiveChannel[PodUpdate]:
        """Where the consumer takes the merged updates; one consumer."""
        return self._receive

    def channel(self, source: str) -> trio.MemorySendChannel[PodUpdate]:
        """The channel a source sends its updates into; registers the source."""
        if source not in self._inputs:
            self._inputs[source], receive = trio.open_memory_channel[PodUpdate](_INPUT_BUFFER)
            if self._nursery is not None:
                self._nursery.start_soon(self._take, source, receive)
            else:
                self._waiting.append((source, receive))
        return self._inputs[source]

    async def run(self) -> None:
        """Merge and deliver until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for source, receive in self._waiting:
                nursery.start_soon(self._take, source, receive)
            self._waiting.clear()
            await trio.sleep_forever()

    # Readiness: what stands behind "every source has reported".

    def add_source(self, source: str) -> None:
        """The consumer has taken something of this source."""
        self._consumed.add(source)

    def source_ready(self, source: str) -> bool:
        """Whether this source has said what it wants, and the consumer knows; or is not configured.

        Before `run` nobody knows which sources there will be.
        """
        if self._nursery is None:
            return False
        return source not in self._inputs or (source in self._set and source in self._consumed)

    def all_ready(self) -> bool:
        """Whether that holds for every configured source."""
        return self._all_ready(self._inputs)

    def manifests_ready(self) -> bool:
        """Whether that holds for every configured source of static pods: all but the API server."""
        return self._all_ready(self._inputs.keys() - {API_SOURCE})

    def _all_ready(self, sources: Iterable[str]) -> bool:
        return self._nursery is not None and all(map(self.source_ready, sources))

    def sources(self) -> frozenset[str]:
        """The configured sources."""
        return frozenset(self._inputs)

    async def _take(self, source: str, receive: trio.MemoryReceiveChannel[PodUpdate]) -> None:
        """One source's task: merge, deliver, next."""
        async for update in receive:
            for delivery in self._apply(source, update):
                async with self._turn:
                    for each in self._precedence.settle(delivery):
                        await self._send.send(each)

    def _apply(self, source: str, update: PodUpdate) -> list[PodUpdate]:
        known = self._known.setdefault(source, KnownPods())
        result = known.apply(update.op, update.pods, source, self._clock.now_ns())
        for pod in result.duplicates:
            self._tell_duplicate(pod, source, result.known.get(pod.metadata.uid))
        first_set = update.op is PodOperation.SET and source not in self._set
        if update.op is PodOperation.SET:
            self._set.add(source)
        return deliveries(result, source, first_set=first_set)

    def _tell_duplicate(self, pod: Pod, source: str, namesake: KnownPod | None) -> None:
        same_name = namesake is None or full_name(namesake.pod) == full_name(pod)
        self._tell_same(pod, source, f'name "{pod.metadata.name}"' if same_name else _uid(pod))

    def _tell_same(self, pod: Pod, source: str, same: str) -> None:
        log.warning("Two pods are the same one, ignoring the later", pod=pod, source=source, same=same)
        if self._recorder is not None:
            meta = pod.metadata
            message = (
                f"Error validating pod {meta.name}_{meta.namespace}({meta.uid}) from {source} "
                f"due to duplicate pod {same}, ignoring"
            )
            self._recorder.record(pod, "Warning", "FailedValidation", message)


def _uid(pod: Pod) -> str:
    return f'UID "{pod.metadata.uid}"'

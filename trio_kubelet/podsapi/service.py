"""The Pods service of kubelet v1.36 (`v1alpha1.Pods`) on its socket, `<root>/pods-api/pods-api.sock`.

Pods are told with their latest status, in the order of their UIDs. Who watches hears of each status that is
set, as long as it keeps up: one that is `BACKLOG` events behind is hung up on, and has to begin anew.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec
import trio
from prometheus_client import Counter

from trio_kubelet.api import v1
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.token_bucket import TokenBucket
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.loop import AsyncioLoop
from trio_kubelet.grpc.server import Answer, Send, Service, serve
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.status.manager import StatusManager, VersionedStatus
from trio_kubelet.podsapi.encoding import encode_pod
from trio_kubelet.podsapi.proto import api_pb2 as api

log = get_logger(__name__)

BACKLOG: Final = 100
QPS: Final = 100
BURST: Final = 10
_MODE: Final = 0o755


def socket_path(root_dir: str) -> str:
    """Where the service is looked for."""
    return os.path.join(root_dir, "pods-api", "pods-api.sock")


class PodsService:
    """Answers the calls, and tells watchers."""

    def __init__(self, *, pods: PodManager, statuses: StatusManager, dropped: Counter) -> None:
        """`dropped` counts the watchers that are hung up on."""
        self._pods = pods
        self._statuses = statuses
        self._bucket = TokenBucket(QPS, BURST)
        self._watchers: set[trio.MemorySendChannel[api.WatchPodsEvent]] = set()
        self._told: dict[str, VersionedStatus] = {}  # by UID, until the pod is forgotten
        self._dropped = dropped
        statuses.changed.listen(self._changed)
        statuses.forgotten.listen(self._forget)

    async def run(
        self, loop: AsyncioLoop, path: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves on a unix socket until cancelled. Raises OSError if it cannot be made."""
        os.makedirs(os.path.dirname(path), 0o750, exist_ok=True)
        answers: dict[str, Answer] = {"ListPods": self._list, "GetPod": self._get, "WatchPods": self._watch}
        service = Service(api.DESCRIPTOR, "Pods", answers)
        await serve(loop, path, [service], mode=_MODE, task_status=task_status)

    async def _list(self, _: api.ListPodsRequest) -> api.ListPodsResponse:
        self._limit()
        return api.ListPodsResponse(pods=[encode_pod(pod) for pod in self._in_order()])

    async def _get(self, request: api.GetPodRequest) -> api.GetPodResponse:
        self._limit()
        pod = self._pods.get(request.podUID)
        if pod is None:
            raise GrpcError(Code.NOT_FOUND, f"pod with UID {request.podUID} not found")
        return api.GetPodResponse(pod=encode_pod(self._with_status(pod)))

    async def _watch(self, _: api.WatchPodsRequest, send: Send) -> None:
        to_watcher, events = trio.open_memory_channel[api.WatchPodsEvent](BACKLOG)
        self._watchers.add(to_watcher)
        try:
            for pod in self._in_order():
                await send(api.WatchPodsEvent(type=api.ADDED, pod=encode_pod(pod)))
            await send(api.WatchPodsEvent(type=api.INITIAL_SYNC_COMPLETE))
            async for event in events:
                await send(event)
        finally:
            self._watchers.discard(to_watcher)
            to_watcher.close()
        raise GrpcError(Code.RESOURCE_EXHAUSTED, "watch client channel closed")

    def _in_order(self) -> list[v1.Pod]:
        pods = sorted(self._pods.pods(), key=lambda pod: pod.metadata.uid)
        return [self._with_status(pod) for pod in pods]

    def _with_status(self, pod: v1.Pod) -> v1.Pod:
        status = self._statuses.get(pod.metadata.uid)
        return pod if status is None else msgspec.structs.replace(pod, status=status)

    def _limit(self) -> None:
        if not self._bucket.try_take(trio.current_time()):
            raise GrpcError(Code.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _changed(self, uid: str) -> None:
        found = self._statuses.versioned(uid)
        told = self._told.get(uid)
        if found is None or (told is not None and not _is_news(found, told)):
            return
        self._told[uid] = found
        pod = msgspec.structs.replace(found.pod, status=found.status)
        kind = api.MODIFIED if told is not None or pod.metadata.deletion_timestamp else api.ADDED
        if found.finished:
            kind = api.DELETED
            pod = _name_of(pod)
        if not self._watchers:
            return
        event = api.WatchPodsEvent(type=kind, pod=encode_pod(pod))
        for watcher in tuple(self._watchers):
            try:
                watcher.send_nowait(event)
            except trio.WouldBlock:
                log.info("Watch client channel is full, dropping client.")
                self._dropped.inc()
                self._watchers.discard(watcher)
                watcher.close()

    def _forget(self, uid: str) -> None:
        self._told.pop(uid, None)


def _is_news(found: VersionedStatus, told: VersionedStatus) -> bool:
    """Whether a status is another one: it is told again where the API server has to hear it once more, and of
    a pod that has gone nothing follows.
    """
    return found.version != told.version and not (found.finished and told.finished)


def _name_of(pod: v1.Pod) -> v1.Pod:
    """All that is told of a pod that has gone."""
    known = pod.metadata
    return v1.Pod(metadata=v1.ObjectMeta(name=known.name, namespace=known.namespace, uid=known.uid))

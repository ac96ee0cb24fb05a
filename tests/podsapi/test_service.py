"""The Pods service, asked by an unrelated gRPC client."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import msgspec
import pytest
import trio
import trio.testing
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from tests.pods.build import make_pod
from tests.podsapi.test_encoding import message
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.grpc.channel import connect
from trio_kubelet.grpc.errors import GrpcError
from trio_kubelet.grpc.loop import AsyncioLoop, open_asyncio_loop
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.podsapi import service as module
from trio_kubelet.podsapi.proto import api_pb2 as api
from trio_kubelet.podsapi.service import PodsService, socket_path

PREFIX = "/v1alpha1.Pods/"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one: the paths of sockets are short."""
    with tempfile.TemporaryDirectory(prefix="tk-") as directory:
        yield Path(directory)


class Node:
    """The pods of a node and what is said of them."""

    def __init__(self) -> None:
        self.pods = PodManager()
        self.statuses = StatusManager(self.pods, SystemClock())
        self.registry = CollectorRegistry()
        dropped = PodMetrics(self.registry).watch_events_dropped
        self.service = PodsService(pods=self.pods, statuses=self.statuses, dropped=dropped)

    def add(self, name: str, phase: str = "Pending") -> v1.Pod:
        pod = make_pod(name)
        self.pods.set(pod)
        self.say(pod, phase)
        return pod

    def say(self, pod: v1.Pod, phase: str) -> None:
        self.statuses.set(pod, v1.PodStatus(phase=phase))


@asynccontextmanager
async def serving(node: Node, root: Path) -> AsyncIterator[tuple[AsyncioLoop, str]]:
    path = socket_path(str(root))
    assert path == str(root / "pods-api" / "pods-api.sock")
    async with open_asyncio_loop() as loop, trio.open_nursery() as nursery:
        await nursery.start(node.service.run, loop, path)
        yield loop, path
        nursery.cancel_scope.cancel()


def ask(path: str, method: str, request: Any, answer: Any) -> Any:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        raw = channel.unary_unary(PREFIX + method)(request.SerializeToString(), timeout=30)
        return answer.FromString(raw)


def shown(pod: bytes) -> tuple[str, str]:
    told = message("Pod", memoryview(pod))
    return told["metadata"]["name"], told.get("status", {}).get("phase", "")


async def test_pods_are_told_with_their_status_in_order(tmp_path: Path) -> None:
    node = Node()
    for name in ("web", "db"):
        node.add(name, "Running")
    async with serving(node, tmp_path) as (_, path):
        listed = await trio.to_thread.run_sync(
            ask, path, "ListPods", api.ListPodsRequest(), api.ListPodsResponse
        )
        assert [shown(pod) for pod in listed.pods] == [("db", "Running"), ("web", "Running")]
        request = api.GetPodRequest(podUID="uid-web")
        one = await trio.to_thread.run_sync(ask, path, "GetPod", request, api.GetPodResponse)
        assert shown(one.pod) == ("web", "Running")
        request = api.GetPodRequest(podUID="other")
        with pytest.raises(grpc.RpcError) as caught:
            await trio.to_thread.run_sync(ask, path, "GetPod", request, api.GetPodResponse)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert caught.value.details() == "pod with UID other not found"


async def test_who_watches_hears_what_becomes_of_pods(tmp_path: Path) -> None:
    node = Node()
    web = node.add("web")
    async with serving(node, tmp_path) as (loop, path), trio.open_nursery() as nursery:
        to_test, told = trio.open_memory_channel[api.WatchPodsEvent](100)
        nursery.start_soon(_watch, loop, path, to_test)

        async def heard() -> tuple[int, tuple[str, str] | None]:
            with trio.fail_after(10):
                event = await told.receive()
            return event.type, shown(event.pod) if event.pod else None

        assert await heard() == (api.ADDED, ("web", "Pending"))
        assert await heard() == (api.INITIAL_SYNC_COMPLETE, None)
        node.say(web, "Running")
        assert await heard() == (api.MODIFIED, ("web", "Running"))
        node.add("db")
        assert await heard() == (api.ADDED, ("db", "Pending"))
        node.statuses.terminate(web)
        assert await heard() == (api.DELETED, ("web", ""))
        for uid in ("uid-web", "uid-db"):
            node.statuses.retell(uid)  # for the API server, where the object has become another one
        node.statuses.terminate(web)
        node.statuses.remove("uid-web")
        node.add("web")
        assert await heard() == (api.ADDED, ("web", "Pending"))
        nursery.cancel_scope.cancel()


async def _watch(loop: AsyncioLoop, path: str, told: trio.MemorySendChannel[api.WatchPodsEvent]) -> None:
    with connect(loop, path) as channel:
        stream = channel.stream(
            f"{PREFIX}WatchPods", api.WatchPodsRequest(), api.WatchPodsEvent, opening=10.0, capacity=1
        )
        async with stream as events:
            async for event in events:
                await told.send(event)


async def test_who_falls_behind_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKLOG", 3)
    node = Node()
    web = node.add("web")
    opened = trio.Event()
    sent: list[int] = []

    async def slow(event: Message | bytes) -> None:
        assert isinstance(event, api.WatchPodsEvent)
        sent.append(event.type)
        if event.type == api.INITIAL_SYNC_COMPLETE:
            await opened.wait()

    async with trio.open_nursery() as nursery:
        ended: list[str] = []

        async def watch() -> None:
            try:
                await node.service._watch(api.WatchPodsRequest(), slow)
            except GrpcError as exc:
                ended.append(exc.message)

        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(5):
            node.say(msgspec.structs.replace(web), f"phase-{number}")
        opened.set()
    assert ended == ["watch client channel closed"]
    assert sent == [api.ADDED, api.INITIAL_SYNC_COMPLETE, *[api.MODIFIED] * 3]
    assert node.registry.get_sample_value("kubelet_pod_watch_events_dropped_total") == 1


async def test_too_many_calls_are_refused() -> None:
    node = Node()
    for _ in range(module.BURST):
        await node.service._list(api.ListPodsRequest())
    with pytest.raises(GrpcError, match="rejected by rate limit"):
        await node.service._list(api.ListPodsRequest())

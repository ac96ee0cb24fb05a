"""The simulated runtime behind a real unix socket: gRPC, as containerd serves it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import trio

from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.errors import GrpcError
from trio_kubelet.grpc.loop import AsyncioLoop, open_asyncio_loop
from trio_kubelet.grpc.server import Answer, Send, Service
from trio_kubelet.grpc.server import serve as serve_grpc
from trio_kubelet.sim.faults import EVENTS
from trio_kubelet.sim.service import STREAMING_LISTS, SimService

# containerd keeps as many for a slow subscriber.
_EVENT_BACKLOG: Final = 1000
_WINDOW: Final = 16 << 20


class _Stream:
    """One client's event stream."""

    def __init__(self) -> None:
        self._send, self.events = trio.open_memory_channel[cri.ContainerEventResponse](_EVENT_BACKLOG)
        self.error: GrpcError | None = None

    def put(self, event: cri.ContainerEventResponse) -> None:
        """Drops the event when the client is too slow, as containerd does."""
        with contextlib.suppress(trio.WouldBlock):
            self._send.send_nowait(event)

    def close(self, error: GrpcError | None) -> None:
        self.error = error
        self._send.close()


class _CRI:
    """Both CRI services."""

    def __init__(self, service: SimService) -> None:
        self._service = service

    def services(self) -> list[Service]:
        return [
            Service(cri.DESCRIPTOR, name, {method.name: self._answer(method.name) for method in each.methods})
            for name, each in cri.DESCRIPTOR.services_by_name.items()
        ]

    def _answer(self, method: str) -> Answer:
        if method == EVENTS:
            return self._events
        if method in STREAMING_LISTS:
            return partial(self._list, method)
        return partial(self._service.call, method)

    async def _list(self, method: str, request: cri.ListContainersRequest, send: Send) -> None:
        for message in await self._service.call_streaming(method, request):
            await send(message)

    async def _events(self, request: cri.GetEventsRequest, send: Send) -> None:
        client = _Stream()
        self._service.subscribe(client)
        try:
            async for event in client.events:
                await send(event)
        finally:
            self._service.events.unsubscribe(client)
        if client.error is not None:
            raise client.error


async def _serve(
    service: SimService,
    path: str,
    loop: AsyncioLoop,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves while the runtime is up, and anew after each restart, for ever."""
    serving = partial(serve_grpc, loop, path, _CRI(service).services(), window=_WINDOW, max_message=_WINDOW)
    while True:
        async with trio.open_nursery() as nursery:
            await nursery.start(serving)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            await service.turned()
            nursery.cancel_scope.cancel()
        if not service.is_up:
            await service.turned()


@contextlib.asynccontextmanager
async def serve(service: SimService, path: str) -> AsyncIterator[None]:
    """Serves on a unix socket until the context is left; `service.run` has to be running.

    A socket that an earlier process left behind is replaced. Raises OSError if the socket cannot be made.
    """
    async with open_asyncio_loop() as loop, trio.open_nursery() as nursery:
        await nursery.start(_serve, service, path, loop)
        yield
        nursery.cancel_scope.cancel()

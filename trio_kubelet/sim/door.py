"""The simulated runtime behind the CRI door, in memory: no sockets, no threads, Trio's clock.

This is what the deterministic simulation of the agent runs against. Everything above the `Caller` seam
(requests, checks, deadlines, fall-backs) is the code that talks to a real runtime.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from google.protobuf.message import Message

from trio_kubelet.cri.caller import CallHook, M
from trio_kubelet.cri.connect import CRIServices
from trio_kubelet.cri.doors import Caller, ContainerEvent
from trio_kubelet.cri.errors import CRIError, DeadlineExceeded
from trio_kubelet.cri.event_queue import EventQueue
from trio_kubelet.cri.services import ImageService, RuntimeService
from trio_kubelet.grpc.errors import Code
from trio_kubelet.sim.faults import EVENTS
from trio_kubelet.sim.service import STREAMING_LISTS, SimService


class SimCaller(Caller):
    """Carries CRI calls to a `SimService` in the same process."""

    def __init__(self, service: SimService, on_call: CallHook | None = None) -> None:
        self._service = service
        self._on_call = on_call

    def connection(self) -> int:
        return self._service.generation

    async def unary(
        self, method: str, request: Message, response: type[M], timeout: float, enough: int | None = None
    ) -> M:
        (answer,) = await self.raw(method, request, timeout)
        return response.FromString(answer)

    async def raw(self, method: str, request: Message, timeout: float) -> Sequence[bytes]:
        begin, code = trio.current_time(), Code.CANCELLED
        try:
            with trio.fail_after(timeout):
                if method in STREAMING_LISTS:
                    answers = await self._service.call_streaming(method, request)
                else:
                    answer = await self._service.call(method, request)
                    answers = [answer if isinstance(answer, bytes) else answer.SerializeToString()]
            code = Code.OK
        except trio.TooSlowError:
            code = Code.DEADLINE_EXCEEDED
            raise DeadlineExceeded("context deadline exceeded", method) from None
        except CRIError as exc:
            code = exc.code
            raise
        finally:
            if self._on_call is not None:
                self._on_call(method, trio.current_time() - begin, code)
        return answers

    @asynccontextmanager
    async def events(self, capacity: int) -> AsyncIterator[AsyncIterator[ContainerEvent]]:
        await trio.lowlevel.checkpoint()
        queue = EventQueue(capacity)
        try:
            self._service.subscribe(queue)
        except CRIError as exc:
            if exc.code is not Code.UNIMPLEMENTED:
                raise
            queue.close(exc)  # a real runtime says so only in answer to the open stream
        if self._on_call is not None:
            self._on_call(EVENTS, 0.0, Code.OK)
        try:
            yield queue
        finally:
            self._service.events.unsubscribe(queue)


def sim_services(service: SimService, *, on_call: CallHook | None = None) -> CRIServices:
    """The CRI door of a simulated runtime, whose `run` has to be running."""
    caller = SimCaller(service, on_call)
    return CRIServices(RuntimeService(caller), ImageService(caller))

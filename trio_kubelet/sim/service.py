"""The simulated runtime as a service: what the gRPC server and the in-memory door both offer.

Around the answers stand the faults that a script injects, the runtime's restarts, and the event streams.
`run` has to be running for anything to happen between calls.
"""

from __future__ import annotations

from typing import Final

import trio
from google.protobuf.message import Message

from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.cri.errors import CRIError, Unavailable, Unimplemented, cri_error
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim.answers import Answer, Answers, ExecScript
from trio_kubelet.sim.events import EventFeed, Subscriber
from trio_kubelet.sim.faults import EVENTS, Fault, Faults, Kind
from trio_kubelet.sim.runtime import SimRuntime

BATCH: Final = 1000
"""Records per message of a streaming list, as containerd sends them."""

STREAMING_LISTS: Final[dict[str, str]] = {
    "StreamPodSandboxes": "ListPodSandbox",
    "StreamContainers": "ListContainers",
    "StreamContainerStats": "ListContainerStats",
    "StreamImages": "ListImages",
}
"""Each streaming list and its unary twin; requests and answers have the same fields."""

# Field 1000, length-delimited: no CRI message has it, so every reader skips it.
_PADDING_TAG: Final = b"\xc2\x3e"


class SimService:
    """Answers CRI calls for a `SimRuntime`, as reliably as `faults` allows.

    Methods in `unimplemented` are answered with UNIMPLEMENTED, as by an older runtime. The other arguments
    are those of `Answers`.
    """

    def __init__(
        self,
        runtime: SimRuntime,
        clock: Clock,
        *,
        faults: Faults | None = None,
        unimplemented: frozenset[str] = frozenset(),
        shared_events: bool = False,
        exec_script: ExecScript | None = None,
        write_logs: bool = False,
    ) -> None:
        self.faults = faults or Faults()
        self.unimplemented = unimplemented
        self.events = EventFeed(self.faults, shared_events)
        self.generation = 0
        self.calls: dict[str, int] = {}
        self._answers = Answers(runtime, clock, exec_script, write_logs)
        self._in_flight: dict[trio.CancelScope, None] = {}
        self._is_up = True
        self._turned = trio.Event()
        self._wake = trio.Event()
        self._listen()

    def _listen(self) -> None:
        self.runtime.listeners.append(self.events.publish)
        self.runtime.on_plan.append(self._poke)

    def _poke(self) -> None:
        self._wake.set()

    @property
    def runtime(self) -> SimRuntime:
        """The state; another one after a restart that lost it."""
        return self._answers.runtime

    @property
    def is_up(self) -> bool:
        """Whether it answers at all."""
        return self._is_up

    def now_ns(self) -> int:
        """The runtime's time."""
        return self._answers.now_ns()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Lets time pass for the containers, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.events.run)
            task_status.started()
            while True:
                self.runtime.advance(self.now_ns())
                due = self.runtime.next_due_ns()
                self._wake = trio.Event()
                wait = float("inf") if due is None else max(due - self.now_ns(), 0) / NANOSECONDS
                with trio.move_on_after(wait):
                    await self._wake.wait()

    async def restart(self, seconds: float, lose_state: bool = False) -> None:
        """The runtime process goes away for a while: calls in flight and the event streams fail.

        Its containers live on, as containerd's do, unless the state is lost. A restart of a runtime that is
        down already does nothing.
        """
        if not self._is_up:
            return
        self._turn(False)
        for scope in tuple(self._in_flight):
            scope.cancel()
        self.events.end(Unavailable("connection error: the runtime went away", EVENTS))
        try:
            await trio.sleep(seconds)
        finally:
            if lose_state:
                self.lose_state()
            self.generation += 1
            self._turn(True)

    def _turn(self, is_up: bool) -> None:
        self._is_up = is_up
        self._turned.set()
        self._turned = trio.Event()

    async def turned(self) -> None:
        """Waits until the runtime goes away or comes back."""
        await self._turned.wait()

    def lose_state(self) -> None:
        """All sandboxes and containers are gone without a trace; images stay."""
        for listeners in (self.runtime.listeners, self.runtime.on_end, self.runtime.on_plan):
            listeners.clear()
        self._answers.use(self.runtime.emptied())
        self._listen()
        self._poke()

    async def call(self, method: str, request: Message) -> Answer:
        """The answer to one unary call, a message or its bytes; raises CRIError."""
        await trio.lowlevel.checkpoint()
        self.calls[method] = self.calls.get(method, 0) + 1
        fault = self.faults.for_call(method)
        if fault is not None and fault.kind is Kind.RESTART:
            await self.restart(fault.seconds, fault.lose)
            raise Unavailable("connection error: the runtime was restarted", method)
        if not self._is_up:
            raise Unavailable("connection error: the runtime is down", method)
        with trio.CancelScope() as scope:
            self._in_flight[scope] = None
            try:
                return await self._with_fault(method, request, fault)
            except CRIError as exc:
                exc.method = method
                raise
            finally:
                del self._in_flight[scope]
        raise Unavailable("connection error: the runtime went away", method)

    async def call_streaming(self, method: str, request: Message) -> list[bytes]:
        """The answer to a streaming list: messages of `BATCH` records each."""
        if method in self.unimplemented or method not in STREAMING_LISTS:
            raise Unimplemented(f"unknown method {method} for service runtime.v1.RuntimeService", method)
        unary = STREAMING_LISTS[method]
        request_class = getattr(cri, f"{unary}Request")
        answer = await self.call(unary, request_class.FromString(request.SerializeToString()))
        return _in_batches(answer if isinstance(answer, bytes) else answer.SerializeToString())

    def subscribe(self, subscriber: Subscriber) -> None:
        """Opens an event stream; raises CRIError as the call would."""
        if EVENTS in self.unimplemented:
            raise Unimplemented(
                "unknown method GetContainerEvents for service runtime.v1.RuntimeService", EVENTS
            )
        if not self._is_up:
            raise Unavailable("connection error: the runtime is down", EVENTS)
        self.calls[EVENTS] = self.calls.get(EVENTS, 0) + 1
        self.events.subscribe(subscriber)

    async def _with_fault(self, method: str, request: Message, fault: Fault | None) -> Answer:
        kind = fault.kind if fault is not None else None
        if fault is not None and kind is Kind.SLOW:
            await trio.sleep(fault.seconds / 2)
        elif kind is Kind.HANG:
            await trio.sleep_forever()
        elif fault is not None and kind is Kind.FAIL:
            raise cri_error(fault.status, fault.message, method)
        if method in self.unimplemented:
            raise Unimplemented(f"unknown method {method} for service runtime.v1.RuntimeService", method)
        answer = await self._answers.answer(method, request)
        if fault is not None and kind is Kind.SLOW:
            await trio.sleep(fault.seconds / 2)
        if fault is not None and kind is Kind.AMBIGUOUS:
            raise cri_error(fault.status, fault.message, method)
        if fault is not None and kind is Kind.HUGE and isinstance(answer, bytes):
            return answer + _padding(fault.size)
        return answer


def _padding(size: int) -> bytes:
    length, varint = size, bytearray()
    while length > 127:
        varint.append(length & 127 | 128)
        length >>= 7
    varint.append(length)
    return _PADDING_TAG + bytes(varint) + bytes(size)


def _in_batches(answer: bytes) -> list[bytes]:
    """A serialized list answer cut into messages of `BATCH` fields; all its fields are length-delimited."""
    out, begin, at, records = [], 0, 0, 0
    while at < len(answer):
        _, at = _varint(answer, at)
        length, at = _varint(answer, at)
        at += length
        records += 1
        if records == BATCH or at >= len(answer):
            out.append(answer[begin:at])
            begin, records = at, 0
    return out


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] > 127:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1

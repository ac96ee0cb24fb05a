"""The gRPC channel to a runtime's unix socket: grpclib on Trio, behind the `Caller` seam.

Two HTTP/2 connections per socket. One carries ordinary calls and the event stream with protobuf messages; the
other carries the lists, whose answers are passed on as raw bytes, so that megabytes of list neither become
Python objects nor stand in the way of a small call. The agent makes most calls by `cri.direct`: grpclib
takes a millisecond of CPU for each, half of all that a node at rest needs, and with asyncio three megabytes
of memory. Left to it are large requests, and calls beyond the number that may have connections of their own.

What is left to the callers: back-off after `Unavailable` (a channel connects anew at the next call, by
itself), and finding out whether a call that ended in an error was executed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import trio
from google.protobuf.message import Message

from trio_kubelet.common.places import Places
from trio_kubelet.cri.answers import MAX_MESSAGE
from trio_kubelet.cri.caller import PATHS, CallHook, M
from trio_kubelet.cri.connection import MAX_REQUEST
from trio_kubelet.cri.direct import DirectCalls, Listening
from trio_kubelet.cri.doors import BeginSpan, Caller, CallSpan, ContainerEvent, ExecResult, Repeat
from trio_kubelet.cri.errors import CRIError, Internal, cri_error
from trio_kubelet.cri.event_queue import EventQueue
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.channel import Channel
from trio_kubelet.grpc.errors import Code, GrpcError, deadline_exceeded, dial_error
from trio_kubelet.grpc.loop import AsyncioLoop

if TYPE_CHECKING:
    from trio_kubelet.cri.repeated import Answer, RepeatedExecs

T = TypeVar("T")
Metadata: TypeAlias = Mapping[str, str] | None

# A list answer fits in one window, so that the runtime never waits for us in the middle of it.
_WINDOW: Final = 64 << 20
_OPEN_STREAM_SECONDS: Final = 30.0
# Each connection is some tens of kilobytes in the runtime, and one more thing it has to poll; to open one
# costs as much as two calls. As many stay as probes start together, and some whose answers take long. All
# looks, starts and probes that a busy runtime keeps waiting can have one for a while.
_DIRECT_CALLS: Final = 256
_DIRECT_KEPT: Final = 24
# One list after the other, for each is megabytes; but what hangs, as figures of containers may, keeps none of
# the others from being read.
_LIST_LENT: Final = 1.0
_LISTS_ASIDE: Final = 7


class GrpcCaller(Caller):
    """Carries CRI calls to the runtime behind one unix socket.

    To be created, used and closed inside the context of `loop`. Connecting happens at the first call. With
    `direct`, calls do without grpclib where they can (`cri.direct`).
    """

    def __init__(
        self,
        loop: AsyncioLoop,
        path: str,
        on_call: CallHook | None = None,
        direct: bool = False,
        begin_span: BeginSpan | None = None,
    ) -> None:
        self._loop = loop
        self._on_call = on_call
        self._begin_span = begin_span
        self._calls = Channel(loop, path, window=_WINDOW, max_message=MAX_MESSAGE)
        self._lists = Channel(loop, path, window=_WINDOW, max_message=MAX_MESSAGE)
        self._direct_calls = DirectCalls(path, _DIRECT_CALLS, _DIRECT_KEPT) if direct else None
        self._direct_lists = DirectCalls(path, 1 + _LISTS_ASIDE) if direct else None
        self._repeated: RepeatedExecs | None = None
        self._list_places = Places(1, lent=_LIST_LENT, aside=_LISTS_ASIDE)
        for calls in (self._direct_calls, self._direct_lists):
            if calls is not None:
                loop.start_soon(calls.watch)

    def close(self) -> None:
        """Closes the connections; calls in flight fail with `Unavailable`."""
        for channel in (
            self._calls,
            self._lists,
            self._direct_calls,
            self._direct_lists,
            self._repeated,
        ):
            if channel is not None:
                channel.close()

    def connection(self) -> int:
        return (self._direct_lists or self._lists).connections

    def open_streams(self) -> int:
        """How many calls and event streams are under way on the wire."""
        streams = self._calls.open_streams + self._lists.open_streams
        direct = (self._direct_calls, self._direct_lists, self._repeated)
        return streams + sum(calls.under_way() for calls in direct if calls is not None)

    def unary(
        self, method: str, request: Message, response: type[M], timeout: float, enough: int | None = None
    ) -> Coroutine[Any, Any, M]:
        direct = self._direct_calls

        async def call(deadline: float, metadata: Metadata) -> M:
            body = request.SerializeToString()
            if direct is None or direct.is_full() or len(body) > MAX_REQUEST:
                path = PATHS[method]
                with trio.fail_at(deadline):
                    return await self._calls.unary(
                        path, request, response, deadline=timeout, metadata=metadata
                    )
            messages = await direct.call(method, body, deadline, metadata, enough)
            return _one(method, response.FromString, messages)

        return self._run(method, timeout, call)

    def repeat_exec(
        self,
        request: bytes,
        decode: Callable[[bytes], ExecResult],
        timeout: float,
        due: float,
        period: float,
        passed: Callable[[float], None],
        end: Callable[[ExecResult | CRIError | None, float], None],
    ) -> Repeat | None:
        """A traced call is none of these: its span ends when it does."""
        if self._direct_calls is None or self._begin_span is not None:
            return None
        if self._repeated is None:
            from trio_kubelet.cri.repeated import RepeatedExecs  # with the first command that passed

            self._repeated = RepeatedExecs(self._calls.path)
            self._loop.start_soon(self._repeated.run)
        method, on_call = "ExecSync", self._on_call

        def has_passed(seconds: float) -> None:
            if on_call is not None:
                on_call(method, seconds, Code.OK)
            passed(seconds)

        def has_ended(answer: Answer | None, began: float) -> None:
            begun = _Begun(began, None)
            if answer is None:
                end(None, began)
                return
            try:
                found = _one(method, decode, answer())
            except Exception as exc:
                end(self._error(method, begun, exc), began)
            else:
                self._report(method, begun, Code.OK)
                end(found, began)

        return self._repeated.add(request, due, period, timeout, has_passed, has_ended)

    async def raw(self, method: str, request: Message, timeout: float) -> Sequence[bytes]:
        streaming = method.startswith("Stream")

        async def lists(deadline: float, metadata: Metadata) -> Sequence[bytes]:
            with trio.fail_at(deadline):
                if self._direct_lists is not None:
                    body = request.SerializeToString()
                    async with self._list_places:
                        messages = await self._direct_lists.call(method, body, deadline, metadata)
                else:
                    messages = await self._lists.raw(
                        PATHS[method], request, streaming=streaming, deadline=timeout, metadata=metadata
                    )
            if not messages and not streaming:
                raise Internal(_NO_ANSWER, method)
            return messages

        return await self._run(method, timeout, lists)

    @asynccontextmanager
    async def events(self, capacity: int) -> AsyncIterator[AsyncIterator[ContainerEvent]]:
        method = "GetContainerEvents"
        begun = self._begin(method)
        queue = EventQueue(capacity)
        stream = self._event_stream(method, queue, begun.metadata)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(stream)
            except (GrpcError, OSError) as exc:
                raise self._error(method, begun, exc) from exc
            self._report(method, begun, Code.OK)
            yield queue

    def _event_stream(
        self, method: str, queue: EventQueue, metadata: Metadata
    ) -> AbstractAsyncContextManager[None]:
        request = cri.GetEventsRequest()
        if self._direct_calls is not None:
            return _poured(self._direct_calls, method, request, queue, metadata)
        return self._calls.pour(
            PATHS[method],
            request,
            cri.ContainerEventResponse,
            queue,
            opening=_OPEN_STREAM_SECONDS,
            metadata=metadata,
        )

    async def _run(self, method: str, timeout: float, call: Callable[[float, Metadata], Awaitable[T]]) -> T:
        """Runs a call, which is told its deadline; whatever goes wrong in it comes out as a CRIError."""
        begun = self._begin(method)
        try:
            result = await call(begun.at + timeout, begun.metadata)
        except trio.Cancelled:
            self._report(method, begun, Code.CANCELLED)
            raise
        except Exception as exc:
            raise self._error(method, begun, exc) from exc
        self._report(method, begun, Code.OK)
        return result

    def _begin(self, method: str) -> _Begun:
        span = self._begin_span(method, self._calls.path) if self._begin_span is not None else None
        return _Begun(trio.current_time(), span)

    def _error(self, method: str, begun: _Begun, exc: Exception) -> CRIError:
        """What a call that raised this has failed with, which is reported."""
        if isinstance(exc, trio.TooSlowError):
            error: GrpcError = deadline_exceeded()
        elif isinstance(exc, GrpcError):
            error = exc
        elif isinstance(exc, OSError):
            error = dial_error(self._calls.path, exc)
        else:
            error = GrpcError(Code.INTERNAL, f"{type(exc).__name__}: {exc}")
        self._report(method, begun, error.code, error.message)
        return error if isinstance(error, CRIError) else cri_error(error.code, error.message, method)

    def _report(self, method: str, begun: _Begun, code: Code, message: str = "") -> None:
        if self._on_call is not None:
            self._on_call(method, trio.current_time() - begun.at, code)
        if begun.span is not None:
            begun.span.end(code, message)


def _one(method: str, decode: Callable[[bytes], T], messages: Sequence[bytes]) -> T:
    """The one message of an answer."""
    if len(messages) != 1:
        raise Internal(_NO_ANSWER, method)
    return decode(messages[0])


@asynccontextmanager
async def _poured(
    calls: DirectCalls, method: str, request: Message, queue: EventQueue, metadata: Metadata
) -> AsyncIterator[None]:
    """The event stream without grpclib; a task brings what comes into the queue."""
    async with AsyncExitStack() as stack:
        stream = calls.listening(method, request.SerializeToString(), metadata)
        with trio.move_on_after(_OPEN_STREAM_SECONDS) as opening:
            listening = await stack.enter_async_context(stream)
        if opening.cancelled_caught:
            raise deadline_exceeded(method)
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(_bring, listening, queue)
        yield
        nursery.cancel_scope.cancel()


async def _bring(listening: Listening, queue: EventQueue) -> None:
    """Until the stream ends, which the queue is told."""
    error: GrpcError | None = None
    try:
        await listening.run(lambda message: queue.put(cri.ContainerEventResponse.FromString(message)))
    except GrpcError as exc:
        error = exc
    except Exception as exc:  # whatever the runtime sends, the stream is opened again
        error = GrpcError(Code.INTERNAL, f"{type(exc).__name__}: {exc}")
    queue.close(error)


class _Begun(NamedTuple):
    """A call that is under way: since when, and its span if calls are traced."""

    at: float
    span: CallSpan | None

    @property
    def metadata(self) -> Metadata:
        return self.span.metadata if self.span is not None else None


_NO_ANSWER: Final = "the runtime sent no answer"

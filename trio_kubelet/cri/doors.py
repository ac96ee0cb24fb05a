"""The door to the container runtime: what carries the calls that `cri.services` makes.

Behind it stands a gRPC channel (`cri.grpc`) or a simulated runtime in memory (`sim.door`); nobody outside
`cri/` knows which.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.errors import Code


class ExecResult(NamedTuple):
    """What a command run inside a container left behind."""

    stdout: bytes
    stderr: bytes
    exit_code: int


SILENT: Final = ExecResult(b"", b"", 0)
"""Of a command that succeeded and wrote nothing, as most probes do."""


class EventsLost(enum.Enum):
    """Type of the mark that stands in an event stream where events had no room."""

    EVERYTHING_DIRTY = "everything dirty"


EVERYTHING_DIRTY: Final = EventsLost.EVERYTHING_DIRTY
"""In place of events that were dropped because the reader was slow: any pod may have changed."""

ContainerEvent = cri.ContainerEventResponse | EventsLost
"""What an event stream yields."""


M = TypeVar("M", bound=Message)


class Caller(Protocol):
    """Carries calls; every method raises CRIError, and DeadlineExceeded after `timeout` seconds."""

    async def unary(
        self, method: str, request: Message, response: type[M], timeout: float, enough: int | None = None
    ) -> M:
        """One request, one answer. Where that is large and its fields are flat, what is over `enough` bytes
        of each may be missing.
        """
        ...

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
        """Calls ExecSync at `due`, by Trio's clock, and each `period` seconds from then on, until one does
        not pass. No task waits for the answers, which is most of what a small call costs: they are looked
        for with those of others, up to an eighth of a second after they came, a quarter if they take longer
        than that.

        `passed` is told the seconds of each call with exit code 0, some time later with those of others.
        `end` is told once what `decode` makes of the answer with another one, or what it would have raised,
        and when that call began; None instead of it if the call has to be made in some other way. Nobody is
        told anything once the caller is closed. None if nothing can be repeated now.
        """
        return None

    async def raw(self, method: str, request: Message, timeout: float) -> Sequence[bytes]:
        """One request; all messages of the answer (one, or a stream's) as they came."""
        ...

    def events(self, capacity: int) -> AbstractAsyncContextManager[AsyncIterator[ContainerEvent]]:
        """The event stream; see `RuntimeService.container_events`."""
        ...

    def connection(self) -> int:
        """A number that changes when the connection does: what was learnt about the peer holds no longer."""
        ...


class Repeat(Protocol):
    """A command that is run again and again."""

    def stop(self) -> float | None:
        """Not any more. When it would have been run next; None if it is running: its end is told."""
        ...


class CallSpan(Protocol):
    """One traced call. `metadata`: headers by which the runtime joins its own spans to it."""

    @property
    def metadata(self) -> Mapping[str, str]: ...

    def end(self, code: Code, message: str = "") -> None:
        """The call is over; `message` says what it failed with."""
        ...


BeginSpan = Callable[[str, str], CallSpan]
"""Called before each call with the method's name and the runtime's socket, in the task that makes it."""

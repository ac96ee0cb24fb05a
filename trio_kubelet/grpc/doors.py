"""What the users of a channel bring along."""

from __future__ import annotations

from typing import Protocol, TypeVar

from trio_kubelet.grpc.errors import GrpcError

Taken = TypeVar("Taken", contravariant=True)


class Inlet(Protocol[Taken]):
    """Takes what a stream brings; nothing here waits."""

    def put(self, message: Taken, /) -> None:
        """Takes a message."""
        ...

    def close(self, error: GrpcError | None) -> None:
        """The stream has ended, with an error or as it should."""
        ...


class Sink(Inlet[Taken], Protocol[Taken]):
    """One on the side of asyncio."""

    async def room(self) -> None:
        """Waits, in asyncio, until there is room for one more message."""
        ...

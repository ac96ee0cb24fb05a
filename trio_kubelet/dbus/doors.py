"""What rooms that talk to services of the operating system need."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from trio_kubelet.dbus.values import Method, Signals


class Subscription(Protocol):
    """Signals that arrive, in order."""

    async def next(self) -> tuple[Any, ...] | None:
        """The values of the next signal. None: some may have been missed (there were too many, the
        connection was lost, the service started anew), so look for yourself.
        """
        ...


class Bus(Protocol):
    """A message bus."""

    async def call(self, method: Method, *arguments: Any, seconds: float) -> tuple[Any, ...]:
        """Calls a method and returns the values it answers. A file descriptor among them is a `Descriptor`,
        and the caller's to close. Raises BusError.
        """
        ...

    def subscribe(self, signals: Signals) -> AbstractAsyncContextManager[Subscription]:
        """Signals from now on, also after the connection was lost and is back. A bus that is away now is
        waited for in the background; the subscription then begins with None.
        """
        ...

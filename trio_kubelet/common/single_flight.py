"""The same question asked by many at once is asked once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Flight(Generic[V]):
    """A question that is under way; after its end with neither answer nor error it was given up."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answers: list[V] = []
        self.error: Exception | None = None


class SingleFlight(Generic[K, V]):
    """Questions by their key. One task asks, the others wait for what it finds; when that task is cancelled
    (its client left), the next one asks itself.
    """

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[V]] = {}

    async def ask(self, key: K, look_up: Callable[[], Awaitable[V]]) -> V:
        """What `look_up` returns or raises, called by whoever came first."""
        while (flight := self._flights.get(key)) is not None:
            await flight.done.wait()
            if flight.error is not None:
                raise flight.error
            if flight.answers:
                return flight.answers[0]
        flight = self._flights[key] = _Flight[V]()
        try:
            answer = await look_up()
            flight.answers.append(answer)
        except Exception as exc:
            flight.error = exc
            raise
        finally:
            del self._flights[key]
            flight.done.set()
        return answer

"""What each pod's round is at while it takes: what a pod waits for when it does not come up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from trio_kubelet.common.clock import Clock


class RoundStep(NamedTuple):
    """A part of a round, and when it began."""

    name: str
    since_ns: int


class RoundSteps:
    """The step under way, by pod UID; a pod whose round is over has none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: dict[str, RoundStep] = {}

    @contextmanager
    def at(self, uid: str, name: str) -> Iterator[None]:
        """While this step of the pod's round is under way."""
        self._steps[uid] = RoundStep(name, self._clock.now_ns())
        try:
            yield
        finally:
            self._steps.pop(uid, None)

    def of(self, uid: str) -> RoundStep | None:
        """The pod's step now."""
        return self._steps.get(uid)

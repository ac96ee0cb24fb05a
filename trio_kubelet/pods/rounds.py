"""What each pod's round is at while it takes, and why containers could not be started in the last one: what
a pod waits for when it does not come up.
"""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple

from trio_kubelet.common.clock import Clock
from trio_kubelet.pods.status.containers import Reasons
from trio_kubelet.runtime.results import PodSyncResult


class RoundStep(NamedTuple):
    """A part of a round, and when it began."""

    name: str
    since_ns: int


class _UnderWay:
    """A step for as long as this is entered. Each round has four, and by a generator each cost a hundredth of
    it.
    """

    __slots__ = ("_step", "_steps", "_uid")

    def __init__(self, steps: dict[str, RoundStep], uid: str, step: RoundStep) -> None:
        self._steps, self._uid, self._step = steps, uid, step

    def __enter__(self) -> None:
        self._steps[self._uid] = self._step

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._steps.pop(self._uid, None)


class RoundSteps:
    """The step under way, by pod UID; a pod whose round is over has none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: dict[str, RoundStep] = {}

    def at(self, uid: str, name: str) -> _UnderWay:
        """To be entered: while this step of the pod's round is under way."""
        return _UnderWay(self._steps, uid, RoundStep(name, self._clock.now_ns()))

    def lasting(self, ns: int) -> dict[str, RoundStep]:
        """The steps that have been under way for so long, by UID."""
        if not self._steps:
            return {}
        since = self._clock.now_ns() - ns
        return {uid: step for uid, step in self._steps.items() if step.since_ns <= since}

    def of(self, uid: str) -> RoundStep | None:
        """The pod's step now."""
        return self._steps.get(uid)


class ReasonCache:
    """Reason and message by pod UID and container name; one that started has none."""

    def __init__(self) -> None:
        self._reasons: dict[str, dict[str, tuple[str, str]]] = {}

    def update(self, uid: str, result: PodSyncResult) -> bool:
        """Takes what a sync led to; whether any reason is new or gone."""
        before = self._reasons.get(uid, {})
        after = dict(before)
        for start in result.start_results():
            if start.reason is None:
                after.pop(start.target, None)
            else:
                after[start.target] = (start.reason.value, start.message)
        if after:
            self._reasons[uid] = after
        else:
            self._reasons.pop(uid, None)
        return after != before

    def get(self, uid: str) -> Reasons:
        """The reasons of one pod's containers."""
        return self._reasons.get(uid, {})

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._reasons.pop(uid, None)

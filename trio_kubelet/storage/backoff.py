"""When an operation that failed may be tried again (kubelet: `exponentialbackoff`). Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from trio_kubelet.common.backoff import Pauses

PAUSES: Final = Pauses(0.5, 122.0)
"""Seconds: 2 minutes and 2 seconds, so that two different operations on a volume do not meet for ever."""


Key = tuple[str, str]
"""A volume's unique name and a pod's UID, "" for an operation that is for none."""


class OperationBackOff:
    """The failures of operations, each under its key. A different operation on a volume is not held back by
    the failures of the one before.
    """

    def __init__(self) -> None:
        self._failures: dict[Key, tuple[str, int, float]] = {}  # kind, how often, when the pause ends

    def failed(self, key: Key, kind: str, now: float) -> float:
        """The operation failed at `now`; returns the seconds to wait."""
        before = self._failures.get(key)
        failures = before[1] + 1 if before is not None else 1
        pause = PAUSES.after(failures)
        self._failures[key] = (kind, failures, now + pause)
        return pause

    def succeeded(self, key: Key) -> None:
        """Nothing is held back any longer."""
        self._failures.pop(key, None)

    def forget(self, volume: str) -> None:
        """The volume is gone, and with it what failed for pods that are gone."""
        for key in [key for key in self._failures if key[0] == volume]:
            del self._failures[key]

    def forget_pod(self, uid: str) -> None:
        """The pod is gone; volumes that it never had, or that others have, may stay for long."""
        for key in [key for key in self._failures if key[1] == uid]:
            del self._failures[key]

    def ready_at(self, key: Key, kind: str) -> float:
        """From when on this operation may run, by the clock that was given."""
        before = self._failures.get(key)
        return before[2] if before is not None and before[0] == kind else 0.0

    def hurry(self, volumes: Collection[str]) -> None:
        """What operations on these volumes waited for has come: they may run at once; their pauses do not
        start over.
        """
        for key, (kind, failures, _) in self._failures.items():
            if key[0] in volumes:
                self._failures[key] = (kind, failures, 0.0)

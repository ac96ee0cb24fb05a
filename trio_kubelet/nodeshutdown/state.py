"""Whether the node goes down, as admission and the Node's status ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.pods.admission.admitter import Reject

NOT_READY: Final = "node is shutting down"
_REFUSED: Final = Reject("NodeShutdown", "Pod was rejected as the node is shutting down.")


class NodeShutdown:
    """`changed` tells when it turns."""

    def __init__(self) -> None:
        self.changed: Listeners[[]] = Listeners()
        self._is_going_down = False

    def errors(self) -> list[str]:
        """Why the node is not ready."""
        return [NOT_READY] if self._is_going_down else []

    def refusal(self, pod: v1.Pod) -> Reject | None:
        """A node that goes down takes no pods."""
        return _REFUSED if self._is_going_down else None

    @contextmanager
    def going_down(self) -> Iterator[None]:
        """It does so meanwhile."""
        self._turn(True)
        try:
            yield
        finally:
            self._turn(False)

    def _turn(self, going_down: bool) -> None:
        self._is_going_down = going_down
        self.changed.tell()

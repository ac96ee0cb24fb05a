"""Who hears of a piece of news: the one way in which what is made later is told by what was made before.

    self.changed: Listeners[[str]] = Listeners()     # in its owner's constructor; what is told: a UID
    statuses.changed.listen(self._status_changed)    # where the agent is put together
    self.changed.tell(uid)                           # by the owner

Without listeners news are told to nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(Generic[P]):
    """Called at once and in the order they joined; they must neither wait nor raise."""

    def __init__(self) -> None:
        self._all: list[Callable[P, None]] = []

    def listen(self, listener: Callable[P, None]) -> None:
        """Tells `listener` as well from now on."""
        self._all.append(listener)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Tells everybody."""
        for each in self._all:
            each(*args, **kwargs)

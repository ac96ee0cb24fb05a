"""Saying once what is in the way of something that is tried again and again."""

from __future__ import annotations


class Trouble:
    """What is in the way, as was said last."""

    __slots__ = ("_why",)

    def __init__(self) -> None:
        self._why = ""

    def is_new(self, why: str) -> bool:
        """Whether this has to be said: it was not in the way the last time."""
        before, self._why = self._why, why
        return why != before

    def over(self) -> None:
        """Nothing is in the way now; what comes next is new."""
        self._why = ""

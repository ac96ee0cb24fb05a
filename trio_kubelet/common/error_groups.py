"""What is in the exception groups that nurseries raise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def leaves(group: BaseExceptionGroup[E]) -> Iterator[E]:
    """The errors in a group and in the groups in it."""
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from leaves(each)
        else:
            yield each

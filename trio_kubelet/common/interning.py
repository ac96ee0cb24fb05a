"""One object for equal values.

A node keeps thousands of small values (users, resources, mounts of containers) that are mostly the same few.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def shared(value: T) -> T:
    """The value, or an equal one that was asked for lately. Only for values that nobody changes."""
    same: T = _lately(value)
    return same


@lru_cache(maxsize=1024)
def _lately(value: T) -> T:
    return value

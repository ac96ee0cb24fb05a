"""Blocking work on volumes, by volume: what hangs holds up that volume alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import PERSISTENT_VOLUMES, Lane, WorkHangs
from trio_kubelet.storage.errors import Ending, OperationError

T = TypeVar("T")


async def in_thread(
    volume: str, function: Callable[..., T], *args: object, lane: Lane = PERSISTENT_VOLUMES
) -> T:
    """Calls the function in a thread, one at a time for each volume. Raises OperationError."""
    try:
        return await lane.run(function, *args, owner=volume)
    except WorkHangs as error:
        raise OperationError(f"work on the volume's files hangs: {error}", Ending.UNCERTAIN) from error
    except (OSError, ValueError) as error:  # a path may hold what no path can
        raise OperationError(error_words(error)) from error

"""What the readers of both versions of cgroups share."""

from __future__ import annotations

import os

from trio_kubelet.native.pure_figures import MAX


def times(value: int, factor: int) -> int:
    """A counter in a smaller unit."""
    return min(value * factor, MAX)


def no_limit(value: int) -> int:
    """A limit, 0 for none."""
    return 0 if value == MAX else value


def created(directory: str, steady: str) -> int:
    """When a cgroup was made: its directory changes with each one made below, this file does not."""
    found = []
    for path in (directory, f"{directory}/{steady}"):
        try:
            found.append(os.stat(path).st_mtime_ns)
        except OSError:
            continue
    return min(found, default=0)

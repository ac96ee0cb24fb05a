"""The machine's NUMA nodes, from sysfs."""

from __future__ import annotations

import os
import re
from typing import Final

_NODES: Final = "/sys/devices/system/node"


def numa_nodes(directory: str = _NODES) -> tuple[int, ...]:
    """Their numbers; (0,) on a machine that does not tell. Blocking, but for a few microseconds in sysfs."""
    try:
        names = os.listdir(directory)
    except OSError:
        return (0,)
    found = (re.fullmatch(r"node(\d+)", name) for name in names)
    return tuple(sorted(int(match[1]) for match in found if match)) or (0,)

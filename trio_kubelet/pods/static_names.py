"""Who may run under a static pod's full name: at most one pod at a time, the others wait in order.

Two versions of a static pod must never run side by side: they would share host ports, host paths and the
mirror pod. A pod that its source drops while it waits simply leaves the line, so of three quick edits only
the last one runs. An orphan from before a restart holds the name as well, until it is gone.
"""

from __future__ import annotations


class StaticNames:
    """The lines of UIDs by full name; who stands first holds the name."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def claim(self, full_name: str, uid: str) -> bool:
        """Joins the line unless it stands there already; whether the name is held by `uid` now."""
        line = self._lines.setdefault(full_name, [])
        if uid not in line:
            line.append(uid)
        return line[0] == uid

    def release(self, full_name: str, uid: str) -> str | None:
        """Leaves the line; the UID whose turn has come by that, if any."""
        line = self._lines.get(full_name)
        if line is None or uid not in line:
            return None
        held = line[0] == uid
        line.remove(uid)
        if not line:
            del self._lines[full_name]
            return None
        return line[0] if held else None

    def holder(self, full_name: str) -> str | None:
        """The UID that holds the name."""
        line = self._lines.get(full_name)
        return line[0] if line else None

    def holders(self) -> dict[str, str]:
        """All names that are held, with their holders."""
        return {name: line[0] for name, line in self._lines.items()}

    def line(self, full_name: str) -> tuple[str, ...]:
        """All UIDs in line, the holder first."""
        return tuple(self._lines.get(full_name, ()))

"""What one run of a probe found."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Verdict(enum.StrEnum):
    """What one run of a probe found."""

    SUCCESS = "success"
    WARNING = "warning"  # counts as success, but is told
    FAILURE = "failure"
    UNKNOWN = "unknown"


class Outcome(NamedTuple):
    """One run of a probe; `error` says why it could not be run at all (such a run does not count)."""

    verdict: Verdict
    output: str = ""
    error: str | None = None

"""What probes found: one run of a probe, and the verdicts that others go by."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

import msgspec


class Verdict(enum.StrEnum):
    """What one run of a probe found."""

    SUCCESS = "success"
    WARNING = "warning"  # counts as success, but is told
    FAILURE = "failure"
    UNKNOWN = "unknown"


class Outcome(NamedTuple):
    """One run of a probe; `error` says why it could not be run at all (such a run does not count).

    `lasting`: what it ran into would be the same at once.
    """

    verdict: Verdict
    output: str = ""
    error: str | None = None
    lasting: bool = False

    @property
    def passed(self) -> bool:
        """Whether it counts for the container; a warning does."""
        return self.verdict in (Verdict.SUCCESS, Verdict.WARNING)


class ProbeResult(enum.StrEnum):
    """The last verdict of a probe."""

    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class ProbeReadings(msgspec.Struct, frozen=True):
    """Verdicts by container id; a container without an entry has not been probed yet."""

    liveness: Mapping[str, ProbeResult] = {}
    startup: Mapping[str, ProbeResult] = {}


class ProbeKind(enum.StrEnum):
    """The three probes of a container."""

    LIVENESS = "liveness"
    READINESS = "readiness"
    STARTUP = "startup"


class ProbeUpdate(NamedTuple):
    """A probe's verdict changed."""

    kind: ProbeKind
    pod_uid: str
    container_id: str
    result: ProbeResult


class ProbeView(msgspec.Struct, frozen=True):
    """Verdicts by container id as the status generation wants them.

    `active` False: nobody probes, every running container counts as started and ready.
    `kept_before_ns`: containers that ran well before it keep what was said of them; 0: none do.
    """

    active: bool = False
    readiness: Mapping[str, ProbeResult] = {}
    startup: Mapping[str, ProbeResult] = {}
    kept_before_ns: int = 0

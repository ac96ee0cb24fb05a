"""A worker's attempt at its work: what it hears meanwhile, what it reports, and when the next one is due."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.finishing import Finishing
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.pods.worker_state import Stage


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt hears while it goes on. Without a worker nobody breaks it off."""

    newest: Callable[[], PodStatus | None] = lambda: None  # what was last seen of the pod
    is_ending: Callable[[], bool] = lambda: False  # whether the pod is to end by now
    finishing: Finishing = msgspec.field(default_factory=Finishing)  # hears before it is broken off


class SyncReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt led to.

    `acted`: something was done in the runtime, so look at the pod again; `unlisted`: no list shows what it
    was, so that look has to read the status. `error` is "" when all went well.
    `retry_at_ns`: the earliest moment at which trying again makes sense (a back-off's end).
    """

    terminal: bool = False
    acted: bool = False
    unlisted: bool = False
    error: str = ""
    retry_at_ns: int | None = None
    transient: bool = False  # the cause is expected to be gone in a moment (network not ready yet)


class WorkerPeriods(msgspec.Struct, frozen=True, kw_only=True):
    """When workers come round again; seconds.

    `resync` after success (`syncFrequency`), `back_off` after a failed sync, `transient` while the network is
    not ready; the kubelet's values, each stretched by up to half at random. Stopping and cleaning up is
    tried again after `ending_first`, doubling up to `back_off`. `stuck` is when a busy worker is reported.
    """

    resync: float = 60.0
    back_off: float = 10.0
    transient: float = 1.0
    ending_first: float = 1.0
    jitter: float = 0.5
    stuck: float = 300.0


def pause_before_next(
    stage: Stage, report: SyncReport, failures: int, now_ns: int, periods: WorkerPeriods, random_part: float
) -> float:
    """Seconds until a worker that has done its work in `stage` comes round again; `random_part` in [0, 1).

    A crash-looping container is started when its back-off is over, not a fraction of a minute later.
    """
    stretch = 1 + periods.jitter * random_part
    if report.retry_at_ns is not None:
        wait = (report.retry_at_ns - now_ns) / 1e9
        return min(max(wait, 0.0), periods.resync)
    if not report.error:
        return periods.resync * stretch
    if report.transient:
        return periods.transient * stretch
    if stage is Stage.SYNCING:
        return periods.back_off * stretch
    return Pauses(periods.ending_first, periods.back_off).after(max(failures, 1)) * stretch


def due_at(now: float, pause: float, report: SyncReport) -> float:
    """The moment, on Trio's clock, of a round that is `pause` seconds away.

    A round that only makes sure that all is well begins with a full second, together with those of other
    pods: with a thousand pods the agent would else be woken a dozen times in each second.
    """
    if report.error or report.retry_at_ns is not None or pause < _LONG:
        return now + pause
    return math.ceil(now + pause)


_LONG = 10.0
"""Seconds; of a longer pause a part of a second does not matter."""

"""RFC 3339 timestamps as the Kubernetes API writes them, to and from nanoseconds since the epoch."""

from __future__ import annotations

import calendar
import functools
import re
import time

from trio_kubelet.common.clock import NANOSECONDS

ZERO_TIME = "0001-01-01T00:00:00Z"
"""How Go writes a moment that is not set."""
_PATTERN = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)\Z"
)


def _whole(ns: int) -> str:
    return _second(ns // NANOSECONDS)


@functools.lru_cache(maxsize=256)
def _second(seconds: int) -> str:
    moment = time.gmtime(seconds)
    # The C library does not fill up a year before 1000.
    return f"{moment.tm_year:04d}{time.strftime('-%m-%dT%H:%M:%S', moment)}"


def rfc3339(ns: int) -> str:
    """Whole seconds, as `metav1.Time` is written: `2026-11-21T08:54:28Z`."""
    return _whole(ns) + "Z"


def rfc3339_micro(ns: int) -> str:
    """Always six digits, as `metav1.MicroTime` is written (leases, events)."""
    return f"{_whole(ns)}.{ns % NANOSECONDS // 1000:06d}Z"


def rfc3339_nano(ns: int) -> str:
    """As Go's `time.RFC3339Nano`: up to nine digits, trailing zeros left out."""
    fraction = f"{ns % NANOSECONDS:09d}".rstrip("0")
    return f"{_whole(ns)}{'.' + fraction if fraction else ''}Z"


def rfc3339_nano_fixed(ns: int) -> str:
    """Always nine digits, as the kubelet writes `kubernetes.io/config.seen`."""
    return f"{_whole(ns)}.{ns % NANOSECONDS:09d}Z"


@functools.lru_cache(maxsize=1024)
def parse_rfc3339(text: str) -> int:
    """Nanoseconds since the epoch. Raises ValueError naming the text."""
    match = _PATTERN.match(text)
    if match is None:
        raise ValueError(f"not an RFC 3339 timestamp: {text!r}")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        raise ValueError(f"not an RFC 3339 timestamp: {text!r}")
    seconds = calendar.timegm((year, month, day, hour, minute, second))
    zone = match[8]
    if zone not in "Zz":
        offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return seconds * NANOSECONDS + int((match[7] or "").ljust(9, "0"))

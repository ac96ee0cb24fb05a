"""Durations in Go's text form (`1h2m3.5s`), as flags and the configuration file write them."""

from __future__ import annotations

import re
from typing import Final

_UNIT_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5
    "μs": 1_000,  # U+03BC
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_MAX_NS: Final = (1 << 63) - 1
_PART: Final = re.compile(r"([0-9]*)(\.[0-9]*)?([a-zµμ]+)")


def parse_duration(text: str) -> float:
    """Seconds of a Go duration; ValueError says what is wrong with any other text."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return 0.0
    if not body:
        raise ValueError(f"invalid duration {text!r}")
    total, position = 0, 0
    while position < len(body):
        part = _PART.match(body, position)
        if part is None:
            if re.fullmatch(r"[0-9]*\.?[0-9]+|[0-9]+\.", body[position:]):
                raise ValueError(f"missing unit in duration {text!r}")
            raise ValueError(f"invalid duration {text!r}")
        whole, fraction, unit = part.group(1), (part.group(2) or "")[1:], part.group(3)
        if not whole and not fraction:
            raise ValueError(f"invalid duration {text!r}")
        if unit not in _UNIT_NS:
            raise ValueError(f"unknown unit {unit!r} in duration {text!r}")
        total += int(whole or "0") * _UNIT_NS[unit]
        if fraction:
            total += int(fraction) * _UNIT_NS[unit] // 10 ** len(fraction)
        position = part.end()
    if total > _MAX_NS:
        raise ValueError(f"duration {text!r} is out of range")
    return (-total if text[0] == "-" else total) / 1e9


def format_duration(seconds: float) -> str:
    """Go's text for a duration in seconds: `1m0s`, `100ms`, `1.5µs`, `0s`."""
    nanos = round(seconds * 1e9)
    sign, nanos = ("-", -nanos) if nanos < 0 else ("", nanos)
    if nanos == 0:
        return "0s"
    if nanos < 1_000_000_000:
        for unit in ("ms", "µs", "ns"):
            if nanos >= _UNIT_NS[unit]:
                return f"{sign}{_decimal(nanos, _UNIT_NS[unit])}{unit}"
    minutes, nanos = divmod(nanos, _UNIT_NS["m"])
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(nanos, _UNIT_NS['s'])}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else sign + text


def _decimal(nanos: int, unit: int) -> str:
    """`nanos / unit` as an exact decimal without trailing zeros."""
    whole, rest = divmod(nanos, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{str(rest).zfill(len(str(unit)) - 1).rstrip('0')}"

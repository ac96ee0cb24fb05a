"""A token bucket: how much may come at once and how much a second after that. Pure, the time comes in."""

from __future__ import annotations

_ROUNDING = 1e-6
"""Tokens and seconds that may be lost in the arithmetic."""


class TokenBucket:
    """`burst` at once, `rate` a second on average. Times in seconds of any one clock; one that is set back
    fills nothing and takes nothing.
    """

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._at = float("inf")

    def try_take(self, now: float) -> bool:
        """Takes a token if there is one."""
        self._fill(now)
        if self._tokens < 1 - _ROUNDING:
            return False
        self._tokens -= 1
        return True

    def reserve(self, now: float) -> float:
        """Takes a token, now or in the future; the seconds to wait for it."""
        self._fill(now)
        self._tokens -= 1
        wait = -self._tokens / self._rate
        return wait if wait > _ROUNDING else 0.0

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now

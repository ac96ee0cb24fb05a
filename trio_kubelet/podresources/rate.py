"""A token bucket: how many calls may come at once and how many a second after that. Pure."""

from __future__ import annotations


class TokenBucket:
    """Allows `burst` calls at once and `rate` a second on average; the time comes in with each question."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._at: float | None = None

    def allow(self, now: float) -> bool:
        """Whether one more may come now; if so it is counted."""
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

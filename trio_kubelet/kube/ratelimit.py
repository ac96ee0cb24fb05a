"""How many requests a client may make: client-go's token bucket, first come, first served."""

from __future__ import annotations

import trio

DEFAULT_QPS = 5.0
DEFAULT_BURST = 10
_ROUNDING = 1e-6


class TokenBucket:
    """`burst` at once, `qps` a second after that. Times in seconds of any one clock."""

    def __init__(self, qps: float, burst: int) -> None:
        self._interval = 1 / qps
        self._depth = (burst - 1) * self._interval
        self._next = float("-inf")
        """When the bucket would be full again if nothing more came, less its depth."""

    def reserve(self, now: float) -> float:
        """Takes a token, now or in the future; the seconds to wait for it."""
        self._next = max(self._next, now - self._depth)
        wait = self._next - now
        self._next += self._interval
        return wait if wait > _ROUNDING else 0.0

    async def wait(self) -> float:
        """Waits for a token; the seconds that took."""
        pause = self.reserve(trio.current_time())
        if pause:
            await trio.sleep(pause)
        return pause


def bucket_for(qps: float, burst: int, times: int = 1) -> TokenBucket | None:
    """What a client's configuration means: 0 is client-go's default, a negative rate is no limit.

    `times`: how often that much a lane may take.
    """
    if qps < 0:
        return None
    return TokenBucket((qps or DEFAULT_QPS) * times, (burst if burst > 0 else DEFAULT_BURST) * times)

"""How long to wait after failures. Pure.

The rule of all who try again, but for containers and images, whose pauses start over after a quiet time
(`runtime/backoff.py`). The count of failures and chance come from who waits:
`await trio.sleep(PAUSES.after(failures, random()))`. Who asks what many nodes ask as well, the API server
above all, has `jitter`.
"""

from __future__ import annotations

import random
from typing import NamedTuple

_ENOUGH = 64  # factors: by then every limit is reached, and floats end at 2**1024


class Pauses(NamedTuple):
    """Seconds between attempts: `first` after the first failure, then `factor` times as long up to `most`.

    `jitter`: by which part of itself a pause may be longer, so that those who failed together do not come
    back together.
    """

    first: float
    most: float
    factor: float = 2.0
    jitter: float = 0.0

    def after(self, failures: int, chance: float = 0.0) -> float:
        """The pause after so many failures in a row, none after none; `chance` in [0, 1)."""
        if failures <= 0:
            return 0.0
        pause = min(self.most, self.first * self.factor ** min(failures - 1, _ENOUGH))
        return pause * (1 + self.jitter * chance)


def generator(given: random.Random | None) -> random.Random:
    """`given`, else a generator of the caller's own. Its seed is drawn from the process's generator, not from
    the kernel: who seeds that one, as the tests do, sees the same jitter again.
    """
    return given or random.Random(random.random())

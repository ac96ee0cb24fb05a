"""Exponential back-off by key, for restarts of containers and pulls of images. Plain state, time comes in.

Follows the rules of the kubelet's `flowcontrol.Backoff`: the first failure waits the initial time,
each further one twice as long up to the maximum, and a key whose events stay away long enough
starts anew. The first restart of a container is immediate because nothing is known of it until it
has been restarted once.
"""

from __future__ import annotations

from typing import NamedTuple

from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS

CRASH_LOOP_INITIAL = 10.0
CRASH_LOOP_MAX = 300.0
CRASH_LOOP_RESET = 600.0
REDUCED_CRASH_LOOP_INITIAL = 1.0
REDUCED_CRASH_LOOP_MAX = 60.0
IMAGE_PULL_INITIAL = 10.0
IMAGE_PULL_MAX = 300.0


class _Entry(NamedTuple):
    """The delay of a key, when and for an attempt where it was set, and the one before."""

    delay: int
    updated: int
    where: str | None = None
    before: tuple[int, int] | None = None


_NONE = _Entry(0, 0)


class BackOff:
    """Delays by key. All moments in nanoseconds since the epoch, durations in seconds.

    `reset_after`: an event that comes longer than this after the last delay was set finds the key as new.
    """

    def __init__(self, initial: float, maximum: float, reset_after: float) -> None:
        self._initial = round(initial * NANOSECONDS)
        self._maximum = round(maximum * NANOSECONDS)
        self._reset_after = round(reset_after * NANOSECONDS)
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def delay_ns(self, key: str) -> int:
        """The present delay, 0 for an unknown key."""
        return self._entries.get(key, _NONE).delay

    def next(self, key: str, event_ns: int, now_ns: int, where: str | None = None) -> None:
        """Lengthens the delay after an attempt (`where` it was made); `event_ns` is the moment of the failure
        behind it.
        """
        entry = self._entries.get(key)
        if entry is None or self._is_over(entry, event_ns):
            delay = self._initial
        else:
            delay = min(entry.delay * 2, self._maximum)
        self._entries[key] = _Entry(delay, now_ns, where, entry and entry[:2])

    def take_back(self, key: str, where: str, since_ns: int) -> None:
        """The last attempt does not count if it was made there and later: the key is as it was before."""
        entry = self._entries.get(key, _NONE)
        if entry.where != where or entry.updated <= since_ns:
            return
        del self._entries[key]
        if entry.before is not None:
            self._entries[key] = _Entry(*entry.before)

    def waits_since_event(self, key: str, event_ns: int, now_ns: int) -> bool:
        """Whether less than the delay has passed since the event (end of a container)."""
        entry = self._entries.get(key)
        return entry is not None and not self._is_over(entry, event_ns) and _waits(entry, event_ns, now_ns)

    def waits_since_update(self, key: str, now_ns: int) -> bool:
        """Whether less than the delay has passed since the delay was set (failed pull)."""
        entry = self._entries.get(key)
        return entry is not None and not self._is_over(entry, now_ns) and _waits(entry, entry.updated, now_ns)

    def ends_at_ns(self, key: str) -> int:
        """When the delay since the last update ends; 0 for an unknown key."""
        entry = self._entries.get(key, _NONE)
        return entry.delay + entry.updated

    def collect(self, now_ns: int) -> list[str]:
        """Drops keys that would start anew anyway and returns them."""
        over = [key for key, entry in self._entries.items() if self._is_over(entry, now_ns)]
        for key in over:
            del self._entries[key]
        return over

    def _is_over(self, entry: _Entry, event_ns: int) -> bool:
        return event_ns - entry.updated > self._reset_after


def _waits(entry: _Entry, since_ns: int, now_ns: int) -> bool:
    """Whether the delay has not passed. Where it began later than now, as the clock was set back, it has."""
    return 0 <= now_ns - since_ns < entry.delay


def crash_loop_back_off(maximum: float = CRASH_LOOP_MAX, initial: float = CRASH_LOOP_INITIAL) -> BackOff:
    """For container restarts: `initial` doubling to `maximum`.

    A container that ran for ten minutes starts anew, whatever the maximum (kubelet: a fixed 600 s).
    """
    return BackOff(min(initial, maximum), maximum, CRASH_LOOP_RESET)


def image_pull_back_off() -> BackOff:
    """For image pulls: 10 s doubling to 5 minutes, anew after ten minutes without a failure."""
    return BackOff(IMAGE_PULL_INITIAL, IMAGE_PULL_MAX, 2 * IMAGE_PULL_MAX)


def container_back_off_key(pod: v1.Pod, container: v1.Container) -> str:
    """The key of a container's restarts; another image or other resources start anew (kubelet:
    `GetBackoffKey`).
    """
    meta = pod.metadata
    resources = (
        sorted((container.resources.limits or {}).items()),
        sorted((container.resources.requests or {}).items()),
    )
    return "/".join((meta.name, meta.namespace, meta.uid, container.name, container.image, repr(resources)))

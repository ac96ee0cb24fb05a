"""Which images go: records of what is there and what is used, and the order of removal. Pure.

The rules are the kubelet's (`images.realImageGCManager`). Moments are seconds of a clock that only goes on,
so that a clock change makes no image old; nothing is kept over a restart, after which no image counts as old
before it could have been used for `max_age`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

_GIB = 1024**3


class ImagePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When images are removed; percent of the image filesystem, ages in seconds, `max_age` 0 for none."""

    high: int = 85
    low: int = 80
    min_age: float = 120.0
    max_age: float = 0.0

    @property
    def off(self) -> bool:
        """Whether nothing is ever removed, but under disk pressure."""
        return self.high == 100 and not self.max_age


class FoundImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image the runtime has. Names are its tags and digests."""

    id: str
    size: int = 0
    pinned: bool = False
    handler: str = ""  # the runtime handler it was pulled for
    names: tuple[str, ...] = ()


class ImageRecord(msgspec.Struct, frozen=True):
    """An image with what is known of its past: when it was first seen, and last seen in use (None: never)."""

    image: FoundImage
    detected: float
    used: float | None = None


Records = Mapping[str, ImageRecord]
"""By ID of the image."""


def recorded(before: Records, found: Iterable[FoundImage], in_use: Collection[str], now: float) -> Records:
    """The records after one look."""
    records = {}
    for image in found:
        known = before.get(image.id)
        detected, used = (known.detected, known.used) if known is not None else (now, None)
        records[image.id] = ImageRecord(image, detected, now if image.id in in_use else used)
    return records


def removable(records: Records, in_use: Collection[str]) -> list[ImageRecord]:
    """Images that nothing uses and the runtime does not keep, the longest unused first."""
    found = [each for id, each in records.items() if id not in in_use and not each.image.pinned]
    return sorted(found, key=lambda each: (-1.0 if each.used is None else each.used, each.detected))


def too_old(order: Iterable[ImageRecord], policy: ImagePolicy, now: float, began: float) -> list[ImageRecord]:
    """Images that were not used for longer than they may be; none before that much time has passed since
    `began`, when the agent started to see what is used.
    """
    if not policy.max_age or now - began <= policy.max_age:
        return []
    return [each for each in order if each.used is None or now - each.used > policy.max_age]


def is_young(record: ImageRecord, policy: ImagePolicy, now: float) -> bool:
    """Whether the image may have been pulled for a container that is only about to use it."""
    return now - record.detected < policy.min_age


def to_free(policy: ImagePolicy, capacity: int, available: int) -> tuple[int, int]:
    """Percent in use of the filesystem, and bytes to free: 0 under the high threshold."""
    usage = 100 - min(available, capacity) * 100 // capacity
    if usage < policy.high:
        return usage, 0
    return usage, capacity * (100 - policy.low) // 100 - min(available, capacity)


def shown_size(size: int) -> str:
    """A size as the kubelet's events have it."""
    if size < 1024:
        return f"{size} B"
    for unit, factor in (("KiB", 1024), ("MiB", 1024**2), ("GiB", _GIB)):
        if size < factor * 1024:
            return f"{size / factor:.1f} {unit}"
    return f"{size / (_GIB * 1024):.1f} TiB"

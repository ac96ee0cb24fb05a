"""Sums and comparisons of resource quantities, as whole numbers of 10⁻⁹.

Kubernetes keeps no more than nine decimal places of a quantity, so an integer of that unit is exact and
cheap to add, which a pod's requests and limits need many times over.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from trio_kubelet.api import quantity as quantities

UNIT = 10**9

Amounts: TypeAlias = dict[str, int]
"""Resource name to amount in 10⁻⁹ of its unit."""


@lru_cache(maxsize=4096)
def amount(quantity: str) -> int:
    """The quantity in 10⁻⁹ of its unit; "" is 0. Raises ValueError."""
    if not quantity:
        return 0
    parsed = quantities.parse(quantity)
    number, exponent = (
        (parsed.amount, parsed.scale) if parsed.dec is None else (parsed.dec[0], -parsed.dec[1])
    )
    return int(number * 10 ** (exponent - quantities.NANO))


def whole(nanos: int) -> int:
    """Units, rounded up (Go: `Quantity.Value`)."""
    return -(-nanos // UNIT)


def milli(nanos: int) -> int:
    """Thousandths, rounded up (Go: `Quantity.MilliValue`)."""
    return -(-nanos // 10**6)


def counted(resource: str, nanos: int) -> int:
    """An amount as nodes count it: CPU in thousandths, others in units, rounded up."""
    return milli(nanos) if resource == "cpu" else whole(nanos)


def amounts(resources: Mapping[str, str] | None) -> Amounts:
    """A resource list as numbers."""
    return {name: amount(quantity) for name, quantity in (resources or {}).items()}


def add(total: Amounts, more: Mapping[str, int]) -> None:
    """Adds `more` to `total` in place."""
    for name, number in more.items():
        total[name] = total.get(name, 0) + number


def raise_to(total: Amounts, other: Mapping[str, int]) -> None:
    """Raises each entry of `total` to that of `other` where that is larger or new."""
    for name, number in other.items():
        if name not in total or number > total[name]:
            total[name] = number


def huge_page_size_name(size: int) -> str:
    """A page size in bytes as cgroups name it: 2MB, 1GB."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1024 or size % 1024:
            return f"{size}{unit}"
        size //= 1024
    return f"{size}PB"

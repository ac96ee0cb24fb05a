"""Which sets come out when one of each of several collections is taken and all are intersected. Pure.

There are as many ways to take one of each as the product of their sizes, but a set of n elements has only 2^n
subsets. In how many ways the outcome contains a subset S is a product: of the number of sets in each
collection that contain S. From these the number of ways in which it is exactly S follows by inclusion and
exclusion. Both steps add up whole tables of 2^n numbers at once, each a field of one large integer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from operator import mul


def intersections(elements: int, collections: Sequence[Collection[int]]) -> list[int]:
    """All outcomes but the empty one. Sets are masks of the elements 0 … `elements` - 1; none is empty."""
    size = 1 << elements
    ways = [1] * size
    for sets in collections:
        ways = list(map(mul, ways, _supersets(elements, sets)))
    width = elements * len(collections) // 8 + 1  # bytes that hold every product
    table = int.from_bytes(b"".join([number.to_bytes(width, "little") for number in ways]), "little")
    for element, fields in enumerate(_without(elements, width)):
        table -= (table >> (width * 8 << element)) & fields  # never below zero: it counts something
    exact = table.to_bytes(width * size, "little")
    nothing = bytes(width)
    return [mask for mask in range(1, size) if exact[mask * width : (mask + 1) * width] != nothing]


def _supersets(elements: int, sets: Collection[int]) -> Sequence[int]:
    """For each subset, how many of the sets contain it."""
    size = 1 << elements
    width = (elements + 7) // 8  # bytes: without the empty set there are fewer than 2^elements
    present = bytearray(size * width)
    for mask in sets:
        present[mask * width] = 1
    table = int.from_bytes(present, "little")
    for element, fields in enumerate(_without(elements, width)):
        table += (table >> (width * 8 << element)) & fields
    counts = table.to_bytes(size * width, "little")
    if width == 1:
        return counts
    return [int.from_bytes(counts[at : at + width], "little") for at in range(0, len(counts), width)]


@lru_cache(maxsize=64)
def _without(elements: int, width: int) -> tuple[int, ...]:
    """For each element all bits of the fields, of `width` bytes each, whose subset does not have it."""
    full = b"\xff" * width
    return tuple(
        int.from_bytes(
            b"".join(bytes(width) if mask >> element & 1 else full for mask in range(1 << elements)), "little"
        )
        for element in range(elements)
    )

"""`--sort-by`, as kubectl orders objects by a path. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cmp_to_key
from typing import Any

from trio_kubelet.api import quantity
from trio_kubelet.commands.jsonpath.steps import JSONPathError
from trio_kubelet.commands.jsonpath.template import JSONPath


def order_by(path: JSONPath, objects: Sequence[Mapping[str, Any]]) -> list[int]:
    """The places of the objects in their new order: by what the path leads to first, those without it at the
    beginning. Texts that are quantities are compared as such.

    Raises JSONPathError when the path leads nowhere in any of them, or to what has no order.
    """
    found = [(path.find(each) or [[]])[0][:1] for each in objects]
    if objects and not any(found):
        raise JSONPathError("--sort-by: none of them has such a field")
    by_value = cmp_to_key(_order)
    return sorted(range(len(found)), key=lambda place: by_value(found[place]))


def _order(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Below 0 when `one` comes before `other`, 0 where it does not matter."""
    a, b = (each[0] if each else None for each in (one, other))
    if a is None or b is None:
        return (a is not None) - (b is not None)
    if type(a) is not type(b) or isinstance(a, bool) or not isinstance(a, str | int | float):
        raise JSONPathError("--sort-by: what that field holds has no order")
    if isinstance(a, str):
        try:
            return quantity.parse(a).compare(quantity.parse(b))
        except quantity.QuantityError:
            pass  # text
    return int(a > b) - int(a < b)

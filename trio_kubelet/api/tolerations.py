"""Which taints a toleration covers. Pure."""

from __future__ import annotations

import re
from typing import Final

from trio_kubelet.api import v1

COMPARISONS: Final = ("Lt", "Gt")
"""Operators that compare numbers (KEP-5471, gate TaintTolerationComparisonOperators)."""

_DECIMAL: Final = re.compile(r"0|-?[1-9][0-9]*")


def tolerates(toleration: v1.Toleration, taint: v1.Taint, *, comparing: bool = False) -> bool:
    """Whether a toleration covers a taint; `comparing`: `Lt` and `Gt` count."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return toleration.value == taint.value
        case "Lt" | "Gt" if comparing:
            return _compares(toleration, taint)
    return False


def decimal_integer(text: str, bits: int) -> int | None:
    """The number, None for what is none of so many bits or is written with a plus or needless zeros."""
    if len(text) > 20 or not _DECIMAL.fullmatch(text):
        return None
    number, limit = int(text), 1 << (bits - 1)
    return number if -limit <= number < limit else None


def _compares(toleration: v1.Toleration, taint: v1.Taint) -> bool:
    wanted, given = decimal_integer(toleration.value, 64), decimal_integer(taint.value, 64)
    if wanted is None or given is None:
        return False
    return given < wanted if toleration.operator == "Lt" else given > wanted

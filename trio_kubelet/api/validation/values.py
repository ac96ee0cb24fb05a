"""Amounts inside a pod: parsed quantities while a manifest is made, plain text afterwards."""

from __future__ import annotations

from trio_kubelet.api.quantity import ZERO, Quantity, parse


def amount(text: str) -> Quantity:
    return text if isinstance(text, Quantity) else parse(text or "0")


def is_negative(text: str) -> bool:
    return amount(text).compare(ZERO) < 0

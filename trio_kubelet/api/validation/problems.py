"""Collects what is wrong, in the words of the API: required, invalid, unsupported, …"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from trio_kubelet.api.errors import FieldError
from trio_kubelet.api.quantity import ZERO, Quantity, parse
from trio_kubelet.api.tree import json_text
from trio_kubelet.common.log import go_quote


def amount(text: str) -> Quantity:
    return text if isinstance(text, Quantity) else parse(text or "0")


def is_negative(text: str) -> bool:
    return amount(text).compare(ZERO) < 0


T = TypeVar("T", str, int)


class Problems:
    """The errors found so far. `here` in the methods is the path of the field to blame.

    Texts are those of Kubernetes, as it logs them for a static pod that it refuses.
    """

    def __init__(self) -> None:
        self.found: list[FieldError] = []

    def add(self, here: str, reason: str, why: str = "") -> None:
        self.found.append(FieldError(here, f"{reason}: {why}" if why else reason))

    def required(self, here: str, why: str = "") -> None:
        self.add(here, "Required value", why)

    def invalid(self, here: str, value: object, why: str) -> None:
        """`value` is shown as JSON has it, or as Go quotes texts."""
        self.add(here, f"Invalid value: {shown(value)}", why)

    def unsupported(self, here: str, value: str, supported: Iterable[str]) -> None:
        """`supported` in the order in which they are told."""
        values = ", ".join(map(shown, supported))
        self.add(here, f"Unsupported value: {shown(value)}", f"supported values: {values}")

    def duplicate(self, here: str, value: str) -> None:
        self.add(here, f"Duplicate value: {shown(value)}")

    def forbidden(self, here: str, why: str) -> None:
        self.add(here, "Forbidden", why)

    def missing(self, here: str, value: str, why: str = "") -> None:
        self.add(here, f"Not found: {shown(value)}", why)

    def too_long(self, here: str, limit: int) -> None:
        self.add(here, "Too long", f"may not be more than {limit} bytes")

    def too_many(self, here: str, count: int, limit: int) -> None:
        self.add(here, f"Too many: {count}", f"must have at most {limit} items")

    def check(self, here: str, value: T, problems: Callable[[T], list[str]]) -> bool:
        """Blame the field for each thing that its format says is wrong; whether all is well."""
        wrong = problems(value)
        for why in wrong:
            self.invalid(here, value, why)
        return not wrong

    def named(self, here: str, value: str, problems: Callable[[str], list[str]]) -> None:
        """A name that must be there and have a format."""
        if value:
            self.check(here, value, problems)
        else:
            self.required(here)

    def one_of(self, here: str, value: str, supported: Sequence[str]) -> None:
        """A word from a list; an empty one is missing."""
        if not value:
            self.required(here)
        elif value not in supported:
            self.unsupported(here, value, supported)

    def not_negative(self, here: str, value: int) -> None:
        if value < 0:
            self.invalid(here, value, "must be greater than or equal to 0")

    def file_mode(self, here: str, mode: int | None) -> None:
        if mode is not None and not 0 <= mode <= 0o777:
            self.invalid(here, mode, "must be a number between 0 and 0777 (octal), both inclusive")


def shown(value: object) -> str:
    """A value in an error of the API."""
    if isinstance(value, str):
        return go_quote(value)
    return json_text(value)

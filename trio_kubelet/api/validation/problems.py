"""Collects what is wrong, in the vocabulary of the API: required, invalid, unsupported, …"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from trio_kubelet.api.errors import FieldError
from trio_kubelet.api.quantity import ZERO, Quantity, parse


def amount(text: str) -> Quantity:
    return text if isinstance(text, Quantity) else parse(text or "0")


def is_negative(text: str) -> bool:
    return amount(text).compare(ZERO) < 0


T = TypeVar("T", str, int)


class Problems:
    """The errors found so far. `here` in the methods is the path of the field to blame."""

    def __init__(self) -> None:
        self.found: list[FieldError] = []

    def add(self, here: str, reason: str) -> None:
        self.found.append(FieldError(here, reason))

    def required(self, here: str, why: str = "") -> None:
        self.add(here, f"is required{': ' if why else ''}{why}")

    def invalid(self, here: str, value: object, why: str) -> None:
        shown = repr(str(value)) if isinstance(value, str) else value
        self.add(here, f"{shown} is invalid: {why}")

    def unsupported(self, here: str, value: str, supported: Iterable[str]) -> None:
        self.add(here, f"{value!r} is not supported, only {', '.join(sorted(supported))}")

    def duplicate(self, here: str, value: str) -> None:
        self.add(here, f"{value!r} is there twice")

    def forbidden(self, here: str, why: str) -> None:
        self.add(here, f"is forbidden: {why}")

    def missing(self, here: str, value: str) -> None:
        self.add(here, f"{value!r} does not exist")

    def check(self, here: str, value: T, problem: Callable[[T], str | None]) -> bool:
        """Blame the field if its value has not the format; whether all is well."""
        why = problem(value)
        if why is not None:
            self.invalid(here, value, why)
        return why is None

    def named(self, here: str, value: str, problem: Callable[[str], str | None]) -> None:
        """A name that must be there and have a format."""
        if value:
            self.check(here, value, problem)
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
            self.invalid(here, value, "must not be negative")

    def file_mode(self, here: str, mode: int | None) -> None:
        if mode is not None and not 0 <= mode <= 0o777:
            self.invalid(here, mode, "must be a file mode between 0 and 0777 (octal)")

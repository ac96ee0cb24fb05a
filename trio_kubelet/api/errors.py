"""Errors in a manifest: always a field and a reason, and all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class FieldError(NamedTuple):
    """One thing that is wrong: the field as Kubernetes names it ("" for the whole) and why."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" if self.field else self.reason


class ManifestError(ValueError):
    """A manifest that is refused, with every reason found."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = tuple(errors)


def aggregate_errors(errors: Iterable[str]) -> str:
    """Several errors as one text, as Kubernetes joins them: each once, several in brackets."""
    different = list(dict.fromkeys(errors))
    return different[0] if len(different) == 1 else f"[{', '.join(different)}]"

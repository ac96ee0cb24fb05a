"""Errors in a manifest, always a field and a reason and all of them at once; what the readers of YAML and
JSON give back, or raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

MAX_DEPTH: Final = 200
"""Deepest nesting accepted. Kubernetes stops at 10,000; no manifest comes near either."""


class FieldError(NamedTuple):
    """One thing that is wrong: the field as Kubernetes names it ("" for the whole) and why."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" if self.field else self.reason


class ManifestError(ValueError):
    """A manifest that is refused, with every reason found."""

    def __init__(self, errors: Sequence[FieldError], text: str = "") -> None:
        super().__init__(text or "; ".join(map(str, errors)))
        self.errors = tuple(errors)


class InvalidPod(ManifestError):
    """A pod that breaks rules of the API, told as the kubelet tells it."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__(errors, f"invalid pod: [{' '.join(map(str, errors))}]")


def aggregate_errors(errors: Iterable[str]) -> str:
    """Several errors as one text, as Kubernetes joins them: each once, several in brackets."""
    different = list(dict.fromkeys(errors))
    return different[0] if len(different) == 1 else f"[{', '.join(different)}]"


class Duplicate(NamedTuple):
    """A key that stands twice in one mapping; the later one wins."""

    key: str
    line: int


class Document(NamedTuple):
    """A decoded body and the keys that were given twice."""

    value: Any
    duplicates: tuple[Duplicate, ...]


class DecodeError(ValueError):
    """The bytes are not valid YAML or JSON; line and column count from 1, 0 where unknown."""

    def __init__(self, problem: str, line: int = 0, column: int = 0) -> None:
        where = f"line {line}, column {column}: " if line else ""
        super().__init__(where + problem)
        self.problem, self.line, self.column = problem, line, column

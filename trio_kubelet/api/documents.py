"""What the readers of YAML and JSON give back, or raise."""

from __future__ import annotations

from typing import Any, NamedTuple


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

"""`-o custom-columns=`: a table of what paths lead to in each object. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trio_kubelet.commands.jsonpath.parse import parse_relaxed
from trio_kubelet.commands.jsonpath.steps import JSONPathError
from trio_kubelet.commands.jsonpath.template import JSONPath


@dataclass(frozen=True)
class Columns:
    """Titles, and below each what its path leads to."""

    titles: Sequence[str]
    paths: Sequence[JSONPath]

    def row(self, content: Any) -> list[str]:
        """The cells of one object. Raises JSONPathError."""
        return [_cell(path.find(content)) for path in self.paths]


def parse_columns(text: str) -> Columns:
    """Columns from `TITLE:PATH,TITLE:PATH`. Raises JSONPathError."""
    parts = [part.partition(":") for part in text.split(",")]
    if not all(colon for _, colon, _ in parts):
        raise JSONPathError(f"{text!r} are no columns such as NAME:.metadata.name,IP:.status.podIP")
    return Columns([title for title, _, _ in parts], [parse_relaxed(path) for _, _, path in parts])


def parse_columns_file(text: str) -> Columns:
    """Columns from a line of titles and a line of paths. Raises JSONPathError."""
    titles, paths = (line.split() for line in [*text.splitlines(), "", ""][:2])
    if not titles or len(titles) != len(paths):
        raise JSONPathError("columns are a line of titles and a line of as many paths")
    return Columns(titles, [parse_relaxed(path) for path in paths])


def _cell(found: Sequence[Sequence[Any]]) -> str:
    values = [as_go_prints(value) for values in found for value in values]
    return ",".join(values) if values else "<none>"


def as_go_prints(value: Any) -> str:
    """A value as `%v` prints it."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{as_go_prints(inner)}' for key, inner in sorted(value.items()))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(as_go_prints, value))}]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)

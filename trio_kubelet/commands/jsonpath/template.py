"""A template that was parsed, filled in with an object. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from trio_kubelet.commands.jsonpath.steps import Step, Value, bounded, run

_FOR_HTML = str.maketrans(
    {"<": r"\u003c", ">": r"\u003e", "&": r"\u0026", "\u2028": r"\u2028", "\u2029": r"\u2029"}
)


@dataclass(frozen=True)
class PathBlock:
    """`{.a.b}`, or text between braces."""

    steps: Sequence[Step]


@dataclass(frozen=True)
class Range:
    """`{range .a[*]} … {end}`: what is inside, for each value that the steps lead to."""

    steps: Sequence[Step]
    inside: Sequence[PathBlock | Range]


@dataclass(frozen=True)
class JSONPath:
    """What `-o jsonpath=` says."""

    parts: Sequence[PathBlock | Range]

    def find(self, content: Value) -> list[list[Value]]:
        """What each block leads to, in order. Raises JSONPathError."""
        return _find(self.parts, content)

    def text(self, content: Value) -> str:
        """What kubectl prints for `-o jsonpath`. Raises JSONPathError."""
        return "".join(" ".join(map(_as_text, values)) for values in self.find(content))

    def json(self, content: Value) -> str:
        """What kubectl prints for `-o jsonpath-as-json`. Raises JSONPathError."""
        return "".join(as_json(values, indent=4) + "\n" for values in self.find(content))


def _find(parts: Sequence[PathBlock | Range], content: Value) -> list[list[Value]]:
    found: list[list[Value]] = []
    for part in parts:
        values = run(part.steps, [content])
        if isinstance(part, PathBlock):
            found.append(values)
        else:
            found = bounded(chain(found, *(_find(part.inside, value) for value in values)))
    return found


def _as_text(value: Value) -> str:
    return as_json(value) if isinstance(value, dict | list) else plain(value)


def as_json(value: Value, *, indent: int | None = None) -> str:
    """The value as Go's encoding/json writes it: keys sorted, safe within HTML."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, indent=indent, sort_keys=True, separators=separators, ensure_ascii=False)
    return text.translate(_FOR_HTML)


def plain(value: Value) -> str:
    """A single value as Go's fmt prints it."""
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)

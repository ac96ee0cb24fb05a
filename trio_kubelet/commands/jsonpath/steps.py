"""The steps of a path: each takes the values found so far and gives those it leads to. Pure.

Values are those of decoded JSON. What is not there is left out, as kubectl does by default; what cannot be
meant (an index of an object, a comparison of text with a number) is a JSONPathError.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

Value = Any
Step = Callable[[Sequence[Value]], list[Value]]

MAX_RESULTS: Final = 1_000_000
"""How many values a step may give: `..` several times in a row gives more than anybody reads."""


class JSONPathError(ValueError):
    """The template is not understood, or does not fit what it is filled in with."""


@dataclass(frozen=True)
class Bounds:
    """What stands between brackets: `[start:end:step]`; `single` for `[start]`."""

    start: int | None
    end: int | None
    step: int | None
    single: bool


def run(steps: Sequence[Step], values: Sequence[Value]) -> list[Value]:
    """What all steps, one after the other, lead to. Raises JSONPathError."""
    found = list(values)
    for step in steps:
        found = step(found)
    return found


def bounded(values: Iterable[Value]) -> list[Value]:
    """The values as a list. Raises JSONPathError when they are too many."""
    found = list(itertools.islice(values, MAX_RESULTS + 1))
    if len(found) > MAX_RESULTS:
        raise JSONPathError(f"more than {MAX_RESULTS} results")
    return found


def text(said: str) -> Step:
    """Text that stands for itself, whatever was found so far."""
    return lambda values: [said]


def literal(value: Value) -> Step:
    """A number, `true` or `false`."""
    return lambda values: [value] * len(values)


def field(name: str) -> Step:
    """The field of that name of each object."""
    return lambda values: [value[name] for value in values if isinstance(value, dict) and name in value]


def wildcard(values: Sequence[Value]) -> list[Value]:
    """All that is directly in each object, list or text."""
    return bounded(child for value in values for child in _children(value))


def recursive(values: Sequence[Value]) -> list[Value]:
    """Each value that has something in it and all such below it, the outer before the inner."""
    return bounded(_descent(values))


def _descent(values: Sequence[Value]) -> Iterator[Value]:
    open_ = [iter(values)]
    while open_:
        for value in open_[-1]:
            if children := _children(value):
                yield value
                open_.append(iter(children))
                break
        else:
            open_.pop()


def _children(value: Value) -> Sequence[Value]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list):
        return value
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else ()


def elements(bounds: Bounds) -> Step:
    """The elements of each list between the bounds; negative ones count from the end."""

    def step(values: Sequence[Value]) -> list[Value]:
        found: list[Value] = []
        for value in values:
            if value is None:
                continue
            if not isinstance(value, list):
                raise JSONPathError(f"{_kind(value)} is not array or slice")
            chosen = _slice(value, bounds)
            if chosen is None:
                return found
            found += chosen
        return bounded(found)

    return step


def _slice(value: list[Value], bounds: Bounds) -> list[Value] | None:
    """None when nothing is asked for, which ends the step, as with kubectl."""
    length = len(value)
    start = bounds.start or 0
    end = start + 1 if bounds.single else bounds.end
    if start < 0:
        start += length
    if end is None:
        end = length
    elif end < 0 or (end == 0 and bounds.single):
        end += length
    if start == end:
        return None
    if not 0 <= start < length:
        raise JSONPathError(f"array index out of bounds: index {start}, length {length}")
    if not 0 <= end <= length:
        raise JSONPathError(f"array index out of bounds: index {end - 1}, length {length}")
    if start > end:
        raise JSONPathError(f"starting index {start} is greater than ending index {end}")
    if bounds.step is not None and bounds.step <= 0:
        raise JSONPathError("step must be > 0")
    return value[start : end : bounds.step or 1]


def union(branches: Sequence[Sequence[Step]]) -> Step:
    """What the first branch leads to, then what the second does, and so on."""
    return lambda values: bounded(each for branch in branches for each in run(branch, values))


def having(path: Sequence[Step]) -> Step:
    """The elements of each list from which the path leads to something: `[?(@.x)]`."""

    def is_there(element: Value) -> bool:
        try:
            return bool(run(path, [element]))
        except JSONPathError:
            return False

    return lambda values: bounded(filter(is_there, _all_elements(values)))


def comparing(left: Sequence[Step], operator: str, right: Sequence[Step]) -> Step:
    """The elements of each list for which the comparison holds: `[?(@.x=="y")]`."""

    def holds(element: Value) -> bool:
        lefts = run(left, [element])
        rights = run(right, [element]) if lefts else []
        if len(lefts) > 1 or len(rights) > 1:
            raise JSONPathError("can only compare one element at a time")
        return bool(lefts and rights) and _compare(lefts[0], operator, rights[0])

    return lambda values: bounded(filter(holds, _all_elements(values)))


def _all_elements(values: Sequence[Value]) -> Iterator[Value]:
    for value in values:
        if not isinstance(value, list):
            raise JSONPathError(f"{_kind(value)} is not array or slice and cannot be filtered")
        yield from value


def _compare(left: Value, operator: str, right: Value) -> bool:
    kinds = {_kind(left), _kind(right)}
    if not kinds <= {"bool", "int64", "float64", "string"}:
        raise JSONPathError("invalid type for comparison")
    if len(kinds) > 1:
        raise JSONPathError("incompatible types for comparison")
    if operator in ("==", "!="):
        return (left == right) is (operator == "==")
    if operator not in ("<", "<=", ">", ">="):
        raise JSONPathError(f"unrecognized filter operator {operator}")
    if kinds == {"bool"}:
        raise JSONPathError("invalid type for comparison")
    before = bool(left < right)
    return {"<": before, "<=": before or left == right, ">": bool(right < left), ">=": not before}[operator]


def _kind(value: Value) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "bool", int: "int64", float: "float64"}
    return names.get(type(value), "null")

"""Label selectors as kubectl's `-l` takes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Labels = Mapping[str, str]
Selector = Callable[[Labels], bool]

_NAME = "[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_KEY = rf"(?:{_LABEL}(?:\.{_LABEL})*/)?{_NAME}"
_VALUE = f"(?:{_NAME})?"
_NUMBER = re.compile("[0-9]+")
_ONE = re.compile(
    rf"\s*(?:(?P<absent>!)?\s*(?P<alone>{_KEY})"
    rf"|(?P<key>{_KEY})\s*(?P<sign>==|=|!=)\s*(?P<value>{_VALUE})"
    rf"|(?P<number>{_KEY})\s*(?P<than>[<>])\s*(?P<bound>[0-9]+)"
    rf"|(?P<of>{_KEY})\s+(?P<word>in|notin)\s*\((?P<values>\s*{_VALUE}\s*(?:,\s*{_VALUE}\s*)*)\))"
    r"\s*(?:,(?!\s*$)|$)"
)
"""One requirement and the comma behind it, by the rules of `labels.Parse` of apimachinery."""


def parse_selector(text: str) -> Selector:
    """What tells whether labels meet all requirements of the text. Raises ValueError."""
    found: list[Selector] = []
    at = 0
    while at < len(text):
        one = _ONE.match(text, at)
        if one is None:
            raise ValueError(f"{text!r} is no label selector such as app=web,tier!=cache,env in (a, b)")
        found.append(_requirement(one))
        at = one.end()
    return lambda labels: all(each(labels) for each in found)


def _requirement(one: re.Match[str]) -> Selector:
    if (alone := one["alone"]) is not None:
        wanted = one["absent"] is None
        return lambda labels: (alone in labels) is wanted
    if (number := one["number"]) is not None:
        bound, greater = int(one["bound"]), one["than"] == ">"
        return lambda labels: _is_beyond(labels.get(number, ""), bound, greater)
    if (key := one["key"]) is not None:
        values, equal = {one["value"]}, one["sign"] != "!="
    else:
        key, equal = one["of"], one["word"] == "in"
        values = {value.strip() for value in one["values"].split(",")}
    # As the API has it: a label that is not there has none of the values.
    return lambda labels: (key in labels and labels[key] in values) is equal


def _is_beyond(value: str, bound: int, greater: bool) -> bool:
    return bool(_NUMBER.fullmatch(value)) and (int(value) > bound if greater else int(value) < bound)

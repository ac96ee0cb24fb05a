"""Label selectors: whether they match, and how Go writes them; whether a node is one that a selector of a
pod's affinity or of a persistent volume asks for. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from trio_kubelet.api import v1

_WRITTEN: Final[dict[str, Callable[[str, str], str]]] = {
    "In": lambda key, values: f"{key} in ({values})",
    "NotIn": lambda key, values: f"{key} notin ({values})",
    "Exists": lambda key, values: key,
    "DoesNotExist": lambda key, values: f"!{key}",
}


class SelectorError(Exception):
    """A selector with an operator that there is not."""

    def __init__(self, operator: str) -> None:
        super().__init__(f'"{operator}" is not a valid label selector operator')


def matches(selector: v1.LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether `labels` fit. No selector fits nothing, an empty one everything. Raises SelectorError."""
    if selector is None:
        return False
    wanted = selector.match_labels or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _meets(requirement, labels) for requirement in selector.match_expressions or ()
    )


def selector_text(selector: v1.LabelSelector | None) -> str:
    """The selector as one text, parts and values in order, "" for none and for an empty one. Raises
    SelectorError.
    """
    if selector is None:
        return ""
    parts = [(key, f"{key}={value}") for key, value in (selector.match_labels or {}).items()]
    for requirement in selector.match_expressions or ():
        write = _WRITTEN.get(requirement.operator)
        if write is None:
            raise SelectorError(requirement.operator)
        parts.append((requirement.key, write(requirement.key, _values(requirement.values or ()))))
    return ",".join(text for _, text in sorted(parts, key=lambda part: part[0]))


def _values(values: Sequence[str]) -> str:
    return ",".join(sorted(values))


def _meets(requirement: v1.LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """A label that is not there is in no set, so it meets `NotIn`."""
    key, values = requirement.key, requirement.values or ()
    match requirement.operator:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    raise SelectorError(requirement.operator)


def matches_terms(selector: v1.NodeSelector, labels: Mapping[str, str], name: str = "") -> bool:
    """Whether one of the terms holds. Without the node's `name` what asks for that is passed over."""
    return any(_matches_term(term, labels, name) for term in selector.node_selector_terms or ())


def _matches_term(term: v1.NodeSelectorTerm, labels: Mapping[str, str], name: str) -> bool:
    """All requirements of a term hold; an empty or malformed one matches nothing."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": name} if name else {}
    by_label = (_matches(requirement, labels) for requirement in term.match_expressions or ())
    if not all(by_label):
        return False
    for requirement in term.match_fields or ():
        if requirement.operator not in ("In", "NotIn") or len(requirement.values or ()) != 1:
            return False
        if fields and not _matches(requirement, fields):
            return False
    return True


def _matches(requirement: v1.NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    values = requirement.values or []
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return bool(values) and (value is None or value not in values)
        case "Exists":
            return not values and value is not None
        case "DoesNotExist":
            return not values and value is None
        case "Gt" | "Lt":
            if len(values) != 1 or value is None:
                return False
            numbers = [int(text) if re.fullmatch(r"[+-]?\d+", text) else None for text in (value, values[0])]
            if numbers[0] is None or numbers[1] is None:
                return False
            return numbers[0] > numbers[1] if requirement.operator == "Gt" else numbers[0] < numbers[1]
        case _:
            return False

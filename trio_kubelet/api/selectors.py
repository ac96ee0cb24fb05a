"""Label selectors: whether they match, and how Go writes them; whether a node is one that a selector of a
pod's affinity or of a persistent volume asks for. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.validation.formats import label_value, qualified_name

_LONGEST_NUMBER: Final = 63  # as label values may be

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
    """All requirements of a term hold; an empty one, or one with a malformed requirement, matches nothing."""
    expressions, match_fields = term.match_expressions or [], term.match_fields or []
    if not (expressions or match_fields) or not all(map(_is_sound, expressions)):
        return False
    if any(each.operator not in ("In", "NotIn") or len(each.values or ()) != 1 for each in match_fields):
        return False
    fields = {**{each.key: "" for each in match_fields}, "metadata.name": name}
    return all(_matches(requirement, labels) for requirement in expressions) and (
        not name or all(_matches(requirement, fields) for requirement in match_fields)
    )


def _is_sound(requirement: v1.NodeSelectorRequirement) -> bool:
    """Whether a requirement of labels is one that Kubernetes can read (its `labels.NewRequirement`)."""
    values = requirement.values or []
    if qualified_name(requirement.key) or any(map(label_value, values)):
        return False
    match requirement.operator:
        case "In" | "NotIn":
            return bool(values)
        case "Exists" | "DoesNotExist":
            return not values
        case "Gt" | "Lt":
            return len(values) == 1 and _int64(values[0]) is not None
    return False


def _matches(requirement: v1.NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Whether a sound requirement holds."""
    values = requirement.values or []
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    number, bound = _int64(value or ""), _int64(values[0])
    if number is None or bound is None:
        return False
    return number > bound if requirement.operator == "Gt" else number < bound


def _int64(text: str) -> int | None:
    """A decimal number of 64 bits, None for any other text."""
    if len(text) > _LONGEST_NUMBER or not re.fullmatch(r"[+-]?[0-9]+", text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None

"""Whether a node is one that a selector asks for: of a pod's affinity, or of a persistent volume's. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trio_kubelet.api import v1


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

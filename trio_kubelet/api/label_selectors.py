"""Label selectors: whether they match, and how Go writes them. Pure."""

from __future__ import annotations

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

"""Affinity, tolerations, topology spread: a node agent does not schedule, but it validates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.pod_rules import PodRules
from trio_kubelet.api.tolerations import COMPARISONS
from trio_kubelet.api.validation.formats import dns_label, dns_subdomain, label_value, qualified_name
from trio_kubelet.api.validation.problems import Problems
from trio_kubelet.common.go_words import parse_integer

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_SPREAD_ACTIONS: Final = ("DoNotSchedule", "ScheduleAnyway")
_INCLUSION_POLICIES: Final = ("Honor", "Ignore")
_NO_SELECTOR: Final = "must not be specified when labelSelector is not set"
_IN_BOTH: Final = "exists in both matchLabelKeys and {}"


def validate_affinity(affinity: v1.Affinity | None, here: str, problems: Problems) -> None:
    if affinity is None:
        return
    if affinity.node_affinity is not None:
        _node_affinity(affinity.node_affinity, f"{here}.nodeAffinity", problems)
    for terms, name in (
        (affinity.pod_affinity, "podAffinity"),
        (affinity.pod_anti_affinity, "podAntiAffinity"),
    ):
        if terms is None:
            continue
        for index, term in enumerate(terms.required_during_scheduling_ignored_during_execution or ()):
            _pod_affinity_term(term, f"{here}.{name}.{_REQUIRED}[{index}]", problems)
        for index, entry in enumerate(terms.preferred_during_scheduling_ignored_during_execution or ()):
            weighted = f"{here}.{name}.{_PREFERRED}[{index}]"
            _weight(entry.weight, weighted, problems)
            _pod_affinity_term(entry.pod_affinity_term, f"{weighted}.podAffinityTerm", problems)


def _weight(weight: int, here: str, problems: Problems) -> None:
    if not 1 <= weight <= 100:
        problems.invalid(f"{here}.weight", weight, "must be in the range 1-100")


def _node_affinity(affinity: v1.NodeAffinity, here: str, problems: Problems) -> None:
    required = affinity.required_during_scheduling_ignored_during_execution
    if required is not None:
        terms = f"{here}.{_REQUIRED}.nodeSelectorTerms"
        if not required.node_selector_terms:
            problems.required(terms, "must have at least one node selector term")
        for index, term in enumerate(required.node_selector_terms or ()):
            _node_term(term, f"{terms}[{index}]", problems)
    for index, entry in enumerate(affinity.preferred_during_scheduling_ignored_during_execution or ()):
        weighted = f"{here}.{_PREFERRED}[{index}]"
        _weight(entry.weight, weighted, problems)
        _node_term(entry.preference, f"{weighted}.preference", problems, check_values=False)


def _node_term(
    term: v1.NodeSelectorTerm, here: str, problems: Problems, *, check_values: bool = True
) -> None:
    for index, requirement in enumerate(term.match_expressions or ()):
        where = f"{here}.matchExpressions[{index}]"
        values, operator = requirement.values or [], requirement.operator
        if operator in ("Gt", "Lt"):
            if len(values) != 1:
                why = "must be specified single value when `operator` is 'Lt' or 'Gt'"
                problems.required(f"{where}.values", why)
        else:
            _selector_values(operator, values, where, problems)
        problems.check(f"{where}.key", requirement.key, qualified_name)
        for position, value in enumerate(values if check_values else ()):
            problems.check(f"{where}.values[{position}]", value, label_value)
    for index, requirement in enumerate(term.match_fields or ()):
        where = f"{here}.matchFields[{index}]"
        values = requirement.values or []
        if requirement.operator not in ("In", "NotIn"):
            problems.invalid(f"{where}.operator", requirement.operator, "not a valid selector operator")
        elif len(values) != 1:
            why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            problems.required(f"{where}.values", why)
        if requirement.key != "metadata.name":
            problems.invalid(f"{where}.key", requirement.key, "not a valid field selector key")
            continue
        for position, value in enumerate(values):
            problems.check(f"{where}.values[{position}]", value, dns_subdomain)


def _selector_values(operator: str, values: Sequence[str], here: str, problems: Problems) -> None:
    if operator in ("In", "NotIn"):
        if not values:
            problems.required(f"{here}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            problems.forbidden(f"{here}.values", why)
    else:
        problems.invalid(f"{here}.operator", operator, "not a valid selector operator")


def validate_label_selector(selector: v1.LabelSelector | None, here: str, problems: Problems) -> None:
    if selector is None:
        return
    for key, value in (selector.match_labels or {}).items():
        problems.check(f"{here}.matchLabels", key, qualified_name)
        problems.check(f"{here}.matchLabels", value, label_value)
    for index, requirement in enumerate(selector.match_expressions or ()):
        where = f"{here}.matchExpressions[{index}]"
        values = requirement.values or []
        _selector_values(requirement.operator, values, where, problems)
        problems.check(f"{where}.key", requirement.key, qualified_name)
        for position, value in enumerate(values):
            problems.check(f"{where}.values[{position}]", value, label_value)


def _pod_affinity_term(term: v1.PodAffinityTerm, here: str, problems: Problems) -> None:
    validate_label_selector(term.label_selector, f"{here}.labelSelector", problems)
    validate_label_selector(term.namespace_selector, f"{here}.namespaceSelector", problems)
    for namespace in term.namespaces or ():
        problems.check(f"{here}.namespace", namespace, dns_label)
    match, mismatch = term.match_label_keys or [], term.mismatch_label_keys or []
    _label_keys(match, mismatch, term.label_selector, here, problems)
    if not term.topology_key:
        problems.required(f"{here}.topologyKey", "can not be empty")
    problems.check(f"{here}.topologyKey", term.topology_key, qualified_name)


def _label_keys(
    match: Sequence[str],
    mismatch: Sequence[str],
    selector: v1.LabelSelector | None,
    here: str,
    problems: Problems,
) -> None:
    """Keys whose values are taken from the pod and added to the selector."""
    for keys, name in ((match, "matchLabelKeys"), (mismatch, "mismatchLabelKeys")):
        if keys and selector is None:
            problems.forbidden(f"{here}.{name}", _NO_SELECTOR)
            continue
        for index, key in enumerate(keys):
            problems.check(f"{here}.{name}[{index}]", key, qualified_name)
    if selector is not None:
        seen = set(selector.match_labels or {})
        for requirement in selector.match_expressions or ():
            if requirement.key in match and requirement.key in seen:
                last = len(match) - 1 - list(reversed(match)).index(requirement.key)
                problems.invalid(f"{here}[{last}]", requirement.key, _IN_BOTH.format("labelSelector"))
            seen.add(requirement.key)
    for index, key in enumerate(match):
        if key in mismatch:
            problems.invalid(f"{here}.matchLabelKeys[{index}]", key, _IN_BOTH.format("mismatchLabelKeys"))


def _unmerged_label_keys(
    keys: Sequence[str], selector: v1.LabelSelector | None, here: str, problems: Problems
) -> None:
    """The same where nobody adds them to the selector: they are in it no other way either."""
    if keys and selector is None:
        problems.forbidden(here, _NO_SELECTOR)
    selected: set[str] = set()
    if selector is not None:
        selected |= set(selector.match_labels or {})
        selected |= {requirement.key for requirement in selector.match_expressions or ()}
    for index, key in enumerate(keys):
        problems.check(f"{here}[{index}]", key, qualified_name)
        if key in selected:
            problems.invalid(f"{here}[{index}]", key, _IN_BOTH.format("labelSelector"))


def validate_topology_spread(
    constraints: Sequence[v1.TopologySpreadConstraint], here: str, rules: PodRules, problems: Problems
) -> None:
    for index, constraint in enumerate(constraints):
        where = f"{here}[{index}]"
        if constraint.max_skew <= 0:
            problems.invalid(f"{where}.maxSkew", constraint.max_skew, "must be greater than zero")
        if not constraint.topology_key:
            problems.required(f"{where}.topologyKey", "can not be empty")
        action = constraint.when_unsatisfiable
        if action not in _SPREAD_ACTIONS:
            problems.unsupported(f"{where}.whenUnsatisfiable", action, _SPREAD_ACTIONS)
        pair = (constraint.topology_key, action)
        if any((later.topology_key, later.when_unsatisfiable) == pair for later in constraints[index + 1 :]):
            problems.duplicate(f"{where}.{{topologyKey, whenUnsatisfiable}}", f"{{{pair[0]}, {pair[1]}}}")
        if constraint.min_domains is not None:
            if constraint.min_domains <= 0:
                problems.invalid(f"{where}.minDomains", constraint.min_domains, "must be greater than zero")
            if action != "DoNotSchedule":
                why = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                problems.invalid(f"{where}.minDomains", constraint.min_domains, why)
        for policy, name in (
            (constraint.node_affinity_policy, "nodeAffinityPolicy"),
            (constraint.node_taints_policy, "nodeTaintsPolicy"),
        ):
            if policy is not None and policy not in _INCLUSION_POLICIES:
                problems.unsupported(f"{where}.{name}", policy, _INCLUSION_POLICIES)
        label_keys = constraint.match_label_keys or []
        if rules.merged_label_keys:
            _label_keys(label_keys, [], constraint.label_selector, where, problems)
        else:
            _unmerged_label_keys(label_keys, constraint.label_selector, f"{where}.matchLabelKeys", problems)
        validate_label_selector(constraint.label_selector, f"{where}.labelSelector", problems)


def _decimal_integer(value: str) -> list[str]:
    """A number of 64 bits, without a plus or needless zeros."""
    wrong = []
    if not re.fullmatch(r"0|-?[1-9][0-9]*", value):
        wrong.append("must be a valid decimal integer in canonical form" if value else "must be non-empty")
    try:
        parse_integer(value, "ParseInt")
    except ValueError as exc:
        wrong.append(str(exc))
    return wrong


def validate_tolerations(
    tolerations: Sequence[v1.Toleration], here: str, rules: PodRules, problems: Problems
) -> None:
    for index, toleration in enumerate(tolerations):
        where = f"{here}[{index}]"
        key, operator, value = toleration.key, toleration.operator, toleration.value
        if key:
            problems.check(f"{where}.key", key, qualified_name)
        elif operator != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            problems.invalid(f"{where}.operator", operator, why)
        if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            problems.invalid(f"{where}.effect", toleration.effect, why)
        if operator in ("Equal", ""):
            if wrong := label_value(value):
                problems.invalid(f"{where}.operator", value, ";".join(wrong))
        elif operator == "Exists":
            if value:
                why = "value must be empty when `operator` is 'Exists'"
                problems.invalid(f"{where}.operator", value, why)
        elif operator in COMPARISONS and rules.comparing_tolerations:
            problems.check(f"{where}.value", value, _decimal_integer)
        else:
            known = ("Equal", "Exists", *(COMPARISONS if operator in COMPARISONS else ()))
            problems.unsupported(f"{where}.operator", operator, known)
        if toleration.effect and toleration.effect not in _EFFECTS:
            problems.unsupported(f"{where}.effect", toleration.effect, _EFFECTS)

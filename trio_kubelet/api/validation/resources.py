"""Requests, limits and claims of containers and of the pod as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.defaults import HUGE_PAGES_PREFIX, aggregate, supported_at_pod_level
from trio_kubelet.api.quantity import Quantity, QuantityError, parse
from trio_kubelet.api.validation.formats import dns_label, qualified_name
from trio_kubelet.api.validation.problems import Problems, amount, is_negative

_CONTAINER_RESOURCES: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_COUNTED: Final = frozenset(
    {
        "pods", "resourcequotas", "services", "replicationcontrollers", "secrets", "configmaps",
        "persistentvolumeclaims", "services.nodeports", "services.loadbalancers",
    }
)  # fmt: skip
_STANDARD: Final = (
    _CONTAINER_RESOURCES
    | _COUNTED
    | {"storage", "requests.storage"}
    | {f"{side}.{name}" for side in ("requests", "limits") for name in _CONTAINER_RESOURCES}
)
_NATIVE_DOMAIN: Final = "kubernetes.io/"
_QUOTA_PREFIX: Final = "requests."

_NameCheck = Callable[[str, str, Problems], None]


def validate_container_resources(
    resources: v1.ResourceRequirements, claim_names: Collection[str], here: str, problems: Problems
) -> None:
    _requirements(resources, _container_resource, here, problems)
    _claims(resources.claims or [], claim_names, f"{here}.claims", problems)


def validate_overhead(overhead: Mapping[str, str], here: str, problems: Problems) -> None:
    """The pod's overhead follows the rules of a container's limits."""
    _requirements(v1.ResourceRequirements(limits=dict(overhead)), _container_resource, here, problems)


def validate_pod_resources(
    spec: v1.PodSpec, claim_names: Collection[str], here: str, problems: Problems
) -> None:
    """Resources of the pod as a whole, alone and against those of its containers."""
    resources = spec.resources
    if resources is None:
        return
    if spec.os is not None and spec.os.name == "windows":
        problems.forbidden(here, "may not be set for a windows pod")
        return
    if resources.claims is not None:
        problems.forbidden(f"{here}.claims", "claims may not be set for Resources at pod-level")
    _requirements(resources, _pod_resource, here, problems)
    _claims(resources.claims or [], claim_names, f"{here}.claims", problems)
    _enough_for_containers(spec, resources, here, problems)


def _enough_for_containers(
    spec: v1.PodSpec, resources: v1.ResourceRequirements, here: str, problems: Problems
) -> None:
    for name, needed in aggregate(spec, "requests").items():
        given = (resources.requests or {}).get(name)
        if given is not None and amount(needed).compare(amount(given)) > 0:
            why = f"must be greater than or equal to aggregate container requests of {needed}"
            problems.invalid(f"{here}.requests[{name}]", given, why)
    limits = resources.limits or {}
    for name, needed in aggregate(spec, "limits").items():
        if not name.startswith(HUGE_PAGES_PREFIX) or name not in limits:
            continue
        if amount(needed).compare(amount(limits[name])) > 0:
            why = f"must be greater than or equal to aggregate container limits of {needed}"
            problems.invalid(f"{here}.limits[{name}]", limits[name], why)
    for index, container in enumerate(spec.containers or ()):
        for name, limit in (container.resources.limits or {}).items():
            if name in limits and amount(limit).compare(amount(limits[name])) > 0:
                where = f"{here}.containers[{index}][{name}].limits"
                why = f"must be less than or equal to pod limits of {limits[name]}"
                problems.invalid(where, limit, why)


def _requirements(
    resources: v1.ResourceRequirements, check_name: _NameCheck, here: str, problems: Problems
) -> None:
    limits, requests = resources.limits or {}, resources.requests or {}
    for name, limit in limits.items():
        _entry(name, limit, check_name, f"{here}.limits[{name}]", problems)
    for name, request in requests.items():
        _entry(name, request, check_name, f"{here}.requests[{name}]", problems)
        if name in limits:
            order = amount(request).compare(amount(limits[name]))
            if order != 0 and not _overcommits(name):
                why = f"must be equal to {name} limit of {limits[name]}"
                problems.invalid(f"{here}.requests", request, why)
            elif order > 0:
                why = f"must be less than or equal to {name} limit of {limits[name]}"
                problems.invalid(f"{here}.requests", request, why)
        elif not _overcommits(name):
            problems.required(f"{here}.limits", "Limit must be set for non overcommitable resources")
    names = {*limits, *requests}
    if any(name.startswith(HUGE_PAGES_PREFIX) for name in names) and names.isdisjoint(("cpu", "memory")):
        problems.forbidden(here, "HugePages require cpu or memory")


def _entry(name: str, value: str, check_name: _NameCheck, here: str, problems: Problems) -> None:
    check_name(here, name, problems)
    if is_negative(value):
        problems.invalid(here, value, "must be greater than or equal to 0")
    if (name in _COUNTED or _is_extended(name)) and amount(value).milli_value() % 1000:
        problems.invalid(here, value, "must be an integer")
    if name.startswith(HUGE_PAGES_PREFIX) and not _whole_pages(name, amount(value)):
        problems.invalid(here, value, f"{value} is not positive integer multiple of {name}")


def _overcommits(name: str) -> bool:
    return _is_native(name) and not name.startswith(HUGE_PAGES_PREFIX)


def _is_native(name: str) -> bool:
    return "/" not in name or _NATIVE_DOMAIN in name


def _is_extended(name: str) -> bool:
    if _is_native(name) or name.startswith(_QUOTA_PREFIX):
        return False
    return not qualified_name(_QUOTA_PREFIX + name)


def _whole_pages(name: str, value: Quantity) -> bool:
    try:
        size = parse(name.removeprefix(HUGE_PAGES_PREFIX))
    except QuantityError:
        return False
    if size.sign() <= 0 or size.milli_value() % 1000 or size.value() == 0:
        return False
    return value.value() % size.value() == 0


def _resource(here: str, name: str, problems: Problems) -> bool:
    """Any resource; whether all is well."""
    if not problems.check(here, name, qualified_name):
        return False
    huge_pages = name.startswith((HUGE_PAGES_PREFIX, _QUOTA_PREFIX + HUGE_PAGES_PREFIX))
    if "/" in name or name in _STANDARD or huge_pages:
        return True
    problems.invalid(here, name, "must be a standard resource type or fully qualified")
    return False


def _container_resource(here: str, name: str, problems: Problems) -> None:
    _resource(here, name, problems)
    if "/" not in name:
        if name not in _CONTAINER_RESOURCES and not name.startswith(HUGE_PAGES_PREFIX):
            problems.invalid(here, name, "must be a standard resource for containers")
    elif not _is_native(name) and not _is_extended(name):
        problems.invalid(here, name, "doesn't follow extended resource name standard")


def _pod_resource(here: str, name: str, problems: Problems) -> None:
    if _resource(here, name, problems) and not supported_at_pod_level(name):
        problems.unsupported(here, name, ("cpu", HUGE_PAGES_PREFIX, "memory"))


def _claims(
    claims: Sequence[v1.ResourceClaim], known: Collection[str], here: str, problems: Problems
) -> None:
    used: set[str] = set()
    for index, claim in enumerate(claims):
        where = f"{here}[{index}]"
        name = claim.name
        if not name:
            problems.required(where)
            continue
        if name in used:
            problems.duplicate(where, name)
        else:
            key = name
            if claim.request:
                problems.check(f"{where}.request", claim.request, dns_label)
                key = f"{name}/{claim.request}"
            whole_and_part = not claim.request and any(other.partition("/")[0] == name for other in used)
            if key in used or whole_and_part:
                problems.duplicate(where, key)
            used.add(key)
        if name not in known:
            names = f": {', '.join(sorted(known))}" if known else " which is empty"
            problems.missing(where, name, f"must be one of the names in pod.spec.resourceClaims{names}")

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

_NameCheck = Callable[[str], str | None]


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
        problems.forbidden(here, "a windows pod has none")
        return
    if resources.claims is not None:
        problems.forbidden(f"{here}.claims", "a pod as a whole claims nothing")
    _requirements(resources, _pod_resource, here, problems)
    _claims(resources.claims or [], claim_names, f"{here}.claims", problems)
    _enough_for_containers(spec, resources, here, problems)


def _enough_for_containers(
    spec: v1.PodSpec, resources: v1.ResourceRequirements, here: str, problems: Problems
) -> None:
    for name, needed in aggregate(spec, "requests").items():
        given = (resources.requests or {}).get(name)
        if given is not None and amount(needed).compare(amount(given)) > 0:
            problems.invalid(f"{here}.requests[{name}]", given, f"the containers request {needed} together")
    limits = resources.limits or {}
    for name, needed in aggregate(spec, "limits").items():
        if not name.startswith(HUGE_PAGES_PREFIX) or name not in limits:
            continue
        if amount(needed).compare(amount(limits[name])) > 0:
            problems.invalid(f"{here}.limits[{name}]", limits[name], f"the containers need {needed}")
    for index, container in enumerate(spec.containers or ()):
        for name, limit in (container.resources.limits or {}).items():
            if name in limits and amount(limit).compare(amount(limits[name])) > 0:
                where = f"{here}.containers[{index}][{name}].limits"
                problems.invalid(where, limit, f"the pod's limit is {limits[name]}")


def _requirements(
    resources: v1.ResourceRequirements, name_problem: _NameCheck, here: str, problems: Problems
) -> None:
    limits, requests = resources.limits or {}, resources.requests or {}
    for name, limit in limits.items():
        _entry(name, limit, name_problem, f"{here}.limits[{name}]", problems)
    for name, request in requests.items():
        _entry(name, request, name_problem, f"{here}.requests[{name}]", problems)
        if name in limits:
            order = amount(request).compare(amount(limits[name]))
            if order != 0 and not _overcommits(name):
                problems.invalid(
                    f"{here}.requests", request, f"must equal the {name} limit of {limits[name]}"
                )
            elif order > 0:
                problems.invalid(
                    f"{here}.requests", request, f"is more than the {name} limit of {limits[name]}"
                )
        elif not _overcommits(name):
            problems.required(f"{here}.limits", f"{name} cannot be overcommitted")
    names = {*limits, *requests}
    if any(name.startswith(HUGE_PAGES_PREFIX) for name in names) and names.isdisjoint(("cpu", "memory")):
        problems.forbidden(here, "huge pages need cpu or memory")


def _entry(name: str, value: str, name_problem: _NameCheck, here: str, problems: Problems) -> None:
    problems.check(here, name, name_problem)
    if is_negative(value):
        problems.invalid(here, value, "must not be negative")
    if (name in _COUNTED or _is_extended(name)) and amount(value).milli_value() % 1000:
        problems.invalid(here, value, "must be a whole number")
    if name.startswith(HUGE_PAGES_PREFIX) and not _whole_pages(name, amount(value)):
        problems.invalid(here, value, "must be a multiple of the page size")


def _overcommits(name: str) -> bool:
    return _is_native(name) and not name.startswith(HUGE_PAGES_PREFIX)


def _is_native(name: str) -> bool:
    return "/" not in name or _NATIVE_DOMAIN in name


def _is_extended(name: str) -> bool:
    if _is_native(name) or name.startswith(_QUOTA_PREFIX):
        return False
    return qualified_name(_QUOTA_PREFIX + name) is None


def _whole_pages(name: str, value: Quantity) -> bool:
    try:
        size = parse(name.removeprefix(HUGE_PAGES_PREFIX))
    except QuantityError:
        return False
    if size.sign() <= 0 or size.milli_value() % 1000 or size.value() == 0:
        return False
    return value.value() % size.value() == 0


def _resource(name: str) -> str | None:
    problem = qualified_name(name)
    if problem:
        return problem
    huge_pages = name.startswith((HUGE_PAGES_PREFIX, _QUOTA_PREFIX + HUGE_PAGES_PREFIX))
    if "/" not in name and name not in _STANDARD and not huge_pages:
        return "must be a standard resource or have a domain"
    return None


def _container_resource(name: str) -> str | None:
    problem = _resource(name)
    if problem:
        return problem
    if "/" not in name:
        if name not in _CONTAINER_RESOURCES and not name.startswith(HUGE_PAGES_PREFIX):
            return "is no resource of containers"
    elif not _is_native(name) and not _is_extended(name):
        return "is no valid extended resource"
    return None


def _pod_resource(name: str) -> str | None:
    problem = _resource(name)
    if problem or supported_at_pod_level(name):
        return problem
    return "a pod has cpu, memory and huge pages only"


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
            problems.missing(where, name)

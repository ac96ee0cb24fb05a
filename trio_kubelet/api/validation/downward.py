"""References to the pod's own fields and resources, in environment variables and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.validation.formats import qualified_name
from trio_kubelet.api.validation.problems import Problems, amount

_CONVERTIBLE: Final = frozenset(
    {
        "metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid",
        "spec.host", "spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "spec.schedulerName",
        "status.phase", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
    }
)  # fmt: skip
_RESOURCES: Final = tuple(
    f"{side}.{name}" for side in ("limits", "requests") for name in ("cpu", "ephemeral-storage", "memory")
)
_BYTE_DIVISORS: Final = (
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
)  # fmt: skip


def validate_field_selector(
    selector: v1.ObjectFieldSelector, supported: Sequence[str], here: str, problems: Problems
) -> None:
    """A `fieldRef`; `supported` are the paths this place allows."""
    if not selector.api_version:
        problems.required(f"{here}.apiVersion")
        return
    path = selector.field_path
    if not path:
        problems.required(f"{here}.fieldPath")
        return
    base, subscript = split_subscript(path)
    subscripted = base in ("metadata.annotations", "metadata.labels")
    why = ""
    if selector.api_version != "v1":
        why = f"unsupported pod version: {selector.api_version}"
    elif subscript is not None and not subscripted:
        why = f"field label does not support subscript: {path}"
    elif subscript is None and path not in _CONVERTIBLE:
        why = f"field label not supported: {path}"
    if why:
        problems.invalid(f"{here}.fieldPath", path, f"error converting fieldPath: {why}")
    elif subscript is not None:
        key = subscript.lower() if base == "metadata.annotations" else subscript
        problems.check(here, key, qualified_name)
    elif (path := "spec.nodeName" if path == "spec.host" else path) not in supported:
        problems.unsupported(f"{here}.fieldPath", path, supported)


def split_subscript(path: str) -> tuple[str, str | None]:
    """`metadata.labels['a']` → the path before the bracket and the key, None without one."""
    base, bracket, rest = path.partition("['")
    if not path.endswith("']") or not bracket or not base or len(path) < len(base) + 4:
        return path, None
    return base, rest.removesuffix("']")


def validate_resource_selector(
    selector: v1.ResourceFieldSelector, here: str, problems: Problems, *, needs_container: bool
) -> None:
    """A `resourceFieldRef`; a file must say of which container."""
    resource = selector.resource
    huge_pages = resource.startswith(("requests.hugepages-", "limits.hugepages-"))
    if needs_container and not selector.container_name:
        problems.required(f"{here}.containerName")
    elif not resource:
        problems.required(f"{here}.resource")
    elif resource not in _RESOURCES and not huge_pages:
        problems.unsupported(f"{here}.resource", resource, _RESOURCES)
    divisor = amount(selector.divisor)
    if divisor.sign() == 0:
        return
    if resource in ("limits.cpu", "requests.cpu"):
        if divisor not in ("1m", "1"):
            why = "only divisor's values 1m and 1 are supported with the cpu resource"
            problems.invalid(f"{here}.divisor", resource, why)
    elif (resource in _RESOURCES or huge_pages) and divisor not in _BYTE_DIVISORS:
        kind = resource.partition(".")[2].partition("-")[0]
        words = "local ephemeral storage" if kind == "ephemeral" else kind
        why = f"only divisor's values {', '.join(_BYTE_DIVISORS)} are supported with the {words} resource"
        problems.invalid(f"{here}.divisor", resource, why)

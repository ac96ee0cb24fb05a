"""What a changed pod asks for anew, as `kubelet_container_requested_resizes_total` counts it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from trio_kubelet.api.v1 import Container, Pod
from trio_kubelet.runtime.configs.amounts import amount

_RESOURCES: Final = ("memory", "cpu")


class RequestedResize(NamedTuple):
    """One amount of one container, by the metric's labels."""

    resource: str
    requirement: str
    operation: str


def requested_resizes(old: Pod, new: Pod) -> Iterator[RequestedResize]:
    """The amounts of containers that differ."""
    before = {container.name: container for container in _containers(old)}
    for container in _containers(new):
        if (was := before.get(container.name)) is None:
            continue
        for resource in _RESOURCES:
            for requirement in ("requests", "limits"):
                operation = _operation(
                    _amount(was, requirement, resource), _amount(container, requirement, resource)
                )
                if operation:
                    yield RequestedResize(resource, requirement, operation)


def _containers(pod: Pod) -> tuple[Container, ...]:
    return (*(pod.spec.init_containers or ()), *(pod.spec.containers or ()))


def _amount(container: Container, requirement: str, resource: str) -> int:
    resources = container.resources
    amounts = resources.requests if requirement == "requests" else resources.limits
    return amount((amounts or {}).get(resource, "0"))


def _operation(old: int, new: int) -> str:
    if old == new:
        return ""
    if not new:
        return "remove"
    if not old:
        return "add"
    return "increase" if new > old else "decrease"

"""What a changed pod asks for anew, as `kubelet_container_requested_resizes_total` counts it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from trio_kubelet.api.containers import regular_containers
from trio_kubelet.api.v1 import Container, Pod
from trio_kubelet.podinfo.amounts import amount

_RESOURCES: Final = ("memory", "cpu")


class RequestedResize(NamedTuple):
    """One amount of one container, by the metric's labels."""

    resource: str
    requirement: str
    operation: str


def requested_resizes(old: Pod, new: Pod) -> Iterator[RequestedResize]:
    """The amounts of containers that differ."""
    for wanted, had in container_pairs(new, old):
        for resource in _RESOURCES:
            for requirement in ("requests", "limits"):
                before, after = (_amounts(c, requirement).get(resource, "0") for c in (had, wanted))
                if operation := _operation(amount(before), amount(after)):
                    yield RequestedResize(resource, requirement, operation)


def container_pairs(new: Pod, old: Pod) -> Iterator[tuple[Container, Container]]:
    """The containers of `new` that can be resized, each with itself as it was in `old`."""
    before = {container.name: container for container in regular_containers(old.spec)}
    for container in regular_containers(new.spec):
        if container.name in before:
            yield container, before[container.name]


def _amounts(container: Container, requirement: str) -> Mapping[str, str]:
    resources = container.resources
    return (resources.requests if requirement == "requests" else resources.limits) or {}


def _operation(old: int, new: int) -> str:
    if old == new:
        return ""
    if not new:
        return "remove"
    if not old:
        return "add"
    return "increase" if new > old else "decrease"

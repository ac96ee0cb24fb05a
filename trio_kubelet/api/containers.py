"""The containers of a pod, of whatever kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from trio_kubelet.api import v1

AnyContainer: TypeAlias = v1.Container | v1.EphemeralContainer


def regular_containers(spec: v1.PodSpec) -> list[v1.Container]:
    """Init containers and containers, in that order: all but the ephemeral ones."""
    return [*(spec.init_containers or ()), *(spec.containers or ())]


def all_containers(spec: v1.PodSpec) -> Iterator[AnyContainer]:
    """Init containers, containers and ephemeral containers, in that order."""
    yield from regular_containers(spec)
    yield from spec.ephemeral_containers or ()


def containers_with_path(spec: v1.PodSpec) -> Iterator[tuple[AnyContainer, str]]:
    """Every container and where it stands, like `spec.containers[0]`."""
    for index, container in enumerate(spec.init_containers or ()):
        yield container, f"spec.initContainers[{index}]"
    for index, container in enumerate(spec.containers or ()):
        yield container, f"spec.containers[{index}]"
    for index, ephemeral in enumerate(spec.ephemeral_containers or ()):
        yield ephemeral, f"spec.ephemeralContainers[{index}]"


def is_sidecar(container: v1.Container) -> bool:
    """Whether an init container keeps running beside the containers (KEP-753)."""
    return container.restart_policy == "Always"


def ends(spec: v1.PodSpec, container: v1.Container) -> bool:
    """Whether it is an init container that ends before the next begins."""
    return any(each.name == container.name and not is_sidecar(each) for each in spec.init_containers or ())

"""The containers of a pod, of whatever kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from trio_kubelet.api import v1

AnyContainer: TypeAlias = v1.Container | v1.EphemeralContainer

CONTAINERS: Final = "spec.containers"
INIT_CONTAINERS: Final = "spec.initContainers"
EPHEMERAL_CONTAINERS: Final = "spec.ephemeralContainers"


class Named(NamedTuple):
    """A container and the list of the pod it stands in, like `spec.containers`."""

    container: AnyContainer
    field: str


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
        yield container, f"{INIT_CONTAINERS}[{index}]"
    for index, container in enumerate(spec.containers or ()):
        yield container, f"{CONTAINERS}[{index}]"
    for index, ephemeral in enumerate(spec.ephemeral_containers or ()):
        yield ephemeral, f"{EPHEMERAL_CONTAINERS}[{index}]"


def containers_by_name(spec: v1.PodSpec) -> Mapping[str, Named]:
    """Every container by its name.

    Those who ask for one after the other of a pod's thousands get the same mapping each time: a spec that is
    in use does not change.
    """
    return _by_name(_Identity(spec))


class _Identity:
    """A spec as a key: this very object."""

    __slots__ = ("spec",)

    def __init__(self, spec: v1.PodSpec) -> None:
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.spec is self.spec

    def __hash__(self) -> int:
        return id(self.spec)


@lru_cache(maxsize=16)
def _by_name(key: _Identity) -> dict[str, Named]:
    found: dict[str, Named] = {}
    spec = key.spec
    kinds: tuple[tuple[str, Sequence[AnyContainer] | None], ...] = (
        (CONTAINERS, spec.containers),
        (INIT_CONTAINERS, spec.init_containers),
        (EPHEMERAL_CONTAINERS, spec.ephemeral_containers),
    )
    for field, containers in kinds:
        for container in containers or ():
            found.setdefault(container.name, Named(container, field))
    return found


def is_sidecar(container: v1.Container) -> bool:
    """Whether an init container keeps running beside the containers (KEP-753)."""
    return container.restart_policy == "Always"


def ends(spec: v1.PodSpec, container: v1.Container) -> bool:
    """Whether it is an init container that ends before the next begins."""
    return any(each.name == container.name and not is_sidecar(each) for each in spec.init_containers or ())

"""The containers of a pod, of whatever kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias, TypeVar, TypeVarTuple

from trio_kubelet.api import v1

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
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


class _Identity:
    """A spec as a key: this very object."""

    __slots__ = ("spec",)

    def __init__(self, spec: v1.PodSpec) -> None:
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.spec is self.spec

    def __hash__(self) -> int:
        return id(self.spec)


def remembered(function: Callable[[v1.PodSpec, *Ts], T]) -> Callable[[v1.PodSpec, *Ts], T]:
    """The function, which says of the last specs again what it said: one that is in use does not change.

    For those who ask on behalf of one after the other of a pod's thousands of containers.
    """

    @lru_cache(maxsize=16)
    def said(key: _Identity, args: tuple[*Ts]) -> T:
        return function(key.spec, *args)

    return lambda spec, *args: said(_Identity(spec), args)


@remembered
def containers_by_name(spec: v1.PodSpec) -> Mapping[str, Named]:
    """Every container by its name."""
    found: dict[str, Named] = {}
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

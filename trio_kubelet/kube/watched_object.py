"""One config map or secret that pods of this node refer to, followed by a watch of its own.

The watch exists only while it is of use: it ends with the first sight of an immutable object, rests when
nothing but variables come from the object and nobody has read it for a while, and starts again with the
next read. What was last known is never lost to that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

from trio_kubelet.api import v1
from trio_kubelet.kube.doors import APIDoor
from trio_kubelet.kube.references import Reference
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.kube.reflector_core import Timings
from trio_kubelet.kube.watch_events import key_of

T = TypeVar("T", v1.ConfigMap, v1.Secret)

TIMINGS: Final = Timings(silence=300.0, ping_period=120.0)
"""There may be hundreds of these watches: a server that sends no bookmarks is asked every five minutes where
it is, not every 90 seconds.
"""


class LastGiven:
    """What readers got last, besides resource versions."""

    NEVER: Final = "never"  # nobody has asked
    NOTHING: Final = ""  # it did not exist, or was not known in time


class WatchedObject(Generic[T]):
    """The object as last known, who refers to it, and its watch."""

    def __init__(
        self,
        ref: Reference,
        kind: type[T],
        door: APIDoor,
        changed: Callable[[WatchedObject[T]], None],
        rng: random.Random,
    ) -> None:
        """`changed` is called when readers would now get something else than they got; must not wait."""
        self.ref = ref
        self.users: dict[str, bool] = {}  # pod UID → whether a volume shows the object
        self.value: T | None = None
        self.synced = trio.Event()
        self._kind: type[T] = kind
        self._door = door
        self._tell: Callable[[WatchedObject[T]], None] = changed
        self._rng = rng
        self._known = False
        self._seen = LastGiven.NEVER
        self._read_at = trio.current_time()
        self._scope: trio.CancelScope | None = None

    @property
    def followed(self) -> bool:
        """Whether it has a watch now."""
        return self._scope is not None

    @property
    def known(self) -> bool:
        """Whether the server has ever said if the object exists."""
        return self._known

    @property
    def waited_for(self) -> bool:
        """Whether the last reader got nothing."""
        return self._seen == LastGiven.NOTHING

    @property
    def immutable(self) -> bool:
        """Whether it is known and will never change."""
        return self.value is not None and bool(self.value.immutable)

    def follow(self, nursery: trio.Nursery) -> None:
        """Starts the watch unless it runs or is of no use."""
        if self._scope is None and not self.immutable:
            self._scope = trio.CancelScope()
            self.synced = trio.Event()
            nursery.start_soon(self._run, self._scope)

    def stop(self) -> None:
        """Ends the watch; what is known stays."""
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None

    def idle_since(self) -> float:
        """When it was last read, by Trio's clock; never idle while it is shown in a volume."""
        return float("inf") if any(self.users.values()) else self._read_at

    def start_reading(self) -> None:
        """A reader has come: the watch is not idle."""
        self._read_at = trio.current_time()

    def read(self) -> T | None:
        """The object for a reader, who is told (through `changed`) when there is another one."""
        self._seen = self._version()
        if self.immutable:
            self.stop()
        return self.value

    async def _run(self, scope: trio.CancelScope) -> None:
        ref = self.ref
        reflector: Reflector[T] = Reflector(
            self._door,
            f"/api/v1/namespaces/{ref.namespace}/{ref.resource}",
            self._kind,
            params={"fieldSelector": f"metadata.name={ref.name}"},
            changed=lambda: self._changed(scope, reflector),
            rng=self._rng,
            timings=TIMINGS,
            warnings=0,  # the watch of pods tells of an API server that is away
        )
        with scope:
            await reflector.run()

    def _changed(self, scope: trio.CancelScope, reflector: Reflector[T]) -> None:
        if scope.cancel_called:  # a watch that was given up has its last words
            return
        self.value = reflector.find(key_of(self.ref.namespace, self.ref.name))
        self._known = True
        self.synced.set()
        version = self._version()
        if self._seen not in (LastGiven.NEVER, version):
            self._tell(self)
            self._seen = version
        if self.immutable:
            self.stop()

    def _version(self) -> str:
        return self.value.metadata.resource_version if self.value is not None else LastGiven.NOTHING

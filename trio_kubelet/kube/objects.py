"""The config maps and secrets that pods of this node refer to, and who has the rest that pods read.

One watch for each object, from the first pod that refers to it to the last, because a node may watch
single objects only. A change is told with the pods it concerns, so that their volumes are brought up to
date at once instead of at the pods' next resync. While the API server is away everything stays as it was
last known.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.backoff import generator
from trio_kubelet.common.log import get_logger
from trio_kubelet.kube.doors import APIDoor, ObjectReader
from trio_kubelet.kube.fetched_objects import DEFAULT_TTL, FetchedObjects
from trio_kubelet.kube.references import Reference, ReferenceKind, references
from trio_kubelet.kube.tokens import TokenStore
from trio_kubelet.kube.watched_object import WatchedObject
from trio_kubelet.podinfo.doors import CredentialBundle, ObjectError

if TYPE_CHECKING:  # imported with their feature gates
    from trio_kubelet.kube.pod_certificates import PodCertificates
    from trio_kubelet.kube.trust_bundles import TrustBundles

log = get_logger(__name__)

T = TypeVar("T", v1.ConfigMap, v1.Secret)

FIRST_LIST_WAIT: Final = 5.0
"""Seconds a reader waits for the first answer about an object (kubelet: 1 s, then it tries again)."""
IDLE_PERIOD: Final = 300.0
"""Seconds without a reader after which an object that is in no volume rests (kubelet: 5 resyncs)."""
_SWEEP_PERIOD: Final = 60.0
MOST_OF_POD: Final = 1000
"""Objects that are followed for one pod: each is a watch at the API server. Its other ones cannot be read."""
NO_CERTIFICATES: Final = "unimplemented"
"""The kubelet's word with the feature gate of certificates off."""


class PodObjects:
    """Implements `podinfo.doors.VolumeObjects`: objects through `reader`, tokens through `tokens`.

    Trust bundles and certificates only where their feature gates are on; else the kubelet's words.
    """

    def __init__(
        self,
        reader: ObjectReader,
        tokens: TokenStore,
        bundles: TrustBundles | None = None,
        certificates: PodCertificates | None = None,
    ) -> None:
        self._reader = reader
        self.tokens = tokens
        self._bundles = bundles
        self._certificates = certificates
        self._parts = [part for part in (reader, bundles, certificates) if part is not None]

    def register(self, pod: v1.Pod) -> None:
        for part in self._parts:
            part.register(pod)

    def unregister(self, uid: str) -> None:
        for part in self._parts:
            part.unregister(uid)
        self.tokens.forget(uid)

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        return await self._reader.config_map(namespace, name)

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        return await self._reader.secret(namespace, name)

    async def service_account_token(self, pod: v1.Pod, source: v1.ServiceAccountTokenProjection) -> str:
        return await self.tokens.token(pod, source)

    async def trust_anchors(self, source: v1.ClusterTrustBundleProjection) -> bytes:
        if self._bundles is None:
            from trio_kubelet.kube.trust_bundles import NOT_SERVED

            raise ObjectError(NOT_SERVED)
        return await self._bundles.read(source)

    async def pod_certificate(self, pod: v1.Pod, volume: str, index: int) -> CredentialBundle:
        if self._certificates is None:
            raise ObjectError(NO_CERTIFICATES)
        return await self._certificates.read(pod, volume, index)

    def hurry(self) -> None:
        """The server answers others again: after a failure, try soon."""
        for part in (self._bundles, self._certificates):
            if part is not None:
                part.hurry()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows objects, renews tokens and certificates until cancelled."""
        async with trio.open_nursery() as nursery:
            for part in self._parts:
                await nursery.start(part.run)
            nursery.start_soon(self.tokens.run)
            task_status.started()


def object_reader(
    door: APIDoor,
    strategy: str,
    changed: Callable[[frozenset[str]], None],
    ttl: Callable[[], float] = lambda: DEFAULT_TTL,
) -> ObjectReader:
    """Who reads config maps and secrets, as `configMapAndSecretChangeDetectionStrategy` says.

    `changed` hears the UIDs of pods that would now read something else; it must not wait. `ttl`: seconds for
    which strategy `Cache` keeps an answer.
    """
    if strategy == "Watch":
        return WatchedObjects(door, changed)
    return FetchedObjects(door, ttl if strategy == "Cache" else None)


class WatchedObjects:
    """The reader of strategy `Watch`."""

    def __init__(
        self,
        door: APIDoor,
        changed: Callable[[frozenset[str]], None],
        rng: random.Random | None = None,
    ) -> None:
        """`changed` hears the UIDs of pods that would now read something else; it must not wait."""
        self._door = door
        self._changed = changed
        self._rng = generator(rng)
        self._nursery: trio.Nursery | None = None
        self._config_maps: dict[Reference, WatchedObject[v1.ConfigMap]] = {}
        self._secrets: dict[Reference, WatchedObject[v1.Secret]] = {}
        self._of_pod: dict[str, dict[Reference, bool]] = {}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps the watches until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for entry in self._all():
                    entry.follow(nursery)
                task_status.started()
                while True:
                    await trio.sleep(_SWEEP_PERIOD)
                    self._rest_idle()
            finally:
                self._nursery = None
                for entry in self._all():
                    entry.stop()

    @property
    def watches(self) -> int:
        """How many objects are followed now."""
        return sum(entry.followed for entry in self._all())

    def register(self, pod: v1.Pod) -> None:
        uid = pod.metadata.uid
        wanted, had = references(pod), self._of_pod.get(uid, {})
        if len(wanted) > MOST_OF_POD:
            wanted = dict(itertools.islice(wanted.items(), MOST_OF_POD))
        if wanted == had:
            return
        for ref in had.keys() - wanted.keys():
            self._release(ref, uid)
        for ref, in_volume in wanted.items():
            entry = self._entry(ref)
            entry.users[uid] = in_volume
            if self._nursery is not None:
                entry.follow(self._nursery)
        if wanted:
            self._of_pod[uid] = wanted
        else:
            self._of_pod.pop(uid, None)

    def unregister(self, uid: str) -> None:
        for ref in self._of_pod.pop(uid, {}):
            self._release(ref, uid)

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        return await self._read(self._config_maps, Reference(ReferenceKind.CONFIG_MAPS, namespace, name))

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        return await self._read(self._secrets, Reference(ReferenceKind.SECRETS, namespace, name))

    async def _read(self, entries: dict[Reference, WatchedObject[T]], ref: Reference) -> T | None:
        entry = entries.get(ref)
        if entry is None:
            raise ObjectError(f'object "{ref.namespace}"/"{ref.name}" not registered')  # or one too many
        entry.start_reading()
        if self._nursery is not None:
            entry.follow(self._nursery)
        if entry.followed:
            with trio.move_on_after(FIRST_LIST_WAIT):
                await entry.synced.wait()
        value = entry.read()
        if not entry.known:
            kind = ref.resource.removesuffix("s")
            raise ObjectError(f"failed to sync {kind} cache: timed out waiting for the condition")
        return value

    def _entry(self, ref: Reference) -> WatchedObject[v1.ConfigMap] | WatchedObject[v1.Secret]:
        if ref.resource is ReferenceKind.CONFIG_MAPS:
            if ref not in self._config_maps:
                self._config_maps[ref] = self._new(ref, v1.ConfigMap)
            return self._config_maps[ref]
        if ref not in self._secrets:
            self._secrets[ref] = self._new(ref, v1.Secret)
        return self._secrets[ref]

    def _new(self, ref: Reference, kind: type[T]) -> WatchedObject[T]:
        return WatchedObject(ref, kind, self._door, self._tell, self._rng)

    def _tell(self, entry: WatchedObject[T]) -> None:
        """An object that somebody waited for concerns all its pods, another one those that show it."""
        uids = frozenset(uid for uid, in_volume in entry.users.items() if in_volume or entry.waited_for)
        if uids:
            log.v(3).info(
                "Object of pods changed", object=entry.ref.name, kind=entry.ref.resource, pods=len(uids)
            )
            self._changed(uids)

    def _release(self, ref: Reference, uid: str) -> None:
        entry = self._config_maps.get(ref) or self._secrets.get(ref)
        if entry is None:
            return
        entry.users.pop(uid, None)
        if not entry.users:
            entry.stop()
            self._config_maps.pop(ref, None)
            self._secrets.pop(ref, None)

    def _rest_idle(self) -> None:
        now = trio.current_time()
        for entry in self._all():
            if entry.followed and now - entry.idle_since() > IDLE_PERIOD:
                entry.stop()

    def _all(self) -> list[WatchedObject[v1.ConfigMap] | WatchedObject[v1.Secret]]:
        return [*self._config_maps.values(), *self._secrets.values()]

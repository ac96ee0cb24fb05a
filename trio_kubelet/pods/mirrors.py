"""Mirror pods: the API server's pictures of the node's static pods (kubelet: `mirror_client.go`).

Workers and housekeeping only say of which name to look after; a task of its own does it, so a slow or missing
API server holds up no pod. What is to be done is decided at the moment of doing it, from what the sources
want and show then. Every deletion names the mirror's UID: a successor of the same name is never hit. What was
just created is not created again while the watch has yet to tell of it.
"""

from __future__ import annotations

import enum
import math
import random

import msgspec
import trio
from msgspec.structs import replace

from trio_kubelet.api import v1
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.log import get_logger
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIError, APIUnavailable
from trio_kubelet.podinfo.updates import (
    CONFIG_HASH_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    is_mirror,
    is_mirror_of,
    is_static,
)
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.refs import pod_full_name, pod_path

log = get_logger(__name__)

PARALLEL = 4
WATCH_LAG = 10.0
"""Seconds within which the watch is expected to tell of what was created or deleted."""
PAUSES = Pauses(0.5, 30.0)


class MirrorStep(enum.Enum):
    """What a mirror needs."""

    NOTHING = enum.auto()
    WAIT = enum.auto()  # the watch will tell of what was done
    CREATE = enum.auto()
    REPLACE = enum.auto()  # delete this one, then create
    DELETE = enum.auto()


class MirrorWrite(msgspec.Struct, frozen=True, kw_only=True):
    """What was last done under a name and the watch has not told of yet."""

    shows: str  # the hash of the static pod whose mirror was created, "" for a deletion
    created: str  # UID of the mirror that was created
    deleted: frozenset[str]  # UIDs of mirrors that were deleted
    until: float  # Trio time until which the watch is waited for


def decide(pod: v1.Pod | None, mirror: v1.Pod | None, done: MirrorWrite | None, now: float) -> MirrorStep:
    """What is to be done for a static pod (None: there is none of the name) with this mirror. Pure."""
    if done is not None and mirror is not None and mirror.metadata.uid in done.deleted:
        mirror = None  # the watch lags
    if pod is None:
        return MirrorStep.NOTHING if mirror is None else MirrorStep.DELETE
    if mirror is not None:
        fits = mirror.metadata.deletion_timestamp is None and is_mirror_of(mirror, pod)
        return MirrorStep.NOTHING if fits else MirrorStep.REPLACE
    if done is not None and done.shows == mirror_hash(pod) and now < done.until:
        return MirrorStep.WAIT
    return MirrorStep.CREATE


def mirror_hash(pod: v1.Pod) -> str:
    """What tells versions of a static pod apart."""
    return (pod.metadata.annotations or {}).get(CONFIG_HASH_ANNOTATION, "")


def mirror_for(pod: v1.Pod, node: v1.Node) -> v1.Pod:
    """The mirror to be created for a static pod; the Node owns it, as the API server demands."""
    owner = v1.OwnerReference(
        api_version="v1", kind="Node", name=node.metadata.name, uid=node.metadata.uid, controller=True
    )
    annotations = {**(pod.metadata.annotations or {}), CONFIG_MIRROR_ANNOTATION: mirror_hash(pod)}
    metadata = replace(pod.metadata, annotations=annotations, owner_references=[owner])
    return replace(pod, api_version="v1", kind="Pod", metadata=metadata)


class _NotNow(Exception):
    """The mirror cannot be created yet, which is a matter of seconds."""


class _NameTaken(Exception):
    """Another pod has the name of the static pod, perhaps for long."""


class MirrorPods:
    """Implements the syncer's `MirrorsDoor`; `run` may be started again."""

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        pods: PodManager,
    ) -> None:
        """`pods` knows what the sources want and which mirrors there are."""
        self._client = client
        self._node_name = node_name
        self._pods = pods
        self._due: dict[str, float] = {}  # full names to look after, with the Trio time to do so
        self._failures: dict[str, int] = {}
        self._busy: set[str] = set()
        self._outdated: set[str] = set()  # of these, those that began when there was nobody to answer
        self._orphans: set[str] = set()  # names whose mirror may go
        self._started: dict[str, str] = {}  # UID of the static pod of a name that no older one holds up
        self._done: dict[str, MirrorWrite] = {}
        self._wake = trio.Event()

    def reconcile(self, pod: v1.Pod) -> None:
        """A static pod is to have a mirror that fits; this is tried until it has."""
        name = pod_full_name(pod)
        if is_static(pod):
            self._orphans.discard(name)
            self._started[name] = pod.metadata.uid
            self._look_after(name)

    def delete_orphan(self, full_name: str) -> None:
        """The mirror of a static pod that is gone is to go."""
        self._orphans.add(full_name)
        self._look_after(full_name)

    def node_changed(self) -> None:
        """The Node was registered, or the server answers again: what waits is tried now."""
        for name in self._due:
            self._due[name] = -math.inf
        self._outdated |= self._busy
        self._wake.set()

    async def run(self) -> None:
        """Looks after mirrors until cancelled."""
        self._busy.clear()
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = trio.Event()
                with trio.move_on_at(self._start_some(nursery)):
                    await self._wake.wait()

    def _look_after(self, name: str) -> None:
        if name in self._failures or self._step(name) in (MirrorStep.NOTHING, MirrorStep.WAIT):
            return  # it is tried again after a pause, or in order
        self._due[name] = -math.inf
        self._wake.set()

    def _step(self, name: str) -> MirrorStep:
        """What the mirror of that name needs now."""
        pod, mirror = self._known(name)
        done, now = self._done.get(name), trio.current_time()
        step = decide(pod, mirror, done, now)
        if done is not None and (now >= done.until or (mirror and mirror.metadata.uid == done.created)):
            del self._done[name]
        elif step is MirrorStep.WAIT and done is not None:
            # Unless the watch tells of the new mirror, it was deleted before it was seen.
            self._due.setdefault(name, done.until)
            self._wake.set()
        return step

    def _known(self, name: str) -> tuple[v1.Pod | None, v1.Pod | None]:
        started = self._pods.get(self._started.get(name, ""))
        return started or self._pods.static_by_full_name(name), self._pods.mirror_by_full_name(name)

    def _start_some(self, nursery: trio.Nursery) -> float:
        """Starts what is due; the Trio time at which the next is."""
        now = trio.current_time()
        for name in [name for name, due in self._due.items() if due <= now]:
            if len(self._busy) >= PARALLEL:
                return math.inf
            if name not in self._busy:
                del self._due[name]
                self._busy.add(name)
                nursery.start_soon(self._attempt, name)
        return min((due for due in self._due.values() if due > now), default=math.inf)

    async def _attempt(self, name: str) -> None:
        """Does what is needed; after a failure again, with back-off."""
        try:
            await self._do(name)
        except Exception as exc:  # what one mirror makes the code raise must not keep back the others
            if not isinstance(exc, APIUnavailable | APIError | _NotNow | _NameTaken):
                log.error("Unexpected error in keeping a mirror pod", pod=name, err=exc)
            failures = self._failures[name] = self._failures.get(name, 0) + 1
            say = log.warning if failures == 1 else log.v(2).warning
            say("Mirror pod is not as it should be, trying again", pod=name, err=exc)
            pause = PAUSES.after(failures)
            if isinstance(exc, _NotNow):
                pause = min(pause, 1.0)  # a node that is being registered is there within seconds
            if isinstance(exc, APIError) and exc.retry_after is not None:
                pause = max(pause, exc.retry_after)
            if name in self._outdated:  # its failure says nothing of the server as it is now
                pause = 0.0
            self._due[name] = trio.current_time() + pause * (1 + 0.5 * random.random())
        else:
            self._failures.pop(name, None)
        finally:
            self._busy.discard(name)
            self._outdated.discard(name)
            self._wake.set()

    async def _do(self, name: str) -> None:
        """Raises APIError, APIUnavailable, _NotNow, _NameTaken."""
        step = self._step(name)
        pod, mirror = self._known(name)
        if step is MirrorStep.DELETE and name not in self._orphans:
            return  # its static pod is gone, but has not ended yet
        if pod is not None and self._started.get(name) != pod.metadata.uid:
            return  # it waits for an older one of its name, whose mirror stays until then
        stale = mirror if step in (MirrorStep.REPLACE, MirrorStep.DELETE) else None
        if stale is not None and not await self._delete(name, stale):
            return  # another one has its name: the watch will tell
        self._orphans.discard(name)
        if pod is None:
            self._started.pop(name, None)
        if step in (MirrorStep.REPLACE, MirrorStep.CREATE) and pod is not None:
            await self._create(name, pod)

    async def _delete(self, name: str, mirror: v1.Pod) -> bool:
        """Deletes this mirror; whether its name is free then."""
        uid = mirror.metadata.uid
        log.v(2).info("Deleting a mirror pod", pod=mirror, podUID=uid)
        try:
            await self._client.delete(pod_path(mirror), uid=uid, grace_seconds=0)
        except APIError as exc:
            if not exc.not_found and not exc.conflict:
                raise
            if exc.conflict:
                self._remember(name, deleted=uid)
                return False
        self._remember(name, deleted=uid)
        return True

    async def _create(self, name: str, pod: v1.Pod) -> None:
        node = await self._node()
        log.v(2).info("Creating a mirror pod for static pod", pod=pod)
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods"
        try:
            mirror = await self._client.create(path, mirror_for(pod, node), v1.Pod)
        except APIError as exc:
            if not exc.conflict:
                raise
            mirror = await self._found(name, pod)
        self._remember(name, shows=mirror_hash(pod), created=mirror.metadata.uid)
        self._step(name)  # it is looked after again if the watch does not tell of it

    async def _found(self, name: str, pod: v1.Pod) -> v1.Pod:
        """The pod that has the name already: this very mirror, or a stale one, which goes. Raises _NotNow,
        _NameTaken.
        """
        there = await self._client.get(pod_path(pod), v1.Pod)
        if is_mirror_of(there, pod) and there.metadata.deletion_timestamp is None:
            return there
        if not is_mirror(there) or there.spec.node_name != self._node_name:
            raise _NameTaken("another pod has the name of this static pod")
        await self._delete(name, there)
        raise _NotNow("a stale mirror pod had its name")

    async def _node(self) -> v1.Node:
        """The node's object. Raises _NotNow while there is none."""
        try:
            node = await self._client.get(f"/api/v1/nodes/{self._node_name}", v1.Node)
        except APIError as exc:
            if exc.not_found:
                raise _NotNow("the node is not registered") from exc
            raise
        if node.metadata.deletion_timestamp is not None:
            raise _NotNow("the node is being removed from the cluster")
        return node

    def _remember(self, name: str, *, shows: str = "", created: str = "", deleted: str = "") -> None:
        before = self._done.get(name)
        gone = before.deleted if before is not None else frozenset[str]()
        self._done[name] = MirrorWrite(
            shows=shows,
            created=created,
            deleted=gone | {deleted} if deleted else gone,
            until=trio.current_time() + WATCH_LAG,
        )

"""Trust anchors that pods mount: cluster trust bundles, by name or by signer and labels.

One watch for each name and each signer that pods of this node refer to, from the first pod to the last. The
anchors of a volume come without duplicates, in an order that means nothing: the same as long as the agent
runs, another one after its next start, so that nobody comes to rely on it (as the kubelet's).
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.api.selectors import SelectorError, matches, selector_text
from trio_kubelet.common.backoff import generator
from trio_kubelet.common.caching import SingleFlight
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.supervise import PAUSES
from trio_kubelet.kube.certificates.files import certificate_block, pem_contents
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.doors import APIDoor
from trio_kubelet.kube.errors import APIFailure
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.kube.watched_object import TIMINGS
from trio_kubelet.podinfo.doors import ObjectError

log = get_logger(__name__)

RESOURCE: Final = "clustertrustbundles"
VERSIONS: Final = ("certificates.k8s.io/v1beta1", "certificates.k8s.io/v1alpha1")
"""The versions of the API this agent speaks, the better one first."""
FIRST_LIST_WAIT: Final = 5.0
"""Seconds a reader waits for the first answer (kubelet: 10 s, for its first reader only)."""
LONGEST_SELECTOR: Final = 100 * 1024
NOT_SERVED: Final = "ClusterTrustBundle projection is not supported in static kubelet mode"
"""The kubelet's words whenever it has nobody to ask: also with the feature gate off."""
_NOT_SYNCED: Final = "ClusterTrustBundle informer has not yet synced"
_NEVER: Final = "nobody has asked"


class _Spec(v1.Object):
    signer_name: str = ""
    trust_bundle: str = ""


class ClusterTrustBundle(v1.Object):
    """What of a ClusterTrustBundle is needed; v1alpha1 and v1beta1 have it alike."""

    metadata: v1.ObjectMeta = msgspec.field(default_factory=v1.ObjectMeta)
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Resource(v1.Object):
    name: str = ""


class _ResourceList(v1.Object):
    resources: list[_Resource] = msgspec.field(default_factory=list)


class WantedBundles(NamedTuple):
    """What one watch is about, as a field selector: a bundle's name, or the signer of several."""

    field: str
    value: str


def wanted(source: v1.ClusterTrustBundleProjection) -> WantedBundles | None:
    """What a projection shows; None if it does not say."""
    if source.name is not None:
        return WantedBundles("metadata.name", source.name)
    if source.signer_name is not None:
        return WantedBundles("spec.signerName", source.signer_name)
    return None


def trust_bundle_sources(pod: v1.Pod) -> Iterator[v1.ClusterTrustBundleProjection]:
    """The projections of bundles among a pod's volumes."""
    for volume in pod.spec.volumes or ():
        for source in (volume.projected.sources or ()) if volume.projected is not None else ():
            if source.cluster_trust_bundle is not None:
                yield source.cluster_trust_bundle


def trust_anchors(bundles: Iterable[str], order: bytes) -> bytes:
    """The anchors of all bundles, each once, as PEM. `order` decides which comes first."""
    different = {content for bundle in bundles for content in pem_contents(bundle.encode())}
    shuffled = sorted(different, key=lambda content: hashlib.blake2b(content, key=order).digest())
    return b"".join(map(certificate_block, shuffled))


def chosen(
    source: v1.ClusterTrustBundleProjection, bundles: Iterable[ClusterTrustBundle]
) -> list[ClusterTrustBundle]:
    """The bundles a projection shows, of those that fit its name or signer; its selector can be read. Raises
    ObjectError if there are none and it is not optional.
    """
    found = list(bundles)
    if source.name is None:
        found = [b for b in found if matches(source.label_selector, b.metadata.labels or {})]
    if found or source.optional:
        return found
    if source.name is not None:
        missing = f'clustertrustbundle.certificates.k8s.io "{source.name}" not found'
        raise ObjectError(f"while getting ClusterTrustBundle: {missing}")
    raise ObjectError("combination of signerName and labelSelector matched zero ClusterTrustBundles")


def _selector(source: v1.ClusterTrustBundleProjection) -> str | None:
    """The labels' selector as one text, None for none. Raises ObjectError."""
    if source.label_selector is None:
        return None
    try:
        text = selector_text(source.label_selector)
    except SelectorError as error:
        raise ObjectError(f"while parsing label selector: {error}") from error
    if len(text) > LONGEST_SELECTOR:
        raise ObjectError(f"label selector length ({len(text)}) is larger than {LONGEST_SELECTOR}")
    return text


class ServedVersion:
    """Which version of the API the server has. A server without it is asked again each time."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._path = ""
        self._asked: SingleFlight[None, str] = SingleFlight()

    async def path(self) -> str:
        """The path of the bundles. Raises ObjectError."""
        if not self._path:
            self._path = await self._asked.ask(None, self._discover)
        return self._path

    async def _discover(self) -> str:
        for version in VERSIONS:
            try:
                served = await self._client.get(f"/apis/{version}", _ResourceList)
            except APIFailure as error:
                if not error.not_found:
                    raise ObjectError(
                        "failed to ensure informer manager for ClusterTrustBundles: "
                        f"failed to determine which informer manager to choose: {error}"
                    ) from error
            else:
                if any(resource.name == RESOURCE for resource in served.resources):
                    return f"/apis/{version}/{RESOURCE}"
        raise ObjectError(NOT_SERVED)


class _Followed:
    """The bundles of one name or signer as last known, who shows them, and their watch."""

    def __init__(
        self,
        what: WantedBundles,
        served: ServedVersion,
        door: APIDoor,
        tell: Callable[[frozenset[str]], None],
    ) -> None:
        self.what = what
        self.users: set[str] = set()
        self._served = served
        self._door = door
        self._tell = tell
        self._scope: trio.CancelScope | None = None
        self._reflector: Reflector[ClusterTrustBundle] | None = None
        self._answered = trio.Event()
        self._failure = _NOT_SYNCED
        self._hurried = trio.Event()
        self._seen: object = _NEVER
        self._anchors: dict[str | None, bytes] = {}  # by the selector's text

    def follow(self, nursery: trio.Nursery, rng: random.Random) -> None:
        """Starts the watch unless it runs."""
        if self._scope is None:
            self._scope = trio.CancelScope()
            nursery.start_soon(self._run, self._scope, rng)

    def stop(self) -> None:
        """Ends the watch; what is known stays."""
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None

    def leave(self, uid: str) -> None:
        """A pod is gone, and perhaps the last one with its selector."""
        self.users.discard(uid)
        self._anchors.clear()

    def hurry(self) -> None:
        """The server answers others again: after a failure, try soon."""
        self._hurried.set()
        if self._reflector is not None:
            self._reflector.hurry()

    async def read(
        self, source: v1.ClusterTrustBundleProjection, selector: str | None, order: bytes
    ) -> bytes:
        """The anchors for a reader, who is told when there are others; `selector`: the source's as one text.
        Raises ObjectError.
        """
        with trio.move_on_after(FIRST_LIST_WAIT):
            await self._answered.wait()
        self._seen = self._version()
        if self._reflector is None or not self._reflector.synced.is_set():
            raise ObjectError(self._failure)
        if selector not in self._anchors:
            found = chosen(source, self._reflector.objects.values())
            if not found:
                return b""
            self._anchors[selector] = trust_anchors((bundle.spec.trust_bundle for bundle in found), order)
        return self._anchors[selector]

    async def _run(self, scope: trio.CancelScope, rng: random.Random) -> None:
        with scope:
            path = await self._path(rng)
            self._failure = _NOT_SYNCED
            if self._answered.is_set():  # else there are readers who wait for it
                self._answered = trio.Event()
            self._reflector = Reflector(
                self._door,
                path,
                ClusterTrustBundle,
                params={"fieldSelector": f"{self.what.field}={self.what.value}"},
                changed=lambda: self._changed(scope),
                rng=rng,
                timings=TIMINGS,
                warnings=0,  # the watch of pods tells of an API server that is away
            )
            await self._reflector.run()

    async def _path(self, rng: random.Random) -> str:
        failures = 0
        while True:
            self._hurried = trio.Event()
            try:
                return await self._served.path()
            except ObjectError as error:
                failures += 1
                self._failure = str(error)
                self._answered.set()
                log.v(4).info("Cluster trust bundles cannot be followed", err=error)
            with trio.move_on_after(PAUSES.after(failures, rng.random())):
                await self._hurried.wait()

    def _changed(self, scope: trio.CancelScope) -> None:
        if scope.cancel_called:  # a watch that was given up has its last words
            return
        self._anchors.clear()
        self._answered.set()
        version = self._version()
        if self._seen not in (_NEVER, version):
            self._seen = version
            self._tell(frozenset(self.users))

    def _version(self) -> object:
        """What readers would get now, None if nothing is known."""
        if self._reflector is None or not self._reflector.synced.is_set():
            return None
        found = self._reflector.objects.items()
        return frozenset((key, bundle.metadata.resource_version) for key, bundle in found)


class TrustBundles:
    """The cluster trust bundles of this node's pods."""

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
        self._served = ServedVersion(KubeClient(door))
        self._order = secrets.token_bytes(16)
        self._nursery: trio.Nursery | None = None
        self._followed: dict[WantedBundles, _Followed] = {}
        self._of_pod: dict[str, set[WantedBundles]] = {}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps the watches until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for entry in self._followed.values():
                    entry.follow(nursery, self._rng)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None
                for entry in self._followed.values():
                    entry.stop()

    def hurry(self) -> None:
        """The server answers others again: after a failure, try soon."""
        for entry in self._followed.values():
            entry.hurry()

    def register(self, pod: v1.Pod) -> None:
        """What this pod shows is followed from now on. May be repeated."""
        uid = pod.metadata.uid
        found = {what for source in trust_bundle_sources(pod) if (what := wanted(source)) is not None}
        for what in self._of_pod.pop(uid, set()) - found:
            self._release(what, uid)
        for what in found:
            entry = self._followed.get(what)
            if entry is None:
                entry = self._followed[what] = _Followed(what, self._served, self._door, self._changed)
            entry.users.add(uid)
            if self._nursery is not None:
                entry.follow(self._nursery, self._rng)
        if found:
            self._of_pod[uid] = found

    def unregister(self, uid: str) -> None:
        """The pod is gone."""
        for what in self._of_pod.pop(uid, ()):
            self._release(what, uid)

    async def read(self, source: v1.ClusterTrustBundleProjection) -> bytes:
        """The anchors a projection shows. Raises ObjectError."""
        what = wanted(source)
        if what is None:
            raise ObjectError("ClusterTrustBundle projection requires either name or signerName to be set")
        selector = _selector(source) if source.name is None else None
        entry = self._followed.get(what)
        if entry is None:
            raise ObjectError(f"cluster trust bundles with {what.field}={what.value} are not registered")
        return await entry.read(source, selector, self._order)

    def _release(self, what: WantedBundles, uid: str) -> None:
        entry = self._followed[what]
        entry.leave(uid)
        if not entry.users:
            entry.stop()
            del self._followed[what]

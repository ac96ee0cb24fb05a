"""Certificates that pods mount: keys made here, signed by signers of the cluster, renewed in time.

Every `podCertificate` source of a pod on this node has a key of its own and a PodCertificateRequest in the
pod's namespace. One watch tells of all requests of this node, while there is a pod with such a source. Keys
are in the agent's memory and in the pod's volume (a tmpfs), nowhere else; they are gone with the pod.

The shell around `pod_certificate_states`, which says what is to be done.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec
import trio
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from trio_kubelet.api import v1
from trio_kubelet.common.backoff import generator
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.lanes import CERTIFICATES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.supervise import PAUSES
from trio_kubelet.kube import pod_certificate_states as states
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIUnavailable
from trio_kubelet.kube.pod_certificate_states import CertificateRequest, CertificateState
from trio_kubelet.kube.reflector import LOGGED_FAILURES, Reflector
from trio_kubelet.kube.watch_events import key_of
from trio_kubelet.podinfo.doors import CredentialBundle, ObjectError, PodRecorderDoor

log = get_logger(__name__)

GROUP_VERSION: Final = "certificates.k8s.io/v1beta1"
RESOURCE: Final = "podcertificaterequests"
FIRST_WAIT: Final = 5.0
"""Seconds a reader waits for a certificate (kubelet: none, then it tries again)."""
_AT_ONCE: Final = 4
"""Requests that are made side by side, as each makes a key."""
_GATHER: Final = 0.02
"""Seconds for which news is gathered, as each look is at all sources."""
_LONGEST_SLEEP: Final = 60.0  # the wall clock may be set


class _Spec(v1.Object):
    """What a signer is asked for."""

    signer_name: str
    pod_name: str
    pod_uid: str = msgspec.field(name="podUID")
    service_account_name: str
    service_account_uid: str = msgspec.field(name="serviceAccountUID")
    node_name: str
    node_uid: str = msgspec.field(name="nodeUID")
    stub_request: bytes = msgspec.field(name="stubPKCS10Request")
    max_expiration_seconds: int | None = None
    annotations: dict[str, str] | None = msgspec.field(name="unverifiedUserAnnotations", default=None)


class _NewRequest(v1.Object):
    """A PodCertificateRequest as it is created."""

    api_version: str
    kind: str
    metadata: v1.ObjectMeta
    spec: _Spec


class _ServiceAccount(v1.Object):
    metadata: v1.ObjectMeta = msgspec.field(default_factory=v1.ObjectMeta)


class SourceKey(NamedTuple):
    """One `podCertificate` source, by pod, volume and place among the volume's sources."""

    namespace: str
    pod: str
    uid: str
    volume: str
    place: int

    def __str__(self) -> str:
        """As the kubelet's messages have it."""
        return f"{{{' '.join(map(str, tuple(self)))}}}"


def certificate_sources(pod: v1.Pod) -> Iterator[tuple[SourceKey, v1.PodCertificateProjection]]:
    """The sources among a pod's volumes."""
    meta = pod.metadata
    for volume in pod.spec.volumes or ():
        sources = (volume.projected.sources or ()) if volume.projected is not None else ()
        for index, source in enumerate(sources):
            if source.pod_certificate is not None:
                key = SourceKey(meta.namespace, meta.name, meta.uid, volume.name, index)
                yield key, source.pod_certificate


class _Projection:
    """One source, how far its certificate is, and the task that asks for it."""

    def __init__(self, key: SourceKey, pod: v1.Pod, source: v1.PodCertificateProjection) -> None:
        self.key = key
        self.pod = pod
        self.source = source
        self.state = CertificateState()
        self.settled = trio.Event()
        self.failures = 0
        self.retry_at = 0.0
        self.asking: trio.CancelScope | None = None


class NodeIdentity(NamedTuple):
    """The node by name, and by the UID of its object ("" while it is not known)."""

    name: str
    uid: Callable[[], str]


class PodCertificates(Collector):
    """The certificates of this node's pods."""

    def __init__(
        self,
        *,
        client: KubeClient,
        node: NodeIdentity,
        events: PodRecorderDoor,
        clock: Clock,
        changed: Callable[[frozenset[str]], None],
        rng: random.Random | None = None,
    ) -> None:
        """`changed` hears the UIDs of pods that would now read something else; it must not wait."""
        self._client = client
        self._node = node
        self._events = events
        self._clock = clock
        self._changed = changed
        self._rng = generator(rng)
        self._projections: dict[SourceKey, _Projection] = {}
        self._of_pod: dict[str, set[SourceKey]] = {}
        self._news = trio.Event()
        self._limiter = trio.CapacityLimiter(_AT_ONCE)
        self._requests: Reflector[CertificateRequest] | None = None
        self._watching: trio.CancelScope | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Gets certificates and renews them until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            try:
                while True:
                    self._news = trio.Event()
                    self._watch_if_needed(nursery)
                    seconds = self._step(nursery)
                    with trio.move_on_after(seconds):
                        await self._news.wait()
                    await trio.sleep(_GATHER)
            finally:
                self._watching = self._requests = None
                for projection in self._projections.values():
                    projection.asking = None

    def hurry(self) -> None:
        """The server answers others again: after a failure, try soon."""
        for projection in self._projections.values():
            projection.retry_at = 0.0
        if self._requests is not None:
            self._requests.hurry()
        self._news.set()

    def register(self, pod: v1.Pod) -> None:
        """This pod's certificates are asked for and renewed from now on. May be repeated."""
        uid = pod.metadata.uid
        found = dict(certificate_sources(pod))
        for key in self._of_pod.pop(uid, set()) - found.keys():
            self._forget(key)
        for key, source in found.items():
            if key in self._projections:
                self._projections[key].pod = pod
            else:
                self._projections[key] = _Projection(key, pod, source)
                self._news.set()
        if found:
            self._of_pod[uid] = set(found)

    def unregister(self, uid: str) -> None:
        """The pod is gone: its keys are forgotten."""
        for key in self._of_pod.pop(uid, ()):
            self._forget(key)
        self._news.set()

    async def read(self, pod: v1.Pod, volume: str, index: int) -> CredentialBundle:
        """Key and chain for one source. Raises ObjectError."""
        meta = pod.metadata
        key = SourceKey(meta.namespace, meta.name, meta.uid, volume, index)
        projection = self._projections.get(key)
        if projection is None:
            raise ObjectError(f"no credentials yet for key={key}")
        with trio.move_on_after(FIRST_WAIT):
            await projection.settled.wait()
        return states.bundle_of(projection.state)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """How many sources there are, by signer and state."""
        family = GaugeMetricFamily(
            "kubelet_podcertificate_states",
            "[ALPHA] Certificates of pods, by signer and state.",
            labels=["signer_name", "state"],
        )
        now_ns = self._clock.now_ns()
        counts = Counter(
            (projection.source.signer_name, states.metric_state(projection.state, now_ns))
            for projection in list(self._projections.values())
        )
        for labels, number in sorted(counts.items()):
            family.add_metric(list(labels), number)
        if counts:
            yield family

    def _forget(self, key: SourceKey) -> None:
        projection = self._projections.pop(key)
        if projection.asking is not None:
            projection.asking.cancel()

    def _watch_if_needed(self, nursery: trio.Nursery) -> None:
        """One watch while there is something to follow."""
        if not self._projections and self._watching is not None:
            self._watching.cancel()
            self._watching = self._requests = None
        elif self._projections and self._watching is None:
            scope = self._watching = trio.CancelScope()
            reflector = self._requests = Reflector(
                self._client.door,
                f"/apis/{GROUP_VERSION}/{RESOURCE}",
                CertificateRequest,
                params={"fieldSelector": f"spec.nodeName={self._node.name}"},
                changed=lambda: self._news.set(),
                rng=self._rng,
                warnings=0,  # the watch of pods tells of an API server that is away
            )

            async def follow() -> None:
                with scope:
                    await reflector.run()

            nursery.start_soon(follow)

    def _step(self, nursery: trio.Nursery) -> float:
        """Does for each source what is due; seconds until something is due again."""
        wait = _LONGEST_SLEEP
        for projection in list(self._projections.values()):
            now_ns, now = self._clock.now_ns(), trio.current_time()
            self._look(projection, now_ns)
            moment_ns = states.next_moment_ns(projection.state, now_ns)
            if moment_ns is not None:
                wait = min(wait, (moment_ns - now_ns) / NANOSECONDS)
            if projection.asking is not None or not states.wants_request(projection.state, now_ns):
                continue
            if now < projection.retry_at:
                wait = min(wait, projection.retry_at - now)
                continue
            projection.asking = trio.CancelScope()
            nursery.start_soon(self._ask, projection, projection.asking)
        return max(wait, 0.001)

    def _look(self, projection: _Projection, now_ns: int) -> None:
        """Takes in what became of its request, and tells what is to be told."""
        state, requests = projection.state, self._requests
        if state.asked is not None and requests is not None and requests.synced.is_set():
            found = requests.find(key_of(projection.key.namespace, state.asked.name))
            try:
                new = states.after_news(state, found, now_ns, self._rng.random())
            except Exception as error:  # whatever a signer issues to one pod, the others have theirs
                log.error("Issued certificate makes no sense", request=state.asked.name, err=error)
                new = state
            if new is not state:
                self._enter(projection, new, state.asked.name)
        projection.state, events = states.overdue(projection.state, now_ns)
        for event in events:
            self._events.record(projection.pod, "Warning", event.reason, event.message)

    def _enter(self, projection: _Projection, state: CertificateState, request: str) -> None:
        old, projection.state = projection.state, state
        refusal = state.refusal
        if refusal is None and state.issued is old.issued:
            log.warning("PodCertificateRequest appears to have been deleted", request=request)
            return
        log.v(4).info("PodCertificateRequest is decided", key=str(projection.key), request=request)
        if refusal is not None:
            told = refusal.told(key_of(projection.key.namespace, request))
            self._events.record(projection.pod, "Warning", refusal.verdict, told)
        projection.settled.set()
        self._changed(frozenset({projection.key.uid}))

    async def _ask(self, projection: _Projection, scope: trio.CancelScope) -> None:
        """Makes a key and a request for it; a failure is tried again with back-off."""
        with scope:
            try:
                async with self._limiter:
                    asked = await self._create(projection)
            except Exception as error:  # of the server or a key; the others are asked for
                projection.failures += 1
                pause = PAUSES.after(projection.failures, self._rng.random())
                projection.retry_at = trio.current_time() + pause
                level = log if projection.failures <= LOGGED_FAILURES else log.v(4)
                level.error("Cannot ask for a pod's certificate", key=str(projection.key), err=error)
            else:
                projection.failures = 0
                projection.state = msgspec.structs.replace(projection.state, asked=asked)
                log.v(4).info("PodCertificateRequest created", key=str(projection.key), request=asked.name)
            projection.asking = None
            self._news.set()

    async def _create(self, projection: _Projection) -> states.PendingRequest:
        """Raises APIError, APIUnavailable, and ValueError for a type of key there is not."""
        meta, source = projection.pod.metadata, projection.source
        account = projection.pod.spec.service_account_name
        path = f"/api/v1/namespaces/{meta.namespace}/serviceaccounts/{account}"
        account_uid = (await self._client.get(path, _ServiceAccount)).metadata.uid
        node_uid = self._node.uid()
        if not node_uid:
            raise APIUnavailable(
                f'while getting node object from local cache: node "{self._node.name}" not found'
            )
        from trio_kubelet.kube.certificates.request import new_key  # 8 MB that few nodes need

        made = await CERTIFICATES.run(new_key, source.key_type)
        owner = v1.OwnerReference(api_version="v1", kind="Pod", name=meta.name, uid=meta.uid)
        request = _NewRequest(
            api_version=GROUP_VERSION,
            kind="PodCertificateRequest",
            metadata=v1.ObjectMeta(namespace=meta.namespace, generate_name="req-", owner_references=[owner]),
            spec=_Spec(
                signer_name=source.signer_name,
                pod_name=meta.name,
                pod_uid=meta.uid,
                service_account_name=account,
                service_account_uid=account_uid,
                node_name=self._node.name,
                node_uid=node_uid,
                max_expiration_seconds=source.max_expiration_seconds,
                stub_request=made.proof,
                annotations=source.user_annotations,
            ),
        )
        path = f"/apis/{GROUP_VERSION}/namespaces/{meta.namespace}/{RESOURCE}"
        created = await self._client.create(path, request, CertificateRequest)
        patience = states.ABANDON_AFTER + states.MAX_JITTER * self._rng.random()
        now_ns = self._clock.now_ns()
        return states.PendingRequest(created.metadata.name, made.key, now_ns + round(patience * NANOSECONDS))

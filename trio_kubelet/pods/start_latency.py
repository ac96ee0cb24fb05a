"""How long pods of the API server take to start: the SLI that cluster operators alert on.

Measured from the creation of a pod to the moment all its containers run, less the time its images were pulled
and its init containers ran (definition: `slos/pod_startup_latency.md` of SIG Scalability; kubelet:
`pod_startup_latency_tracker.go`). Counted are pods whose whole start this agent saw: not static ones, not
those that had to wait for the scheduler or that ran before they were first seen.

One difference: the kubelet's end is the moment the API server shows it the status that it wrote itself, this
agent's the moment it knows that status. A slow or missing API server does not make a start look slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import INTERNAL, MetricMaker
from trio_kubelet.podinfo.updates import is_mirror
from trio_kubelet.pods.metrics import POD_START_BUCKETS
from trio_kubelet.pods.refs import is_terminal_phase
from trio_kubelet.pods.status.conditions import SCHEDULED, find

log = get_logger(__name__)

Span = tuple[int, int]
"""Beginning and end in nanoseconds since the epoch."""
KEPT_PULLS = 16
"""Pulls apart from each other; those before them, with which no pull overlaps any more, are only a sum."""


class PodStart(NamedTuple):
    """A start seen from beginning to end; nanoseconds, `net_ns` without pulls and init containers."""

    total_ns: int
    net_ns: int
    stateful: bool
    network: bool


class _Starting(NamedTuple):
    created_ns: int
    seen_ns: int
    pulls: tuple[Span, ...] = ()
    pulled_before_ns: int = 0


class StartTracker:
    """Follows pods from first sight to running. Pure: time comes in, what was measured goes out."""

    def __init__(self) -> None:
        self._starting: dict[str, _Starting] = {}
        self._settled: set[str] = set()  # measured, or not to be measured, and still there

    def seen(self, pod: v1.Pod, now_ns: int) -> None:
        """The API server shows the pod, anew or changed."""
        uid = pod.metadata.uid
        if uid in self._settled:
            return
        if is_mirror(pod) or is_terminal_phase(pod.status.phase) or _unschedulable(pod.status):
            self._settle(uid)
        elif uid not in self._starting:
            created_ns = _moment(pod.metadata.creation_timestamp)
            if created_ns is None or pod.status.start_time is not None:
                self._settle(uid)
            else:
                self._starting[uid] = _Starting(created_ns, now_ns)

    def pulled(self, uid: str, began_ns: int, ended_ns: int) -> None:
        """The pod has an image, for which it was tried to be pulled since then."""
        if (known := self._starting.get(uid)) is not None:
            pulls = merged((*known.pulls, (began_ns, ended_ns)))
            past, kept = pulls[:-KEPT_PULLS], pulls[-KEPT_PULLS:]
            before = known.pulled_before_ns + covered(past)
            self._starting[uid] = known._replace(pulls=tuple(kept), pulled_before_ns=before)

    def status_changed(self, pod: v1.Pod, status: v1.PodStatus, now_ns: int) -> PodStart | None:
        """What was measured, if this status is the first that shows all containers running."""
        uid = pod.metadata.uid
        known = self._starting.get(uid)
        if known is None:
            return None
        started = _started(status.container_statuses or ())
        if len(started) < len(pod.spec.containers or ()):
            if is_terminal_phase(status.phase):
                self._settle(uid)
            return None
        self._settle(uid)
        # Statuses have whole seconds.
        if any(moment // NANOSECONDS < known.seen_ns // NANOSECONDS for moment in started):
            return None
        total = now_ns - known.created_ns
        waited = known.pulled_before_ns + covered(known.pulls) + _init_runtime(status)
        return PodStart(total, total - waited, _is_stateful(pod), not pod.spec.host_network)

    def gone(self, uid: str) -> None:
        """The API server does not show the pod any more."""
        self._starting.pop(uid, None)
        self._settled.discard(uid)

    def _settle(self, uid: str) -> None:
        self._starting.pop(uid, None)
        self._settled.add(uid)


class PodStarts:
    """Feeds the tracker and the metrics; the durations are shown once there is one."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        make = MetricMaker(registry)
        self._clock = clock
        self._tracker = StartTracker()
        self._first_network_seen = False
        self._sli = make.quick_histogram(
            "kubelet_pod_start_sli_duration_seconds",
            "Time from the creation of a pod until it runs, without image pulls and init containers.",
            (),
            buckets=POD_START_BUCKETS,
        )
        self._total = make.quick_histogram(
            "kubelet_pod_start_total_duration_seconds",
            "Time from the creation of a pod until it runs.",
            (),
            buckets=POD_START_BUCKETS,
        )
        self._first_network = MetricMaker(registry, INTERNAL).gauge(
            "kubelet_first_network_pod_start_sli_duration_seconds",
            "Start of the first pod with a network of its own, without image pulls and init containers.",
        )

    def seen(self, pod: v1.Pod) -> None:
        """See StartTracker."""
        self._tracker.seen(pod, self._clock.now_ns())

    def gone(self, pod: v1.Pod) -> None:
        """See StartTracker."""
        self._tracker.gone(pod.metadata.uid)

    def pulled(self, uid: str, began_ns: int, ended_ns: int) -> None:
        """See StartTracker."""
        self._tracker.pulled(uid, began_ns, ended_ns)

    def status_changed(self, pod: v1.Pod, status: v1.PodStatus) -> None:
        """Measures a start that this status completes."""
        start = self._tracker.status_changed(pod, status, self._clock.now_ns())
        if start is None:
            return
        total, net = start.total_ns / NANOSECONDS, start.net_ns / NANOSECONDS
        log.info("Observed pod startup duration", pod=pod, podStartSLOduration=net, podStartE2EDuration=total)
        self._total.labels().observe(total)
        if start.stateful:  # its volumes belong to somebody else's service level
            return
        self._sli.labels().observe(net)
        if start.network and not self._first_network_seen:
            self._first_network_seen = True
            self._first_network.set(net)


def covered(spans: Iterable[Span]) -> int:
    """Nanoseconds in which at least one of the spans was under way."""
    return sum(ended - began for began, ended in merged(spans))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same time in spans apart from each other, in order."""
    apart: list[Span] = []
    for began, ended in sorted(spans):
        if apart and began <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], ended))
        elif ended > began:
            apart.append((began, ended))
    return apart


def _started(statuses: Sequence[v1.ContainerStatus]) -> list[int]:
    """When the containers that run were started."""
    running = [cs.state.running for cs in statuses if cs.state.running is not None]
    return [moment for state in running if (moment := _moment(state.started_at)) is not None]


def _init_runtime(status: v1.PodStatus) -> int:
    """How long the init containers that have ended ran; one after the other, so the sum."""
    total = 0
    for cs in status.init_container_statuses or ():
        ended = cs.state.terminated
        if ended is not None:
            began_ns, ended_ns = _moment(ended.started_at), _moment(ended.finished_at)
            if began_ns is not None and ended_ns is not None:
                total += max(0, ended_ns - began_ns)
    return total


def _is_stateful(pod: v1.Pod) -> bool:
    """Whether a volume is of a kind that others provide."""
    return any(
        all(
            source is None
            for source in (
                volume.secret,
                volume.config_map,
                volume.downward_api,
                volume.empty_dir,
                volume.projected,
            )
        )
        for volume in pod.spec.volumes or ()
    )


def _unschedulable(status: v1.PodStatus) -> bool:
    """Whether the pod had to wait for the scheduler."""
    found = find(status.conditions, SCHEDULED)
    return found is not None and found.status == "False"


def _moment(text: str | None) -> int | None:
    try:
        return parse_rfc3339(text) if text else None
    except ValueError:
        return None

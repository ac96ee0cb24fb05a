"""The API status of a pod (kubelet: `generateAPIPodStatus`). Pure: all it depends on comes in as values."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar, regular_containers
from trio_kubelet.api.quantity import QuantityError
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.common.ip import sort_ips
from trio_kubelet.observed.probes import ProbeResult, ProbeView
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.podinfo.qos import pod_qos
from trio_kubelet.podinfo.updates import is_static
from trio_kubelet.pods.refs import FAILED, RUNNING, is_terminal_phase
from trio_kubelet.pods.status.conditions import (
    DISRUPTION_TARGET,
    OWN,
    READY,
    READY_TO_START,
    RESIZE_IN_PROGRESS,
    RESIZE_PENDING,
    find,
    own_conditions,
    put,
)
from trio_kubelet.pods.status.containers import StatusContext, container_statuses, restarts_all
from trio_kubelet.pods.status.phase import any_active_regular_container, pod_phase
from trio_kubelet.pods.status.resources import pod_level_status, pod_requests

DEADLINE_EXCEEDED = "DeadlineExceeded"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"
RESTART_MARGIN_NS = 10_000_000_000
"""A container that ran this long before the agent started was there before it and keeps its readiness."""


class StatusInputs(StatusContext, frozen=True, kw_only=True):
    """Everything a pod's status depends on besides pod and observation."""

    probes: ProbeView = ProbeView()
    ready_to_start: bool = True  # whether the condition of that name is told (KEP-3085)
    pod_resources: bool = True  # whether the resources of the pod as a whole are shown (KEP-5419)
    host_ips: tuple[str, ...] = ()  # empty without an API server: then the status does not show them
    ipv6_first: bool = False
    now_ns: int = 0
    # Health of what plugins gave to a container, by its name.
    given_health: Callable[[str], Sequence[v1.ResourceStatus]] = lambda container: ()
    actuated: v1.Pod | None = None  # the pod with the resources it has; None: those it was granted


def generate_status(
    pod: v1.Pod, observed: PodStatus, old: v1.PodStatus, inputs: StatusInputs, *, terminal: bool
) -> v1.PodStatus:
    """The status to be shown of `pod`, given what was said of it before.

    `terminal`: all containers were stopped for good. A pod that was once Succeeded or Failed stays so.
    """
    init, regular, ephemeral = container_statuses(pod, observed, old, inputs)
    restarting_all = restarts_all(pod, observed, old)
    phase = pod_phase(
        pod, [*regular, *init], terminal=terminal, initialised=any_active_regular_container(pod, observed)
    )
    phase, reason, message = _settle_phase(pod, phase, old, inputs.now_ns)
    ips = sort_ips(observed.ips, inputs.ipv6_first)
    if not ips and is_terminal_phase(phase):  # no agent since its end may have seen them
        ips = [ip.ip for ip in old.pod_ips or pod.status.pod_ips or ()]
    containers = {container.name: container for container in regular_containers(pod.spec)}
    status = v1.PodStatus(
        phase=phase,
        reason=reason,
        message=message,
        qos_class=pod_qos(pod).value,
        pod_ip=ips[0] if ips else "",
        pod_ips=[v1.PodIP(ip=ip) for ip in ips] or None,
        init_container_statuses=_probed_init(pod, containers, init, old, inputs.probes) or None,
        container_statuses=[
            replace(
                _probed(pod, containers.get(s.name), s, old, inputs.probes),
                allocated_resources_status=list(inputs.given_health(s.name)) or None,
            )
            for s in regular
        ]
        or None,
        ephemeral_container_statuses=ephemeral or None,
        conditions=_passed_on(pod, old),
    )
    if inputs.pod_resources:
        status = replace(
            status,
            resources=(
                pod_level_status(inputs.actuated or pod, running=True)
                if phase == RUNNING and not is_static(pod)
                else pod_level_status(pod, running=False)
            ),
            allocated_resources=pod_requests(pod) or None,
        )
    own = own_conditions(pod, observed, status, old, restarting_all)
    if not inputs.ready_to_start:
        own = [each for each in own if each.type != READY_TO_START]
    status = replace(status, conditions=[*(status.conditions or ()), *own])
    return _with_host_ips(pod, status, inputs.host_ips)


def rejected_status(pod: v1.Pod, reason: str, message: str) -> v1.PodStatus:
    """The status of a pod this node refuses (kubelet: `rejectPod`)."""
    try:
        qos = pod_qos(pod).value
    except QuantityError:  # it may be refused for what it asks for
        qos = ""
    return v1.PodStatus(phase=FAILED, reason=reason, message=f"Pod was rejected: {message}", qos_class=qos)


def past_active_deadline(pod: v1.Pod, status: v1.PodStatus, now_ns: int) -> bool:
    """Whether the pod has been on the node for longer than its `activeDeadlineSeconds`."""
    deadline = pod.spec.active_deadline_seconds
    if deadline is None or status.start_time is None:
        return False
    return now_ns - parse_rfc3339(status.start_time) >= deadline * 1_000_000_000


def _settle_phase(pod: v1.Pod, phase: str, old: v1.PodStatus, now_ns: int) -> tuple[str, str, str]:
    """The phase that is shown, with reason and message: terminal phases are never left."""
    # Also when its containers, told to end, then end well: one that was evicted has failed.
    phase = next((each for each in (old.phase, pod.status.phase) if is_terminal_phase(each)), phase)
    reason = message = ""
    if phase == old.phase:
        reason = old.reason or pod.status.reason
        message = old.message or pod.status.message
    if past_active_deadline(pod, old, now_ns):
        phase, reason, message = FAILED, DEADLINE_EXCEEDED, DEADLINE_MESSAGE
    if is_terminal_phase(pod.status.phase):
        phase = pod.status.phase
    return phase, reason, message


def _passed_on(pod: v1.Pod, old: v1.PodStatus) -> list[v1.PodCondition]:
    """Conditions others own, and the one that says why the node ends the pod."""
    kept = [c for c in pod.status.conditions or () if c.type not in OWN]
    for kind in (RESIZE_PENDING, RESIZE_IN_PROGRESS):
        resize = find(old.conditions, kind)
        if resize is not None and not is_terminal_phase(old.phase):
            kept.append(resize)
    disruption = find(old.conditions, DISRUPTION_TARGET)
    return put(kept, disruption) if disruption is not None else kept


def _probed_init(
    pod: v1.Pod,
    containers: Mapping[str, v1.Container],
    statuses: Sequence[v1.ContainerStatus],
    old: v1.PodStatus,
    probes: ProbeView,
) -> list[v1.ContainerStatus]:
    """Init containers: sidecars are probed as others are; the rest are ready once they completed."""
    result = []
    for status in statuses:
        container = containers.get(status.name)
        if container is not None and is_sidecar(container):
            result.append(_probed(pod, container, status, old, probes))
            continue
        ended = status.state.terminated
        completed = ended is not None and ended.exit_code == 0
        started = _started(status, container, probes)
        result.append(replace(status, started=started, ready=completed or status.ready))
    return result


def _probed(
    pod: v1.Pod,
    container: v1.Container | None,
    status: v1.ContainerStatus,
    old: v1.PodStatus,
    probes: ProbeView,
) -> v1.ContainerStatus:
    """The status with `started` and `ready` from the probes' verdicts (kubelet: `UpdatePodStatus`)."""
    started = _started(status, container, probes)
    if not started:
        return replace(status, started=False, ready=False)
    return replace(status, started=True, ready=_ready(pod, status, container, old, probes))


def _started(status: v1.ContainerStatus, container: v1.Container | None, probes: ProbeView) -> bool:
    if status.state.running is None:
        return False
    verdict = probes.startup.get(_bare_id(status))
    if verdict is not None:
        return verdict is ProbeResult.SUCCESS
    if status.started and probes.kept_before_ns:
        return True
    return not (probes.active and container is not None and container.startup_probe is not None)


def _ready(
    pod: v1.Pod,
    status: v1.ContainerStatus,
    container: v1.Container | None,
    old: v1.PodStatus,
    probes: ProbeView,
) -> bool:
    if not probes.active or container is None or container.readiness_probe is None:
        return True
    verdict = probes.readiness.get(_bare_id(status))
    if verdict is not None:
        return verdict is ProbeResult.SUCCESS
    # Not probed yet. A container that ran before the agent started keeps the readiness its pod had, so that a
    # restart of the agent takes nobody out of service. One that has taken the place of what the API server
    # has heard of does not (kubernetes/kubernetes 141473).
    before = find(pod.status.conditions, READY) or find(old.conditions, READY)
    if not probes.kept_before_ns or before is None or before.status != "True":
        return False
    heard = [each for shown in (pod.status, old) for each in _named(status.name, shown)]
    itself = [each for each in heard if each.container_id == status.container_id]
    if heard and not itself:
        return False
    running = status.state.running
    began = parse_rfc3339(running.started_at) if running is not None and running.started_at else 0
    # A younger one may be of this agent, unless its own status is older.
    return 0 < began < probes.kept_before_ns - RESTART_MARGIN_NS or any(each.ready for each in itself)


def _named(name: str, shown: v1.PodStatus) -> Iterator[v1.ContainerStatus]:
    """What was shown of a container that had an id."""
    for each in (*(shown.init_container_statuses or ()), *(shown.container_statuses or ())):
        if each.name == name and each.container_id:
            yield each


def _bare_id(status: v1.ContainerStatus) -> str:
    return status.container_id.rpartition("://")[2]


def _with_host_ips(pod: v1.Pod, status: v1.PodStatus, host_ips: tuple[str, ...]) -> v1.PodStatus:
    """The node's addresses, which are also those of a pod on the host's network."""
    if not host_ips:
        return status
    status = replace(status, host_ip=host_ips[0], host_ips=[v1.HostIP(ip=ip) for ip in host_ips[:2]])
    if not pod.spec.host_network:
        return status
    if not status.pod_ip:
        status = replace(status, pod_ip=host_ips[0], pod_ips=[v1.PodIP(ip=host_ips[0])])
    if len(host_ips) > 1 and status.pod_ips is not None and len(status.pod_ips) == 1:
        first, second = (ipaddress.ip_address(ip) for ip in (status.pod_ips[0].ip, host_ips[1]))
        if first.version != second.version:
            status = replace(status, pod_ips=[*status.pod_ips, v1.PodIP(ip=host_ips[1])])
    return status

"""What probes are about: kinds, results, and the view of a container that a probe needs."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.observed.probes import ProbeKind
from trio_kubelet.podinfo.restarts import are_all_restarting, should_restart_after


class ProbeKey(NamedTuple):
    """One probe of one container of one pod."""

    pod_uid: str
    container: str
    kind: ProbeKind


class ProbedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a container when its probe is due."""

    container_id: str = ""  # "" when it was not created yet
    running: bool = False
    terminated: bool = False
    exit_code: int = 0
    started_at_ns: int = 0
    started: bool = False  # the startup probe has succeeded, or there is none
    ready: bool = False  # is shown as ready
    will_restart: bool = True  # if it has terminated
    pod_ip: str = ""


def probe_of(container: v1.Container, kind: ProbeKind) -> v1.Probe | None:
    """The container's probe of that kind."""
    match kind:
        case ProbeKind.LIVENESS:
            return container.liveness_probe
        case ProbeKind.READINESS:
            return container.readiness_probe
        case ProbeKind.STARTUP:
            return container.startup_probe


def container_views(pod: v1.Pod, status: v1.PodStatus) -> dict[str, ProbedContainer]:
    """The probed view of each container, by name, from the status the agent made for the pod."""
    containers = {container.name: container for container in regular_containers(pod.spec)}
    all_restart = are_all_restarting(status)
    views = dict[str, ProbedContainer]()
    for seen in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        container = containers.get(seen.name)
        running, terminated = seen.state.running, seen.state.terminated
        exit_code = terminated.exit_code if terminated else 0
        started_at = running.started_at if running else None
        views[seen.name] = ProbedContainer(
            container_id=(seen.container_id or "").rpartition("://")[2],
            running=running is not None,
            terminated=terminated is not None,
            exit_code=exit_code,
            started_at_ns=parse_rfc3339(started_at) if started_at else 0,
            started=bool(seen.started),
            ready=seen.ready,
            will_restart=container is not None
            and (all_restart or should_restart_after(pod, container, exit_code)),
            pod_ip=status.pod_ip or "",
        )
    return views

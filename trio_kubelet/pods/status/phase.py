"""The phase of a pod from the states of its containers (kubelet: `getPhase`). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.podinfo import restarts
from trio_kubelet.podinfo.updates import is_static
from trio_kubelet.pods.refs import FAILED, PENDING, RUNNING, SUCCEEDED
from trio_kubelet.pods.status.containers import RESTARTING_ALL


def any_active_regular_container(pod: v1.Pod, observed: PodStatus) -> bool:
    """Whether a regular container was started in the pod's present sandbox, so that init is behind it."""
    if not observed.sandboxes or not observed.sandboxes[0].ready:
        return False
    names = {container.name for container in pod.spec.containers or ()}
    active = observed.sandboxes[0].id
    return any(c.name in names and c.pod_sandbox_id == active for c in observed.containers)


def pod_phase(
    pod: v1.Pod, statuses: Iterable[v1.ContainerStatus], *, terminal: bool, initialised: bool
) -> str:
    """The phase; `terminal`: the pod was stopped for good. A static pod is never said to have ended by that.

    `initialised`: regular containers ran in this sandbox, so a restarting sidecar does not make it Pending.
    """
    by_name = {status.name: status for status in statuses}
    init = _count_init(pod, by_name)
    count = _count_running(pod, by_name)
    if init["failed for good"]:
        return FAILED
    if init["pending"] or (count["sidecar pending"] and not initialised) or count["waiting"]:
        return PENDING
    if count["running"]:
        return RUNNING
    if not count["stopped"]:
        return PENDING
    all_succeeded = count["stopped"] == count["succeeded"]
    if terminal and not is_static(pod):
        return SUCCEEDED if all_succeeded else FAILED
    if count["stopped"] != count["not restarted"]:
        return RUNNING
    return SUCCEEDED if all_succeeded else FAILED


def _count_init(pod: v1.Pod, by_name: dict[str, v1.ContainerStatus]) -> Counter[str]:
    """Init containers that run once: how many are yet to complete, how many failed for good."""
    count: Counter[str] = Counter()
    for container in pod.spec.init_containers or ():
        if is_sidecar(container):
            continue
        status = by_name.get(container.name)
        ended = _ended(status)
        if ended is None:
            count["pending"] += 1
        elif ended.exit_code != 0 and not _comes_again(pod, container, ended):
            count["failed for good"] += 1
    return count


def _count_running(pod: v1.Pod, by_name: dict[str, v1.ContainerStatus]) -> Counter[str]:
    """Sidecars and regular containers by what they are doing; those of which nothing is known wait."""
    count: Counter[str] = Counter()
    for container in pod.spec.init_containers or ():
        if not is_sidecar(container):
            continue
        status = by_name.get(container.name)
        if status is not None and status.state.running is not None:
            count["sidecar pending"] += not status.started
            count["running"] += 1
        elif _ended(status) is None:
            count["waiting"] += 1
    for container in pod.spec.containers or ():
        status = by_name.get(container.name)
        ended = _ended(status)
        if status is not None and status.state.running is not None:
            count["running"] += 1
        elif status is None or ended is None:
            count["waiting"] += 1
        else:
            count["stopped"] += 1
            count["not restarted"] += not _comes_again(pod, container, ended)
            succeeded = status.state.terminated is not None and ended.exit_code == 0
            count["succeeded"] += succeeded
    return count


def _ended(status: v1.ContainerStatus | None) -> v1.ContainerStateTerminated | None:
    """How the container ended; a waiting one counts by its last end."""
    if status is None or status.state.running is not None:
        return None
    if status.state.terminated is not None:
        return status.state.terminated
    return status.last_state.terminated if status.state.waiting is not None else None


def _comes_again(pod: v1.Pod, container: v1.Container, ended: v1.ContainerStateTerminated) -> bool:
    if ended.reason == RESTARTING_ALL:
        return True
    return restarts.should_restart_after(pod, container, ended.exit_code)

"""Which container's log is meant: from a pod's status to a container id, or the reason why there is none.

The texts are the kubelet's (`validateContainerLogStatus`): `kubectl logs` shows them as they are.
"""

from __future__ import annotations

from trio_kubelet.api import v1


class NoLog(Exception):
    """There is no log to show; the text says why."""


def choose_container(pod_name: str, status: v1.PodStatus, name: str, previous: bool) -> str:
    """The id (`containerd://…`) of the container whose log to show: the one that runs, else the last that
    ran; with `previous` the one before. Raises NoLog.
    """
    found = _status_of(status, name)
    where = f'container "{name}" in pod "{pod_name}"'
    if found is None:
        raise NoLog(f"{where} is not available")
    state, last = found.state, found.last_state.terminated
    last_id = last.container_id if last is not None else ""
    if previous:
        if not last_id:
            raise NoLog(f'previous terminated container "{name}" in pod "{pod_name}" not found')
        return last_id
    if state.running is not None:
        return found.container_id
    if state.terminated is not None or last is not None:
        # A container whose successor could not be created is terminated without an id.
        own = state.terminated.container_id if state.terminated is not None else ""
        if not (own or last_id):
            raise NoLog(f"{where} is terminated")
        return own or last_id
    raise NoLog(f"{where} is waiting to start{_why_waiting(state.waiting)}")


def _status_of(status: v1.PodStatus, name: str) -> v1.ContainerStatus | None:
    groups = (
        status.container_statuses,
        status.init_container_statuses,
        status.ephemeral_container_statuses,
    )
    for group in groups:
        for container in group or ():
            if container.name == name:
                return container
    return None


def _why_waiting(waiting: v1.ContainerStateWaiting | None) -> str:
    if waiting is None:
        return " - no logs yet"
    words = {
        "ErrImagePull": "image can't be pulled",
        "ImagePullBackOff": "trying and failing to pull image",
    }
    return f": {words.get(waiting.reason, waiting.reason)}"

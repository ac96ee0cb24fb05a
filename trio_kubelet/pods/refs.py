"""What a pod is called and how far it is: small questions that many modules ask of a pod."""

from __future__ import annotations

from typing import Final

from trio_kubelet.api.v1 import Pod
from trio_kubelet.native.types import PodView
from trio_kubelet.observed.types import ContainerState, PodStatus
from trio_kubelet.podinfo.updates import CONFIG_SOURCE_ANNOTATION

PENDING: Final = "Pending"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"


def full_name(name: str, namespace: str) -> str:
    """The name under which static pods exclude each other: `name_namespace`."""
    return f"{name}_{namespace}"


def split_full_name(text: str) -> tuple[str, str]:
    """Name and namespace of a `full_name`."""
    name, _, namespace = text.rpartition("_")
    return name, namespace


def pod_full_name(pod: Pod) -> str:
    """`full_name` of an API object."""
    return full_name(pod.metadata.name, pod.metadata.namespace)


def pod_path(pod: Pod) -> str:
    """Where the pod is at the API server."""
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def is_terminal_phase(phase: str) -> bool:
    """Whether a pod in this phase will never run again."""
    return phase in (SUCCEEDED, FAILED)


def is_quiet(status: PodStatus | None) -> bool:
    """Whether nothing of the pod runs in the runtime: no container, no ready sandbox."""
    return status is None or (not status.running() and not any(s.ready for s in status.sandboxes))


def runtime_source(status: PodStatus | None) -> str:
    """The source that stands in the annotation of a pod's newest sandbox, "" when unknown."""
    if status is None:
        return ""
    for sandbox in status.sandboxes:
        if source := sandbox.annotations.get(CONFIG_SOURCE_ANNOTATION, ""):
            return source
    return ""


def view_runs(view: PodView | None) -> bool:
    """Whether a relist shows a running container or a ready sandbox of the pod."""
    if view is None:
        return False
    running = ContainerState.RUNNING
    return any(c.state is running for c in view.containers) or any(s.state is running for s in view.sandboxes)

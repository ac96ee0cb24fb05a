"""What a pod is called and where it comes from: small questions that many modules ask of a pod.

Rules as in the kubelet (`pkg/kubelet/types`, `pkg/kubelet/container`): a pod whose source is not the API
server is static; a mirror pod is the API server's picture of a static pod and is never run itself.
"""

from __future__ import annotations

from typing import Final

from trio_kubelet.api.v1 import Pod
from trio_kubelet.native.types import PodView
from trio_kubelet.runtime.types import ContainerState, PodStatus
from trio_kubelet.sources.types import (
    API_SOURCE,
    CONFIG_HASH_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
)

PENDING: Final = "Pending"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"

# Lowest priority of a pod that the node must not do without (`scheduling.SystemCriticalPriority`).
SYSTEM_CRITICAL_PRIORITY: Final = 2_000_000_000


def full_name(name: str, namespace: str) -> str:
    """The name under which static pods exclude each other: `name_namespace`."""
    return f"{name}_{namespace}"


def pod_full_name(pod: Pod) -> str:
    """`full_name` of an API object."""
    return full_name(pod.metadata.name, pod.metadata.namespace)


def pod_source(pod: Pod) -> str:
    """The source that delivered the pod, "" when it does not say."""
    return (pod.metadata.annotations or {}).get(CONFIG_SOURCE_ANNOTATION, "")


def is_static(pod: Pod) -> bool:
    """Whether the pod was delivered by a file or URL."""
    return pod_source(pod) not in ("", API_SOURCE)


def is_mirror(pod: Pod) -> bool:
    """Whether the pod is the API server's picture of a static pod."""
    return CONFIG_MIRROR_ANNOTATION in (pod.metadata.annotations or {})


def is_mirror_of(mirror: Pod, pod: Pod) -> bool:
    """Whether the mirror shows this very version of the static pod, not an earlier one of the same name."""
    shown = (mirror.metadata.annotations or {}).get(CONFIG_MIRROR_ANNOTATION)
    return shown is not None and shown == (pod.metadata.annotations or {}).get(CONFIG_HASH_ANNOTATION)


def is_terminal_phase(phase: str) -> bool:
    """Whether a pod in this phase will never run again."""
    return phase in (SUCCEEDED, FAILED)


def is_critical(pod: Pod) -> bool:
    """Whether the node makes room for the pod by ending others."""
    priority = pod.spec.priority
    return is_static(pod) or is_mirror(pod) or (priority is not None and priority >= SYSTEM_CRITICAL_PRIORITY)


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

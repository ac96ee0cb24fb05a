"""How pods and containers are named in texts that operators read: events, messages, conditions."""

from __future__ import annotations

from trio_kubelet.api import v1
from trio_kubelet.podinfo.doors import PodRecorderDoor
from trio_kubelet.podinfo.restarts import field_path


def pod_text(name: str, namespace: str, uid: str) -> str:
    """`NAME_NAMESPACE(UID)`, the kubelet's way to name a pod in messages."""
    return f"{name}_{namespace}({uid})"


def pod_name(pod: v1.Pod) -> str:
    """The same for a pod."""
    return pod_text(pod.metadata.name, pod.metadata.namespace, pod.metadata.uid)


class ContainerEvents:
    """Events about containers.

    Container ids never stand in an event: runtimes put them into their errors, and events that
    differ only in an id could not be counted as one. The name stands in their place.
    """

    def __init__(self, recorder: PodRecorderDoor) -> None:
        self._recorder = recorder

    def normal(self, pod: v1.Pod, container: str, reason: str, message: str, id: str = "") -> None:
        """Records an event of type Normal."""
        self._record(pod, container, "Normal", reason, message, id)

    def warning(self, pod: v1.Pod, container: str, reason: str, message: str, id: str = "") -> None:
        """Records an event of type Warning."""
        self._record(pod, container, "Warning", reason, message, id)

    def _record(self, pod: v1.Pod, container: str, type: str, reason: str, message: str, id: str) -> None:
        text = message.replace(id, container) if id else message
        self._recorder.record(pod, type, reason, text, field_path(pod, container))

"""Labels and annotations on sandboxes and containers: written when they are created, read back when they
are found again.

They are all the agent knows about a container whose pod is gone, so what is needed to end it properly
(preStop hook, grace period, ports) stands in them (kubelet: `kuberuntime/labels.go`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.tree import json_text
from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.native.hashes import container_hash
from trio_kubelet.observed.types import POD_UID as POD_UID

POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
CONTAINER_NAME = "io.kubernetes.container.name"

POD_DELETION_GRACE_PERIOD = "io.kubernetes.pod.deletionGracePeriod"
POD_TERMINATION_GRACE_PERIOD = "io.kubernetes.pod.terminationGracePeriod"
CONTAINER_HASH = "io.kubernetes.container.hash"
RESTART_COUNT = "io.kubernetes.container.restartCount"
TERMINATION_MESSAGE_PATH = "io.kubernetes.container.terminationMessagePath"
TERMINATION_MESSAGE_POLICY = "io.kubernetes.container.terminationMessagePolicy"
PRE_STOP_HANDLER = "io.kubernetes.container.preStopHandler"
CONTAINER_PORTS = "io.kubernetes.container.ports"

_NUMBER: Final = re.compile("-?[0-9]{1,19}")
MOST_RESTARTS: Final = 2**31 - 1
"""What a status can show: who says more has made that up."""
MOST_LABELS: Final = 16 << 10
MOST_ANNOTATIONS: Final = 32 << 10
"""Characters of a pod's labels, and of its annotations, that its sandbox carries. All sandboxes of a node
come in one message, with containerd of 16 MiB at most; with the 256 KiB of annotations that the API server
takes, 64 pods would leave the node without a list, as they do a kubelet.
"""


class PodIdentity(msgspec.Struct, frozen=True):
    """Whose a sandbox or container is, as its labels say; "" where one is missing."""

    uid: str = ""
    name: str = ""
    namespace: str = ""
    container: str = ""


class ContainerNotes(msgspec.Struct, frozen=True, kw_only=True):
    """What the annotations of a container say; anything missing or unreadable has its empty value."""

    hash: str = ""
    restart_count: int = 0
    deletion_grace_period: int | None = None  # seconds
    termination_grace_period: int | None = None  # seconds
    termination_message_path: str = ""
    termination_message_policy: str = ""
    pre_stop: v1.LifecycleHandler | None = None
    ports: tuple[v1.ContainerPort, ...] = ()


def pod_labels(pod: v1.Pod) -> dict[str, str]:
    """Labels of a sandbox: the pod's own and its identity, which wins."""
    meta = pod.metadata
    return {
        **_carried(meta.labels or {}, MOST_LABELS),
        POD_NAME: meta.name,
        POD_NAMESPACE: meta.namespace,
        POD_UID: meta.uid,
    }


def pod_annotations(pod: v1.Pod) -> dict[str, str]:
    """Annotations of a sandbox: the pod's own."""
    return _carried(pod.metadata.annotations or {}, MOST_ANNOTATIONS)


def _carried(values: Mapping[str, str], most: int) -> dict[str, str]:
    """All of them; of too many, the shorter ones, which are more likely to be meant for the runtime."""
    sizes = {name: len(name) + len(value) for name, value in values.items()}
    if sum(sizes.values()) <= most:
        return dict(values)
    room, kept = most, dict[str, str]()
    for name in sorted(sizes, key=sizes.__getitem__):
        if (room := room - sizes[name]) < 0:
            break
        kept[name] = values[name]
    return kept


def container_labels(pod: v1.Pod, container: str) -> dict[str, str]:
    """Labels of a container: only whose it is."""
    meta = pod.metadata
    return {
        CONTAINER_NAME: container,
        POD_NAME: meta.name,
        POD_NAMESPACE: meta.namespace,
        POD_UID: meta.uid,
    }


def container_annotations(pod: v1.Pod, container: v1.Container, restart_count: int) -> dict[str, str]:
    """Annotations of a container."""
    notes = {
        CONTAINER_HASH: container_hash(container.name, container.image),
        RESTART_COUNT: str(restart_count),
        TERMINATION_MESSAGE_PATH: container.termination_message_path,
        TERMINATION_MESSAGE_POLICY: container.termination_message_policy,
    }
    if pod.metadata.deletion_grace_period_seconds is not None:
        notes[POD_DELETION_GRACE_PERIOD] = str(pod.metadata.deletion_grace_period_seconds)
    if pod.spec.termination_grace_period_seconds is not None:
        notes[POD_TERMINATION_GRACE_PERIOD] = str(pod.spec.termination_grace_period_seconds)
    if container.lifecycle is not None and container.lifecycle.pre_stop is not None:
        notes[PRE_STOP_HANDLER] = _handler_json(container.lifecycle.pre_stop)
    if container.ports:
        notes[CONTAINER_PORTS] = json_text([_port_fields(port) for port in container.ports])
    return notes


def read_identity(labels: Mapping[str, str]) -> PodIdentity:
    """Whose a sandbox or container is."""
    return PodIdentity(
        uid=labels.get(POD_UID, ""),
        name=labels.get(POD_NAME, ""),
        namespace=labels.get(POD_NAMESPACE, ""),
        container=labels.get(CONTAINER_NAME, ""),
    )


def read_notes(annotations: Mapping[str, str]) -> ContainerNotes:
    """What a container's annotations say. Never fails: a container must be endable whatever it carries."""
    return ContainerNotes(
        hash=annotations.get(CONTAINER_HASH, ""),
        restart_count=max(_integer(annotations.get(RESTART_COUNT), MOST_RESTARTS) or 0, 0),
        deletion_grace_period=_integer(annotations.get(POD_DELETION_GRACE_PERIOD)),
        termination_grace_period=_integer(annotations.get(POD_TERMINATION_GRACE_PERIOD)),
        termination_message_path=annotations.get(TERMINATION_MESSAGE_PATH, ""),
        termination_message_policy=annotations.get(TERMINATION_MESSAGE_POLICY, ""),
        pre_stop=read_pre_stop(annotations.get(PRE_STOP_HANDLER, "")),
        ports=read_ports(annotations.get(CONTAINER_PORTS, "")),
    )


def read_pre_stop(text: str) -> v1.LifecycleHandler | None:
    """The preStop handler of an annotation, None when there is none or it cannot be read."""
    if not text:
        return None
    try:
        return decode_flat(text, v1.LifecycleHandler)
    except msgspec.MsgspecError:
        return None


def read_ports(text: str) -> tuple[v1.ContainerPort, ...]:
    """The ports of an annotation, empty when there are none or they cannot be read."""
    if not text:
        return ()
    try:
        return decode_flat(text, tuple[v1.ContainerPort, ...])
    except msgspec.MsgspecError:
        return ()


def _integer(text: str | None, most: int = 2**63 - 1) -> int | None:
    """A number of at most that size, as Go writes it; None for anything else."""
    if text is None or not _NUMBER.fullmatch(text):
        return None
    return value if abs(value := int(text)) <= most else None


def _handler_json(handler: v1.LifecycleHandler) -> str:
    """A lifecycle handler as Go writes it: fields in the order of the Go types, empty ones left out."""
    fields: dict[str, Any] = {}
    if handler.exec is not None:
        fields["exec"] = {"command": handler.exec.command} if handler.exec.command else {}
    if handler.http_get is not None:
        get = handler.http_get
        headers = [{"name": header.name, "value": header.value} for header in get.http_headers or ()]
        fields["httpGet"] = {
            **({"path": get.path} if get.path else {}),
            "port": get.port,
            **({"host": get.host} if get.host else {}),
            **({"scheme": get.scheme} if get.scheme else {}),
            **({"httpHeaders": headers} if headers else {}),
        }
    if handler.tcp_socket is not None:
        socket = handler.tcp_socket
        fields["tcpSocket"] = {"port": socket.port, **({"host": socket.host} if socket.host else {})}
    if handler.sleep is not None:
        fields["sleep"] = {"seconds": handler.sleep.seconds}
    return json_text(fields)


def _port_fields(port: v1.ContainerPort) -> dict[str, Any]:
    return {
        **({"name": port.name} if port.name else {}),
        **({"hostPort": port.host_port} if port.host_port else {}),
        "containerPort": port.container_port,
        **({"protocol": port.protocol} if port.protocol else {}),
        **({"hostIP": port.host_ip} if port.host_ip else {}),
    }

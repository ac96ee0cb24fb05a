"""Short ways to write pods and what was observed of them."""

from __future__ import annotations

from typing import Any

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.native.hashes import container_hash
from trio_kubelet.observed.types import ContainerState, ContainerStatus, PodStatus, SandboxStatus

NOW_NS = 1_700_000_000_000_000_000
IMAGE = "localhost/busybox:1"

_SHORT = {
    "created": ContainerState.CREATED,
    "running": ContainerState.RUNNING,
    "exited": ContainerState.EXITED,
    "unknown": ContainerState.UNKNOWN,
}


def container(name: str, **fields: Any) -> v1.Container:
    """A container of the small image."""
    fields.setdefault("image", IMAGE)
    fields.setdefault("image_pull_policy", "IfNotPresent")
    fields.setdefault("termination_message_path", "/dev/termination-log")
    fields.setdefault("termination_message_policy", "File")
    return v1.Container(name=name, **fields)


def sidecar(name: str, **fields: Any) -> v1.Container:
    """A restartable init container."""
    return container(name, restart_policy="Always", **fields)


def pod(
    *containers: v1.Container,
    init: tuple[v1.Container, ...] = (),
    policy: str = "Always",
    name: str = "web",
    uid: str = "uid-1",
    **spec: Any,
) -> v1.Pod:
    """A pod with these containers, `web` when none is given."""
    spec.setdefault("termination_grace_period_seconds", 30)
    return v1.Pod(
        metadata=v1.ObjectMeta(name=name, namespace="default", uid=uid),
        spec=v1.PodSpec(
            containers=list(containers) or [container("web")],
            init_containers=list(init) or None,
            restart_policy=policy,
            **spec,
        ),
    )


def seen(name: str, state: str, exit_code: int = 0, /, **fields: Any) -> ContainerStatus:
    """An observed container; its id is its name unless given."""
    fields.setdefault("id", name)
    fields.setdefault("created_at_ns", NOW_NS)
    fields.setdefault("hash", container_hash(name, IMAGE))
    return ContainerStatus(name=name, state=_SHORT[state], exit_code=exit_code, **fields)


def sandbox(id: str = "box", **fields: Any) -> SandboxStatus:
    """An observed sandbox, ready and with an address unless told otherwise."""
    base = SandboxStatus(
        id=id,
        name="web",
        namespace="default",
        uid="uid-1",
        attempt=0,
        ready=True,
        created_at_ns=NOW_NS,
        ips=("10.0.0.2",),
    )
    return msgspec.structs.replace(base, **fields)


def status(*containers: ContainerStatus, sandboxes: tuple[SandboxStatus, ...] | None = None) -> PodStatus:
    """An observed pod with one ready sandbox unless told otherwise."""
    boxes = (sandbox(),) if sandboxes is None else sandboxes
    return PodStatus(
        uid="uid-1",
        name="web",
        namespace="default",
        ips=boxes[0].ips if boxes else (),
        containers=containers,
        sandboxes=boxes,
        timestamp_ns=NOW_NS,
    )

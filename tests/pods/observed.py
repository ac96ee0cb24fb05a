"""What the runtime shows of a pod, from few words, and the API status made of it."""

from __future__ import annotations

from typing import Any

from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.observed.types import ContainerState, ContainerStatus, PodStatus, SandboxStatus
from trio_kubelet.pods.status.generate import StatusInputs, generate_status

SECOND = 1_000_000_000


def seen(name: str, state: ContainerState = ContainerState.RUNNING, **more: Any) -> ContainerStatus:
    number = more.pop("number", 1)
    return ContainerStatus(
        id=f"{name}{number}",
        name=name,
        state=state,
        pod_sandbox_id="sandbox",
        created_at_ns=number * SECOND,
        started_at_ns=number * SECOND,
        finished_at_ns=(number + 1) * SECOND if state is ContainerState.EXITED else 0,
        **more,
    )


def exited(name: str, code: int = 0, **more: Any) -> ContainerStatus:
    return seen(name, ContainerState.EXITED, exit_code=code, reason="Error" if code else "Completed", **more)


def observed(
    *containers: ContainerStatus, ready: bool = True, ips: tuple[str, ...] = ("10.0.0.9",)
) -> PodStatus:
    sandbox = SandboxStatus(
        id="sandbox",
        name="web",
        namespace="default",
        uid="u",
        attempt=0,
        ready=ready,
        created_at_ns=1,
        ips=ips,
    )
    return PodStatus(
        uid="u", name="web", namespace="default", ips=ips, containers=containers, sandboxes=(sandbox,)
    )


def generate(
    pod: v1.Pod,
    status: PodStatus,
    old: v1.PodStatus | None = None,
    *,
    terminal: bool = False,
    **inputs: Any,
) -> v1.PodStatus:
    return generate_status(pod, status, old or v1.PodStatus(), StatusInputs(**inputs), terminal=terminal)


def pod_of(*names: str, init: tuple[v1.Container, ...] = (), **more: Any) -> v1.Pod:
    containers = [v1.Container(name=name, image="i") for name in names or ("c",)]
    return make_pod(containers=containers, spec={"init_containers": list(init)} if init else None, **more)


def container(name: str, **more: Any) -> v1.Container:
    return v1.Container(name=name, image="i", **more)

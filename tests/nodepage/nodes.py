"""A node for tests of the page: pods that are what a test says, without an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.nodepage.doors import Detail, LogTail, Use
from trio_kubelet.nodepage.rows import PodFacts, Work

STARTED = "2026-01-01T00:00:00Z"


def container_status(
    name: str, *, restarts: int = 0, ready: bool = True, state: v1.ContainerState | None = None
) -> v1.ContainerStatus:
    """A container that runs, or is in the state given."""
    shown = state or v1.ContainerState(running=v1.ContainerStateRunning(STARTED))
    return v1.ContainerStatus(
        name=name,
        state=shown,
        ready=ready and state is None,
        restart_count=restarts,
        container_id=f"containerd://{name}-id",
    )


def facts(
    name: str,
    *statuses: v1.ContainerStatus,
    namespace: str = "default",
    phase: str = "Running",
    work: Work = Work(),  # noqa: B008 - frozen
    containers: Sequence[v1.Container] | None = None,
    init: Sequence[v1.Container] | None = None,
    init_statuses: Sequence[v1.ContainerStatus] | None = None,
    **more: Any,
) -> PodFacts:
    """A pod with these containers, by default one that runs."""
    shown = list(statuses or [container_status("main")])
    spec = v1.PodSpec(
        containers=list(containers or [v1.Container(name=s.name, image="busybox:1") for s in shown]),
        init_containers=list(init) if init else None,
        restart_policy="Always",
    )
    ready = "True" if all(s.ready for s in shown) else "False"
    status = v1.PodStatus(
        phase=phase,
        start_time=STARTED,
        pod_ip="10.0.0.9",
        conditions=[
            v1.PodCondition(type="Initialized", status="True"),
            v1.PodCondition(type="Ready", status=ready),
        ],
        container_statuses=shown,
        init_container_statuses=list(init_statuses) if init_statuses else None,
    )
    pod = v1.Pod(metadata=v1.ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}"), spec=spec)
    return PodFacts(pod=pod, status=status, work=work, **more)


class FakeNode:
    """Implements `NodeDoor`. Each look at a pod is counted."""

    def __init__(self, pods: int = 0) -> None:
        self.pods: dict[str, PodFacts] = {}
        self.logs: dict[str, str] = {}
        self.stories: dict[str, list[dict[str, Any]]] = {}
        self.configs: object = {"sandboxConfig": {"hostname": "web"}}
        self.is_long = False  # its manifests
        self.tails: list[LogTail | None] = []  # that were known when logs were asked for
        self.looks = 0
        self.stamps = 0
        self.steps: dict[str, object] = {}
        self.asked_use: list[Sequence[str]] = []
        self.used: dict[str, Use] = {}
        self._listeners: list[Callable[[str], None]] = []
        for number in range(pods):
            self.put(facts(f"pod-{number:03}"))

    def put(self, pod: PodFacts, *, tell: bool = True) -> None:
        """The pod is there, or different."""
        self.pods[pod.pod.metadata.uid] = pod
        for listener in self._listeners if tell else ():
            listener(pod.pod.metadata.uid)

    def drop(self, uid: str) -> None:
        """The pod is gone; nobody tells of that."""
        del self.pods[uid]

    def uids(self) -> Sequence[str]:
        return list(self.pods)

    def stamp(self, uid: str) -> object:
        self.stamps += 1
        return self.pods[uid]

    def rounds(self) -> dict[str, object]:
        return dict(self.steps)

    def facts(self, uid: str) -> PodFacts | None:
        self.looks += 1
        return self.pods.get(uid)

    def on_change(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def story(self, uid: str) -> object:
        return list(self.stories.get(uid, []))

    def pod(self, uid: str) -> v1.Pod | None:
        found = self.pods.get(uid)
        return found.pod if found is not None else None

    def detail(self, pod: v1.Pod) -> Detail:
        if self.is_long:
            return Detail(
                uid=pod.metadata.uid, manifest=None, configs=None, notes=["the manifest is too long"]
            )
        manifest = {
            "metadata": {"name": pod.metadata.name, "labels": pod.metadata.labels or {}},
            "spec": msgspec.to_builtins(pod.spec),
        }
        return Detail(uid=pod.metadata.uid, manifest=manifest, configs=self.configs, notes=[])

    async def use(self, uids: Sequence[str]) -> dict[str, dict[str, Use]]:
        self.asked_use.append(uids)
        return {uid: self.used for uid in uids if uid in self.pods and self.used}

    async def log_tail(self, uid: str, container: str, previous: bool, before: LogTail | None) -> LogTail:
        self.tails.append(before)
        text = self.logs.get(f"{uid}/{container}{'/previous' if previous else ''}", "")
        return before if before is not None and before.stamp == text else LogTail(text, text)

"""Fills a simulated runtime with pods as the kubelet would have made them, and keeps some of them dying."""

from __future__ import annotations

import random
import uuid
from typing import Final

from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim.runtime import SimRuntime

IMAGE: Final = "registry.k8s.io/sim/app:1.0"
_NAMESPACE: Final = "default"


def sandbox_config(number: int, uid: str, attempt: int = 0) -> cri.PodSandboxConfig:
    """The sandbox of pod `sim-<number>`."""
    name = f"sim-{number}"
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, namespace=_NAMESPACE, uid=uid, attempt=attempt),
        hostname=name,
        labels={
            "app": "sim",
            "io.kubernetes.pod.name": name,
            "io.kubernetes.pod.namespace": _NAMESPACE,
            "io.kubernetes.pod.uid": uid,
        },
        annotations={
            "kubernetes.io/config.seen": "2024-01-01T00:00:00.000000000Z",
            "kubernetes.io/config.source": "api",
        },
        linux=cri.LinuxPodSandboxConfig(cgroup_parent=f"/kubepods/besteffort/pod{uid}"),
    )


def container_config(name: str, pod: cri.PodSandboxConfig, attempt: int = 0) -> cri.ContainerConfig:
    """One container of a pod; it runs until it is killed."""
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=name, attempt=attempt),
        image=cri.ImageSpec(image=IMAGE, user_specified_image=IMAGE),
        labels={
            "io.kubernetes.container.name": name,
            "io.kubernetes.pod.name": pod.metadata.name,
            "io.kubernetes.pod.namespace": pod.metadata.namespace,
            "io.kubernetes.pod.uid": pod.metadata.uid,
        },
        annotations={
            "io.kubernetes.container.hash": "5f4b2e8c",
            "io.kubernetes.container.restartCount": str(attempt),
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "io.kubernetes.container.terminationMessagePolicy": "File",
            "io.kubernetes.pod.terminationGracePeriod": "30",
        },
        log_path=f"{name}/{attempt}.log",
    )


class Population:
    """Some pods with running containers, all of a seed."""

    def __init__(self, runtime: SimRuntime, seed: int = 0) -> None:
        self.runtime = runtime
        self._random = random.Random(seed)
        if runtime.images.find(IMAGE) is None:
            runtime.images.pull(IMAGE)

    def add_pods(self, pods: int, containers: int, now_ns: int) -> None:
        """So many pods of so many containers each."""
        for number in range(pods):
            uid = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
            config = sandbox_config(number, uid)
            sandbox = self.runtime.run_sandbox(config, "", now_ns)
            for index in range(containers):
                self._start(sandbox.id, config, f"c{index}", 0, now_ns)

    def churn(self, count: int, now_ns: int) -> None:
        """So many containers die and are replaced by their next attempt, as after a restart by an agent."""
        running = list(self.runtime.containers.values())
        for container in self._random.sample(running, min(count, len(running))):
            sandbox = self.runtime.sandboxes[container.sandbox_id]
            meta = container.config.metadata
            self.runtime.kill(container.id, now_ns, exit_code=1)
            self.runtime.remove_container(container.id, now_ns)
            if sandbox.ready:
                self._start(sandbox.id, sandbox.config, meta.name, meta.attempt + 1, now_ns)

    def _start(
        self, sandbox_id: str, pod: cri.PodSandboxConfig, name: str, attempt: int, now_ns: int
    ) -> None:
        config = container_config(name, pod, attempt)
        container = self.runtime.create_container(sandbox_id, config, pod, now_ns)
        self.runtime.start_container(container.id, now_ns)

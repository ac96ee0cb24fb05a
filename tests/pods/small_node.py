"""A node of two CPUs, and pods that ask for some."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import trio

from tests.pods.build import make_pod
from tests.pods.world import World
from trio_kubelet.api import v1
from trio_kubelet.pods.admission.allocating import Allocating
from trio_kubelet.pods.admission.fit import NodeFacts
from trio_kubelet.pods.admission.node_admitter import NodeAdmitter
from trio_kubelet.pods.admission.sysctls import SysctlAllowlist
from trio_kubelet.pods.resize.allocation import AllocationStore
from trio_kubelet.pods.resize.rules import NO_RULES, ResizeRules


async def running_pod(world: World, pod: v1.Pod, source: str = "file") -> None:
    await world.add(pod, source=source)
    await world.until(lambda: pod.metadata.uid in world.runtime.alive())
    await trio.sleep(0.5)


def small_node(
    tmp_path: Path,
    resizes: ResizeRules = NO_RULES,
    pressures: Collection[str] = (),
    allocating: Allocating | None = None,
    declared: Collection[str] | None = None,
) -> NodeAdmitter:
    allocatable = {"cpu": "2", "memory": "4Gi", "pods": "110"}
    facts = NodeFacts(name="n", allocatable=allocatable, declared=declared)
    store = AllocationStore(str(tmp_path))
    store.load()
    return NodeAdmitter(
        node=lambda: facts,
        sysctls=SysctlAllowlist([]),
        allocations=store,
        pressures=lambda: pressures,
        resizes=resizes,
        allocating=allocating,
    )


def asking(name: str, cpu: str, **kwargs: object) -> v1.Pod:
    resources = v1.ResourceRequirements(requests={"cpu": cpu})
    container = v1.Container(name="c", image="i", resources=resources)
    return make_pod(name, containers=[container], **kwargs)  # type: ignore[arg-type]

"""What the runtime tells, as plain values: which pods and containers count, and what it says they use. Pure.

Rules: the kubelet's CRI stats provider (`removeTerminatedPods`, `removeTerminatedContainers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from google.protobuf.message import Message

from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.machine.values import (
    CgroupPressure,
    ContainerSample,
    PodSample,
    Pressures,
    RuntimeDisk,
    RuntimeUse,
)


def current_sandboxes(sandboxes: Iterable[cri.PodSandbox]) -> list[cri.PodSandbox]:
    """Of sandboxes with one namespace and name those that are ready, else the newest; a single one counts."""
    by_name: dict[tuple[str, str], list[cri.PodSandbox]] = {}
    for sandbox in sorted(sandboxes, key=lambda each: each.created_at):
        by_name.setdefault((sandbox.metadata.namespace, sandbox.metadata.name), []).append(sandbox)
    found: list[cri.PodSandbox] = []
    for same in by_name.values():
        ready = [each for each in same if each.state == cri.SANDBOX_READY]
        found += same if len(same) == 1 else ready or same[-1:]
    return found


def pods_of(sandbox_lists: Sequence[bytes], container_lists: Sequence[bytes]) -> tuple[PodSample, ...]:
    """The pods with the containers that run in them, out of the undecoded lists. Raises DecodeError."""
    sandboxes, containers = cri.ListPodSandboxResponse(), cri.ListContainersResponse()
    for data in sandbox_lists:
        sandboxes.MergeFromString(data)
    for data in container_lists:
        containers.MergeFromString(data)
    running: dict[str, list[ContainerSample]] = {}
    for container in containers.containers:
        if container.state == cri.CONTAINER_RUNNING:
            sample = ContainerSample(
                id=container.id,
                name=container.metadata.name,
                image=container.image.user_specified_image or container.image.image,
                created_ns=container.created_at,
            )
            running.setdefault(container.pod_sandbox_id, []).append(sample)
    return tuple(
        PodSample(
            sandbox_id=sandbox.id,
            name=sandbox.metadata.name,
            namespace=sandbox.metadata.namespace,
            uid=sandbox.metadata.uid,
            created_ns=sandbox.created_at,
            containers=tuple(running.get(sandbox.id, ())),
        )
        for sandbox in current_sandboxes(sandboxes.items)
    )


def uses_of(stats: Iterable[cri.ContainerStats]) -> dict[str, RuntimeUse]:
    """What the runtime says its containers use, by their ids."""
    return {each.attributes.id: runtime_use(each) for each in stats}


def with_uses(pods: Iterable[PodSample], uses: Mapping[str, RuntimeUse]) -> tuple[PodSample, ...]:
    """The pods in which a container runs, with that."""
    return tuple(
        msgspec.structs.replace(
            pod,
            containers=tuple(
                msgspec.structs.replace(each, runtime=uses.get(each.id)) for each in pod.containers
            ),
        )
        for pod in pods
        if pod.containers
    )


def runtime_use(stats: cri.ContainerStats) -> RuntimeUse:
    """What the runtime says one container uses."""
    cpu = stats.cpu if stats.HasField("cpu") else None
    memory = stats.memory if stats.HasField("memory") else None
    swap = stats.swap if stats.HasField("swap") else None
    io = stats.io if stats.HasField("io") else None
    return RuntimeUse(
        cpu_at_ns=cpu and cpu.timestamp,
        cpu=cpu and _value(cpu, "usage_core_nano_seconds"),
        nano_cores=cpu and _value(cpu, "usage_nano_cores"),
        cpu_pressure=cpu and _pressures(cpu),
        memory_at_ns=memory and memory.timestamp,
        memory_available=memory and _value(memory, "available_bytes"),
        memory=memory and _value(memory, "usage_bytes"),
        working_set=memory and _value(memory, "working_set_bytes"),
        rss=memory and _value(memory, "rss_bytes"),
        page_faults=memory and _value(memory, "page_faults"),
        major_page_faults=memory and _value(memory, "major_page_faults"),
        memory_pressure=memory and _pressures(memory),
        swap_at_ns=swap and swap.timestamp,
        swap=swap and _value(swap, "swap_usage_bytes"),
        swap_available=swap and _value(swap, "swap_available_bytes"),
        io_at_ns=io and io.timestamp,
        io_pressure=io and _pressures(io),
        layer=runtime_disk(stats.writable_layer) if stats.HasField("writable_layer") else None,
    )


def runtime_disk(usage: cri.FilesystemUsage) -> RuntimeDisk:
    """What the runtime says of a filesystem or layer."""
    mountpoint = usage.fs_id.mountpoint if usage.HasField("fs_id") else None
    return RuntimeDisk(usage.timestamp, _value(usage, "used_bytes"), _value(usage, "inodes_used"), mountpoint)


def runtime_disks(answer: cri.ImageFsInfoResponse) -> tuple[RuntimeDisk | None, RuntimeDisk | None]:
    """The filesystems of the images and of the containers; the first of each, as the kubelet takes them."""
    images, containers = answer.image_filesystems, answer.container_filesystems
    return (runtime_disk(images[0]) if images else None, runtime_disk(containers[0]) if containers else None)


def pinned_image(images: Iterable[cri.Image]) -> str:
    """The name of the image that is pinned, as runtimes do with that of sandboxes; "" if several are."""
    pinned = [image for image in images if image.pinned]
    return pinned[0].repo_tags[0] if len(pinned) == 1 and pinned[0].repo_tags else ""


def _value(message: Message, name: str) -> int | None:
    found: int | None = getattr(message, name).value if message.HasField(name) else None
    return found


def _pressures(message: Message) -> Pressures | None:
    if not message.HasField("psi"):
        return None
    psi: cri.PsiStats = message.psi  # type: ignore[attr-defined]
    return Pressures(_pressure(psi.Full), _pressure(psi.Some))


def _pressure(data: cri.PsiData) -> CgroupPressure:
    return CgroupPressure(data.Total, _percent(data.Avg10), _percent(data.Avg60), _percent(data.Avg300))


def _percent(value: float) -> int | float:
    if not 0 <= value <= 100:  # also not a number at all
        return 0
    return int(value) if value.is_integer() else value

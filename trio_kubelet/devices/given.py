"""From the answers of plugins to what goes into a container's config. Pure.

Where two plugins name the same path or variable the first counts (kubelet: `deviceRunContainerOptions`); the
order is that of the resources' names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError

from trio_kubelet.devices.assignments import Assignment
from trio_kubelet.devices.proto import plugin_pb2
from trio_kubelet.podinfo.given import Given, GivenDevice, GivenMount

T = TypeVar("T")


def given(assigned: Mapping[str, Assignment]) -> tuple[Given, list[str]]:
    """What a container gets for its devices, by resource; and what was named twice with different values."""
    envs: dict[str, str] = {}
    mounts: dict[str, GivenMount] = {}
    devices: dict[str, GivenDevice] = {}
    annotations: dict[str, str] = {}
    cdi: dict[str, None] = {}
    conflicts: list[str] = []

    def put(kept: dict[str, T], what: str, key: str, value: T) -> None:
        if kept.setdefault(key, value) != value:
            conflicts.append(f"{what} {key}")

    for resource in sorted(assigned):
        answer = read_answer(assigned[resource].answer)
        for name, value in sorted(answer.envs.items()):
            put(envs, "variable", name, value)
        for mount in answer.mounts:
            path = mount.container_path
            put(mounts, "mount", path, GivenMount(path, mount.host_path, mount.read_only))
        for device in answer.devices:
            path = device.container_path
            put(devices, "device", path, GivenDevice(path, device.host_path, device.permissions))
        for name, value in sorted(answer.annotations.items()):
            put(annotations, "annotation", name, value)
        cdi.update(dict.fromkeys(each.name for each in answer.cdi_devices))
    return (
        Given(
            envs=envs,
            mounts=tuple(mounts.values()),
            devices=tuple(devices.values()),
            annotations=annotations,
            cdi_devices=tuple(cdi),
        ),
        conflicts,
    )


def read_answer(answer: bytes) -> plugin_pb2.ContainerAllocateResponse:
    """A plugin's answer; one that was damaged in a checkpoint gives nothing."""
    try:
        return plugin_pb2.ContainerAllocateResponse.FromString(answer)
    except DecodeError:
        return plugin_pb2.ContainerAllocateResponse()

"""What a container is given beside what its spec names: devices, claimed resources, CPUs, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class GivenMount(msgspec.Struct, frozen=True):
    """A path of the node in the container."""

    container_path: str
    host_path: str
    read_only: bool


class GivenDevice(msgspec.Struct, frozen=True):
    """A device file of the node in the container; `permissions` of the letters r, w, m."""

    container_path: str
    host_path: str
    permissions: str


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of that kind, in the order it was given (kubelet: `RunContainerOptions`)."""

    envs: Mapping[str, str] = {}
    mounts: Sequence[GivenMount] = ()
    devices: Sequence[GivenDevice] = ()
    annotations: Mapping[str, str] = {}
    cdi_devices: Sequence[str] = ()
    cpus: str = ""  # the list of CPUs it is to run on; "" for any
    memory_nodes: str = ""  # the list of NUMA nodes its memory is on; "" for any


NOTHING = Given()

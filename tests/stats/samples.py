"""Measurements for tests of the pages."""

from __future__ import annotations

from hypothesis import strategies as st

from trio_kubelet.machine.values import (
    MAX,
    CgroupPressure,
    CgroupUse,
    ContainerSample,
    DiskUse,
    Filesystem,
    Interface,
    Network,
    NodeSample,
    PodSample,
    Pressures,
    Processes,
    RuntimeDisk,
    RuntimeUse,
    StatsSnapshot,
    SystemSample,
    VolumeUse,
)

NOW = 1_795_270_560_767_000_000
MOUNT = "/var/lib/containerd/snapshots"

numbers = st.integers(0, MAX)
maybe = st.none() | numbers
moments = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=12)
pressures = st.builds(
    Pressures, *(st.builds(CgroupPressure, numbers, st.integers(0, 100), st.floats(0, 100)) for _ in range(2))
)
uses = st.builds(
    CgroupUse,
    at_ns=moments,
    cpu=maybe,
    memory=maybe,
    working_set=numbers,
    rss=numbers,
    swap=numbers,
    page_faults=numbers,
    memory_limit=numbers,
    swap_limit=numbers,
    processes=st.integers(0, 2**31),
    cpu_pressure=pressures,
)
runtime_disks = st.builds(RuntimeDisk, moments, maybe, maybe, st.sampled_from([None, MOUNT, "/other"]))
runtime_uses = st.builds(
    RuntimeUse,
    cpu_at_ns=st.none() | moments,
    cpu=maybe,
    nano_cores=maybe,
    cpu_pressure=st.none() | pressures,
    memory_at_ns=st.none() | moments,
    memory_available=maybe,
    memory=maybe,
    working_set=maybe,
    swap_at_ns=st.none() | moments,
    swap=maybe,
    swap_available=maybe,
    io_at_ns=st.none() | moments,
    layer=st.none() | runtime_disks,
)
disk_uses = st.builds(DiskUse, moments, numbers, numbers)
containers = st.builds(
    ContainerSample,
    id=names,
    name=names,
    image=names,
    created_ns=moments,
    runtime=st.none() | runtime_uses,
    use=st.none() | uses,
    nano_cores=maybe,
    logs=st.none() | disk_uses,
)
interfaces = st.builds(
    Interface, name=st.sampled_from(["eth0", "ens5"]), rx_bytes=maybe, tx_bytes=maybe, rx_errors=maybe
)
networks = st.builds(Network, moments, st.lists(interfaces, max_size=2).map(tuple))
volumes = st.builds(
    VolumeUse,
    name=names,
    at_ns=moments,
    available=numbers,
    capacity=numbers,
    used=numbers,
    inodes=numbers,
    inodes_free=numbers,
    inodes_used=numbers,
    ephemeral=st.booleans(),
    claim=st.sampled_from(["", "data"]),
)
pods = st.builds(
    PodSample,
    sandbox_id=names,
    name=names,
    namespace=names,
    uid=names,
    created_ns=moments,
    containers=st.lists(containers, max_size=3).map(tuple),
    use=st.none() | uses,
    nano_cores=maybe,
    network=st.none() | networks,
    logs=st.none() | disk_uses,
    etc_hosts=st.none() | disk_uses,
    volumes=st.none() | st.lists(volumes, max_size=2).map(tuple),
)


def use(**changes: int | None) -> CgroupUse:
    """A cgroup without limits."""
    fields = {
        "at_ns": NOW,
        "cpu": 2_392_026_661,
        "memory": 479_232,
        "working_set": 379_232,
        "rss": 57_344,
        "page_faults": 1101,
        "processes": 1,
    }
    return CgroupUse(**{**fields, **changes})  # type: ignore[arg-type]


def filesystem(used: int = 40) -> Filesystem:
    return Filesystem(at_ns=NOW, available=50, capacity=100, used=used, inodes=1000, inodes_free=900)


def runtime_use() -> RuntimeUse:
    """What containerd says of a container without limits."""
    return RuntimeUse(
        cpu_at_ns=NOW,
        cpu=31_599_144,
        nano_cores=5,
        memory_at_ns=NOW,
        memory_available=0,
        memory=233_472,
        working_set=233_472,
        rss=57_344,
        page_faults=1168,
        major_page_faults=0,
        layer=RuntimeDisk(NOW, 20_480, 8, MOUNT),
    )


def container(name: str = "main", **changes: object) -> ContainerSample:
    fields = {
        "id": f"id-{name}",
        "name": name,
        "image": "localhost/busybox:1",
        "created_ns": NOW - 10**10,
        "runtime": runtime_use(),
        "logs": DiskUse(NOW, 4096, 1),
    }
    return ContainerSample(**{**fields, **changes})  # type: ignore[arg-type]


def pod(*of: ContainerSample, **changes: object) -> PodSample:
    fields = {
        "sandbox_id": "sandbox",
        "name": "web",
        "namespace": "default",
        "uid": "u-1",
        "created_ns": NOW - 11 * 10**9,
        "containers": of or (container(),),
        "use": use(),
        "etc_hosts": DiskUse(NOW, 4096, 1),
        "logs": DiskUse(NOW, 0, 0),
    }
    return PodSample(**{**fields, **changes})  # type: ignore[arg-type]


def node(**changes: object) -> NodeSample:
    network = Network(NOW, (Interface(name="eth0", rx_bytes=1, rx_errors=0, tx_bytes=2, tx_errors=0),))
    fields = {
        "name": "node1",
        "booted_ns": NOW - 10**13,
        "memory_capacity": 1 << 34,
        "root": SystemSample(name="/", use=use(), started_ns=NOW - 10**13, nano_cores=7),
        "system": (SystemSample(name="pods", use=use(memory_limit=1 << 34), started_ns=NOW - 10**12),),
        "network": network,
        "filesystem": filesystem(),
        "image_disk": RuntimeDisk(NOW, 15_851_520, 4413, MOUNT),
        "filesystems": {MOUNT: filesystem(60)},
        "processes": Processes(NOW, 32768, 166),
    }
    return NodeSample(**{**fields, **changes})  # type: ignore[arg-type]


def snapshot(*pods: PodSample, **changes: object) -> StatsSnapshot:
    fields = {"at_ns": NOW, "node": node(), "pods": pods}
    return StatsSnapshot(**{**fields, **changes})  # type: ignore[arg-type]

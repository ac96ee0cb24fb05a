"""The Prometheus pages: what is served, by which names, and that it always parses."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.stats import samples
from trio_kubelet.common.mountinfo import parse_mounts
from trio_kubelet.machine.values import (
    CgroupDetail,
    CgroupUse,
    DeviceIO,
    DiskIO,
    Interface,
    Network,
    PodSample,
    StatsSnapshot,
)
from trio_kubelet.stats.cadvisor_metrics import MachineLabels, cadvisor_families
from trio_kubelet.stats.cgroup_details import CgroupRow, Details, OpenFiles
from trio_kubelet.stats.exposition import label, unique
from trio_kubelet.stats.filesystems import MountedFilesystem, machine_mounts
from trio_kubelet.stats.resource_metrics import resource_families
from trio_kubelet.stats.room import topology

MACHINE = MachineLabels(
    cores=4,
    physical_cores=2,
    sockets=1,
    memory=1 << 34,
    swap=0,
    machine_id="m",
    system_uuid="s",
    boot_id="b",
    kernel="6.18",
    os_image='Debian "12"',
)
RESOURCE_NAMES = {
    "container_cpu_usage_seconds",
    "container_memory_working_set_bytes",
    "container_start_time_seconds",
    "container_swap_limit_bytes",
    "container_swap_usage_bytes",
    "node_cpu_usage_seconds",
    "node_memory_working_set_bytes",
    "node_swap_usage_bytes",
    "pod_cpu_usage_seconds",
    "pod_memory_working_set_bytes",
    "pod_swap_usage_bytes",
    "resource_scrape_error",
}


def parsed(pieces: list[bytes]) -> dict[str, Metric]:
    text = b"".join(pieces).decode()
    families = list(text_string_to_metric_families(text))
    assert len({each.name for each in families}) == len(families), "a family is there twice"
    return {each.name: each for each in families}


def resources(snapshot: StatsSnapshot) -> dict[str, Metric]:
    return parsed(list(resource_families(snapshot)))


def test_resource_metrics_have_the_kubelets_names_labels_and_moments() -> None:
    found = resources(samples.snapshot(samples.pod()))
    assert set(found) == RESOURCE_NAMES
    (cpu,) = found["container_cpu_usage_seconds"].samples
    assert cpu.labels == {"container": "main", "namespace": "default", "pod": "web"}
    assert cpu.value == 0.031599144
    assert cpu.timestamp == samples.NOW // 10**6 / 1000
    (start,) = found["container_start_time_seconds"].samples
    assert (start.value, start.timestamp) == ((samples.NOW - 10**10) / 10**9, None)
    (node,) = found["node_memory_working_set_bytes"].samples
    assert (node.labels, node.value) == ({}, 379_232)
    (pod,) = found["pod_memory_working_set_bytes"].samples
    assert (pod.labels, pod.value) == ({"namespace": "default", "pod": "web"}, 379_232)
    assert found["container_cpu_usage_seconds"].type == "counter"


def test_resource_metrics_tell_how_stable_they_are() -> None:
    found = parsed(list(resource_families(samples.snapshot(samples.pod()), hidden=True)))
    levels = {name: family.documentation.split()[0] for name, family in found.items()}
    alpha = {name for name in RESOURCE_NAMES if "_swap_" in name} | {"scrape_error"}
    assert {name for name, level in levels.items() if level == "[ALPHA]"} == alpha
    assert {name for name, level in levels.items() if level == "[STABLE]"} == levels.keys() - alpha
    assert found["scrape_error"].documentation.startswith("[ALPHA] (Deprecated since 1.29.0) ")


def test_a_runtime_that_is_away_shows_as_an_error_beside_what_is_known() -> None:
    found = resources(samples.snapshot(samples.pod(), failed=True))
    assert found["resource_scrape_error"].samples[0].value == 1
    assert found["pod_cpu_usage_seconds"].samples


def test_a_container_with_a_swap_limit_shows_it_and_one_without_does_not() -> None:
    limited = samples.container("a", use=samples.use(swap_limit=7000, swap=10))
    unlimited = samples.container("b", use=samples.use())
    found = resources(samples.snapshot(samples.pod(limited, unlimited)))
    (limit,) = found["container_swap_limit_bytes"].samples
    assert (limit.labels["container"], limit.value) == ("a", 7000)


def test_a_pod_without_a_cgroup_is_the_sum_of_its_containers() -> None:
    use = msgspec.structs.replace(samples.runtime_use(), swap_at_ns=samples.NOW, swap=5)
    both = (samples.container("a", runtime=use), samples.container("b", runtime=use))
    found = resources(samples.snapshot(samples.pod(*both, use=None)))
    whole = {
        name: found[f"pod_{name}"].samples[0] for name in ("memory_working_set_bytes", "swap_usage_bytes")
    }
    assert {name: sample.value for name, sample in whole.items()} == {
        "memory_working_set_bytes": 2 * 233_472,
        "swap_usage_bytes": 10,
    }
    assert {sample.timestamp for sample in whole.values()} == {samples.NOW // 10**6 / 1000}
    (cpu,) = found["pod_cpu_usage_seconds"].samples
    assert cpu.value == 2 * 0.031599144


def test_two_containers_of_one_name_are_one_series() -> None:
    found = resources(samples.snapshot(samples.pod(), samples.pod(sandbox_id="other")))
    assert len(found["container_cpu_usage_seconds"].samples) == 1
    assert unique([("b", "1"), ("a", "2"), ("b", "3")]) == ["2", "3"]


@settings(max_examples=60)
@given(st.lists(samples.pods, max_size=3))
def test_resource_metrics_always_parse(pods: list[PodSample]) -> None:
    found = resources(samples.snapshot(*pods))
    assert found["node_cpu_usage_seconds"].samples


def details(*rows: CgroupRow) -> Details:
    return Details(
        at_ns=samples.NOW,
        node=samples.node(),
        rows=rows,
        devices={"254:0": "/dev/vda"},
        filesystems=(
            MountedFilesystem(
                "/dev/root", "254:0", samples.filesystem(40), DeviceIO(reads=77, writes=88, busy_ms=1500)
            ),
            MountedFilesystem("/dev/shm", "0:30", samples.filesystem(3), DeviceIO()),
        ),
        failed=False,
    )


def row(**changes: object) -> CgroupRow:
    fields = {
        "cgroup": "/kubepods/podu-1/abc",
        "use": samples.use(memory_limit=1 << 26, swap_limit=1 << 63),
        "detail": CgroupDetail(
            created_ns=samples.NOW - 10**12,
            cpu_user=2_370_000_000,
            periods=239,
            throttled=20_942_055_880,
            cpu_quota=10_000,
            cpu_period=100_000,
            cpu_shares=102,
            threads=2,
            io=(DiskIO("254:0", 8192, 4096, 2, 1), DiskIO("9:9", 1, 1, 1, 1)),
        ),
        "container": "main",
        "image": "localhost/busybox:1",
        "name": "abc",
        "namespace": "default",
        "pod": "web",
        "files": OpenFiles(3, 1, 20_000),
    }
    return CgroupRow(**{**fields, **changes})  # type: ignore[arg-type]


def root() -> CgroupRow:
    counts = {
        "rx_packets": 1,
        "rx_errors": 0,
        "rx_dropped": 0,
        "tx_packets": 1,
        "tx_errors": 0,
        "tx_dropped": 0,
    }
    network = Network(samples.NOW, (Interface(name="eth0", rx_bytes=5, tx_bytes=6, **counts),))
    return row(cgroup="/", container="", image="", name="", namespace="", pod="", network=network)


def cadvisor(*rows: CgroupRow, pressure: bool = False) -> dict[str, Metric]:
    return parsed(list(cadvisor_families(details(*rows), MACHINE, pressure)))


def test_a_containers_series_have_the_labels_dashboards_join_on() -> None:
    found = cadvisor(row(), root())
    labels = {
        "container": "main",
        "id": "/kubepods/podu-1/abc",
        "image": "localhost/busybox:1",
        "name": "abc",
        "namespace": "default",
        "pod": "web",
    }
    for name, more, value in (
        ("container_cpu_usage_seconds", {"cpu": "total"}, 2.392026661),
        ("container_cpu_user_seconds", {}, 2.37),
        ("container_cpu_cfs_throttled_seconds", {}, 20.94205588),
        ("container_memory_working_set_bytes", {}, 379_232),
        ("container_memory_failures", {"failure_type": "pgfault", "scope": "container"}, 1101),
        ("container_fs_reads_bytes", {"device": "/dev/vda"}, 8192),
        (
            "container_blkio_device_usage",
            {"device": "/dev/vda", "major": "254", "minor": "0", "operation": "Read"},
            8192,
        ),
        ("container_spec_memory_limit_bytes", {}, 1 << 26),
        ("container_spec_memory_swap_limit_bytes", {}, 0),
        ("container_spec_cpu_quota", {}, 10_000),
        ("container_start_time_seconds", {}, (samples.NOW - 10**12) // 10**9),
        ("container_ulimits_soft", {"ulimit": "max_open_files"}, 20_000),
        ("container_sockets", {}, 1),
    ):
        values = [each.value for each in found[name].samples if each.labels == {**labels, **more}]
        assert values == [value], name


def test_only_cgroups_with_a_quota_have_throttling() -> None:
    free = row(detail=CgroupDetail())
    found = cadvisor(free)
    assert "container_cpu_cfs_periods" not in found
    assert "container_spec_cpu_quota" not in found
    assert "container_spec_cpu_period" in found


def test_network_stands_on_what_has_it_and_space_on_the_root() -> None:
    found = cadvisor(row(), root())
    (received,) = found["container_network_receive_bytes"].samples
    assert (received.labels["id"], received.labels["interface"], received.value) == ("/", "eth0", 5)
    space = {each.labels["device"]: each.value for each in found["container_fs_usage_bytes"].samples}
    assert space == {"/dev/root": 40, "/dev/shm": 3}
    samples_of_reads = found["container_fs_reads"].samples
    reads = {(each.labels["id"], each.labels["device"]): each.value for each in samples_of_reads}
    assert reads == {("/", "/dev/root"): 77, ("/", "/dev/shm"): 0, ("/kubepods/podu-1/abc", "/dev/vda"): 2}
    assert found["container_fs_io_time_seconds"].samples[0].value == 1.5


def test_a_device_is_called_as_what_is_mounted_of_it_on_the_root_only() -> None:
    """As by kubelet v1.36.2: what is moved can be laid beside the filesystem's space."""
    found = cadvisor(row(), root())
    for name in ("container_fs_reads_bytes", "container_fs_writes_bytes", "container_blkio_device_usage"):
        names = {(each.labels["id"], each.labels["device"]) for each in found[name].samples}
        assert names >= {("/", "/dev/root"), ("/kubepods/podu-1/abc", "/dev/vda")}
        assert ("/", "/dev/vda") not in names


def test_filesystems_of_the_machine_are_named_as_cadvisor_names_them() -> None:
    """Those that are shown of the machine of a kubelet v1.36.2, which had begun before its pods."""
    sandbox = "d1ca047925a890f5e28db0b9796a8d0401aa4e2b0d4b0ea42f3dd3b2fcd5a8a1"
    pod = "/var/lib/kubelet/pods/443ef007-26a1-4422-a601-d98030be0e3d"
    lines = [
        "21 1 98:0 / / rw,relatime shared:1 - ext4 /dev/root rw",
        "22 21 0:6 / /dev rw shared:2 - devtmpfs devtmpfs rw",
        "23 21 0:21 / /proc rw - proc proc rw",
        "24 22 0:24 / /dev/shm rw shared:3 - tmpfs tmpfs rw",
        "25 21 0:25 / /run rw shared:4 - tmpfs tmpfs rw",
        "26 25 0:26 / /run/lock rw - tmpfs tmpfs rw",
        "27 21 98:0 /srv /mnt/bound rw - ext4 /dev/root rw",
        "28 21 98:16 / /mnt/with\\040space rw - xfs /dev/ubdb rw",
        "29 25 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        f"30 25 0:40 / /run/containerd/io.containerd.grpc.v1.cri/sandboxes/{sandbox}/shm rw - tmpfs shm rw",
        f"31 21 0:41 / {pod}/volumes/kubernetes.io~projected/token rw - tmpfs tmpfs rw",
        f"32 25 0:42 / /run/containerd/runtime.v2.task/k8s.io/{sandbox}/rootfs rw - overlay overlay rw",
    ]
    shown = machine_mounts(parse_mounts("\n".join(lines)), "/var/lib/kubelet")
    found = [(name, mount.path, mount.device) for name, mount in shown]
    assert found == [
        ("/dev/root", "/", "98:0"),
        ("/dev/shm", "/dev/shm", "0:24"),
        ("/run", "/run", "0:25"),
        ("/run/lock", "/run/lock", "0:26"),
        ("/dev/ubdb", "/mnt/with space", "98:16"),
    ]


def test_every_name_of_a_kubelets_page_is_served() -> None:
    recorded = json.loads((Path(__file__).parents[1] / "golden" / "cadvisor-metrics.json").read_text())
    found = cadvisor(row(), root())
    for name, (kind, labels) in recorded.items():
        metric = found.get(name) or found[name.removesuffix("_total")]
        assert metric.type == kind, name
        assert set().union(*(each.labels for each in metric.samples)) == set(labels), name


def test_the_machine() -> None:
    found = cadvisor()
    (cores,) = found["machine_cpu_cores"].samples
    assert (cores.value, cores.labels) == (4, {"boot_id": "b", "machine_id": "m", "system_uuid": "s"})
    (version,) = found["cadvisor_version_info"].samples
    assert version.labels["osVersion"] == 'Debian "12"'


def test_pressure_is_shown_where_it_is_measured() -> None:
    assert "container_pressure_cpu_waiting_seconds" in cadvisor(row(), pressure=True)
    assert not any("pressure" in name for name in cadvisor(row()))


@given(samples.names, samples.uses, samples.networks)
def test_cadvisor_metrics_always_parse(name: str, use: CgroupUse, network: Network) -> None:
    found = cadvisor(row(pod=name, image=name, use=use, network=network), root(), pressure=True)
    assert {each.labels["pod"] for each in found["container_memory_rss"].samples} == {name, ""}


@given(st.text(max_size=20))
def test_a_label_is_escaped(value: str) -> None:
    line = f"x{{{label('a', value)}}} 1\n"
    (metric,) = text_string_to_metric_families(line)
    assert metric.samples[0].labels == {"a": value}


def test_the_topology_of_cpus() -> None:
    text = "".join(
        f"processor : {number}\nphysical id : {number // 4}\ncore id : {number % 2}\n\n"
        for number in range(8)
    )
    assert topology(text.encode()) == (4, 2)
    assert topology(b"processor : 0\n") == (0, 0)

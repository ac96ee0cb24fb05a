"""The values that configs are made from besides the pod: facts and settings of the node, and what was
prepared for one container."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podinfo.given import NOTHING, Given
from trio_kubelet.podinfo.pinned import Pinned

DEFAULT_MASKED_PATHS = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
"""Paths hidden from containers; a machine adds its CPUs' thermal_throttle directories."""


class ResolvConf(msgspec.Struct, frozen=True):
    """What a resolv.conf says."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class RuntimeHandler(msgspec.Struct, frozen=True):
    """What a handler of the runtime can do (CRI `RuntimeHandlerFeatures`)."""

    recursive_read_only_mounts: bool = False
    user_namespaces: bool = False


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """The feature gates that change configs, with their defaults in v1.36."""

    pod_level_resources: bool = True
    hostname_override: bool = True
    container_stop_signals: bool = False
    env_files: bool = True
    memory_qos: bool = False
    quota_monitoring: bool = False


class NodeContext(msgspec.Struct, frozen=True, kw_only=True):
    """The node as far as configs depend on it. Sizes are bytes, `allocatable` holds quantities."""

    node_name: str
    root_dir: str = "/var/lib/kubelet"
    pod_logs_dir: str = "/var/log/pods"
    cgroup_root: str = "/"
    cgroup_driver: str = "cgroupfs"
    cgroups_per_qos: bool = True
    cgroup_v2: bool = False
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period_us: int = 100_000
    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = ""
    resolv_conf: ResolvConf | None = None  # None: resolvConf is "", containers get no resolver
    host_ips: tuple[str, ...] = ()  # of the node, the primary one first
    node_ips: tuple[str, ...] = ()  # of --node-ip; they decide which IP family comes first
    memory_capacity: int = 0
    swap_capacity: int = 0
    swap_controller: bool = False
    swap_behavior: str = ""
    huge_page_sizes: tuple[str, ...] = ()  # as cgroups name them: 2MB, 1GB
    allocatable: Mapping[str, str] = {}
    masked_paths: tuple[str, ...] = DEFAULT_MASKED_PATHS
    seccomp_default: bool = False
    memory_for_pods: int = 0  # capacity without reservations
    memory_throttling_factor: float = 0.9
    memory_reservation_policy: str = "None"
    single_process_oom_kill: bool = True
    page_size: int = 4096
    selinux: bool = False  # files have labels, which the runtime has to set
    handlers: Mapping[str, RuntimeHandler] = {}
    features: Features = Features()
    pinned: Pinned = {}  # containers with CPUs to themselves


class VolumeMountPoint(msgspec.Struct, frozen=True):
    """Where a volume of a pod is on the host; `read_only` volumes are never mounted writable.

    `inner` is the name of the persistent volume behind it, below which parts of it are bound; "" for others.
    With `relabel` its files get the SELinux labels of the containers that mount it, where there are labels.
    """

    host_path: str
    read_only: bool = False
    inner: str = ""
    relabel: bool = False


class BlockDevice(msgspec.Struct, frozen=True):
    """A volume that a pod has as a device: a path on the host."""

    path: str
    read_only: bool = False


class EnvSources(msgspec.Struct, frozen=True):
    """What environment variables are taken from outside the pod.

    A config map or secret that is not in the mapping does not exist. `env_files` holds the value of each
    `fileKeyRef` by volume name, path and key, without those that may be missing and are.
    """

    services: Mapping[str, str] = {}
    config_maps: Mapping[str, Mapping[str, str]] = {}
    secrets: Mapping[str, Mapping[str, bytes]] = {}
    env_files: Mapping[tuple[str, str, str], str] = {}


class ImageUser(msgspec.Struct, frozen=True):
    """The user an image runs as: a number, or else a name."""

    uid: int | None = 0
    name: str = ""


class ContainerInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out and prepared for one container before its config is made."""

    image_ref: str
    restart_count: int = 0
    image_user: ImageUser = ImageUser()
    pod_ips: tuple[str, ...] = ()
    runtime_handler: str = ""
    target_container_id: str = ""
    volumes: Mapping[str, VolumeMountPoint] = {}
    image_volumes: Mapping[str, cri.ImageSpec] = {}
    block_volumes: Mapping[str, BlockDevice] = {}
    extra_groups: tuple[int, ...] = ()  # that the pod's volumes ask for
    termination_log: str = ""  # host path of the file made for this container
    env_sources: EnvSources = EnvSources()
    given: Given = NOTHING  # by device plugins and drivers of claims
    user_namespace: cri.UserNamespace | None = None

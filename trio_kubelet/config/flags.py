"""Flags that are not fields of KubeletConfiguration: what differs between nodes or between starts.

All other kubelet flags only override a field of the configuration file; `flag_table` says which.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class KubeletFlags(Struct, frozen=True, kw_only=True):
    """Values of the flags proper, named after them with `_` for `-`. Durations are seconds.

    `overrides` has what was given for all other flags, by flag name: the configuration has it too, but no
    longer tells what came from the command line.
    """

    overrides: dict[str, Any] = {}
    config: str = ""
    config_dir: str = ""
    kubeconfig: str = ""
    bootstrap_kubeconfig: str = ""
    hostname_override: str = ""
    node_ip: str = ""
    manifest_url_ca_file: str = ""
    node_page: bool = True
    set_kernel_tunables: bool = True
    cert_dir: str = "/var/lib/kubelet/pki"
    cloud_provider: str = ""
    root_dir: str = "/var/lib/kubelet"
    container_logs_dir: str = "/var/log/containers"
    seccomp_default: bool = False
    node_labels: dict[str, str] = {}
    lock_file: str = ""
    exit_on_lock_contention: bool = False
    runtime_cgroups: str = ""
    image_credential_provider_config: str = ""
    image_credential_provider_bin_dir: str = ""
    minimum_container_ttl_duration: float = 0.0
    maximum_dead_containers_per_container: int = 1
    maximum_dead_containers: int = -1
    experimental_mounter_path: str = ""
    experimental_allocatable_ignore_eviction: bool = False
    housekeeping_interval: float = 10.0
    max_housekeeping_interval: float = 15.0
    application_metrics_count_limit: int = 100
    boot_id_file: str = "/proc/sys/kernel/random/boot_id"
    container_hints: str = "/etc/cadvisor/container_hints.json"
    containerd: str = "/run/containerd/containerd.sock"
    containerd_namespace: str = "k8s.io"
    enable_load_reader: bool = False
    event_storage_age_limit: str = "default=0"
    event_storage_event_limit: str = "default=0"
    global_housekeeping_interval: float = 60.0
    log_cadvisor_usage: bool = False
    machine_id_file: str = "/etc/machine-id,/var/lib/dbus/machine-id"
    storage_driver_buffer_duration: float = 60.0
    storage_driver_db: str = "cadvisor"
    storage_driver_host: str = "localhost:8086"
    storage_driver_password: str = "root"
    storage_driver_secure: bool = False
    storage_driver_table: str = "stats"
    storage_driver_user: str = "root"

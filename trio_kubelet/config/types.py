"""KubeletConfiguration (kubelet.config.k8s.io/v1beta1) with its defaults.

The attribute defaults are those the kubelet gives a configuration file; running without a file starts
from `legacy_configuration()`. Durations are seconds (float), quantities are the strings the user wrote.
Objects are frozen: a changed configuration is a new one (`msgspec.structs.replace`).

Two markers in the annotations carry what Go's types would: `Pointer` fields keep an explicit zero, all others
take zero as "not set" and get their default; `Duration` fields are written in Go's duration syntax.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

API_VERSION: Final = "kubelet.config.k8s.io/v1beta1"
KIND: Final = "KubeletConfiguration"

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
UInt32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Duration = Annotated[float, Meta(extra={"duration": True})]
# Also takes a number of nanoseconds, as old files have it.
DurationOrNanos = Annotated[float, Meta(extra={"duration": True, "nanos": True})]
Quantity = Annotated[str, Meta(extra={"quantity": True})]

_POINTER: Final = Meta(extra={"pointer": True})
PtrBool = Annotated[bool, _POINTER]
PtrInt32 = Annotated[Int32, _POINTER]
PtrInt64 = Annotated[Int64, _POINTER]
PtrStr = Annotated[str, _POINTER]
PtrFloat = Annotated[float, _POINTER]
PtrDuration = Annotated[Duration, _POINTER]

# Words that keep their capitals in the JSON name of a field.
_ACRONYMS: Final = {
    "api": "API",
    "ca": "CA",
    "cfs": "CFS",
    "cidr": "CIDR",
    "cpus": "CPUs",
    "dns": "DNS",
    "gc": "GC",
    "id": "ID",
    "ip": "IP",
    "oom": "OOM",
    "qos": "QOS",
    "qps": "QPS",
    "tls": "TLS",
    "ttl": "TTL",
    "url": "URL",
}
_IRREGULAR: Final = {
    "fail_cgroup_v1": "failCgroupV1",
    "ids_per_pod": "idsPerPod",
    "make_iptables_util_chains": "makeIPTablesUtilChains",
}


def json_name(attribute: str) -> str:
    """The JSON name of a snake_case attribute: `cpu_cfs_quota` is `cpuCFSQuota`."""
    if attribute in _IRREGULAR:
        return _IRREGULAR[attribute]
    first, *rest = attribute.split("_")
    return first + "".join(_ACRONYMS.get(word, word.capitalize()) for word in rest)


class _Config(Struct, frozen=True, kw_only=True, rename=json_name):
    pass


class X509Authentication(_Config, frozen=True):
    client_ca_file: str = ""


class WebhookAuthentication(_Config, frozen=True):
    enabled: PtrBool = True
    cache_ttl: Duration = 120.0


class AnonymousAuthentication(_Config, frozen=True):
    enabled: PtrBool = False


class Authentication(_Config, frozen=True):
    x509: X509Authentication = X509Authentication()
    webhook: WebhookAuthentication = WebhookAuthentication()
    anonymous: AnonymousAuthentication = AnonymousAuthentication()


class WebhookAuthorization(_Config, frozen=True):
    cache_authorized_ttl: Duration = 300.0
    cache_unauthorized_ttl: Duration = 30.0


class Authorization(_Config, frozen=True):
    mode: str = "Webhook"
    webhook: WebhookAuthorization = WebhookAuthorization()


class MemorySwap(_Config, frozen=True):
    swap_behavior: str = ""


class CrashLoopBackOff(_Config, frozen=True):
    """The longest wait between restarts of a crashing container; None without its feature gate."""

    max_container_restart_period: PtrDuration | None = 300.0


class OutputRouting(_Config, frozen=True):
    split_stream: bool = False
    info_buffer_size: Quantity = "0"


class FormatOptions(_Config, frozen=True):
    text: OutputRouting = OutputRouting()
    json: OutputRouting = OutputRouting()


class VModuleItem(_Config, frozen=True):
    file_pattern: str = ""
    verbosity: UInt32 = 0


class Logging(_Config, frozen=True):
    format: str = "text"
    flush_frequency: DurationOrNanos = 5.0
    verbosity: UInt32 = 0
    vmodule: list[VModuleItem] = []
    options: FormatOptions = FormatOptions()


class MemoryReservation(_Config, frozen=True):
    numa_node: Int32 = 0
    limits: dict[str, Quantity] | None = None


class ShutdownGracePeriodByPodPriority(_Config, frozen=True):
    priority: Int32 = 0
    shutdown_grace_period_seconds: Int64 = 0


class Taint(_Config, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class Tracing(_Config, frozen=True):
    endpoint: PtrStr | None = None
    sampling_rate_per_million: PtrInt32 | None = None


class UserNamespaces(_Config, frozen=True):
    ids_per_pod: PtrInt64 | None = None


class KubeletConfiguration(_Config, frozen=True):
    """One node's configuration; see the module docstring for units and zero values."""

    kind: Literal["KubeletConfiguration"] = KIND
    api_version: Literal["kubelet.config.k8s.io/v1beta1"] = field(name="apiVersion", default=API_VERSION)
    enable_server: PtrBool = True
    static_pod_path: str = ""
    pod_logs_dir: str = "/var/log/pods"
    sync_frequency: Duration = 60.0
    file_check_frequency: Duration = 20.0
    http_check_frequency: Duration = 20.0
    static_pod_url: str = ""
    static_pod_url_header: dict[str, list[str]] = {}
    address: str = "0.0.0.0"
    port: Int32 = 10250
    read_only_port: Int32 = 0
    tls_cert_file: str = ""
    tls_private_key_file: str = ""
    tls_cipher_suites: list[str] = []
    tls_curve_preferences: list[Int32] = []
    tls_min_version: str = ""
    rotate_certificates: bool = False
    server_tls_bootstrap: bool = False
    authentication: Authentication = Authentication()
    authorization: Authorization = Authorization()
    registry_pull_qps: PtrInt32 = 5
    registry_burst: Int32 = 10
    image_pull_credentials_verification_policy: str = "NeverVerifyPreloadedImages"
    preloaded_images_verification_allowlist: list[str] = []
    event_record_qps: PtrInt32 = 50
    event_burst: Int32 = 100
    enable_debugging_handlers: PtrBool = True
    enable_contention_profiling: bool = False
    healthz_port: PtrInt32 = 10248
    healthz_bind_address: str = "127.0.0.1"
    oom_score_adj: PtrInt32 = -999
    cluster_domain: str = ""
    cluster_dns: list[str] = []
    streaming_connection_idle_timeout: Duration = 14400.0
    node_status_update_frequency: Duration = 10.0
    node_status_report_frequency: Duration = 300.0
    node_lease_duration_seconds: Int32 = 40
    image_minimum_gc_age: Duration = 120.0
    image_maximum_gc_age: Duration = 0.0
    image_gc_high_threshold_percent: PtrInt32 = 85
    image_gc_low_threshold_percent: PtrInt32 = 80
    volume_stats_agg_period: Duration = 60.0
    kubelet_cgroups: str = ""
    system_cgroups: str = ""
    cgroup_root: str = ""
    cgroups_per_qos: PtrBool = True
    cgroup_driver: str = "cgroupfs"
    cpu_manager_policy: str = "none"
    single_process_oom_kill: PtrBool | None = None
    cpu_manager_policy_options: dict[str, str] = {}
    cpu_manager_reconcile_period: Duration = 10.0
    memory_manager_policy: str = "None"
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: dict[str, str] = {}
    qos_reserved: dict[str, str] = {}
    runtime_request_timeout: Duration = 120.0
    hairpin_mode: str = "promiscuous-bridge"
    max_pods: Int32 = 110
    pod_cidr: str = ""
    pod_pids_limit: PtrInt64 = -1
    resolv_conf: PtrStr = "/etc/resolv.conf"
    run_once: bool = False
    cpu_cfs_quota: PtrBool = True
    cpu_cfs_quota_period: PtrDuration = 0.1
    node_status_max_images: PtrInt32 = 50
    max_open_files: Int64 = 1_000_000
    content_type: str = "application/vnd.kubernetes.protobuf"
    kube_api_qps: PtrInt32 = 50
    kube_api_burst: Int32 = 100
    serialize_image_pulls: PtrBool = True
    max_parallel_image_pulls: PtrInt32 | None = None
    eviction_hard: dict[str, str] = {}
    eviction_soft: dict[str, str] = {}
    eviction_soft_grace_period: dict[str, str] = {}
    eviction_pressure_transition_period: Duration = 300.0
    eviction_max_pod_grace_period: Int32 = 0
    eviction_minimum_reclaim: dict[str, str] = {}
    merge_default_eviction_settings: PtrBool = False
    pods_per_core: Int32 = 0
    enable_controller_attach_detach: PtrBool = True
    protect_kernel_defaults: bool = False
    make_iptables_util_chains: PtrBool = True
    iptables_masquerade_bit: PtrInt32 = 14
    iptables_drop_bit: PtrInt32 = 15
    feature_gates: dict[str, bool] = {}
    fail_swap_on: PtrBool = True
    memory_swap: MemorySwap = MemorySwap()
    container_log_max_size: str = "10Mi"
    container_log_max_files: PtrInt32 = 5
    container_log_max_workers: PtrInt32 = 1
    container_log_monitor_interval: PtrDuration = 10.0
    config_map_and_secret_change_detection_strategy: str = "Watch"
    system_reserved: dict[str, str] = {}
    kube_reserved: dict[str, str] = {}
    reserved_system_cpus: str = ""
    show_hidden_metrics_for_version: str = ""
    system_reserved_cgroup: str = ""
    kube_reserved_cgroup: str = ""
    enforce_node_allocatable: list[str] = field(default_factory=lambda: ["pods"])
    allowed_unsafe_sysctls: list[str] = []
    volume_plugin_dir: str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"
    provider_id: str = ""
    kernel_memcg_notification: bool = False
    logging: Logging = Logging()
    enable_system_log_handler: PtrBool = True
    enable_system_log_query: PtrBool = False
    shutdown_grace_period: Duration = 0.0
    shutdown_grace_period_critical_pods: Duration = 0.0
    shutdown_grace_period_by_pod_priority: list[ShutdownGracePeriodByPodPriority] = []
    crash_loop_back_off: CrashLoopBackOff = CrashLoopBackOff()
    reserved_memory: list[MemoryReservation] = []
    enable_profiling_handler: PtrBool = True
    enable_debug_flags_handler: PtrBool = True
    seccomp_default: PtrBool = False
    memory_throttling_factor: PtrFloat = 0.9
    memory_reservation_policy: str = "None"
    register_with_taints: list[Taint] = []
    register_node: PtrBool = True
    tracing: Tracing | None = None
    local_storage_capacity_isolation: PtrBool = True
    container_runtime_endpoint: str = "unix:///run/containerd/containerd.sock"
    image_service_endpoint: str = ""
    fail_cgroup_v1: PtrBool = True
    user_namespaces: UserNamespaces | None = None


def legacy_configuration() -> KubeletConfiguration:
    """What the kubelet runs with when it has neither `--config` nor flags: some older, laxer defaults."""
    return KubeletConfiguration(
        authentication=Authentication(
            webhook=WebhookAuthentication(enabled=False),
            anonymous=AnonymousAuthentication(enabled=True),
        ),
        authorization=Authorization(mode="AlwaysAllow"),
        read_only_port=10255,
    )


def cgroup_path(name: str) -> str:
    """The path of the cgroup that a field names, below the roots and never above; "" for none."""
    return posixpath.normpath("/" + name.lstrip("/")) if name else ""


def thresholds_in_force(thresholds: Mapping[str, str]) -> dict[str, str]:
    """Eviction thresholds by signal, without those that count as not set."""
    return {signal: least for signal, least in thresholds.items() if least not in ("0%", "100%")}

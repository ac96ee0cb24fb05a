"""Every flag of kubelet v1.36: name, type, meaning, and the configuration field it overrides.

The table has one line for a flag, under the heading of its group in `--help`: name, type, field (`-` for
a flag that is an attribute of `KubeletFlags`) and meaning. Defaults are not repeated: they are those of the
configuration the kubelet starts from without a file, and of `KubeletFlags`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.pflag import Flag
from trio_kubelet.config.types import KubeletConfiguration, legacy_configuration

_TABLE: Final = """\
# General
help bool - Show this text
version version - Print the version and exit; --version=raw prints its parts
config string - Configuration file (KubeletConfiguration, YAML or JSON); flags win over it
config-dir string - Directory of drop-ins (*.conf), merged over --config in lexical order
root-dir string - Directory for pod directories, volumes and state
feature-gates map-bool feature_gates Switch features on or off: name=true,name=false
lock-file string - File that is locked so that only one agent runs
exit-on-lock-contention bool - Exit when another process wants the lock file
runonce bool run_once Start the pods of one update of the sources, then exit
# Logging
v level logging.verbosity Log verbosity
vmodule vmodule logging.vmodule Verbosity by source file: pattern=N,… (text format only)
logging-format string logging.format Log format: "text" or "json"
log-flush-frequency duration logging.flush_frequency Longest time between log flushes
log-text-split-stream bool logging.options.text.split_stream Text format: errors to stderr, the rest to
    stdout (gate LoggingAlphaOptions)
log-text-info-buffer-size quantity logging.options.text.info_buffer_size Text format: buffer for the stdout
    stream (gate LoggingAlphaOptions)
# Static pods
pod-manifest-path string static_pod_path Directory of pod manifests, or one manifest file
file-check-frequency duration file_check_frequency Time between re-reads of the manifests
manifest-url string static_pod_url URL that serves pod manifests
manifest-url-header multimap static_pod_url_header HTTP headers for --manifest-url: name:value,…
manifest-url-ca-file string - Authorities for --manifest-url instead of the system's (not a kubelet flag)
http-check-frequency duration http_check_frequency Time between reads of --manifest-url
sync-frequency duration sync_frequency Longest time between two looks at a pod
# Container runtime
container-runtime-endpoint string container_runtime_endpoint Socket of the CRI runtime service
image-service-endpoint string image_service_endpoint Socket of the CRI image service, if not the same
runtime-request-timeout duration runtime_request_timeout Deadline of a CRI call that is not a pull, log or
    exec
runtime-cgroups string - Cgroup the runtime runs in
container-logs-dir string - Where log collectors find a link per container (not a kubelet flag)
container-log-max-size string container_log_max_size Size at which a container log rotates
container-log-max-files int32 container_log_max_files Log files kept for each container, at least 2
allowed-unsafe-sysctls strings allowed_unsafe_sysctls Unsafe sysctls (or prefixes ending in *) pods may set
seccomp-default bool - Use the runtime's seccomp profile where a pod names none
hairpin-mode string hairpin_mode promiscuous-bridge, hairpin-veth or none
pod-cidr string pod_cidr Pod addresses of a node without API server
resolv-conf string resolv_conf resolv.conf that pods' DNS settings start from
cluster-dns strings cluster_dns DNS servers for pods with cluster DNS
cluster-domain string cluster_domain DNS domain of the cluster
# Images
serialize-image-pulls bool serialize_image_pulls Pull one image at a time
registry-qps int32 registry_pull_qps Image pulls per second; 0 is no limit
registry-burst int32 registry_burst Image pulls at once above --registry-qps
image-credential-provider-config string - Configuration of credential provider plugins
image-credential-provider-bin-dir string - Directory of credential provider plugins
image-gc-high-threshold int32 image_gc_high_threshold_percent Disk usage in percent that starts image
    collection
image-gc-low-threshold int32 image_gc_low_threshold_percent Disk usage in percent that image collection aims
    at
minimum-image-ttl-duration duration image_minimum_gc_age Age an unused image must have to be collected
node-status-max-images int32 node_status_max_images Images listed in the node status; -1 is all
# Server
enable-server bool enable_server Serve the node API
address ip address Address the servers listen on; 0.0.0.0 or :: is all
port int32 port Port of the node API
read-only-port int32 read_only_port Port without authentication; 0 is off
healthz-bind-address ip healthz_bind_address Address of /healthz
healthz-port int32 healthz_port Port of /healthz; 0 is off
enable-debugging-handlers bool enable_debugging_handlers Serve logs, exec, attach and the like
contention-profiling bool enable_contention_profiling Lock contention profiling
streaming-connection-idle-timeout duration streaming_connection_idle_timeout Idle time after which exec and
    the like are closed; 0 is never
anonymous-auth bool authentication.anonymous.enabled Let unauthenticated requests in
client-ca-file string authentication.x509.client_ca_file CA that signs client certificates
authentication-token-webhook bool authentication.webhook.enabled Check bearer tokens with the API server
authentication-token-webhook-cache-ttl duration authentication.webhook.cache_ttl How long a token check is
    remembered
authorization-mode string authorization.mode AlwaysAllow or Webhook
authorization-webhook-cache-authorized-ttl duration authorization.webhook.cache_authorized_ttl How long a
    yes of the API server is remembered
authorization-webhook-cache-unauthorized-ttl duration authorization.webhook.cache_unauthorized_ttl How long
    a no of the API server is remembered
cert-dir string - Directory of generated certificates
tls-cert-file string tls_cert_file Certificate of the node API
tls-private-key-file string tls_private_key_file Key of the node API
tls-cipher-suites strings tls_cipher_suites Cipher suites of the node API
tls-min-version string tls_min_version Lowest TLS version of the node API
rotate-certificates bool rotate_certificates Renew the client certificate
rotate-server-certificates bool server_tls_bootstrap Request and renew the serving certificate
node-page bool - Serve the page of the node at /page/ (not a kubelet flag)
# API server and node
kubeconfig string - How to reach the API server (in-cluster: as a pod does); without it the node is on its own
bootstrap-kubeconfig string - kubeconfig to request the first client certificate with
hostname-override string - Name of the node instead of the host name
node-ip string - Address of the node, or one of each family with a comma
node-labels labels - Labels the node registers with: key=value,…
register-node bool register_node Register the node with the API server
register-with-taints taints register_with_taints Taints to register with: key=value:effect,…
cloud-provider string - "external" or empty
provider-id string provider_id The machine's name in the cloud
enable-controller-attach-detach bool enable_controller_attach_detach Leave attaching of volumes to the
    cluster
node-status-update-frequency duration node_status_update_frequency Time between computations of the node
    status
kube-api-content-type string content_type Content type of API requests
kube-api-qps int32 kube_api_qps API requests per second; 0 is 5
kube-api-burst int32 kube_api_burst API requests at once above --kube-api-qps
event-qps int32 event_record_qps Events per second; 0 is 5
event-burst int32 event_burst Events at once above --event-qps
# Resources and cgroups
max-pods int32 max_pods Pods this node takes
pods-per-core int32 pods_per_core Pods this node takes for each core; 0 is no limit
pod-max-pids int pod_pids_limit Processes a pod may have; -1 is no limit of its own
cgroup-driver string cgroup_driver cgroupfs or systemd
cgroup-root string cgroup_root Cgroup above those of the pods
cgroups-per-qos bool cgroups_per_qos Cgroups for QoS classes and pods
fail-cgroupv1 bool fail_cgroup_v1 Refuse to run with cgroup v1
fail-swap-on bool fail_swap_on Refuse to run with swap on
cpu-cfs-quota bool cpu_cfs_quota Enforce CPU limits
cpu-cfs-quota-period duration cpu_cfs_quota_period Period of CPU limits
cpu-manager-policy string cpu_manager_policy none or static
cpu-manager-policy-options map-nosplit cpu_manager_policy_options Options of the CPU manager: key=value
cpu-manager-reconcile-period duration cpu_manager_reconcile_period Time between corrections by the CPU
    manager
memory-manager-policy string memory_manager_policy None or Static
topology-manager-policy string topology_manager_policy none, best-effort, restricted or single-numa-node
topology-manager-policy-options map topology_manager_policy_options Options of the topology manager:
    key=value,…
topology-manager-scope string topology_manager_scope container or pod
qos-reserved map qos_reserved Requests reserved by QoS class: memory=50%
kubelet-cgroups string kubelet_cgroups Cgroup the agent runs in
system-cgroups string system_cgroups Cgroup for the other processes of the host
kube-reserved map kube_reserved Resources kept for Kubernetes: cpu=200m,memory=500Mi,…
kube-reserved-cgroup string kube_reserved_cgroup Cgroup that --kube-reserved limits
system-reserved map system_reserved Resources kept for the host: cpu=200m,memory=500Mi,…
system-reserved-cgroup string system_reserved_cgroup Cgroup that --system-reserved limits
reserved-cpus string reserved_system_cpus CPUs kept for host and Kubernetes: 0-1,4
reserved-memory reserved-memory reserved_memory Memory kept on each NUMA node: 0:memory=1Gi;1:memory=2Gi
enforce-node-allocatable strings enforce_node_allocatable What is enforced: pods, system-reserved,
    kube-reserved, …, none
local-storage-capacity-isolation bool local_storage_capacity_isolation Account for local ephemeral storage
protect-kernel-defaults bool protect_kernel_defaults Refuse to change kernel settings
set-kernel-tunables bool - Check or write the kernel settings of a node (not a kubelet flag)
make-iptables-util-chains bool make_iptables_util_chains Keep the iptables chains others rely on
oom-score-adj int32 oom_score_adj oom_score_adj of the agent
max-open-files int max_open_files Files the agent may have open
volume-plugin-dir string volume_plugin_dir Directory of volume plugins
volume-stats-agg-period duration volume_stats_agg_period Time between measurements of volumes; negative is
    never
# Eviction and garbage collection
eviction-hard map-langle eviction_hard Thresholds that evict at once: memory.available<100Mi,…
eviction-soft map-langle eviction_soft Thresholds that evict after a grace period
eviction-soft-grace-period map eviction_soft_grace_period Grace periods of --eviction-soft:
    memory.available=1m30s,…
eviction-max-pod-grace-period int32 eviction_max_pod_grace_period Longest termination grace in seconds for
    soft evictions; negative leaves it to the pod
eviction-minimum-reclaim map eviction_minimum_reclaim What an eviction frees at least:
    imagefs.available=2Gi,…
eviction-pressure-transition-period duration eviction_pressure_transition_period Time before a pressure
    condition is taken back
kernel-memcg-notification bool kernel_memcg_notification Be notified of memory thresholds by the kernel
minimum-container-ttl-duration duration - Age a dead container must have to be removed
maximum-dead-containers int32 - Dead containers kept on the node; negative is no limit
maximum-dead-containers-per-container int32 - Dead containers kept for each container
experimental-allocatable-ignore-eviction bool - Leave eviction thresholds out of allocatable
experimental-mounter-path string - Program to mount with
# cAdvisor
housekeeping-interval duration - Time between container housekeepings
max-housekeeping-interval duration - Longest time between container housekeepings
global-housekeeping-interval duration - Time between global housekeepings
application-metrics-count-limit int - Application metrics kept for each container
boot-id-file string - Files to look for the boot ID in
machine-id-file string - Files to look for the machine ID in
container-hints string - Container hints file
containerd string - containerd socket for statistics
containerd-namespace string - containerd namespace for statistics
enable-load-reader bool - CPU load reader
event-storage-age-limit string - Age of stored events by type
event-storage-event-limit string - Number of stored events by type
log-cadvisor-usage bool - Log the usage of cAdvisor's own container
storage-driver-buffer-duration duration - Buffering of the storage driver
storage-driver-db string - Database of the storage driver
storage-driver-host string - Host of the storage driver
storage-driver-password string - Password of the storage driver
storage-driver-secure bool - Secure connection of the storage driver
storage-driver-table string - Table of the storage driver
storage-driver-user string - User of the storage driver
"""

_IN_FILE: Final = (
    "This parameter should be set via the config file specified by the Kubelet's --config flag. See "
    "https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/ for more information."
)
_CADVISOR: Final = (
    "This is a cadvisor flag that was mistakenly registered with the Kubelet. Due to legacy concerns, it "
    "will follow the standard CLI deprecation timeline before being removed."
)
_EVICTION: Final = "Use --eviction-hard or --eviction-soft instead. Will be removed in a future version."
_DEPRECATED: Final = {
    "minimum-container-ttl-duration": _EVICTION,
    "maximum-dead-containers": _EVICTION,
    "maximum-dead-containers-per-container": _EVICTION,
    "experimental-allocatable-ignore-eviction": "will be removed in 1.25 or later.",
    "experimental-mounter-path": "will be removed in 1.25 or later. in favor of using CSI.",
}
_STAYS: Final = {
    "v",
    "vmodule",
    "log-flush-frequency",
    "provider-id",
    "fail-cgroupv1",
    "housekeeping-interval",
    "max-housekeeping-interval",
}


def _deprecated(name: str, field: str, group: str) -> str:
    """What the kubelet says of a deprecated flag: all are that a field of the configuration has the value of,
    but for a few, and those of cAdvisor.
    """
    if name in _STAYS:
        return ""
    return _DEPRECATED.get(name) or (_IN_FILE if field else _CADVISOR if group == "cAdvisor" else "")


@functools.cache
def kubelet_flags() -> Mapping[str, Flag]:
    """All flags by name, in the order of `--help`."""
    shorts = {"help": "h", "v": "v"}
    flags = {}
    group = ""
    for line in _TABLE.replace("\n    ", " ").splitlines():
        if line.startswith("# "):
            group = line[2:]
            continue
        name, kind, target, text = line.split(" ", 3)
        field = "" if target == "-" else target
        deprecated = _deprecated(name, field, group)
        flags[name] = Flag(name, kind, text, field, shorts.get(name, ""), group, deprecated)
    return flags


def attribute_of(flag: Flag) -> str:
    """Where the value of a flag without configuration field stands in KubeletFlags."""
    return flag.name.replace("-", "_")


def default_of(flag: Flag) -> Any:
    """The value without the flag and without a configuration file."""
    if flag.name in ("help", "version"):
        return False if flag.kind == "bool" else "false"
    if not flag.target:
        return getattr(KubeletFlags(), attribute_of(flag))
    value: Any = _legacy()
    for attribute in flag.target.split("."):
        value = getattr(value, attribute)
    return value


@functools.cache
def _legacy() -> KubeletConfiguration:
    return legacy_configuration()

"""What the kubelet refuses in a configuration, all of it at once.

`validate` is pure: the one fact about the host it needs, the cgroup version, is an argument. The rules are
those of the kubelet's own validation, and of the places that parse settings when it starts (eviction
thresholds, reservations, log sizes), so that a bad value ends the start here with the field's name.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from trio_kubelet.api import quantity
from trio_kubelet.api.images import InvalidImageName, parse_image_name
from trio_kubelet.common.cpusets import parse_cpus
from trio_kubelet.common.duration import format_duration, parse_duration
from trio_kubelet.config.decode import json_path
from trio_kubelet.config.flag_table import kubelet_flags
from trio_kubelet.config.flag_values import TAINT_EFFECTS, is_label_value, is_qualified_name
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.types import KubeletConfiguration, cgroup_path, thresholds_in_force

Rule = Callable[[KubeletConfiguration, FeatureGates], Iterator[str]]

# Field: lowest and highest value allowed (None: no bound).
_RANGES: Final[dict[str, tuple[float, float | None]]] = {
    "node_lease_duration_seconds": (1, None),
    "event_burst": (0, None),
    "event_record_qps": (0, None),
    "healthz_port": (0, 65535),
    "image_gc_high_threshold_percent": (0, 100),
    "image_gc_low_threshold_percent": (0, 100),
    "iptables_drop_bit": (0, 31),
    "iptables_masquerade_bit": (0, 31),
    "kube_api_burst": (0, None),
    "kube_api_qps": (0, None),
    "node_status_max_images": (-1, None),
    "max_open_files": (0, None),
    "max_pods": (0, None),
    "oom_score_adj": (-1000, 1000),
    "pods_per_core": (0, None),
    "port": (1, 65535),
    "read_only_port": (0, 65535),
    "registry_burst": (0, None),
    "registry_pull_qps": (0, None),
    "max_parallel_image_pulls": (1, None),
    "container_log_max_workers": (1, None),
    "container_log_max_files": (2, None),
}
_DURATIONS: Final[dict[str, tuple[float, float | None]]] = {
    "cpu_cfs_quota_period": (0.001, 1.0),
    "image_minimum_gc_age": (0.0, None),
    "image_maximum_gc_age": (0.0, None),
    "container_log_monitor_interval": (3.0, None),
    # Less makes no sense: a kubelet ends with a panic, does nothing else any more, or overlooks it.
    "streaming_connection_idle_timeout": (0.0, None),
    "file_check_frequency": (1e-9, None),
    "http_check_frequency": (1e-9, None),
    "cpu_manager_reconcile_period": (1e-9, None),
    "node_status_update_frequency": (1e-9, None),
}
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "topology_manager_policy": ("none", "best-effort", "restricted", "single-numa-node"),
    "topology_manager_scope": ("container", "pod"),
    "hairpin_mode": ("none", "hairpin-veth", "promiscuous-bridge"),
    "memory_reservation_policy": ("None", "TieredReservation"),
    "cpu_manager_policy": ("none", "static"),
    "memory_manager_policy": ("None", "Static"),
    "cgroup_driver": ("cgroupfs", "systemd"),
    "authorization.mode": ("AlwaysAllow", "Webhook"),
    "config_map_and_secret_change_detection_strategy": ("Get", "Cache", "Watch"),
    "logging.format": ("text", "json"),
}
_ENFORCEMENTS: Final = (
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
    "none",
)
_SIGNALS: Final = frozenset(
    {"memory.available", "allocatableMemory.available", "pid.available"}
    | {f"{fs}.{what}" for fs in ("nodefs", "imagefs", "containerfs") for what in ("available", "inodesFree")}
)
_PERCENTAGE: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?%+")
# What Go's `url.Parse` takes behind a scheme that is not HTTP's: user, host and port, path, query, fragment.
_ESCAPE: Final = r"%[0-9A-Fa-f]{2}"
_HOST_CHARACTER: Final = r"[\w\-.~!$&'()*+,;=\]<>\"]|[^\x00-\x7f]|%25|%[89A-Fa-f][0-9A-Fa-f]"
_AUTHORITY: Final = re.compile(
    rf"(?:(?:[A-Za-z0-9\-._:~!$&'()*+,;=@]|{_ESCAPE})*@)?"
    rf"(?:(?:{_HOST_CHARACTER})*|(?:{_HOST_CHARACTER}|:)*:[0-9]*|\[(?P<ip>[0-9A-Fa-f:.]+)(?:%25[\w\-.~]+)?\]"
    rf"(?::[0-9]*)?)"
    rf"(?:/(?:[^\x00-\x1f\x7f%?#]|{_ESCAPE})*)?"
    rf"(?:\?[^\x00-\x1f\x7f#]*)?"
    rf"(?:#(?:[^%]|{_ESCAPE})*)?",
    re.DOTALL,
)
_RESERVABLE: Final = ("cpu", "memory", "ephemeral-storage", "pid")
_USER_NAMESPACE: Final = 65536
_VERSION_BEFORE: Final = "1.35"
_LONGEST_BACK_OFF: Final = "crash_loop_back_off.max_container_restart_period"
_PULL_POLICIES: Final = (
    "NeverVerify",
    "NeverVerifyPreloadedImages",
    "NeverVerifyAllowlistedImages",
    "AlwaysVerify",
)


def validate(config: KubeletConfiguration, gates: FeatureGates, cgroup_v1: bool) -> list[str]:
    """Everything wrong with `config`; an empty list is a configuration the kubelet would start with."""
    errors = list(_bounds(config))
    for rule in _RULES:
        errors += rule(config, gates)
    if cgroup_v1 and config.fail_cgroup_v1:
        errors.append(
            f"{shown('fail_cgroup_v1')} forbids the cgroup v1 of this host; set it to false to run here"
        )
    if cgroup_v1 and config.single_process_oom_kill is False:
        errors.append("singleProcessOOMKill must not be set to false with cgroup v1")
    if cgroup_v1 and config.memory_swap.swap_behavior == "LimitedSwap":
        errors.append("memorySwap.swapBehavior: LimitedSwap is only supported with cgroup v2")
    return errors


def shown(attribute: str) -> str:
    """A field as users know it: its JSON path, and its flag if it has one."""
    flag = next((flag.name for flag in kubelet_flags().values() if flag.target == attribute), None)
    path = json_path(attribute)
    return f"{path} (--{flag})" if flag else path


def _needs(what: str, gate: str) -> str:
    return f"{what} needs the feature gate {gate}"


def _get(config: KubeletConfiguration, attribute: str) -> Any:
    value: Any = config
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def _bounds(config: KubeletConfiguration) -> Iterator[str]:
    for table, text in ((_RANGES, str), (_DURATIONS, format_duration)):
        for attribute, (low, high) in table.items():
            value = _get(config, attribute)
            if value is None or (value >= low and (high is None or value <= high)):
                continue
            limit = f"between {text(low)} and {text(high)}" if high is not None else f"at least {text(low)}"
            yield f"{shown(attribute)}: {text(value)} must be {limit}"
    for attribute, choices in _CHOICES.items():
        value = _get(config, attribute)
        if value not in choices:
            yield f"{shown(attribute)}: {value!r} must be one of {', '.join(choices)}"


def _relations(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[str]:
    c = config
    if c.image_gc_low_threshold_percent >= c.image_gc_high_threshold_percent:
        low, high = shown("image_gc_low_threshold_percent"), shown("image_gc_high_threshold_percent")
        yield f"{low}: {c.image_gc_low_threshold_percent} must be less than {high}"
    if 0 < c.image_maximum_gc_age <= c.image_minimum_gc_age:
        yield (
            f"imageMaximumGCAge: {format_duration(c.image_maximum_gc_age)} must be greater than "
            f"{shown('image_minimum_gc_age')}: {format_duration(c.image_minimum_gc_age)}"
        )
    if c.system_cgroups and not c.cgroup_root:
        yield f"{shown('system_cgroups')} needs {shown('cgroup_root')}"
    if c.system_cgroups and cgroup_path(c.system_cgroups) == "/":
        yield f'{shown("system_cgroups")}: system container cannot be root ("/")'
    if c.serialize_image_pulls and (c.max_parallel_image_pulls or 1) > 1:
        yield f"maxParallelImagePulls above 1 needs {shown('serialize_image_pulls')} set to false"
    if c.enable_system_log_query and not c.enable_system_log_handler:
        yield "enableSystemLogQuery needs enableSystemLogHandler"
    if not 0 < c.memory_throttling_factor <= 1:
        yield f"memoryThrottlingFactor: {c.memory_throttling_factor} must be above 0 and at most 1"
    if c.memory_reservation_policy == "TieredReservation" and not gates.enabled("MemoryQoS"):
        yield _needs("memoryReservationPolicy: TieredReservation", "MemoryQoS")
    if c.server_tls_bootstrap and not gates.enabled("RotateKubeletServerCertificate"):
        yield _needs(shown("server_tls_bootstrap"), "RotateKubeletServerCertificate")
    if c.cpu_cfs_quota_period != 0.1 and not gates.enabled("CustomCPUCFSQuotaPeriod"):
        yield _needs(shown("cpu_cfs_quota_period"), "CustomCPUCFSQuotaPeriod")
    if c.memory_swap.swap_behavior not in ("", "NoSwap", "LimitedSwap"):
        yield f"memorySwap.swapBehavior: {c.memory_swap.swap_behavior!r} must be NoSwap, LimitedSwap or empty"
    try:
        ipaddress.ip_address(c.address)
    except ValueError:
        yield f"{shown('address')}: {c.address!r} is not an IP address"
    if not c.container_runtime_endpoint:
        yield f"{shown('container_runtime_endpoint')} must not be empty"


def _pod_logs(config: KubeletConfiguration, _gates: FeatureGates) -> Iterator[str]:
    path = config.pod_logs_dir
    if not path.startswith("/"):
        yield f"podLogsDir: {path!r} must be an absolute path"
    elif posixpath.normpath(path).replace("//", "/") != path:
        yield f"podLogsDir: {path!r} must be normalized"
    if not path.isascii():
        yield f"podLogsDir: {path!r} must be ASCII"
    try:
        size = quantity.parse(config.container_log_max_size)
        if size.dec is not None or size.scale < 0:  # less than nothing means that logs are not rotated
            yield f"{shown('container_log_max_size')}: {size} is no whole number of bytes"
    except ValueError as error:
        yield f"{shown('container_log_max_size')}: {error}"


def _shutdown(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[str]:
    total, critical = config.shutdown_grace_period, config.shutdown_grace_period_critical_pods
    if gates.enabled("GracefulNodeShutdown"):
        if critical > total:
            yield (
                f"shutdownGracePeriodCriticalPods: {format_duration(critical)} must not exceed "
                f"shutdownGracePeriod: {format_duration(total)}"
            )
        for name, value in (("shutdownGracePeriod", total), ("shutdownGracePeriodCriticalPods", critical)):
            if value and value < 1:
                yield f"{name}: {format_duration(value)} must be 0 or at least 1s"
    elif total > 0 or critical > 0:
        yield _needs("shutdownGracePeriod", "GracefulNodeShutdown")
    if config.shutdown_grace_period_by_pod_priority:
        if not gates.enabled("GracefulNodeShutdownBasedOnPodPriority"):
            yield _needs("shutdownGracePeriodByPodPriority", "GracefulNodeShutdownBasedOnPodPriority")
        elif total > 0 or critical > 0:
            yield "shutdownGracePeriodByPodPriority and shutdownGracePeriod exclude each other"


def _back_off(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[str]:
    name, longest = shown(_LONGEST_BACK_OFF), config.crash_loop_back_off.max_container_restart_period
    if not gates.enabled("KubeletCrashLoopBackOffMax"):
        if longest is not None:
            yield _needs(name, "KubeletCrashLoopBackOffMax")
    elif longest is None:
        yield f"{name}: must be set"
    elif not 1 <= longest <= 300:
        yield f"{name}: {format_duration(longest)} must be between 1s and 5m0s"


def _image_verification(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[str]:
    policy = config.image_pull_credentials_verification_policy
    allowed = config.preloaded_images_verification_allowlist
    if not gates.enabled("KubeletEnsureSecretPulledImages"):
        for name, value in (
            ("imagePullCredentialsVerificationPolicy", policy),
            ("preloadedImagesVerificationAllowlist", allowed),
        ):
            if value:
                yield _needs(name, "KubeletEnsureSecretPulledImages")
        return
    if policy not in _PULL_POLICIES:
        yield f"imagePullCredentialsVerificationPolicy: {policy!r} must be one of {', '.join(_PULL_POLICIES)}"
    if allowed and policy != "NeverVerifyAllowlistedImages":
        yield (
            "preloadedImagesVerificationAllowlist needs imagePullCredentialsVerificationPolicy: "
            "NeverVerifyAllowlistedImages"
        )
        return
    for pattern in allowed:
        if problem := _pattern_problem(pattern):
            yield f"preloadedImagesVerificationAllowlist: {problem}"


def _pattern_problem(pattern: str) -> str:
    """Why the pattern names neither an image (without tag and digest) nor all below a path (`registry/*`)."""
    if pattern != pattern.strip():
        return f"leading/trailing spaces are not allowed: {pattern}"
    below = pattern.endswith("/*")
    name = pattern[:-1] if below else pattern
    if not name:
        return f"the supplied pattern is too short: {pattern}"
    if "*" in name:
        return f"not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
    if below:
        return "at least registry hostname is required" if name == "/" else ""
    try:
        parsed = parse_image_name(pattern)
    except InvalidImageName as error:
        return f"failed to parse as an image name: {error}"
    if parsed.digest or pattern.endswith(f":{parsed.tag}"):
        return f"neither tag nor digest is accepted in an image reference: {pattern}"
    return ""


def _enforcement(config: KubeletConfiguration, _gates: FeatureGates) -> Iterator[str]:
    name = shown("enforce_node_allocatable")
    levels = config.enforce_node_allocatable
    for kind in ("system-reserved", "kube-reserved"):
        if {kind, f"{kind}-compressible"} <= set(levels):
            yield f"{name}: {kind} and {kind}-compressible exclude each other"
    for level in dict.fromkeys(levels):
        if levels.count(level) > 1:
            yield f"{name}: {level!r} is given more than once"
        if level not in _ENFORCEMENTS:
            yield f"{name}: {level!r} must be one of {', '.join(_ENFORCEMENTS)}"
        elif level == "none":
            if len(levels) > 1:
                yield f"{name}: 'none' must stand alone"
        else:
            if level.startswith("system-reserved") and not config.system_reserved_cgroup:
                yield f"{name}: {level} needs {shown('system_reserved_cgroup')}"
            if level.startswith("kube-reserved") and not config.kube_reserved_cgroup:
                yield f"{name}: {level} needs {shown('kube_reserved_cgroup')}"
            if not config.cgroups_per_qos:
                yield f"{name}: {level} needs {shown('cgroups_per_qos')}"


def _reservations(config: KubeletConfiguration, _gates: FeatureGates) -> Iterator[str]:
    for attribute in ("kube_reserved", "system_reserved"):
        for resource, amount in _get(config, attribute).items():
            if resource not in _RESERVABLE:
                yield f"{shown(attribute)}: cannot reserve {resource!r}, only {', '.join(_RESERVABLE)}"
                continue
            try:
                if quantity.parse(amount).sign() < 0:
                    yield f"{shown(attribute)}[{resource}]: {amount} must not be negative"
            except ValueError as error:
                yield f"{shown(attribute)}[{resource}]: {error}"
    if config.reserved_system_cpus:
        name = shown("reserved_system_cpus")
        if config.system_reserved_cgroup or config.kube_reserved_cgroup:
            yield f"{name} excludes {shown('system_reserved_cgroup')} and {shown('kube_reserved_cgroup')}"
        try:
            parse_cpus(config.reserved_system_cpus)
        except ValueError:
            yield f"{name}: {config.reserved_system_cpus!r} is not a list of CPUs such as 0-3,8"
    seen = set()
    for reservation in config.reserved_memory:
        for kind, amount in (reservation.limits or {}).items():
            where = f"{shown('reserved_memory')}: NUMA node {reservation.numa_node}, {kind!r}"
            if kind != "memory" and not kind.startswith("hugepages-"):
                yield f"{where}: only memory and hugepages-<size> can be reserved"
            if quantity.parse(amount).sign() == 0:
                yield f"{where}: must not be zero"
            if (reservation.numa_node, kind) in seen:
                yield f"{where}: is given twice"
            seen.add((reservation.numa_node, kind))


def _eviction(config: KubeletConfiguration, _gates: FeatureGates) -> Iterator[str]:
    for attribute in ("eviction_hard", "eviction_soft", "eviction_minimum_reclaim"):
        for signal, text in _get(config, attribute).items():
            problem = _threshold_problem(signal, text, zero=attribute == "eviction_minimum_reclaim")
            if problem:
                yield f"{shown(attribute)}[{signal}]: {problem}"
    periods = config.eviction_soft_grace_period
    for signal, text in periods.items():
        try:
            period = parse_duration(text)
        except ValueError as error:
            yield f"{shown('eviction_soft_grace_period')}[{signal}]: {error}"
            continue
        if signal not in _SIGNALS:
            yield f"{shown('eviction_soft_grace_period')}[{signal}]: is no eviction signal"
        elif period < 0:
            yield f"{shown('eviction_soft_grace_period')}[{signal}]: {text} must not be negative"
    for signal in thresholds_in_force(config.eviction_soft):
        if signal not in periods:
            yield f"{shown('eviction_soft')}[{signal}]: needs {shown('eviction_soft_grace_period')}"


def _threshold_problem(signal: str, text: str, zero: bool) -> str:
    if signal not in _SIGNALS:
        return f"is no eviction signal, those are {', '.join(sorted(_SIGNALS))}"
    if text.endswith("%"):
        if _PERCENTAGE.fullmatch(text) is None:
            return f"{text!r} is not a percentage"
        percent = float(text.rstrip("%"))
        if zero:  # what an eviction frees may be more than all there is
            return "" if percent > 0 else f"{text} must be positive"
        return "" if 0 <= percent <= 100 else f"{text} must be between 0% and 100%"
    try:
        sign = quantity.parse(text).sign()
    except ValueError:
        return f"{text!r} is neither a quantity such as 100Mi nor a percentage"
    return "" if sign > 0 or (zero and sign == 0) else f"{text} must be positive"


def _taints(config: KubeletConfiguration, _gates: FeatureGates) -> Iterator[str]:
    for index, taint in enumerate(config.register_with_taints):
        where = f"registerWithTaints[{index}]"
        if not is_qualified_name(taint.key):
            yield f"{where}.key: {taint.key!r} is not a qualified name"
        if not is_label_value(taint.value):
            yield f"{where}.value: {taint.value!r} is not a label value"
        if taint.effect and taint.effect not in TAINT_EFFECTS:
            yield f"{where}.effect: {taint.effect!r} must be NoSchedule, PreferNoSchedule or NoExecute"
        if taint.time_added is not None:
            yield f"{where}.timeAdded: must not be set"


def _logging(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[str]:
    log = config.logging
    if log.flush_frequency <= 0:
        yield f"{shown('logging.flush_frequency')}: must be greater than zero"
    if log.format == "json" and not gates.enabled("LoggingBetaOptions"):
        yield _needs(f"{shown('logging.format')}: json", "LoggingBetaOptions")
    if log.verbosity >= 1 << 31:
        yield f"{shown('logging.verbosity')}: {log.verbosity} is too large"
    if log.vmodule and log.format != "text":
        yield f"{shown('logging.vmodule')}: only for the text format"
    for index, item in enumerate(log.vmodule):
        if not item.file_pattern or set(item.file_pattern) & set("=,"):
            yield f"logging.vmodule[{index}].filePattern: {item.file_pattern!r} must be without = and ,"
        if item.verbosity >= 1 << 31:
            yield f"logging.vmodule[{index}].verbosity: {item.verbosity} is too large"
    if not gates.enabled("LoggingAlphaOptions"):
        for name, options in (("text", log.options.text), ("json", log.options.json)):
            if options.split_stream:
                yield _needs(f"logging.options.{name}.splitStream", "LoggingAlphaOptions")
            if quantity.parse(options.info_buffer_size).sign():
                yield _needs(f"logging.options.{name}.infoBufferSize", "LoggingAlphaOptions")


def _others(config: KubeletConfiguration, _gates: FeatureGates) -> Iterator[str]:
    if config.tracing is not None:
        rate = config.tracing.sampling_rate_per_million
        if rate is not None and not 0 <= rate <= 1_000_000:
            yield f"tracing.samplingRatePerMillion: {rate} must be between 0 and 1000000"
        yield from _endpoint(config.tracing.endpoint)
    if config.user_namespaces is not None and config.user_namespaces.ids_per_pod is not None:
        ids = config.user_namespaces.ids_per_pod
        if not _USER_NAMESPACE <= ids < 1 << 32 or ids % _USER_NAMESPACE:
            yield f"userNamespaces.idsPerPod: {ids} must be a multiple of {_USER_NAMESPACE} below {1 << 32}"
    hidden = config.show_hidden_metrics_for_version
    if hidden not in ("", _VERSION_BEFORE):
        yield f"showHiddenMetricsForVersion: {hidden!r} must be {_VERSION_BEFORE} or empty"


def _endpoint(endpoint: str | None) -> Iterator[str]:
    """Where spans go is a name as gRPC has it: of a host, or of a socket. It has to be a URL for Go, whose
    schemes are in any case, whose ports are numbers and whose escapes are whole.
    """
    scheme, has_scheme, rest = (endpoint or "").partition("//")
    if not has_scheme:
        scheme, rest = "dns:", scheme
    found = _AUTHORITY.fullmatch(rest)
    if scheme.lower() not in ("dns:", "unix:", "unix-abstract:"):
        yield f"tracing.endpoint: {endpoint!r} must be a host, or begin with dns://, unix:// or unix-abstract://"
    elif found is None or (found["ip"] and not _is_ipv6(found["ip"])):
        yield f"tracing.endpoint: {endpoint!r} is not a host and a port"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


_RULES: Final[tuple[Rule, ...]] = (
    _relations,
    _pod_logs,
    _shutdown,
    _back_off,
    _image_verification,
    _enforcement,
    _reservations,
    _eviction,
    _taints,
    _logging,
    _others,
)

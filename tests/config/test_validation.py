"""What the kubelet refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trio_kubelet.config.decode import decode_configuration
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.config.types import KubeletConfiguration, legacy_configuration
from trio_kubelet.config.validation import validate


def errors(raw: dict[str, Any], cgroup_v1: bool = False) -> list[str]:
    config, findings = decode_configuration(raw)
    assert findings.errors == findings.unknown == []
    return validate(config, resolve_gates(config.feature_gates), cgroup_v1)


def test_the_defaults_are_valid() -> None:
    for config in (KubeletConfiguration(), legacy_configuration()):
        assert validate(config, resolve_gates({}), cgroup_v1=False) == []


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"port": 70000}, "port (--port): 70000 must be between 1 and 65535"),
        ({"readOnlyPort": -1}, "readOnlyPort (--read-only-port): -1"),
        ({"healthzPort": 65536}, "healthzPort (--healthz-port): 65536"),
        ({"maxPods": -1}, "maxPods (--max-pods): -1 must be at least 0"),
        ({"nodeLeaseDurationSeconds": -1}, "nodeLeaseDurationSeconds: -1 must be at least 1"),
        ({"imageGCHighThresholdPercent": 101}, "imageGCHighThresholdPercent"),
        ({"imageGCLowThresholdPercent": 90}, "must be less than imageGCHighThresholdPercent"),
        ({"imageMaximumGCAge": "1m"}, "imageMaximumGCAge: 1m0s must be greater than imageMinimumGCAge"),
        (
            {"imageMinimumGCAge": "-1s"},
            "imageMinimumGCAge (--minimum-image-ttl-duration): -1s must be at least 0s",
        ),
        ({"oomScoreAdj": 1001}, "must be between -1000 and 1000"),
        (
            {"cpuCFSQuotaPeriod": "2s"},
            "cpuCFSQuotaPeriod (--cpu-cfs-quota-period): 2s must be between 1ms and 1s",
        ),
        (
            {"cpuCFSQuotaPeriod": "50ms", "featureGates": {"CustomCPUCFSQuotaPeriod": False}},
            "needs the feature gate CustomCPUCFSQuotaPeriod",
        ),
        ({"containerLogMaxFiles": 1}, "must be at least 2"),
        (
            {"fileCheckFrequency": "-1s"},
            "fileCheckFrequency (--file-check-frequency): -1s must be at least 1ns",
        ),
        ({"streamingConnectionIdleTimeout": "-1s"}, "(--streaming-connection-idle-timeout): -1s must be at"),
        ({"httpCheckFrequency": "-1ns"}, "httpCheckFrequency (--http-check-frequency): -1ns must be"),
        ({"cpuManagerReconcilePeriod": "-1s"}, "cpuManagerReconcilePeriod (--cpu-manager-reconcile-period)"),
        ({"nodeStatusUpdateFrequency": "-1s"}, "nodeStatusUpdateFrequency (--node-status-update-frequency)"),
        ({"containerLogMonitorInterval": "1s"}, "containerLogMonitorInterval: 1s must be at least 3s"),
        ({"containerLogMaxSize": "ten"}, "containerLogMaxSize (--container-log-max-size): "),
        ({"containerLogMaxSize": "100m"}, "100m is no whole number of bytes"),
        ({"maxParallelImagePulls": 0}, "maxParallelImagePulls: 0 must be at least 1"),
        ({"maxParallelImagePulls": 5, "serializeImagePulls": True}, "maxParallelImagePulls above 1"),
        (
            {"topologyManagerPolicy": "x"},
            "'x' must be one of none, best-effort, restricted, single-numa-node",
        ),
        ({"topologyManagerScope": "x"}, "topologyManagerScope"),
        ({"hairpinMode": "x"}, "hairpinMode"),
        ({"cpuManagerPolicy": "x"}, "cpuManagerPolicy"),
        ({"authorization": {"mode": "RBAC"}}, "authorization.mode (--authorization-mode): 'RBAC'"),
        ({"systemCgroups": "/x"}, "systemCgroups (--system-cgroups) needs cgroupRoot (--cgroup-root)"),
        (
            {"systemCgroups": "/", "cgroupRoot": "/"},
            'systemCgroups (--system-cgroups): system container cannot be root ("/")',
        ),
        ({"systemCgroups": "/a/..", "cgroupRoot": "/"}, "system container cannot be root"),
        ({"address": "localhost"}, "address (--address): 'localhost' is not an IP address"),
        ({"enableSystemLogQuery": True, "enableSystemLogHandler": False}, "needs enableSystemLogHandler"),
        ({"memoryThrottlingFactor": 1.5}, "memoryThrottlingFactor: 1.5"),
        ({"memoryReservationPolicy": "TieredReservation"}, "needs the feature gate MemoryQoS"),
        ({"memorySwap": {"swapBehavior": "All"}}, "memorySwap.swapBehavior: 'All'"),
        (
            {"serverTLSBootstrap": True, "featureGates": {"RotateKubeletServerCertificate": False}},
            "needs the feature gate RotateKubeletServerCertificate",
        ),
        ({"shutdownGracePeriodCriticalPods": "5s"}, "must not exceed shutdownGracePeriod: 0s"),
        ({"shutdownGracePeriod": "500ms"}, "shutdownGracePeriod: 500ms must be 0 or at least 1s"),
        (
            {
                "shutdownGracePeriod": "5s",
                "featureGates": {
                    "GracefulNodeShutdown": False,
                    "GracefulNodeShutdownBasedOnPodPriority": False,
                    "WindowsGracefulNodeShutdown": False,
                },
            },
            "shutdownGracePeriod needs the feature gate GracefulNodeShutdown",
        ),
        (
            {"shutdownGracePeriod": "5s", "shutdownGracePeriodByPodPriority": [{"priority": 1}]},
            "exclude each other",
        ),
        ({"crashLoopBackOff": {"maxContainerRestartPeriod": "10m"}}, "10m0s must be between 1s and 5m0s"),
        (
            {
                "crashLoopBackOff": {"maxContainerRestartPeriod": "1m"},
                "featureGates": {"KubeletCrashLoopBackOffMax": False},
            },
            "needs the feature gate KubeletCrashLoopBackOffMax",
        ),
        ({"imagePullCredentialsVerificationPolicy": "x"}, "must be one of NeverVerify,"),
        ({"preloadedImagesVerificationAllowlist": ["x"]}, "preloadedImagesVerificationAllowlist needs"),
        *(
            (
                {
                    "imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages",
                    "preloadedImagesVerificationAllowlist": ["a.io/ok", "a.io/*", "a.io/b/*", pattern],
                },
                problem,
            )
            for pattern, problem in (
                (
                    "a.io/b*",
                    "only patterns ending with '/*' are allowed: a.io/b*",
                ),
                ("*/*", "not a valid wildcard pattern"),
                (" a.io/b", "leading/trailing spaces are not allowed:  a.io/b"),
                ("", "the supplied pattern is too short: "),
                ("/*", "at least registry hostname is required"),
                ("a.io/B", "failed to parse as an image name: "),
                ("a.io/b:1", "neither tag nor digest is accepted in an image reference: a.io/b:1"),
                ("a.io/b@sha256:" + "0" * 64, "neither tag nor digest is accepted"),
            )
        ),
        ({"enforceNodeAllocatable": ["all"]}, "'all' must be one of pods,"),
        ({"enforceNodeAllocatable": ["pods", "pods"]}, "'pods' is given more than once"),
        ({"enforceNodeAllocatable": ["none", "pods"]}, "'none' must stand alone"),
        ({"enforceNodeAllocatable": ["kube-reserved"]}, "needs kubeReservedCgroup (--kube-reserved-cgroup)"),
        ({"enforceNodeAllocatable": ["system-reserved"]}, "needs systemReservedCgroup"),
        (
            {
                "enforceNodeAllocatable": ["kube-reserved", "kube-reserved-compressible"],
                "kubeReservedCgroup": "/k",
            },
            "exclude each other",
        ),
        ({"cgroupsPerQOS": False}, "pods needs cgroupsPerQOS (--cgroups-per-qos)"),
        ({"kubeReserved": {"gpu": "1"}}, "cannot reserve 'gpu'"),
        ({"kubeReserved": {"cpu": "lots"}}, "kubeReserved (--kube-reserved)[cpu]: "),
        ({"systemReserved": {"memory": "-1Gi"}}, "-1Gi must not be negative"),
        ({"reservedSystemCPUs": "0-3,x"}, "'0-3,x' is not a list of CPUs"),
        ({"reservedSystemCPUs": "0-9999999999"}, "'0-9999999999' is not a list of CPUs"),
        ({"reservedSystemCPUs": "3-1"}, "'3-1' is not a list of CPUs"),
        ({"reservedSystemCPUs": "0", "kubeReservedCgroup": "/k"}, "excludes"),
        ({"reservedMemory": [{"numaNode": 0, "limits": {"memory": "0"}}]}, "must not be zero"),
        ({"reservedMemory": [{"numaNode": 0, "limits": {"disk": "1"}}]}, "only memory and hugepages"),
        ({"reservedMemory": [{"limits": {"memory": "1"}}, {"limits": {"memory": "2"}}]}, "is given twice"),
        (
            {"evictionHard": {"memory.free": "1Gi"}},
            "evictionHard (--eviction-hard)[memory.free]: is no eviction signal",
        ),
        ({"evictionHard": {"memory.available": "x"}}, "neither a quantity"),
        ({"evictionHard": {"memory.available": "0"}}, "0 must be positive"),
        ({"evictionHard": {"memory.available": "x%"}}, "'x%' is not a percentage"),
        ({"evictionHard": {"nodefs.available": "110%"}}, "110% must be between 0% and 100%"),
        ({"evictionMinimumReclaim": {"nodefs.available": "-1"}}, "-1 must be positive"),
        ({"evictionMinimumReclaim": {"nodefs.available": "0%"}}, "0% must be positive"),
        ({"evictionHard": {"nodefs.available": "10 %"}}, "'10 %' is not a percentage"),
        ({"evictionHard": {"nodefs.available": "1_0%"}}, "'1_0%' is not a percentage"),
        ({"evictionSoft": {"nodefs.available": "10%"}}, "needs evictionSoftGracePeriod"),
        ({"evictionSoftGracePeriod": {"nodefs.available": "10"}}, "missing unit in duration '10'"),
        ({"evictionSoftGracePeriod": {"nodefs.available": "-1s"}}, "-1s must not be negative"),
        ({"evictionSoftGracePeriod": {"x": "1s"}}, "is no eviction signal"),
        ({"registerWithTaints": [{"key": "a b", "effect": "NoSchedule"}]}, "registerWithTaints[0].key"),
        ({"registerWithTaints": [{"key": "a", "value": "b c", "effect": "NoSchedule"}]}, "[0].value"),
        ({"registerWithTaints": [{"key": "a", "effect": "x"}]}, "registerWithTaints[0].effect"),
        (
            {
                "registerWithTaints": [
                    {"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
                ]
            },
            "timeAdded: must not be set",
        ),
        (
            {"logging": {"format": "xml"}},
            "logging.format (--logging-format): 'xml' must be one of text, json",
        ),
        ({"logging": {"flushFrequency": "-1s"}}, "must be greater than zero"),
        ({"logging": {"verbosity": 2**31}}, "is too large"),
        ({"logging": {"format": "json", "vmodule": [{"filePattern": "a"}]}}, "only for the text format"),
        ({"logging": {"vmodule": [{"filePattern": "a=b"}]}}, "must be without = and ,"),
        (
            {"logging": {"options": {"text": {"splitStream": True}}}},
            "needs the feature gate LoggingAlphaOptions",
        ),
        (
            {"logging": {"options": {"json": {"infoBufferSize": "1Ki"}}}},
            "logging.options.json.infoBufferSize",
        ),
        ({"tracing": {"samplingRatePerMillion": 2_000_000}}, "tracing.samplingRatePerMillion"),
        ({"userNamespaces": {"idsPerPod": 70000}}, "must be a multiple of 65536"),
        ({"tracing": {"endpoint": "http://a:4317"}}, "tracing.endpoint: 'http://a:4317' must be a host, or"),
        ({"tracing": {"endpoint": "//a"}}, "tracing.endpoint"),
        ({"tracing": {"endpoint": "a:port"}}, "tracing.endpoint: 'a:port' is not a host and a port"),
        ({"tracing": {"endpoint": "-1%"}}, "tracing.endpoint: '-1%' is not a host and a port"),
        ({"tracing": {"endpoint": "unix:///a%zz"}}, "tracing.endpoint"),
        ({"tracing": {"endpoint": "dns://::1:a"}}, "is not a host and a port"),
        ({"tracing": {"endpoint": "[::1"}}, "is not a host and a port"),
        ({"tracing": {"endpoint": "[1.2.3.4]:1"}}, "is not a host and a port"),
        ({"tracing": {"endpoint": "a^b"}}, "is not a host and a port"),
        ({"tracing": {"endpoint": "a\x7f"}}, "is not a host and a port"),
        ({"tracing": {"endpoint": "%41"}}, "is not a host and a port"),
        (
            {"logging": {"format": "json"}, "featureGates": {"LoggingBetaOptions": False}},
            "logging.format (--logging-format): json needs the feature gate LoggingBetaOptions",
        ),
        (
            {"logging": {"vmodule": [{"filePattern": "a", "verbosity": 1 << 31}]}},
            "logging.vmodule[0].verbosity: 2147483648 is too large",
        ),
        ({"showHiddenMetricsForVersion": "x"}, "showHiddenMetricsForVersion"),
        ({"showHiddenMetricsForVersion": "1.34"}, "'1.34' must be 1.35 or empty"),
        ({"podLogsDir": "logs"}, "'logs' must be an absolute path"),
        ({"podLogsDir": "/var/log/../x"}, "must be normalized"),
        ({"podLogsDir": "/var/log/ü"}, "must be ASCII"),
    ],
)
def test_refused(raw: dict[str, Any], problem: str) -> None:
    assert [error for error in errors(raw) if problem in error], errors(raw)


@pytest.mark.parametrize(
    "raw",
    [
        {"healthzPort": 0, "readOnlyPort": 0},
        {"enforceNodeAllocatable": ["none"], "cgroupsPerQOS": False},
        {"enforceNodeAllocatable": ["pods", "kube-reserved"], "kubeReservedCgroup": "/k"},
        {"evictionHard": {"nodefs.available": "100%", "pid.available": "1k"}},
        {"evictionMinimumReclaim": {"nodefs.available": "0"}},
        {"evictionSoft": {"nodefs.available": "10%"}, "evictionSoftGracePeriod": {"nodefs.available": "1m"}},
        {"reservedSystemCPUs": "0-3,8"},
        {"reservedMemory": [{"limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}}]},
        {"cpuCFSQuotaPeriod": "50ms"},
        {"imageMaximumGCAge": "1h"},
        {"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s"},
        {"userNamespaces": {"idsPerPod": 131072}},
        {
            "logging": {"options": {"text": {"splitStream": True}}},
            "featureGates": {"LoggingAlphaOptions": True},
        },
        {"serializeImagePulls": False, "maxParallelImagePulls": 5},
        {"showHiddenMetricsForVersion": "1.35"},
        {"qosReserved": {"memory": "50%"}},
        {"containerLogMaxSize": "-1"},
        {"evictionSoft": {"nodefs.available": "0%", "memory.available": "100%"}},
        {"evictionMinimumReclaim": {"nodefs.available": "101%"}},
        {"registerWithTaints": [{"key": "a"}]},
        {"tracing": {"endpoint": "localhost:4317"}},
        {"tracing": {"endpoint": "unix:///run/otel.sock"}},
        {"tracing": {"endpoint": "DNS://a:4317/path%20?%"}},
        {"tracing": {"endpoint": "[::1]:4317"}},
        {"tracing": {"endpoint": "::1"}},
        {"tracing": {"endpoint": "dns:///::1"}},
        {"tracing": {"endpoint": "dns:a:4317"}},
        {"tracing": {"endpoint": "[fe80::1%25eth0]:4317"}},
        {"tracing": {"endpoint": "dns://8.8.8.8/a:4317"}},
        {"featureGates": {"LoggingBetaOptions": False}},
    ],
)
def test_accepted(raw: dict[str, Any]) -> None:
    assert errors(raw) == []


def test_all_problems_are_named() -> None:
    found = errors({"port": 70000, "maxPods": -1, "hairpinMode": "x"})
    assert [re.split(r"[ :]", error)[0] for error in found] == ["maxPods", "port", "hairpinMode"]


def test_cgroup_v1_has_to_be_allowed() -> None:
    [error] = errors({}, cgroup_v1=True)
    assert "--fail-cgroupv1" in error
    assert errors({"failCgroupV1": False}, cgroup_v1=True) == []
    assert len(errors({"failCgroupV1": False, "singleProcessOOMKill": False}, cgroup_v1=True)) == 1


@pytest.mark.parametrize("fail_swap_on", [False, True])
def test_limited_swap_needs_cgroup_v2(fail_swap_on: bool) -> None:
    raw = {"failCgroupV1": False, "failSwapOn": fail_swap_on, "memorySwap": {"swapBehavior": "LimitedSwap"}}
    assert errors(raw) == []
    assert errors(raw, cgroup_v1=True) == [
        "memorySwap.swapBehavior: LimitedSwap is only supported with cgroup v2"
    ]
    assert errors({**raw, "memorySwap": {"swapBehavior": "NoSwap"}}, cgroup_v1=True) == []

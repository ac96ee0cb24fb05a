"""Which settings act in this agent. What is not listed here is accepted, and named in one warning at start.

Whoever makes a setting act adds it here; nothing else has to change. Fields are named by their path in the
configuration file; a path stands for everything below it. A flag that overrides a field acts if the field
does.
"""

from __future__ import annotations

from typing import Final

FIELDS: Final = frozenset(
    {
        "address",
        "allowedUnsafeSysctls",
        "cgroupDriver",
        "cgroupRoot",
        "cgroupsPerQOS",
        "clusterDNS",
        "clusterDomain",
        "containerLogMaxFiles",
        "containerLogMaxSize",
        "containerLogMaxWorkers",
        "containerLogMonitorInterval",
        "containerRuntimeEndpoint",
        "cpuCFSQuota",
        "cpuCFSQuotaPeriod",
        "crashLoopBackOff",
        "enforceNodeAllocatable",
        "evictionHard",
        "failCgroupV1",
        "failSwapOn",
        "featureGates",
        "fileCheckFrequency",
        "healthzBindAddress",
        "healthzPort",
        "httpCheckFrequency",
        "imageServiceEndpoint",
        "kubeReserved",
        "logging.format",
        "logging.options.json.splitStream",
        "logging.options.text.splitStream",
        "logging.verbosity",
        "logging.vmodule",
        "maxParallelImagePulls",
        "maxPods",
        "memoryReservationPolicy",
        "memorySwap",
        "memoryThrottlingFactor",
        "oomScoreAdj",
        "podLogsDir",
        "podPidsLimit",
        "readOnlyPort",
        "registerWithTaints",
        "registryBurst",
        "registryPullQPS",
        "resolvConf",
        "runOnce",
        "runtimeRequestTimeout",
        "seccompDefault",
        "serializeImagePulls",
        "singleProcessOOMKill",
        "staticPodPath",
        "staticPodURL",
        "staticPodURLHeader",
        "syncFrequency",
        "systemReserved",
    }
)

# Flags that are no field.
FLAGS: Final = frozenset(
    {
        "config",
        "config-dir",
        "help",
        "hostname-override",
        "kubeconfig",
        "manifest-url-ca-file",
        "maximum-dead-containers",
        "maximum-dead-containers-per-container",
        "minimum-container-ttl-duration",
        "node-ip",
        "node-labels",
        "root-dir",
        "seccomp-default",
        "version",
    }
)

GATES: Final = frozenset(
    {
        "AllAlpha",
        "AllBeta",
        "ContainerStopSignals",
        "EnvFiles",
        "EventedPLEG",
        "HostnameOverride",
        "KubeletCrashLoopBackOffMax",
        "LoggingAlphaOptions",
        "LoggingBetaOptions",
        "MemoryQoS",
        "PodLevelResources",
    }
)


def acts(path: str) -> bool:
    """Whether the configuration field at `path` does something, by itself or through a parent."""
    parts = path.split(".")
    return any(".".join(parts[:length]) in FIELDS for length in range(1, len(parts) + 1))

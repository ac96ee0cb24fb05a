"""Facts of the machine the agent runs on, and what of it pods may use.

`read_machine` looks once at start (blocking, a few files); the rest is arithmetic over what it found. The
sources are those cAdvisor and the kubelet use, so that a node's capacity does not change with its agent.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from typing import Final

import msgspec

from trio_kubelet.api.quantity import BINARY_SI, DECIMAL_SI, MILLI, Quantity, parse
from trio_kubelet.common.cpusets import parse_cpus
from trio_kubelet.common.ip import parse_ip
from trio_kubelet.common.mountinfo import selinux_enabled
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.types import KubeletConfiguration, thresholds_in_force
from trio_kubelet.podinfo.amounts import amount, huge_page_size_name, whole
from trio_kubelet.podinfo.context import DEFAULT_MASKED_PATHS, Features, NodeContext


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; sizes in bytes. `huge_pages` maps page size to the size of all such pages; `cpu_list`
    is the kernel's (`0-3`); `pids` is how many tasks there may be, 0 if unknown; `cpu_quota` is whether
    the kernel can limit CPU time.
    """

    cpus: int
    memory: int
    cpu_list: str = ""
    pids: int = 0
    swap: int = 0
    disk: int = 0
    huge_pages: Mapping[int, int] = {}
    page_size: int = 4096
    cgroup_v2: bool = False
    swap_controller: bool = False
    cpu_quota: bool = True
    masked_paths: tuple[str, ...] = DEFAULT_MASKED_PATHS
    selinux: bool = False

    @property
    def huge_page_names(self) -> tuple[str, ...]:
        """The sizes of huge pages as cgroups name them."""
        return tuple(huge_page_size_name(size) for size in sorted(self.huge_pages))


def read_machine(root_dir: str) -> MachineFacts:
    """Looks at the machine; `root_dir` (or the nearest directory above it) is where pods' data will be.

    Blocking. What cannot be read counts as absent; memory and CPUs are always there.
    """
    memory = _meminfo()
    cgroup_v2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    return MachineFacts(
        cpus=os.cpu_count() or 1,
        cpu_list=_text("/sys/devices/system/cpu/online"),
        pids=_most_tasks(),
        memory=memory.get("MemTotal", 0),
        swap=memory.get("SwapTotal", 0),
        disk=_disk_size(root_dir),
        huge_pages=_huge_pages(),
        page_size=os.sysconf("SC_PAGE_SIZE"),
        cgroup_v2=cgroup_v2,
        swap_controller=_has_swap_controller(cgroup_v2),
        cpu_quota=cgroup_v2 or has_cpu_quota("/sys/fs/cgroup/cpu"),
        masked_paths=(*DEFAULT_MASKED_PATHS, *_thermal_paths()),
        selinux=selinux_enabled(),
    )


def node_capacity(
    facts: MachineFacts, max_pods: int, *, pods_per_core: int = 0, local_storage: bool = True
) -> dict[str, str]:
    """Everything the machine has, as the Node object shows it; `local_storage`: whether disk is accounted."""
    pods = min(max_pods, facts.cpus * pods_per_core) if pods_per_core > 0 else max_pods
    return {
        "cpu": str(Quantity(facts.cpus * 1000, MILLI, DECIMAL_SI)),
        **({"ephemeral-storage": _binary(facts.disk)} if local_storage else {}),
        **{f"hugepages-{_binary(size)}": _binary(total) for size, total in sorted(facts.huge_pages.items())},
        "memory": _binary(facts.memory),
        "pods": str(Quantity(pods, 0, DECIMAL_SI)),
    }


def capacity_of(facts: MachineFacts, config: KubeletConfiguration) -> dict[str, str]:
    """The capacity under a configuration."""
    return node_capacity(
        facts,
        config.max_pods,
        pods_per_core=config.pods_per_core,
        local_storage=bool(config.local_storage_capacity_isolation),
    )


def with_reserved_cpus(config: KubeletConfiguration) -> KubeletConfiguration:
    """The configuration with `reservedSystemCPUs` counted as the system's reservation, in place of all other
    reservations of CPU.
    """
    count = len(parse_cpus(config.reserved_system_cpus))
    if not count:
        return config
    kube = {name: quantity for name, quantity in config.kube_reserved.items() if name != "cpu"}
    system = {**config.system_reserved, "cpu": str(count)}
    return msgspec.structs.replace(config, kube_reserved=kube, system_reserved=system)


def node_allocatable(
    capacity: Mapping[str, str], config: KubeletConfiguration, *, ignore_eviction: bool = False
) -> dict[str, str]:
    """What pods may request: capacity without reservations and without what eviction keeps free
    (`ignore_eviction`: `--experimental-allocatable-ignore-eviction`). Memory set aside for huge pages is no
    other memory.
    """
    huge = sum(amount(quantity) for name, quantity in capacity.items() if name.startswith("hugepages-"))
    result = dict(capacity)
    for name, quantity in capacity.items():
        reserved = kept_quantity(config, name, quantity, ignore_eviction=ignore_eviction)
        kept = amount(str(reserved)) + (huge if name == "memory" else 0)
        if kept:
            result[name] = _spell(name, max(0, amount(quantity) - kept))
    return result


def kept_quantity(
    config: KubeletConfiguration, name: str, capacity: str, *, ignore_eviction: bool = False
) -> Quantity:
    """What of a resource is not for pods: reserved for system and Kubernetes, or kept free by eviction. In
    the notation of what was configured.
    """
    config = with_reserved_cpus(config)
    kept = Quantity(0, 0, DECIMAL_SI)
    for reserved in (config.system_reserved, config.kube_reserved):
        if name in reserved:
            kept = kept.add(parse(reserved[name]))
    hard = thresholds_in_force(config.eviction_hard).get(_KEPT_FREE.get(name, ""), "")
    if hard and not ignore_eviction:
        if hard.endswith("%"):
            kept = kept.add(Quantity(threshold_amount(hard, whole(amount(capacity))), 0, BINARY_SI))
        else:
            kept = kept.add(parse(hard))
    return kept


_KEPT_FREE: Final = {"memory": "memory.available", "ephemeral-storage": "nodefs.available"}
"""The signal of which eviction keeps something free, by resource."""


def reservation_problem(
    capacity: Mapping[str, str], config: KubeletConfiguration, *, ignore_eviction: bool = False
) -> str:
    """Why so much cannot be reserved on this machine, "" if it can."""
    problems = []
    for name, quantity in capacity.items():
        kept = kept_quantity(config, name, quantity, ignore_eviction=ignore_eviction)
        if kept.compare(parse(quantity)) > 0:
            problems.append(
                f'Resource "{name}" has a reservation of {kept} but capacity of {quantity}. '
                "Expected capacity >= reservation."
            )
    return f"invalid Node Allocatable configuration. {' '.join(problems)}" if problems else ""


def node_context(
    facts: MachineFacts,
    config: KubeletConfiguration,
    gates: FeatureGates,
    *,
    node_name: str,
    root_dir: str,
    host_ips: tuple[str, ...] = (),
    node_ips: tuple[str, ...] = (),
    seccomp_default: bool = False,
) -> NodeContext:
    """What configs are made from, out of the machine and its configuration. `seccomp_default` is what the
    flag of that name says; it cannot take back what the configuration says.

    `resolv_conf` is left out: it is read each time a sandbox is made, for it may change.
    """
    period = config.cpu_cfs_quota_period
    return NodeContext(
        node_name=node_name,
        root_dir=root_dir,
        pod_logs_dir=config.pod_logs_dir,
        cgroup_root=config.cgroup_root or "/",
        cgroup_driver=config.cgroup_driver,
        cgroups_per_qos=bool(config.cgroups_per_qos),
        cgroup_v2=facts.cgroup_v2,
        cpu_cfs_quota=bool(config.cpu_cfs_quota),
        cpu_cfs_quota_period_us=round(period * 1_000_000),
        cluster_dns=tuple(str(ip) for text in config.cluster_dns if (ip := parse_ip(text)) is not None),
        cluster_domain=config.cluster_domain,
        host_ips=host_ips,
        node_ips=node_ips,
        memory_capacity=facts.memory,
        swap_capacity=facts.swap,
        swap_controller=facts.swap_controller,
        swap_behavior=config.memory_swap.swap_behavior,
        huge_page_sizes=facts.huge_page_names,
        allocatable=node_allocatable(capacity_of(facts, config), config),
        masked_paths=facts.masked_paths,
        seccomp_default=seccomp_default or bool(config.seccomp_default),
        memory_throttling_factor=config.memory_throttling_factor,
        memory_reservation_policy=config.memory_reservation_policy,
        # Version 1 cannot end all processes of a container together.
        single_process_oom_kill=bool(config.single_process_oom_kill) if facts.cgroup_v2 else True,
        memory_for_pods=_memory_for_pods(facts, config),
        page_size=facts.page_size,
        selinux=facts.selinux,
        features=Features(
            pod_level_resources=gates.enabled("PodLevelResources"),
            hostname_override=gates.enabled("HostnameOverride"),
            container_stop_signals=gates.enabled("ContainerStopSignals"),
            env_files=gates.enabled("EnvFiles"),
            memory_qos=gates.enabled("MemoryQoS"),
            quota_monitoring=gates.enabled("LocalStorageCapacityIsolationFSQuotaMonitoring"),
        ),
    )


def _memory_for_pods(facts: MachineFacts, config: KubeletConfiguration) -> int:
    """Bytes of memory without what is reserved, whether or not that is enforced."""
    reserved = [amount(kept.get("memory", "")) for kept in (config.system_reserved, config.kube_reserved)]
    return max(0, facts.memory - whole(sum(reserved)))


def threshold_amount(text: str, total: int) -> int:
    """A quantity or a percentage of `total`, as eviction has them, in whole units; 0 for none."""
    if not text:
        return 0
    if text.endswith("%"):
        # The kubelet keeps percentage and fraction as 32-bit floats, which shows in the bytes.
        return int(total * _float32(_float32(float(text.rstrip("%"))) / 100))
    return whole(amount(text))


def _float32(number: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", number))
    return float(rounded)


def _spell(name: str, nanos: int) -> str:
    """A quantity in the notation of its kind."""
    if name in ("memory", "ephemeral-storage") or name.startswith("hugepages-"):
        return _binary(whole(nanos))
    return str(Quantity(-(-nanos // 10**6), MILLI, DECIMAL_SI))


def _binary(size: int) -> str:
    return str(Quantity(size, 0, BINARY_SI))


def _meminfo() -> dict[str, int]:
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = (line.split() for line in file)
        return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields if field[-1] == "kB"}


def _disk_size(path: str) -> int:
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize


def _huge_pages() -> dict[int, int]:
    base = "/sys/kernel/mm/hugepages"
    found: dict[int, int] = {}
    for name in _names(base):
        match = re.fullmatch(r"hugepages-(\d+)kB", name)
        if match:
            size = int(match[1]) * 1024
            found[size] = size * int(_text(f"{base}/{name}/nr_hugepages") or 0)
    return found


def _most_tasks() -> int:
    """How many tasks the kernel allows, in two places; 0 if neither says."""
    limits = [_text(f"/proc/sys/kernel/{name}") for name in ("pid_max", "threads-max")]
    return min((int(limit) for limit in limits if limit.isdigit()), default=0)


def _thermal_paths() -> list[str]:
    base = "/sys/devices/system/cpu"
    cpus = sorted(int(name[3:]) for name in _names(base) if re.fullmatch(r"cpu\d+", name))
    paths = [f"{base}/cpu{cpu}/thermal_throttle" for cpu in cpus]
    return [path for path in paths if os.path.exists(path)]


def has_cpu_quota(directory: str) -> bool:
    """Whether a hierarchy of cgroup v1 limits CPU time, which kernels can be built without; `directory` is
    where it is mounted. One that is not there is not judged.
    """
    files = {"cpu.cfs_period_us", "cpu.cfs_quota_us"}
    names = _names(directory)
    return not names or files.issubset(names)


def _has_swap_controller(cgroup_v2: bool) -> bool:
    """Whether memory and swap together can be limited. On cgroup v2 the root has no such file."""
    if not cgroup_v2:
        return os.path.exists("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
    own = next((line[3:] for line in _text("/proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    return os.path.exists(f"/sys/fs/cgroup{own}/memory.swap.max")


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""

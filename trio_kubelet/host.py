"""The machine the agent starts on: what it is, the directories it needs, the agent's own standing on it."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Mapping
from typing import Final

import msgspec

from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.common.cpusets import parse_cpus
from trio_kubelet.common.ip import parse_ip
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.machine.facts import MachineFacts, node_context, read_machine
from trio_kubelet.machine.node_reader import boot_time
from trio_kubelet.machine.system import SystemFacts, read_system
from trio_kubelet.node.addresses import default_node_name, find_host_ips, parse_node_ip_flag
from trio_kubelet.node.directories import make_data_dirs
from trio_kubelet.node.swap import swap_is_on, tmpfs_stays_in_memory
from trio_kubelet.podinfo.context import NodeContext

log = get_logger(__name__)

FILES_WITH_ROOM: Final = 8192
"""A power of two. Room for a file is eight bytes of the kernel's memory."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What was found when the agent started: `hierarchies` are the cgroups', by controller; `booted_ns` is 0
    if unknown; `swaps_tmpfs`: what is in a filesystem in memory may be written to swap.
    """

    facts: MachineFacts
    system: SystemFacts
    hierarchies: Mapping[str, str]
    node: NodeContext
    booted_ns: int = 0
    swaps_tmpfs: bool = False


async def prepare(flags: KubeletFlags, config: KubeletConfiguration) -> Machine:
    """Looks at the machine and makes the agent's directories. Raises ConfigurationError and OSError."""
    set_oom_score(config.oom_score_adj)
    set_open_files(config.max_open_files)
    swaps = await NODE_FILES.run(swap_is_on)
    if swaps and config.fail_swap_on:
        raise ConfigurationError(
            "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"
        )

    def look() -> Machine:
        make_data_dirs(
            flags.root_dir,
            config.pod_logs_dir,
            flags.container_logs_dir,
            checkpoints=resolve_gates(config.feature_gates).enabled("ContainerCheckpoint"),
        )
        facts = read_machine(flags.root_dir)
        check_reserved_cpus(config.reserved_system_cpus, facts.cpu_list)
        system = read_system(flags.machine_id_file, flags.boot_id_file)
        return Machine(
            facts=facts,
            system=system,
            swaps_tmpfs=swaps and not tmpfs_stays_in_memory(flags.root_dir, system.kernel),
            hierarchies=find_hierarchies(),
            node=look_at_node(flags, config, facts),
            booted_ns=boot_time(),
        )

    return await NODE_FILES.run(look)


def check_reserved_cpus(reserved: str, online: str) -> None:
    """Raises ConfigurationError for CPUs to be kept for the system that the machine does not have."""
    if online and not parse_cpus(reserved) <= parse_cpus(online):
        raise ConfigurationError(f"reserved-cpus: {reserved} is not a subset of online-cpus: {online}")


def check_tls(config: KubeletConfiguration) -> None:
    """Tells at the start what is wrong with the TLS the main port is to have, as the kubelet does.

    Raises ConfigurationError.
    """
    suites = config.tls_cipher_suites
    if not (config.tls_min_version or suites or config.tls_curve_preferences):
        return
    from trio_kubelet.kube.certificates.tls_settings import tls_settings

    try:
        settings = tls_settings(config.tls_min_version, suites, config.tls_curve_preferences)
    except ValueError as exc:
        raise ConfigurationError(f"failed to construct kubelet dependencies: {exc}") from exc
    for suite in settings.insecure:
        log.info("Use of insecure cipher detected.", cipher=suite)
    if suites and config.tls_min_version == "VersionTLS13":
        log.info("Warning: TLS 1.3 cipher suites are not configurable, ignoring --tls-cipher-suites")


def with_driver(machine: Machine, cgroup_driver: str) -> Machine:
    """The machine whose runtime makes cgroups in this way."""
    node = msgspec.structs.replace(machine.node, cgroup_driver=cgroup_driver)
    return msgspec.structs.replace(machine, node=node)


def look_at_node(flags: KubeletFlags, config: KubeletConfiguration, facts: MachineFacts) -> NodeContext:
    """What configs need to know of this node. Raises ConfigurationError. Blocking."""
    for text in config.cluster_dns:
        if parse_ip(text) is None:
            log.info("Invalid clusterDNS IP", IP=text)
    try:
        name = default_node_name(flags.hostname_override)
        node_ips = parse_node_ip_flag(flags.node_ip)
        return node_context(
            facts,
            config,
            resolve_gates(config.feature_gates),
            node_name=name,
            root_dir=os.path.abspath(flags.root_dir),
            host_ips=find_host_ips(name, node_ips),
            node_ips=node_ips.all,
            seccomp_default=flags.seccomp_default,
        )
    except ValueError as exc:
        raise ConfigurationError(str(exc)) from exc


def set_oom_score(score: int) -> None:
    """Asks the kernel to spare this process; without the right to, it goes on with a warning."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write(str(score))
    except OSError as exc:
        log.warning("Cannot set the agent's own oom_score_adj", oomScoreAdj=score, err=exc)


def set_open_files(most: int) -> None:
    """So many files this process, and what it starts, may have open at once; without the right to raise the
    limit it goes on with the one it has.
    """
    try:
        resource.prlimit(0, resource.RLIMIT_NOFILE, (most, most))
    except OSError as exc:
        log.error("Failed to set rlimit on max file handles", maxOpenFiles=most, err=exc)
    _make_room_for_files()


def _make_room_for_files() -> None:
    """The kernel doubles its table of a process's files when one is opened that has no room in it.

    Where the process has threads, whoever opens that one, the event loop too, waits until every CPU has done
    something else (`synchronize_rcu` below `expand_files`): 5 to 20 ms, and half a second where others want
    the CPUs. The table never gets smaller, so it is made large once, when nothing is there to be held up.
    """
    last = min(FILES_WITH_ROOM, resource.getrlimit(resource.RLIMIT_NOFILE)[0]) - 1
    try:
        with open(os.devnull, "rb") as file:
            os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, last))
    except OSError as exc:
        log.v(2).info("The table of open files stays as it is", err=exc)

"""The machine the agent starts on: what it is, the directories it needs, the agent's own standing on it."""

from __future__ import annotations

import os

from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.config.load import ConfigError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.log import get_logger
from trio_kubelet.node.addresses import default_node_name, find_host_ips, parse_node_ips
from trio_kubelet.node.machine import MachineFacts, node_context
from trio_kubelet.runtime.configs.context import NodeContext

log = get_logger(__name__)


def container_logs_dir(config: KubeletConfiguration) -> str:
    """Where log collectors find a link per container.

    The kubelet's fixed place for its usual log directory; an agent whose pod logs are elsewhere leaves the
    host's alone and puts the links beside them.
    """
    parent, name = os.path.split(config.pod_logs_dir.rstrip("/"))
    return os.path.join(parent, "containers" if name == "pods" else f"{name}-containers")


def look_at_node(flags: KubeletFlags, config: KubeletConfiguration, facts: MachineFacts) -> NodeContext:
    """What configs need to know of this node. Raises ConfigError. Blocking."""
    try:
        name = default_node_name(flags.hostname_override)
        node_ips = parse_node_ips(flags.node_ip)
        return node_context(
            facts,
            config,
            resolve_gates(config.feature_gates),
            node_name=name,
            root_dir=os.path.abspath(flags.root_dir),
            host_ips=find_host_ips(name, node_ips),
            node_ips=node_ips,
        )
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc


def make_directories(flags: KubeletFlags, config: KubeletConfiguration) -> None:
    """The directories a kubelet has, with its modes. Raises OSError. Blocking."""
    for name, mode in (
        ("", 0o750),
        ("pods", 0o750),
        ("plugins", 0o750),
        ("plugins_registry", 0o750),
        ("pod-resources", 0o750),
    ):
        os.makedirs(os.path.join(flags.root_dir, name), mode, exist_ok=True)
    for path in (config.pod_logs_dir, container_logs_dir(config)):
        os.makedirs(path, 0o755, exist_ok=True)


def swap_is_on() -> bool:
    """Whether the machine has swap space in use. Blocking."""
    try:
        with open("/proc/swaps", encoding="utf-8") as file:
            return len(file.read().splitlines()) > 1
    except OSError:
        return False


def set_oom_score(score: int) -> None:
    """Asks the kernel to spare this process; without the right to, it goes on with a warning."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write(str(score))
    except OSError as exc:
        log.warning("Cannot set the agent's own oom_score_adj", oomScoreAdj=score, err=exc)

"""The agent of a private node: its configuration file and command line."""

from __future__ import annotations

import json
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from trio_kubelet.standalone.layout import NodeLayout

_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 12_000


@dataclass(frozen=True)
class AgentPorts:
    """TCP ports of the agent on loopback."""

    main: int
    read_only: int
    healthz: int


def free_ports() -> AgentPorts:
    """Three loopback ports nothing listens on now. Another program may still take one before the agent.

    They lie below those that the kernel gives by itself to outgoing connections and to listeners that ask for
    any: it would give one of ours away while the agent is down, and a client that asks for the agent then
    could even be connected to itself.
    """
    lowest = int(_PORT_RANGE.read_text().split()[0])
    candidates = range(_LOWEST_PORT, lowest) if lowest > 2 * _LOWEST_PORT else range(_LOWEST_PORT, 1 << 16)
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < 3:
            each = stack.enter_context(socket.socket())
            with suppress(OSError):
                each.bind(("127.0.0.1", random.choice(candidates)))
                found.append(each.getsockname()[1])
    return AgentPorts(*found)


def configuration(
    layout: NodeLayout, manifests: Path, ports: AgentPorts, extra: Mapping[str, object] | None = None
) -> str:
    """A KubeletConfiguration (JSON) for the agent of this node; `extra` wins field by field."""
    fields: dict[str, object] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": str(manifests),
        "containerRuntimeEndpoint": layout.endpoint,
        "podLogsDir": str(layout.pod_logs),
        "cgroupRoot": layout.cgroup_root,
        "cgroupDriver": layout.cgroup_driver,
        "address": "127.0.0.1",
        "port": ports.main,
        "readOnlyPort": ports.read_only,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": ports.healthz,
        "failSwapOn": False,
        "failCgroupV1": False,
        # Chains of the machine's own are nothing that a private node may leave behind.
        "makeIPTablesUtilChains": False,
    }
    return json.dumps({**fields, **(extra or {})}, indent=2) + "\n"


def command_line(layout: NodeLayout, config_file: Path, flags: Sequence[str] = ()) -> list[str]:
    """How to start the agent with this interpreter; the node's name is its host name override."""
    script = Path(sys.executable).parent / "trio-kubelet"
    program = [str(script)] if script.exists() else [sys.executable, "-m", "trio_kubelet"]
    own = [
        f"--config={config_file}",
        f"--root-dir={layout.agent_root}",
        f"--cert-dir={layout.agent_root / 'pki'}",
        f"--container-logs-dir={layout.container_logs}",
        f"--hostname-override={layout.name}",
        "--set-kernel-tunables=false",  # they are the whole machine's
    ]
    return [*program, *own, *flags]

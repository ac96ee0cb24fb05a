"""The agent of a private node: its configuration file and command line."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from trio_kubelet.standalone.layout import NodeLayout


@dataclass(frozen=True)
class AgentPorts:
    """TCP ports of the agent on loopback."""

    main: int
    read_only: int
    healthz: int


def free_ports() -> AgentPorts:
    """Three loopback ports nothing listens on now. Another program may still take one before the agent."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        main, read_only, healthz = (each.getsockname()[1] for each in sockets)
    return AgentPorts(main, read_only, healthz)


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
        "cgroupDriver": "cgroupfs",
        "address": "127.0.0.1",
        "port": ports.main,
        "readOnlyPort": ports.read_only,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": ports.healthz,
        "failSwapOn": False,
        "failCgroupV1": False,
    }
    return json.dumps({**fields, **(extra or {})}, indent=2) + "\n"


def command_line(layout: NodeLayout, config_file: Path, flags: Sequence[str] = ()) -> list[str]:
    """How to start the agent with this interpreter; the node's name is its host name override."""
    script = Path(sys.executable).parent / "trio-kubelet"
    program = [str(script)] if script.exists() else [sys.executable, "-m", "trio_kubelet"]
    own = [f"--config={config_file}", f"--root-dir={layout.agent_root}", f"--hostname-override={layout.name}"]
    return [*program, *own, *flags]

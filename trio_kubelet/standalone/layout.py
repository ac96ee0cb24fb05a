"""Where everything of one private node lives, derived from a name and a directory.

One value decides all paths and names, so that what belongs to a node can be found again by looking, also
after a crash: mounts lie under `base`, shims carry `socket` in their command line, pods run below
`cgroup_root`, pod links hang on `bridge`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from trio_kubelet.commands.client import AGENT_DIR

_BRIDGE_PREFIX = "tk-"
_LINK_NAME_MAX = 15  # IFNAMSIZ less its terminating zero
_SOCKET_PATH_MAX = 107  # sun_path less its terminating zero
NAME_MAX = _LINK_NAME_MAX - len(_BRIDGE_PREFIX)


def check_name(name: str) -> None:
    """Raises ValueError for what cannot be a node's name."""
    if not re.fullmatch(rf"[a-z0-9]([a-z0-9-]{{0,{NAME_MAX - 2}}}[a-z0-9])?", name):
        raise ValueError(f"node {name!r}: up to {NAME_MAX} lower-case letters, digits and dashes")


@dataclass(frozen=True)
class NodeLayout:
    """Paths and names of one private node. `subnet` is what its pods get addresses from; with `systemd`
    its cgroups are slices.
    """

    name: str
    base: Path
    subnet: ipaddress.IPv4Network
    systemd: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        longest = str(self.socket) + ".ttrpc"
        if len(longest) > _SOCKET_PATH_MAX:
            raise ValueError(f"directory {self.base} is too long: a socket path has {_SOCKET_PATH_MAX} bytes")

    @property
    def socket(self) -> Path:
        """containerd's gRPC socket; the agent's `--container-runtime-endpoint` is `unix://` + this."""
        return self.base / "containerd.sock"

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket}"

    @property
    def containerd_config(self) -> Path:
        return self.base / "containerd.toml"

    @property
    def containerd_log(self) -> Path:
        return self.base / "containerd.log"

    @property
    def containerd_root(self) -> Path:
        return self.base / "root"

    @property
    def containerd_state(self) -> Path:
        return self.base / "state"

    @property
    def cni_conf_dir(self) -> Path:
        return self.base / "cni/conf"

    @property
    def cni_ipam_dir(self) -> Path:
        return self.base / "cni/ipam"

    @property
    def images_archive(self) -> Path:
        return self.base / "images.tar"

    @property
    def bridge(self) -> str:
        """Name of the bridge link, and of the CNI network."""
        return _BRIDGE_PREFIX + self.name

    @property
    def gateway(self) -> ipaddress.IPv4Address:
        """The bridge's own address: what a pod reaches the node under."""
        return self.subnet.network_address + 1

    @property
    def cgroup_root(self) -> str:
        """The agent's `cgroupRoot`; two agents with the same one end each other's pods."""
        return f"/trio-kubelet-{self.name}"

    @property
    def cgroup_driver(self) -> str:
        return "systemd" if self.systemd else "cgroupfs"

    @property
    def cgroup_path(self) -> str:
        """Where the cgroup root is in the hierarchies; systemd writes a dash in a name as an underscore."""
        return self.cgroup_root.replace("-", "_") + ".slice" if self.systemd else self.cgroup_root

    @property
    def agent_root(self) -> Path:
        """The agent's `--root-dir`."""
        return self.base / AGENT_DIR

    @property
    def pod_logs(self) -> Path:
        """The agent's `podLogsDir`."""
        return self.base / "log/pods"

    @property
    def container_logs(self) -> Path:
        """The agent's `--container-logs-dir`: the links of a private node are not among the machine's."""
        return self.base / "log/containers"

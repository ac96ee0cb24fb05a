"""Which kernel parameters a pod may set (kubelet: `pkg/kubelet/sysctl`). Pure.

A parameter must be namespaced, so that it does not reach beyond the pod, and either safe for its neighbours
or allowed by the node's `allowedUnsafeSysctls`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from trio_kubelet.api.sysctls import normal_sysctl, sysctl_namespace
from trio_kubelet.api.v1 import Pod

# Safe parameters with the kernel that made each of them namespaced.
_SAFE: Final = {
    "kernel.shm_rmid_forced": (0, 0),
    "net.ipv4.ip_local_port_range": (0, 0),
    "net.ipv4.tcp_syncookies": (0, 0),
    "net.ipv4.ping_group_range": (0, 0),
    "net.ipv4.ip_unprivileged_port_start": (0, 0),
    "net.ipv4.ip_local_reserved_ports": (3, 16),
    "net.ipv4.tcp_keepalive_time": (4, 5),
    "net.ipv4.tcp_fin_timeout": (4, 6),
    "net.ipv4.tcp_keepalive_intvl": (4, 5),
    "net.ipv4.tcp_keepalive_probes": (4, 5),
    "net.ipv4.tcp_rmem": (4, 15),
    "net.ipv4.tcp_wmem": (4, 15),
}
_LONGEST: Final = 253
# A star stands at the end only: elsewhere all behind it would count as allowed.
_PATTERN: Final = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]"


def safe_sysctls(kernel: str) -> list[str]:
    """The parameters any pod may set on a kernel of that release (`uname -r`)."""
    found = re.match(r"(\d+)\.(\d+)", kernel)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    return [name for name, since in _SAFE.items() if version >= since]


class SysctlAllowlist:
    """Parameters and patterns (ending in `*`) that pods may set. Raises ValueError for a bad pattern."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._names: dict[str, str] = {}
        self._prefixes: dict[str, str] = {}
        for pattern in patterns:
            if len(pattern) > _LONGEST or not re.fullmatch(_PATTERN, pattern):
                raise ValueError(
                    f'sysctl "{pattern}" must have at most {_LONGEST} characters and match regex {_PATTERN}'
                )
            name, star, _ = normal_sysctl(pattern).partition("*")
            namespace = sysctl_namespace(name)
            if not namespace:
                raise ValueError(f'the sysctls "{name}" are not known to be namespaced')
            (self._prefixes if star else self._names)[name] = namespace

    def refusal(self, pod: Pod) -> str:
        """Why the pod's parameters are refused, "" if they are not."""
        context = pod.spec.security_context
        for sysctl in (context.sysctls if context is not None else None) or ():
            name = normal_sysctl(sysctl.name)
            namespace = self._names.get(name) or self._prefix(name)
            if namespace is None:
                return f'forbidden sysctl: "{name}" not allowlisted'
            shared = pod.spec.host_ipc if namespace == "IPC" else pod.spec.host_network
            if shared:
                return f'forbidden sysctl: "{name}" not allowed with host {namespace} enabled'
        return ""

    def _prefix(self, name: str) -> str | None:
        return next((space for prefix, space in self._prefixes.items() if name.startswith(prefix)), None)

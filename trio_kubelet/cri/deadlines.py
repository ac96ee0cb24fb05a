"""How long a CRI call may take: the kubelet's rules as one pure function per kind of call.

`request_timeout` is KubeletConfiguration's `runtimeRequestTimeout` (2 minutes by default). The runtime has to
do the waiting in stop and exec calls itself, so these get that much on top of it.
"""

from __future__ import annotations

from typing import Final

DEFAULT_REQUEST_TIMEOUT: Final = 120.0

UNBOUNDED: Final = 24 * 3600.0
"""For calls that the kubelet lets run without a limit, because their length is not the runtime's doing (an
image pull, an exec without a timeout). A day is nobody's pull, and still an end."""


def run_pod_sandbox(request_timeout: float) -> float:
    """Twice the request timeout: setting up a pod's network can be slow."""
    return 2 * request_timeout


def stop_container(request_timeout: float, grace_s: float) -> float:
    """The grace period first, then the request timeout for the runtime's own work."""
    return request_timeout + max(grace_s, 0)


def exec_sync(request_timeout: float, timeout_s: float) -> float:
    """Unbounded without a timeout for the command."""
    return request_timeout + timeout_s if timeout_s else UNBOUNDED


def checkpoint(request_timeout: float, timeout_s: float) -> float:
    """The wanted timeout if it is the longer one."""
    return max(request_timeout, timeout_s)

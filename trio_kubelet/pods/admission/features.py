"""Pods that need what this node does not declare (KEP-5328). Pure."""

from __future__ import annotations

from collections.abc import Collection

from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.podinfo.restarts import RESTART_ALL_CONTAINERS


def refusal(pod: v1.Pod, declared: Collection[str] | None) -> str:
    """Why the pod cannot run here, "" if it can; `declared` None: the node declares nothing and refuses
    nobody.
    """
    if declared is None:
        return ""
    missing = [name for name in _needed(pod) if name not in declared]
    return f"Pod requires node features that are not available: {', '.join(missing)}" if missing else ""


def _needed(pod: v1.Pod) -> list[str]:
    """Sorted, as the kubelet names them."""
    restarts_all = any(
        rule.action == RESTART_ALL_CONTAINERS
        for container in regular_containers(pod.spec)
        for rule in container.restart_policy_rules or ()
    )
    needed = ["RestartAllContainersOnContainerExits"] if restarts_all else []
    if pod.spec.host_network and pod.spec.host_users is False:
        needed.append("UserNamespacesHostNetworkSupport")
    return needed

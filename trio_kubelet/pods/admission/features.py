"""What pods and changes of them need of a node, which it has to declare (KEP-5328). Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trio_kubelet.api import v1
from trio_kubelet.podinfo.restarts import may_restart_all


def lacking(needed: Sequence[str], declared: Collection[str] | None) -> str:
    """What of the features needed the node lacks, in words, "" for nothing. `declared` None: the node
    declares nothing, and nothing is asked of it.
    """
    missing = [] if declared is None else [name for name in needed if name not in declared]
    return f"Pod requires node features that are not available: {', '.join(missing)}" if missing else ""


def needed_for_update(before: v1.Pod, pod: v1.Pod) -> list[str]:
    """What a change of the pod's amounts needs, sorted."""
    pairs = zip(before.spec.init_containers or (), pod.spec.init_containers or (), strict=False)
    needed = []
    if before.spec.resources != pod.spec.resources:
        needed.append("InPlacePodLevelResourcesVerticalScaling")
    if any(old.restart_policy != "Always" and old.resources != new.resources for old, new in pairs):
        needed.append("InPlacePodVerticalScalingInitContainers")
    return needed


def needed_to_run(pod: v1.Pod) -> list[str]:
    """What the pod needs, sorted, as the kubelet names it."""
    needed = ["RestartAllContainersOnContainerExits"] if may_restart_all(pod.spec) else []
    if pod.spec.host_network and pod.spec.host_users is False:
        needed.append("UserNamespacesHostNetworkSupport")
    return needed

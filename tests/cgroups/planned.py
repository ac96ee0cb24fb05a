"""The whole tree that the plan comes to, for tests that look at all of it."""

from __future__ import annotations

from collections.abc import Iterable

from trio_kubelet.api import v1
from trio_kubelet.cgroups.limits import Limits, with_limits
from trio_kubelet.cgroups.plan import CgroupSettings, asked_by, class_limits, node_limits, pod_cgroup_limits
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.qos import QOSClass, pod_qos


def planned_tree(pods: Iterable[v1.Pod], node: NodeContext, settings: CgroupSettings) -> dict[str, Limits]:
    """Every cgroup the agent makes for these pods, by path, with its limits; parents come first."""
    names = CgroupNames(node.cgroup_root, node.cgroup_driver, node.cgroups_per_qos)
    pods = list(pods)
    classes = class_limits((asked_by(pod, node) for pod in pods), node, settings)
    tree = {
        names.literal(names.node()): with_limits(node_limits(settings, node), classes[QOSClass.GUARANTEED])
    }
    for qos in (QOSClass.BURSTABLE, QOSClass.BEST_EFFORT):
        tree[names.literal(names.qos(qos))] = classes[qos]
    for pod in pods:
        qos = pod_qos(pod, node.features.pod_level_resources)
        tree[names.literal(names.pod(pod.metadata.uid, qos))] = pod_cgroup_limits(
            pod, node, settings.pids_limit
        )
    return tree

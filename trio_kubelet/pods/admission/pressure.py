"""Which new pods a node under pressure refuses (kubelet: `eviction.Admit`). Pure."""

from __future__ import annotations

from collections.abc import Collection

from trio_kubelet.api.v1 import Pod, Taint
from trio_kubelet.podinfo.qos import QOSClass, is_critical_pod, pod_qos
from trio_kubelet.pods.admission.admitter import Reject
from trio_kubelet.pods.admission.fit import tolerates

_MEMORY_PRESSURE = "MemoryPressure"
_MEMORY_TAINT = Taint(key="node.kubernetes.io/memory-pressure", effect="NoSchedule")


def refusal(pod: Pod, pressures: Collection[str]) -> Reject | None:
    """Why the pod cannot be taken under these conditions of the node. Critical pods always can; with memory
    alone short so can all that reserve some, or tolerate it.
    """
    if not pressures or is_critical_pod(pod):
        return None
    if set(pressures) == {_MEMORY_PRESSURE} and (
        pod_qos(pod) is not QOSClass.BEST_EFFORT
        or any(tolerates(toleration, _MEMORY_TAINT) for toleration in pod.spec.tolerations or ())
    ):
        return None
    return Reject("Evicted", f"The node had condition: [{' '.join(sorted(pressures))}]. ")

"""New pods on a node under pressure."""

from __future__ import annotations

from pathlib import Path

import pytest

from trio_kubelet.api import v1
from trio_kubelet.pods.admission.admitter import Admit, Reject
from trio_kubelet.pods.admission.fit import NodeFacts
from trio_kubelet.pods.admission.node_admitter import NodeAdmitter, refusal
from trio_kubelet.pods.admission.occupancy import Occupancy
from trio_kubelet.pods.admission.sysctls import SysctlAllowlist
from trio_kubelet.pods.resize.allocation import AllocationStore

MEMORY = {"MemoryPressure"}
DISK = {"DiskPressure"}


def pod(
    memory: str = "", tolerates: str = "", effect: str = "NoSchedule", priority: str = "", uid: str = "u"
) -> v1.Pod:
    resources = v1.ResourceRequirements(requests={"memory": memory}) if memory else v1.ResourceRequirements()
    toleration = v1.Toleration(key=tolerates, operator="Exists", effect=effect)
    return v1.Pod(
        metadata=v1.ObjectMeta(name="p", uid=uid, namespace="d"),
        spec=v1.PodSpec(
            containers=[v1.Container(name="c", image="i", resources=resources)],
            tolerations=[toleration] if tolerates else None,
            priority_class_name=priority,
            priority=2_000_001_000 if priority else None,
        ),
    )


@pytest.mark.parametrize(
    ("one", "pressures", "refused"),
    [
        (pod(), set(), False),
        (pod(), MEMORY, True),
        (pod(memory="1Mi"), MEMORY, False),
        (pod(memory="1Mi"), DISK, True),
        (pod(memory="1Mi"), MEMORY | DISK, True),
        (pod(tolerates="node.kubernetes.io/memory-pressure"), MEMORY, False),
        (pod(tolerates="node.kubernetes.io/memory-pressure", effect="NoExecute"), MEMORY, True),
        (pod(tolerates="node.kubernetes.io/disk-pressure"), DISK, True),
        (pod(priority="system-node-critical"), MEMORY | DISK, False),
    ],
)
def test_who_is_refused(one: v1.Pod, pressures: set[str], refused: bool) -> None:
    assert (refusal(one, pressures) is not None) is refused


def test_the_kubelets_words() -> None:
    found = refusal(pod(), {"PIDPressure", "DiskPressure"})
    assert found == Reject("Evicted", "The node had condition: [DiskPressure PIDPressure]. ")


def test_pods_the_node_has_taken_stay(tmp_path: Path) -> None:
    pressures: set[str] = set()
    facts = NodeFacts(name="n", allocatable={"pods": "9"})
    admitter = NodeAdmitter(
        node=lambda: facts,
        sysctls=SysctlAllowlist([]),
        allocations=AllocationStore(str(tmp_path)),
        pressures=lambda: pressures,
    )
    old, new = pod(), pod(uid="v")
    assert isinstance(admitter.admit(old, Occupancy().beside("u")), Admit)
    admitter.granted(old)
    pressures.add("DiskPressure")
    assert isinstance(admitter.admit(old, Occupancy().beside("u")), Admit)
    assert isinstance(admitter.admit(new, Occupancy([old]).beside("v")), Reject)

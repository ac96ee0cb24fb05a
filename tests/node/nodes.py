"""The recorded node's profile, and what it saw of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.config.load import DEFAULT_EVICTION_HARD
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.machine.facts import MachineFacts
from trio_kubelet.machine.system import SystemFacts
from trio_kubelet.node.profile import NodeProfile, node_profile
from trio_kubelet.node.runtime_health import RuntimeFeatures
from trio_kubelet.node.status import NodeObservation
from trio_kubelet.podinfo.context import RuntimeHandler

FACTS = MachineFacts(cpus=2, memory=24684084 << 10, disk=264212084 << 10, huge_pages={2 << 20: 0, 1 << 30: 0})
_GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "cluster-node.json").read_text())
RECORDED: dict[str, Any] = _GOLDEN["node"]
RECORDED_LATER: list[dict[str, Any]] = _GOLDEN["nodeConditionsLater"]
NOW_NS = parse_rfc3339("2026-11-21T09:38:01Z")


def system() -> SystemFacts:
    info = RECORDED["status"]["nodeInfo"]
    return SystemFacts(
        architecture="amd64",
        kernel=info["kernelVersion"],
        os_image=info["osImage"],
        machine_id=info["machineID"],
        system_uuid=info["systemUUID"],
        boot_id=info["bootID"],
    )


def profile(
    flags: KubeletFlags | None = None,
    gates: dict[str, bool] | None = None,
    facts: MachineFacts | None = None,
    **config: object,
) -> NodeProfile:
    """The recorded node's, with other settings where given."""
    settings: dict[str, Any] = {"eviction_hard": DEFAULT_EVICTION_HARD, "max_pods": 1100, **config}
    return node_profile(
        flags or KubeletFlags(),
        KubeletConfiguration(**settings),
        resolve_gates(gates or {}),
        name="node-a",
        facts=facts or FACTS,
        system=system(),
        version=RECORDED["status"]["nodeInfo"]["kubeletVersion"],
    )


def seen(**different: Any) -> NodeObservation:
    """What the recorded node saw."""
    status = msgspec.convert(RECORDED, v1.Node).status
    as_recorded = NodeObservation(
        now_ns=NOW_NS,
        addresses=("192.0.2.2",),
        runtime=status.node_info.container_runtime_version,
        images=status.images,
        handlers={name: RuntimeHandler(recursive_read_only_mounts=True) for name in ("runc", "")},
        features=RuntimeFeatures(supplemental_groups_policy=True),
        volumes_in_use=(),
    )
    return msgspec.structs.replace(as_recorded, **different)

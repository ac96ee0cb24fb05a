"""Containers over their memory limit, as recorded from a kubelet on cgroup v2: all processes of a container
end together, the one that took the memory or not, and the status says why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, wait_until
from trio_kubelet.cgroups.files import find_hierarchies

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif("memory" in find_hierarchies(), reason="cgroup v1 ends single processes"),
]

GOLDEN = Path(__file__).parents[1] / "golden" / "oom.json"


async def ended(node: Node) -> dict[str, dict[str, Any]]:
    """How the pod's containers ended, by name; nothing while one of them has not."""
    statuses = (await node.pod_status("oom")).get("containerStatuses") or []
    found = {each["name"]: each["state"].get("terminated") or {} for each in statuses}
    return found if found and all(found.values()) else {}


async def test_the_recorded_containers(new_node: NewNode) -> None:
    recorded = json.loads(GOLDEN.read_text())
    manifest = yaml.safe_load(recorded["manifest"])
    expected = {
        each["name"]: (each["state"]["terminated"]["exitCode"], each["state"]["terminated"]["reason"])
        for each in recorded["go systemd, containerd 1.7"]["containerStatuses"]
    }
    async with new_node() as node:
        await node.start_agent()
        node.write(manifest)
        found = await wait_until(lambda: ended(node), 60, "both have ended")
        assert {name: (each["exitCode"], each["reason"]) for name, each in found.items()} == expected
        assert (await node.pod_status("oom"))["phase"] == "Failed"

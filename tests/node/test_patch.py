"""The patch of a Node: applied by the API server's rules it gives the wanted object, and says no more."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube.merge import strategic_merge
from tests.node.nodes import NOW_NS, RECORDED, profile, seen
from trio_kubelet.api import v1
from trio_kubelet.node.conditions import NodeHealth
from trio_kubelet.node.patch import node_patch
from trio_kubelet.node.status import with_status

words = st.sampled_from(["a", "b", "c"])
maps = st.none() | st.dictionaries(words, words, min_size=1)
conditions = st.lists(
    st.builds(
        v1.NodeCondition, type=words, status=words, reason=words, last_heartbeat_time=st.none() | words
    ),
    unique_by=lambda condition: condition.type,
)
addresses = st.lists(
    st.builds(v1.NodeAddress, type=words, address=words), unique_by=lambda a: a.address, min_size=1
)
statuses = st.builds(
    v1.NodeStatus,
    addresses=st.none() | addresses,
    capacity=maps,
    allocatable=maps,
    conditions=st.none() | conditions,
    images=st.none() | st.lists(st.builds(v1.ContainerImage, names=st.none() | st.lists(words)), max_size=3),
    volumes_in_use=st.none() | st.lists(words, max_size=3),
    node_info=st.builds(v1.NodeSystemInfo, boot_id=words, machine_id=words),
    features=st.none() | st.builds(v1.NodeFeatures, supplemental_groups_policy=st.none() | st.booleans()),
)
nodes = st.builds(v1.Node, metadata=st.builds(v1.ObjectMeta, labels=maps, annotations=maps), status=statuses)


def bare(value: Any) -> Any:
    """Without what is empty, as the API server stores it, and conditions in any order."""
    if isinstance(value, list):
        items = [bare(item) for item in value]
        return sorted(items, key=lambda item: str(item.get("type"))) if _are_conditions(value) else items
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if item not in (None, [], {})}
    return value


def _are_conditions(value: list[Any]) -> bool:
    return all(isinstance(item, dict) and "status" in item for item in value)


@given(old=nodes, new=nodes)
@settings(deadline=None)
def test_applied_it_gives_the_new_object(old: v1.Node, new: v1.Node) -> None:
    merged = strategic_merge(msgspec.to_builtins(old), node_patch(old, new))
    expected = msgspec.to_builtins(new)
    # The test server keeps a condition's place; the real one orders them by the patch.
    assert bare(merged["status"]) == bare(expected["status"])
    assert bare(merged["metadata"]) == bare(expected["metadata"])


@given(node=nodes)
@settings(deadline=None)
def test_nothing_new_is_nothing_to_write(node: v1.Node) -> None:
    assert node_patch(node, node) == {}


def test_a_heartbeat_is_all_that_is_written() -> None:
    old = msgspec.convert(RECORDED, v1.Node)
    new, _ = with_status(old, profile(), seen(now_ns=NOW_NS + 10**9))
    types = [condition.type for condition in old.status.conditions or ()]
    assert node_patch(old, new) == {
        "status": {
            "$setElementOrder/conditions": [{"type": kind} for kind in types],
            "conditions": [{"type": kind, "lastHeartbeatTime": "2026-11-21T09:38:02Z"} for kind in types],
        }
    }


def test_addresses_are_replaced_and_the_spec_is_left_alone() -> None:
    old = msgspec.convert(RECORDED, v1.Node)
    new, _ = with_status(old, profile(), seen(addresses=("192.0.2.2", "192.0.2.3")))
    new = msgspec.structs.replace(new, spec=v1.NodeSpec(unschedulable=True))
    assert node_patch(old, new) == {
        "status": {
            "addresses": [
                {"address": "192.0.2.2", "type": "InternalIP"},
                {"address": "192.0.2.3", "type": "InternalIP"},
                {"address": "node-a", "type": "Hostname"},
                {"$patch": "replace"},
            ]
        }
    }


def test_the_first_addresses_replace_those_that_somebody_wrote_meanwhile() -> None:
    """They would merge by type with them: of two of a type, one would be lost, and others would stay."""
    new, _ = with_status(v1.Node(), profile(), seen(addresses=("192.0.2.2", "2001:db8::2")))
    patch = node_patch(v1.Node(), new)
    assert patch["status"]["addresses"][-1] == {"$patch": "replace"}
    meanwhile = {"status": {"addresses": [{"type": "ExternalIP", "address": "198.51.100.1"}]}}
    merged = strategic_merge(meanwhile, patch)["status"]["addresses"]
    assert [each["address"] for each in merged] == ["192.0.2.2", "2001:db8::2", "node-a"]


def test_a_message_that_changes_is_written_alone() -> None:
    old, _ = with_status(v1.Node(), profile(), seen(health=NodeHealth(not_ready=["x"])))
    new, _ = with_status(old, profile(), seen(health=NodeHealth(not_ready=["y"])))
    assert node_patch(old, new)["status"]["conditions"] == [{"type": "Ready", "message": "y"}]

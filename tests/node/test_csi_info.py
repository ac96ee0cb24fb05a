"""What drivers say of the node, in CSINode and in the Node's labels and annotation."""

from __future__ import annotations

import pytest

from trio_kubelet.api import v1
from trio_kubelet.node.csi_info import (
    ID_ANNOTATION,
    node_metadata,
    node_metadata_without,
    with_driver,
    without_driver,
)
from trio_kubelet.storage.doors import NodeInfo

INFO = NodeInfo("here", 12, {"zone": "a", "rack": "1"})


def test_a_driver_is_put_beside_the_others_and_taken_out_again() -> None:
    other = v1.CSINodeDriver(name="other", node_id="o")
    there = v1.CSINode(spec=v1.CSINodeSpec(drivers=[other]))
    made = with_driver(there, "d", INFO)
    assert made.spec.drivers == [
        other,
        v1.CSINodeDriver(
            name="d",
            node_id="here",
            topology_keys=["rack", "zone"],
            allocatable=v1.VolumeNodeResources(count=12),
        ),
    ]
    assert with_driver(made, "d", INFO) is made
    assert without_driver(made, "d").spec.drivers == [other]
    assert with_driver(there, "d", NodeInfo("x", 1 << 40)).spec.drivers[-1].allocatable == (  # type: ignore[index]
        v1.VolumeNodeResources(count=2**31 - 1)
    )


def test_the_node_gets_topology_and_id() -> None:
    node = v1.Node(metadata=v1.ObjectMeta(labels={"zone": "a"}))
    patch = node_metadata(node, "d", INFO)["metadata"]
    assert patch == {"labels": {"rack": "1"}, "annotations": {ID_ANNOTATION: '{"d":"here"}'}}
    known = v1.Node(
        metadata=v1.ObjectMeta(labels={"zone": "a", "rack": "1"}, annotations=patch["annotations"])
    )
    assert node_metadata(known, "d", INFO) == {}
    assert node_metadata_without(known, "d") == {"metadata": {"annotations": {ID_ANNOTATION: None}}}
    assert node_metadata_without(known, "e") == {}


def test_a_driver_that_says_the_node_is_elsewhere_is_refused() -> None:
    node = v1.Node(metadata=v1.ObjectMeta(labels={"zone": "b"}))
    with pytest.raises(ValueError, match="detected topology value collision"):
        node_metadata(node, "d", INFO)

"""What drivers say of the node, in CSINode and in the Node's labels and annotation."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.node.nodes import profile
from trio_kubelet.api import v1
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.node.csi_info import (
    ID_ANNOTATION,
    CSINodeInfo,
    node_metadata,
    node_metadata_without,
    with_driver,
    without_driver,
)
from trio_kubelet.node.csi_node import CSINodeKeeper
from trio_kubelet.node.own_node import OwnNode
from trio_kubelet.plugins.doors import PluginError
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


class Writing:
    """What drivers say, written to an API server that has the Node."""

    def __init__(self) -> None:
        self.server = APIServer()
        self.store = self.server.store
        self.node_uid = self.store.create("nodes", "", {"metadata": {"name": "node-a"}})["metadata"]["uid"]
        door = SimulatedDoor(self.server)
        self.client = KubeClient(door)
        self.own = OwnNode(door, profile())
        self.info = CSINodeInfo(self.client, self.own, "node-a")

    def left_by(self, uid: str) -> None:
        """There is an object of a Node with this UID, which had a driver."""
        owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": uid}
        spec = {"drivers": [{"name": "old", "nodeID": "o"}]}
        metadata = {"name": "node-a", "ownerReferences": [owner]}
        self.store.create("csinodes", "", {"metadata": metadata, "spec": spec})

    def drivers(self) -> list[str]:
        found = self.store.get("csinodes", "", "node-a")
        assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [self.node_uid]
        return [driver["name"] for driver in found["spec"]["drivers"]]


async def test_a_driver_that_does_not_say_who_the_node_is_to_it_is_refused() -> None:
    writing = Writing()
    with pytest.raises(PluginError, match="driverNodeID must not be empty"):
        await writing.info.install("d", NodeInfo(""))
    assert writing.server.requests == []


async def test_why_what_a_driver_says_cannot_be_written_is_told_in_the_kubelets_words(
    autojump_clock: MockClock,
) -> None:
    writing = Writing()
    writing.store.update("nodes", "", "node-a", {"metadata": {"name": "node-a", "labels": {"zone": "b"}}})
    with pytest.raises(PluginError) as caught:
        await writing.info.install("d", INFO)
    assert str(caught.value) == (
        "error updating Node object with CSI driver node info: error updating node: timed out waiting for "
        'the condition; caused by: detected topology value collision: driver reported "zone":"a" but '
        'existing label is "zone":"b"'
    )


async def test_a_limit_is_told_anew_whatever_labels_the_node_has_by_now(autojump_clock: MockClock) -> None:
    writing = Writing()
    await writing.info.install("d", INFO)
    node = {"metadata": {"name": "node-a", "labels": {"zone": "b"}}}
    writing.store.update("nodes", "", "node-a", node)
    await writing.info.update("d", NodeInfo("here", 7, INFO.topology))
    (driver,) = writing.store.get("csinodes", "", "node-a")["spec"]["drivers"]
    assert driver["allocatable"] == {"count": 7}
    assert writing.store.get("nodes", "", "node-a")["metadata"]["labels"] == {"zone": "b"}


@pytest.mark.parametrize("first", ["keeper", "driver"])
async def test_drivers_that_another_node_of_the_name_has_left_are_forgotten(
    autojump_clock: MockClock, first: str
) -> None:
    writing = Writing()
    writing.left_by("another")
    keeper = CSINodeKeeper(writing.client, writing.own, "node-a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writing.own.run)
        if first == "keeper":
            nursery.start_soon(keeper.run)
            await trio.sleep(1)
            assert writing.drivers() == []
        await writing.info.install("d", INFO)
        if first == "driver":
            nursery.start_soon(keeper.run)
            await trio.sleep(1)
        assert writing.drivers() == ["d"]
        nursery.cancel_scope.cancel()


async def test_drivers_of_this_node_stay(autojump_clock: MockClock) -> None:
    writing = Writing()
    writing.left_by(writing.node_uid)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writing.own.run)
        await writing.info.install("d", INFO)
        assert writing.drivers() == ["old", "d"]
        nursery.cancel_scope.cancel()

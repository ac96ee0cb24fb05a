"""The node's lease on virtual time: renewed through everything."""

from __future__ import annotations

import random

import trio
import trio.testing

from tests.kube.store import Refused
from tests.node.world import World
from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.node.lease import LeaseSettings, renewed
from trio_kubelet.server.http.messages import Request

Clock = trio.testing.MockClock
SETTINGS = LeaseSettings("node-a", 40)


def test_a_new_lease() -> None:
    lease = renewed(None, SETTINGS, "u", 1_700_000_000_123_456_789)
    assert (lease.metadata.name, lease.metadata.namespace) == ("node-a", "kube-node-lease")
    owner = v1.OwnerReference(api_version="v1", kind="Node", name="node-a", uid="u")
    assert lease.metadata.owner_references == [owner]
    assert lease.spec.holder_identity == "node-a"
    assert lease.spec.lease_duration_seconds == 40
    assert lease.spec.renew_time == "2023-11-14T22:13:20.123456Z"


def test_an_owner_that_was_there_before_is_replaced_and_no_other() -> None:
    old = renewed(None, SETTINGS, "old", 0)
    assert (renewed(old, SETTINGS, "new", 0).metadata.owner_references or [])[0].uid == "new"
    assert renewed(old, SETTINGS, "", 0).metadata == old.metadata
    foreign = [v1.OwnerReference(api_version="v1", kind="Pod", name="p", uid="x")]
    theirs = v1.Lease(metadata=v1.ObjectMeta(owner_references=foreign))
    assert renewed(theirs, SETTINGS, "new", 0).metadata.owner_references == foreign


def age(world: World) -> float:
    """Seconds since the lease was renewed."""
    renewed_ns = parse_rfc3339(world.lease_object["spec"]["renewTime"])
    return (world.server.clock.now_ns() - renewed_ns) / NANOSECONDS


async def test_renewed_every_ten_seconds(autojump_clock: Clock) -> None:
    world = World()
    async with world.running(lease=True):
        await trio.sleep(11)
        for _ in range(60):
            await trio.sleep(10)
            assert age(world) < 10.5
        assert world.lease_object["metadata"]["ownerReferences"][0]["uid"] == world.node["metadata"]["uid"]
        assert world.writes("PUT", "/leases/") in range(55, 62)
        assert world.writes("GET", "/leases/") <= 2


async def test_no_lease_without_a_node(autojump_clock: Clock) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.lease.run)
        await trio.sleep(60)
        assert world.writes("POST", "/leases") == 0
        nursery.cancel_scope.cancel()


async def test_an_hour_without_a_server(autojump_clock: Clock) -> None:
    world = World()
    async with world.running(lease=True):
        await trio.sleep(60)
        world.server.down = True
        await trio.sleep(3600)
        world.server.down = False
        await trio.sleep(10.5)
        assert age(world) < 10.5


async def test_somebody_else_wrote_or_deleted_it(autojump_clock: Clock) -> None:
    world = World()
    async with world.running(lease=True):
        await trio.sleep(15)
        spec = {"spec": {"holderIdentity": "x"}}
        world.server.store.patch("leases", "kube-node-lease", "node-a", spec, True)
        before = world.writes("PUT", "/leases/")
        await trio.sleep(11)
        assert age(world) < 10.5
        assert world.writes("PUT", "/leases/") <= before + 3  # one conflict, and then it is read anew
        world.server.store.delete("leases", "kube-node-lease", "node-a")
        await trio.sleep(11)
        assert age(world) < 10.5


async def test_a_new_node_owns_the_lease(autojump_clock: Clock) -> None:
    world = World()
    async with world.running(lease=True):
        await trio.sleep(15)
        world.server.store.delete("nodes", "", "node-a")
        await trio.sleep(25)
        assert world.lease_object["metadata"]["ownerReferences"][0]["uid"] == world.node["metadata"]["uid"]


async def test_refusals_are_outlived(autojump_clock: Clock) -> None:
    world = World()
    rng = random.Random(3)

    def refuse(request: Request) -> Refused | None:
        if "/leases" not in request.path or rng.random() < 0.4:
            return None
        return Refused(rng.choice((403, 409, 500)), "x", "no")

    world.server.refuse = refuse
    async with world.running(lease=True):
        await trio.sleep(60)
        for _ in range(60):
            await trio.sleep(10)
            assert age(world) < 30

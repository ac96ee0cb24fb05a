"""The node's own object, when the watch does not tell of it (yet)."""

from __future__ import annotations

import trio
import trio.testing

from tests.node.world import World
from trio_kubelet.pods.admission.fit import NodeFacts

Clock = trio.testing.MockClock
BASE = NodeFacts(name="node-a", labels={"of": "the flags"})
NODE = {"metadata": {"name": "node-a", "labels": {"zone": "3"}}}


async def test_what_is_asked_for_counts_until_the_watch_tells_more(autojump_clock: Clock) -> None:
    world = World()
    await world.own.look()
    assert world.own.facts(BASE) == BASE, "there is no such object"
    world.server.store.create("nodes", "", NODE)
    assert world.own.facts(BASE) == BASE
    await world.own.look()
    assert world.own.facts(BASE).labels == {"zone": "3"}
    world.server.down = True
    with trio.fail_after(120):
        await world.own.look()
    assert world.own.facts(BASE).labels == {"zone": "3"}
    world.server.down = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.own.run)
        await trio.sleep(30)
        patch = {"metadata": {"labels": {"zone": "4"}}}
        world.server.store.patch("nodes", "", "node-a", patch, True)
        await trio.sleep(5)
        assert world.own.facts(BASE).labels == {"zone": "4"}
        nursery.cancel_scope.cancel()

"""Days on which everything fails now and then: whatever happens, nothing runs twice, and in the end
all is well.

The faults of a day come from its seed: calls that hang, fail, only seem to fail or are slow, and a
runtime that goes away and comes back. Containers crash and sandboxes die on top of that, and the
agent is cut off in the middle of what it does.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest
import trio

from tests.runtime.pods import container, pod, sidecar
from tests.runtime.test_gc import ALL_GONE
from tests.runtime.world import World, world
from tests.simulation.deterministic import simulate
from trio_kubelet.api import v1
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.runtime.doors import GCPolicy
from trio_kubelet.sim.faults import EVENT_KINDS, random_script

PODS = (
    pod(container("a"), container("b", image="localhost/slow-1:1"), init=(container("i", command=["true"]),)),
    pod(
        container("c", command=["sleep", "20"]),
        init=(sidecar("s"), container("j", command=["sleep", "2"])),
        name="other",
        uid="uid-2",
    ),
)


def check(here: World) -> None:
    """What must hold at every moment."""
    live = Counter(
        (c.config.labels["io.kubernetes.pod.uid"], c.config.metadata.name)
        for c in here.containers
        if c.state == cri.CONTAINER_RUNNING
    )
    assert not {name: count for name, count in live.items() if count > 1}
    assert max((c.starts for c in here.containers), default=0) <= 1


async def look_and_sync(here: World, a_pod: v1.Pod, patience: float) -> None:
    """One round, cut off after a while; a runtime that does not answer is no surprise."""
    with trio.move_on_after(patience):
        try:
            await here.sync(a_pod)
        except CRIError:
            return


def mischief(here: World, rng: random.Random) -> None:
    """Something dies by itself."""
    live = [c for c in here.containers if c.state == cri.CONTAINER_RUNNING]
    ready = [box for box in here.sandboxes if box.ready]
    roll = rng.random()
    if roll < 0.1 and live:
        here.service.runtime.kill(rng.choice(live).id, here.service.now_ns())
    elif roll < 0.12 and ready:
        here.service.runtime.sandbox_dies(rng.choice(ready), here.service.now_ns())


@pytest.mark.parametrize(
    "seed", [*range(8), 22, *(pytest.param(n, marks=pytest.mark.soak) for n in range(8, 120) if n != 22)]
)
def test_a_bad_day(tmp_path: Path, seed: int) -> None:
    simulate(seed, lambda: bad_day(tmp_path, seed))


@pytest.mark.parametrize("order", [41, 57, 92])
def test_a_bad_day_in_another_order(tmp_path: Path, order: int) -> None:
    """Orders of the tasks in which a container was created late and its name never became free."""
    simulate(order, lambda: bad_day(tmp_path, 35))


async def bad_day(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with world(tmp_path) as here:
        here.faults.add(*(f for f in random_script(seed, 0.08) if f.kind not in EVENT_KINDS and not f.lose))
        for _ in range(60):
            async with trio.open_nursery() as nursery:
                for a_pod in PODS:
                    nursery.start_soon(look_and_sync, here, a_pod, rng.choice((0.0, 0.5, 5, 60)))
            mischief(here, rng)
            check(here)
            await trio.sleep(rng.choice((0, 1, 5)))
        here.faults.clear()
        for _ in range(15):  # a container killed for its sandbox's sake may have to wait out its back-off
            for a_pod in PODS:
                await here.sync(a_pod)
                check(here)
            await trio.sleep(60)
        assert {"a", "b", "s"} <= set(here.running())
        for a_pod in PODS:
            result = await here.runtime.kill_pod(a_pod, await here.status(a_pod), 1)
            assert result.ok, str(result)
        await here.runtime.garbage_collect(GCPolicy(), ALL_GONE, all_sources_ready=True)
        assert (here.containers, here.sandboxes) == ([], [])
        assert (os.listdir(here.logs), os.listdir(here.links)) == ([], [])

"""Whatever happens in whatever order: no pod is lost, and never do two of one static name run at once."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pods.admit_all import AdmitAll
from tests.pods.build import make_pod
from tests.pods.fake_runtime import FakeRuntime
from tests.pods.world import World
from trio_kubelet.api import v1
from trio_kubelet.pods.admission.admitter import Decision
from trio_kubelet.pods.admission.occupancy import Others

NAMES = ("alpha", "beta")

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["edit", "remove", "put back", "die", "kill", "wait", "restart", "fail kill"]),
        st.sampled_from(NAMES),
        st.floats(0, 6),
    ),
    max_size=25,
)


def two_at_once(runtime: FakeRuntime) -> list[str]:
    """Moments at which two pods of one name had running containers."""
    alive: dict[str, set[str]] = {}
    bad = []
    for happened in runtime.log:
        uids = alive.setdefault(happened.name, set())
        if happened.what == "start":
            uids.add(happened.uid)
        elif happened.what == "stop":
            uids.discard(happened.uid)
        if len(uids) > 1:
            bad.append(f"{happened.at}: {sorted(uids)}")
    return bad


class Desired:
    """What the manifests say, and the last version of each that was there."""

    def __init__(self) -> None:
        self.now: dict[str, v1.Pod] = {}
        self.last: dict[str, v1.Pod] = {}
        self.versions = 0

    def version(self, name: str) -> v1.Pod:
        self.versions += 1
        return make_pod(name, f"{name}-{self.versions}", grace=4)


async def act(world: World, desired: Desired, action: str, name: str) -> None:
    pod = desired.now.get(name)
    match action:
        case "edit":
            if pod is not None:
                await world.remove(pod)
            desired.now[name] = desired.last[name] = desired.version(name)
            await world.add(desired.now[name])
        case "remove" if pod is not None:
            await world.remove(desired.now.pop(name))
        case "put back" if pod is None and name in desired.last:
            desired.now[name] = desired.last[name]
            await world.add(desired.now[name])
        case "die" if pod is not None and pod.metadata.uid in world.runtime.alive():
            world.runtime.die(pod.metadata.uid)
        case "kill" if pod is not None:
            # The runtime forgets how to stop this pod for a while.
            world.runtime.stop_takes[pod.metadata.uid] = 10
        case "fail kill" if pod is not None:
            world.runtime.kill_errors[pod.metadata.uid] = 2
        case _:
            pass


async def live(world: World, desired: Desired, actions: list[tuple[str, str, float]]) -> bool:
    """Runs actions until one asks for a restart of the agent; whether one did."""
    async with world.running():
        await world.add(*desired.now.values())
        while actions:
            action, name, pause = actions.pop(0)
            if action == "restart":
                return True
            await act(world, desired, action, name)
            await trio.sleep(pause)
        await trio.sleep(400)
        assert world.runtime.alive() == {pod.metadata.uid for pod in desired.now.values()}
        assert set(world.room.workers.known()) == {pod.metadata.uid for pod in desired.now.values()}
        for left in (world.volumes.up, world.cgroups.there, world.directories.there):
            assert left == world.runtime.alive()
    return False


class Counting(AdmitAll):
    """Looks whether the pods beside a new one, as they are kept up, are those that are active now."""

    def __init__(self) -> None:
        self.world: World | None = None

    def admit(self, pod: v1.Pod, others: Others) -> Decision:
        assert self.world is not None
        active = {each.metadata.uid: each for each in self.world.room.handler.active_pods()}
        active.pop(pod.metadata.uid, None)
        assert {each.metadata.uid: each for each in others.pods()} == active
        return super().admit(pod, others)


def a_world(node: World | None = None) -> World:
    admitter = Counting()
    admitter.world = world = World(node=node, admitter=admitter)
    return world


async def whole_story(actions: list[tuple[str, str, float]]) -> None:
    world, desired = a_world(), Desired()
    remaining = list(actions)
    while await live(world, desired, remaining):
        world = a_world(world)
    assert two_at_once(world.runtime) == []


def run(actions: list[tuple[str, str, float]], seed: int) -> None:
    trio._core._run._r.seed(seed)
    random.seed(seed)
    trio.run(whole_story, actions, clock=trio.testing.MockClock(autojump_threshold=0))


@settings(max_examples=25, deadline=None)
@given(ACTIONS, st.integers(0, 2**32))
def test_random_interleavings_converge(actions: list[tuple[str, str, float]], seed: int) -> None:
    run(actions, seed)


@pytest.mark.soak
@settings(max_examples=2000, deadline=None)
@given(ACTIONS, st.integers(0, 2**32))
def test_many_random_interleavings_converge(actions: list[tuple[str, str, float]], seed: int) -> None:
    run(actions, seed)


@pytest.mark.parametrize("after", [0.01, 0.03, 0.06, 0.5, 1.0, 1.02, 2.5, 4.99, 5.0, 5.01, 5.5])
def test_killed_at_any_point_of_a_pods_life_the_next_agent_converges(after: float) -> None:
    """kubernetes 72604, 116954, 102344: pods stayed Terminating for ever after a restart."""
    stories = [
        [("edit", "alpha", after), ("restart", "alpha", 0.0)],
        [("edit", "alpha", 3.0), ("kill", "alpha", 0.0), ("edit", "alpha", after), ("restart", "alpha", 0.0)],
        [
            ("edit", "alpha", 3.0),
            ("kill", "alpha", 0.0),
            ("remove", "alpha", after),
            ("restart", "alpha", 0.0),
        ],
        [
            ("edit", "alpha", 3.0),
            ("kill", "alpha", 0.0),
            ("remove", "alpha", after),
            ("restart", "alpha", 0.0),
            ("put back", "alpha", 1.0),
        ],
    ]
    for seed, story in enumerate(stories):
        run(list(story), seed)


def test_an_orphan_that_is_being_killed_keeps_its_static_name() -> None:
    """Its successor comes when the first attempt to kill it has failed already."""
    story = [("edit", "alpha", 1.0), ("fail kill", "alpha", 0.0), ("remove", "alpha", 0.0)]
    for after in (0.0, 0.01, 0.5, 2.0, 3.0):
        for seed in range(8):
            run([*story, ("restart", "alpha", 0.0), ("edit", "beta", after), ("edit", "alpha", 0.0)], seed)

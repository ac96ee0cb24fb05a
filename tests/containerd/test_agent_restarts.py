"""The agent stopped, killed and started again: what runs goes on, what changed meanwhile is put right."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import EXITED, PATIENCE, Manifest, Node, container, pod, wait_until
from tests.containerd.scenes import Journal, living, say, uid_of, until_nothing_left
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.cri.proto import api_pb2 as cri

STEADY = [f"steady-{number}" for number in range(4)]


def one(journal: Journal, name: str, word: str = "", **spec: object) -> Manifest:
    """A pod of one container that says its pod's name, or `word`."""
    return journal.pod(name, container("main", living(word or name)), **spec)


async def test_pods_outlive_the_agent_and_are_adopted(new_node: NewNode) -> None:
    async with new_node() as node:
        journal = Journal.of(node, "adopted")
        await node.start_agent()
        for name in ("kept", "edited", "removed", "dies"):
            node.write(one(journal, name))
        await journal.until("kept", "edited", "removed", "dies")
        # A word is said before the runtime holds the container for started; only then is it safe.
        names = ("kept", "dies", "edited", "removed")
        [kept, dying, *_] = [(await node.wait_running(name))[0] for name in names]
        gone = await uid_of(node, "removed")
        assert await node.stop_agent() == 0
        assert len(await node.running()) == 4

        node.remove("removed")
        node.write(one(journal, "edited", "edited-2"))
        node.write(one(journal, "new"))
        await node.kill_container(dying.id)

        async def dead() -> bool:
            return [c.id for c in await node.containers("dies", state=EXITED)] == [dying.id]

        await wait_until(dead)
        await node.start_agent()
        await journal.until("new", "edited-end", "edited-2", "dies", "dies", "removed-end")
        await until_nothing_left(node, "removed", gone)
        assert [c.id for c in await node.containers("kept")] == [kept.id]
        words = journal.words()
        assert words.index("edited-end") < words.index("edited-2")
        assert sorted(words) == sorted(
            ["kept", "edited", "removed", "dies", "removed-end", "edited-end", "edited-2", "new", "dies"]
        )


async def test_a_grace_period_goes_on_after_the_agent_was_killed(new_node: NewNode) -> None:
    async with new_node() as node:
        journal = Journal.of(node, "ending")
        await node.start_agent()
        slow = living("slow", f"sleep 8; {say('slow-done')}; exit 0")
        node.write(journal.pod("slow", container("main", slow), terminationGracePeriodSeconds=30))
        await journal.until("slow")
        await node.wait_running("slow")
        uid = await uid_of(node, "slow")
        node.remove("slow")
        await journal.until("slow-end")
        await node.kill_agent()
        await node.start_agent()
        await until_nothing_left(node, "slow", uid)
        assert journal.words() == ["slow", "slow-end", "slow-done"]


async def test_the_first_death_after_the_agent_was_killed_is_seen(new_node: NewNode) -> None:
    """containerd 1.7 tells it to the stream of the agent that is gone: it went unseen for five minutes."""
    async with new_node() as node:
        await node.start_agent()
        node.write(pod("idle"))
        [idle] = await node.wait_running("idle")
        await node.kill_agent()
        await node.start_agent()
        await trio.sleep(6)  # a stream that is open for so long counted as one to rely on
        await node.kill_container(idle.id)
        [successor] = await node.wait_running("idle", besides=[idle.id], timeout=10)
        ended = (await node.container_status(idle.id)).finished_at
        began = (await node.container_status(successor.id)).started_at
        assert (began - ended) / NANOSECONDS < 2 * PATIENCE


async def churn(node: Node, journal: Journal, rng: random.Random, wanted: dict[str, str]) -> None:
    """Adds, edits and removes pods; `wanted` is what should run: pod name to the word it says."""
    number = 0
    while True:
        number += 1
        name = f"churn-{rng.randrange(6)}"
        if name in wanted and rng.random() < 0.4:
            del wanted[name]
            node.remove(name)
        else:
            wanted[name] = f"{name}.{number}"
            node.write(one(journal, name, wanted[name], terminationGracePeriodSeconds=1))
        await trio.sleep(rng.uniform(0.05, 0.6))


async def kill_again_and_again(node: Node, restarts: int, seed: int) -> None:
    """kill -9 at random moments under churn, then everything as it should be."""
    print(f"seed {seed}")
    rng, wanted = random.Random(seed), dict[str, str]()
    journal, changing = Journal.of(node, "steady"), Journal.of(node, "churn")
    await node.start_agent()
    for name in STEADY:
        node.write(one(journal, name))
    await journal.until(*STEADY)
    # A word is said before the runtime holds the container for started; only then is it safe from a kill.
    before = {(await node.wait_running(name))[0].id for name in STEADY}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(churn, node, changing, rng, wanted)
        for _ in range(restarts):
            await trio.sleep(rng.uniform(0.1, 2.0))
            assert await node.kill_agent() == -9
            await trio.sleep(rng.choice([0.0, 0.0, 0.5]))
            await node.start_agent(wait=rng.random() < 0.7)
        nursery.cancel_scope.cancel()
    await wait_until(node._healthy, 20, "the agent is up")

    async def settled() -> bool:
        full_names = [c.labels["io.kubernetes.pod.name"] for c in await node.running()]
        running = {name.removesuffix(f"-{node.name}") for name in full_names}
        if running != {*wanted, *STEADY} or len(full_names) != len(running):
            return False
        stuck = given_up_half_way(node)
        for each in await node.containers():
            # containerd gives a start up when its caller is killed: a dead one stands beside its successor.
            status = await node.container_status(each.id)
            if each.id in stuck and not status.started_at:
                continue
            if status.state != cri.CONTAINER_RUNNING and status.started_at:
                return False
            if each.labels["io.kubernetes.pod.name"] not in full_names:
                return False
        return set(wanted.values()) <= set(changing.words())  # the last edit may still be on its way

    await wait_until(settled, 60, f"exactly {sorted(wanted)} and the steady ones run", interval=0.3)
    assert {c.id for name in STEADY for c in await node.running(name)} == before
    assert sorted(journal.words()) == STEADY, "a steady container was started again or ended"
    said = changing.words()
    for name, word in wanted.items():
        last = [each for each in said if each.startswith(f"{name}.") and not each.endswith("-end")][-1]
        assert last == word
    twice = [word for word in wanted.values() for _ in range(said.count(word) - 1)]
    assert len(twice) <= starts_given_up(node), f"{twice} were started again"
    await wait_until(
        lambda: len(pod_directories(node)) == len(wanted) + len(STEADY),
        20,
        "no other pod's directory is left",
    )


def starts_given_up(node: Node) -> int:
    """Starts that containerd gave up, as when the caller is killed, though the process may have run."""
    return len(re.findall(r'StartContainer for \\"\w+\\" failed', node.layout.containerd_log.read_text()))


def given_up_half_way(node: Node) -> set[str]:
    """Containers that containerd 1.7 keeps until it starts anew, whoever asks. The caller of their start was
    gone while the shim made the task: containerd calls the container exited and does not know of the task, so
    that it neither ends it nor removes the container beside it. Its process goes with its pod's cgroup.
    """
    return set(re.findall(r"cannot delete running task (\w+)", node.layout.containerd_log.read_text()))


def pod_directories(node: Node) -> list[Path]:
    return list((node.layout.agent_root / "pods").iterdir())


async def test_killed_ten_times_under_churn(new_node: NewNode) -> None:
    async with new_node() as node:
        await kill_again_and_again(node, 10, seed=random.randrange(10**6))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
async def test_killed_fifty_times_under_churn(new_node: NewNode, seed: int) -> None:
    async with new_node() as node:
        await kill_again_and_again(node, 50, seed)

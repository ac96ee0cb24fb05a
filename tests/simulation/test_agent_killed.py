"""kill -9 of the agent at every decision about a pod and after every call that changes the runtime.

A short story (a pod is added, edited, removed and put back, a container of another dies) is played once for
each of these moments, and the agent ends there; the next one has to bring the node to where it should be.
"""

from __future__ import annotations

from pathlib import Path

import trio

from tests.simulation.deterministic import simulate
from tests.simulation.life import QUIET, Watcher
from tests.simulation.world import Node

CHANGES = ("Run", "Stop", "Remove", "Create", "Start", "Pull")


class Story:
    """The story, with the agent killed at the `number`-th moment (0: never) and away for `away` seconds."""

    def __init__(self, base: Path, number: int, away: float) -> None:
        self.node = Node(1, base)
        self.watcher = Watcher(self.node)
        self.moments = 0
        self._number = number
        self._away = away
        self._killed = trio.Event()
        self.node.on_story = self._moment
        self.node.on_call = self._called

    def _called(self, method: str) -> None:
        if method.startswith(CHANGES):
            self._moment()

    def _moment(self) -> None:
        self.moments += 1
        if self.moments == self._number:
            self.node.kill_agent()
            self._killed.set()

    async def run(self) -> None:
        async with self.node.running() as nursery:
            nursery.start_soon(self._start_again, nursery)
            await self.node.start_agent(nursery)
            for act in (self._add, self._edit, self._remove, self._put_back, self._die):
                await act()
                await trio.sleep(1.5)
            await self._settle()

    async def _start_again(self, nursery: trio.Nursery) -> None:
        await self._killed.wait()
        await trio.sleep(self._away)
        await self.node.start_agent(nursery)

    async def _add(self) -> None:
        self.node.want("edited", 2)
        self.node.want("put-back", 2, grace=5)
        self.node.want("dying", 1, probes=["startup", "readiness"])
        await self.node.publish()

    async def _edit(self) -> None:
        self.node.want("edited", 1)
        await self.node.publish()

    async def _remove(self) -> None:
        self.pod = self.node.desired.pop("put-back")
        await self.node.publish()

    async def _put_back(self) -> None:
        self.watcher.excuse_all_of(self.pod.metadata.uid)
        self.node.desired["put-back"] = self.pod
        await self.node.publish()

    async def _die(self) -> None:
        for container in self.node.running_containers():
            if container.config.metadata.name == "c0":
                self.watcher.excused.add(container.id)
                self.node.runtime.kill(container.id, self.node.service.now_ns())

    async def _settle(self) -> None:
        problems = ["not looked at yet"]
        with trio.move_on_after(QUIET):
            while problems:
                await trio.sleep(1)
                problems = self.node.unmet() + self.node.told() + self.node.unheard() + self.node.unwell()
        assert not problems, problems
        assert not self.watcher.violations, self.watcher.violations


def play(base: Path, number: int, away: float) -> int:
    """How many moments the story had."""
    story = Story(base, number, away)
    simulate(1, story.run)
    return story.moments


def test_killed_at_any_moment_the_node_ends_as_desired(tmp_path: Path) -> None:
    moments = play(tmp_path, 0, 0)
    assert moments > 40
    for number in range(1, moments + 1):
        try:
            play(tmp_path, number, 3.0 * (number % 2))
        except BaseException as exc:
            exc.add_note(f"killed at moment {number} of {moments}")
            raise

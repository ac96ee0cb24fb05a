"""Processes that are no pod's: the agent in `kubeletCgroups`, what is in the root cgroup in `systemCgroups`.

Both are put there at the start, and again each minute: what begins in the root cgroup later follows then.
A node without these fields has no such task.

The rules are the kubelet's (`setupNode` of its container manager), also that nothing is moved by an agent
that has process ids of its own: it would be one in a container, and the ids not the host's.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from trio_kubelet.cgroups.files import CgroupTree
from trio_kubelet.common.clock import sleep_with_others
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import CGROUPS
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.small_files import read_small
from trio_kubelet.machine.node_reader import cgroup_of

log = get_logger(__name__)

_EVERY: Final = 60.0
_PASSES: Final = 11
"""How often the root cgroup is looked at in a turn: processes there start others meanwhile."""
_LISTED: Final = 32_768
"""Processes looked at in a pass, kernel threads among them. Others come in the next."""
_BATCH: Final = 32
"""Processes moved in one visit to a thread: the kernel takes milliseconds for each in each tree."""


class SystemCgroups:
    """Keeps the agent in the cgroup `agent` and all others of the root cgroup in `system`; "" for neither.

    Both are paths below the hierarchies' roots. `oom_score_adj` is the agent's.
    """

    def __init__(
        self,
        tree: CgroupTree,
        *,
        agent: str = "",
        system: str = "",
        oom_score_adj: int = 0,
        process: int | None = None,  # the agent's, by default this one
        proc: str = "/proc",
    ) -> None:
        self._tree = tree
        self._agent = agent
        self._system = system
        self._oom_score_adj = str(oom_score_adj)
        self._process = os.getpid() if process is None else process
        self._proc = proc
        self._told: dict[str, str] = {}  # what is wrong now, by what was tried

    async def run(self) -> None:
        """Has every process in its place, each minute anew."""
        while True:
            await self.settle()
            await sleep_with_others(_EVERY)

    async def settle(self) -> None:
        """Has every process in its place now. What fails is told once, and tried again the next time."""
        if self._agent:
            await self._try("place", self._agent, self._move_agent)
            await self._try("score", self._agent, self._set_oom_score)
        if self._system:
            await self._try("others", self._system, self._move_others)

    async def _try(self, what: str, cgroup: str, act: Callable[[], Awaitable[None]]) -> None:
        try:
            if await CGROUPS.run(self._is_on_the_host):
                await act()
            else:
                log.v(2).info("PID is not running in the host namespace", pid=self._process)
        except OSError as error:
            words = error_words(error)
            if self._told.get(what) != words:
                log.error("Failed to ensure state", containerName=cgroup, err=words)
                self._told[what] = words
        else:
            self._told.pop(what, None)

    def _is_on_the_host(self) -> bool:
        """Whether this process has the ids of processes that the machine's first one has."""
        own, first = (os.readlink(f"{self._proc}/{process}/ns/pid") for process in (self._process, 1))
        return own == first

    async def _move_agent(self) -> None:
        def move() -> None:
            if cgroup_of(self._process, self._proc) != self._agent:
                self._tree.create_for_processes(self._agent)
                self._tree.move(self._process, self._agent)
                log.v(2).info("The agent is in its cgroup now", cgroup=self._agent)

        await CGROUPS.run(move)

    async def _set_oom_score(self) -> None:
        path = f"{self._proc}/{self._process}/oom_score_adj"

        def write() -> None:
            if read_small(path).decode("ascii").strip() != self._oom_score_adj:
                with open(path, "w", encoding="ascii") as file:
                    file.write(self._oom_score_adj)

        await CGROUPS.run(write)

    async def _move_others(self) -> None:
        failures: list[OSError] = []
        for _ in range(_PASSES):
            found = await CGROUPS.run(self._others)
            if not found:
                return
            log.v(3).info("Moving processes out of the root cgroup", cgroup=self._system, count=len(found))
            failures = []
            for start in range(0, len(found), _BATCH):
                failures += await CGROUPS.run(self._move_batch, found[start : start + _BATCH])
            if len(failures) == len(found):
                break  # nor would the next pass
        if failures:
            raise failures[-1]

    def _others(self) -> list[int]:
        """Processes in the root cgroup but the first and the kernel's threads, which no program is run by."""
        found = self._tree.processes("/", _LISTED)
        return [each for each in found if each != 1 and self._has_program(each)]

    def _has_program(self, process: int) -> bool:
        try:
            os.readlink(f"{self._proc}/{process}/exe")
        except FileNotFoundError:
            return False
        except OSError:
            return True  # it may only not be read
        return True

    def _move_batch(self, processes: Sequence[int]) -> list[OSError]:
        """What keeps which of them from being moved."""
        self._tree.create_for_processes(self._system)
        failures = []
        for process in processes:
            try:
                self._tree.move(process, self._system)
            except OSError as error:
                failures.append(error)
        return failures

"""The agent with an eye on its event loop: `python -m bench.watched_agent FILE <the agent's arguments>`.

Into FILE goes a line of JSON for each turn of the loop that took long, with the tasks that took it. What
counts is the CPU time of the loop's thread: on a busy machine a turn takes longer by the clock, and is none
the worse.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TextIO

import trio

from trio_kubelet.cli import main

WORTH_TELLING = 0.005  # seconds


class LongTurns(trio.abc.Instrument):
    """Writes down turns, and what each task took of them."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._began = self._step = 0.0
        self._tasks: dict[str, list[float]] = defaultdict(list)

    def after_io_wait(self, timeout: float) -> None:
        self._began = time.thread_time()
        self._tasks.clear()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._tasks[task.name].append(time.thread_time() - self._step)

    def before_io_wait(self, timeout: float) -> None:
        took = time.thread_time() - self._began
        if not self._began or took < WORTH_TELLING:
            return
        tasks = sorted(self._tasks.items(), key=lambda item: -sum(item[1]))[:6]
        steps = [
            [name, len(each), round(1000 * sum(each), 2), round(1000 * max(each), 2)] for name, each in tasks
        ]
        line = {"at": time.time(), "ms": round(1000 * took, 2), "tasks": steps}
        print(json.dumps(line), file=self._out, flush=True)


def watch(path: str) -> None:
    """Every `trio.run` of this process is watched from now on."""
    run = trio.run

    def watched(work: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> Any:
        with open(path, "w", encoding="utf-8") as out:
            instruments = [*more.pop("instruments", ()), LongTurns(out)]
            return run(work, *args, instruments=instruments, **more)

    trio.run = watched  # type: ignore[assignment]


if __name__ == "__main__":
    watch(sys.argv[1])
    sys.exit(main(sys.argv[2:]))

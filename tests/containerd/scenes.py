"""What scenario tests share: a journal that containers write themselves, and looks at the node from outside.

The journal is the strongest witness of order: each line is stamped inside the container, with the uptime that
all containers of the machine share, so that neither the agent nor the runtime is asked.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.containerd.harness import Manifest, Node, pod, wait_until
from trio_kubelet.standalone.images import File, Image


class Line(NamedTuple):
    """A word that a container said, and when (seconds of uptime, to the hundredth)."""

    at: float
    word: str


def say(word: str) -> str:
    """Shell: writes a word into the journal."""
    return f'echo "$(cut -d" " -f1 /proc/uptime) {word}" >> /journal/log'


def uptime() -> float:
    """Now, as the journal measures it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def living(word: str, last: str = "exit 0") -> str:
    """Shell: says `word` when it starts, waits for SIGTERM, says `word-end`."""
    return f"trap '{say(word + '-end')}; {last}' TERM; {say(word)}; while :; do sleep 3600 & wait $!; done"


@dataclass(frozen=True)
class Journal:
    """A file that containers of a node append to, mounted at /journal."""

    directory: Path

    @classmethod
    def of(cls, node: Node, name: str) -> Journal:
        """A new, empty one below the node's directory."""
        directory = node.layout.base / f"journal-{name}"
        directory.mkdir()
        (directory / "log").touch()
        return cls(directory)

    def pod(self, name: str, *containers: Manifest, **spec: Any) -> Manifest:
        """A pod manifest whose containers and init containers all have the journal."""
        mount = {"name": "journal", "mountPath": "/journal"}
        volume = {"name": "journal", "hostPath": {"path": str(self.directory)}}

        def with_mount(each: Manifest) -> Manifest:
            return {**each, "volumeMounts": [*each.get("volumeMounts", []), mount]}

        inits = [with_mount(each) for each in spec.pop("initContainers", [])]
        volumes = [*spec.pop("volumes", []), volume]
        own = [with_mount(each) for each in containers]
        if inits:
            spec["initContainers"] = inits
        return pod(name, *own, volumes=volumes, **spec)

    def lines(self) -> list[Line]:
        """Everything said so far, in the order of writing; a line that is just being written is left out."""
        written, _, _ = (self.directory / "log").read_text().rpartition("\n")
        found = [line.split(" ", 1) for line in written.splitlines()]
        return [Line(float(at), word) for at, word in found]

    def words(self) -> list[str]:
        return [line.word for line in self.lines()]

    def times(self, word: str) -> list[float]:
        """When it was said."""
        return [line.at for line in self.lines() if line.word == word]

    async def until(self, *words: str, timeout: float = 30.0) -> None:
        """Waits until all of these have been said (a word given twice: twice).

        A word is said before the runtime holds the container for started. One that is ended before that is
        not ended in order: who does so waits for `Node.wait_running`, too.
        """

        def missing() -> list[str]:
            said = self.words()
            return [word for word in words if said.count(word) < words.count(word)]

        await wait_until(lambda: not missing(), timeout, f"{words} in the journal")


def own_image(name: str, size: int) -> Image:
    """`localhost/NAME:1` with a shell, and with so many bytes that no other image has."""
    tree = {
        "data": File(os.urandom(size)),
        "bin/busybox": File(Path("/bin/busybox").read_bytes(), 0o755),
        "bin/sh": File(link="busybox"),
    }
    return Image(f"localhost/{name}:1", tree, {"Env": ["PATH=/bin"]})


async def uid_of(node: Node, pod_name: str) -> str:
    """The pod's UID as its newest sandbox tells."""
    return str((await node.sandboxes(pod_name))[0].metadata.uid)


def log_links(node: Node, pod_name: str = "") -> list[str]:
    """Links for log collectors, of one static pod or of all."""
    directory = node.layout.pod_logs.parent / "containers"
    start = f"{pod_name}-{node.name}_" if pod_name else ""
    return sorted(path.name for path in directory.iterdir() if path.name.startswith(start))


async def until_nothing_left(node: Node, pod_name: str, uid: str, timeout: float = 30.0) -> None:
    """Until neither the runtime nor the file system has anything of a removed pod."""
    await node.wait_gone(pod_name, timeout)

    def traces() -> list[str]:
        return [*node.pod_traces(uid), *log_links(node, pod_name)]

    await wait_until(lambda: not traces(), 15, f"nothing left of {pod_name}")


async def container_state(node: Node, pod_name: str, name: str = "main") -> dict[str, Any]:
    """A container's status as the agent shows it in /pods; empty while there is none."""
    status = await node.pod_status(pod_name)
    shown = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return next((dict(each) for each in shown if each["name"] == name), {})


async def until_waiting(
    node: Node, pod_name: str, reason: str, name: str = "main", interval: float = 0.1
) -> dict[str, Any]:
    """Until a container waits for this reason; returns the `waiting` part of its state.

    `interval` is in seconds, for a reason that does not stand for long.
    """

    async def waiting() -> dict[str, Any] | None:
        state = (await container_state(node, pod_name, name)).get("state") or {}
        found: dict[str, Any] = state.get("waiting") or {}
        return found if found.get("reason") == reason else None

    return await wait_until(waiting, what=f"{pod_name}/{name} waiting: {reason}", interval=interval)


async def until_restarted(node: Node, pod_name: str, times: int = 1, name: str = "main") -> None:
    """Until the agent shows this restart count."""

    async def shown() -> bool:
        return (await container_state(node, pod_name, name)).get("restartCount") == times

    await wait_until(shown, 10, f"{pod_name}/{name}: restart count {times}")

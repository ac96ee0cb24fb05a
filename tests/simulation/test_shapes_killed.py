"""The agent is killed while pods of every restart policy run their course, with init containers and sidecars.

Each of their containers runs once, and each pod ends as it would have: known to the API server or not, with
events of the runtime or without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import trio

from tests.simulation.cluster import ClusterNode
from tests.simulation.deterministic import simulate
from tests.simulation.life import QUIET
from tests.simulation.world import IMAGE, NODE
from trio_kubelet.api import v1
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podinfo.updates import CONFIG_HASH_ANNOTATION

CHANGES = ("Run", "Stop", "Remove", "Create", "Start", "Pull")
EVERY = 31
"""One moment in so many is played; which, is another for each way of playing."""


def container(name: str, command: str, restart: str | None = None) -> dict[str, Any]:
    each = {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", command],
        "terminationMessagePath": "/dev/termination-log",
    }
    return each if restart is None else {**each, "restartPolicy": restart}


def spec(
    restart: str, containers: list[dict[str, Any]], init: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "nodeName": NODE,
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 2,
        "enableServiceLinks": True,
        "securityContext": {},
        "containers": containers,
        "initContainers": init or [],
        **more,
    }


SIDECAR = container("sidecar", "serve", "Always")
INIT = container("init", "sleep 1")
SHAPES: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "job": (spec("Never", [container("a", "sleep 3")], [INIT, container("init2", "true")]), "Succeeded"),
    "fails": (spec("Never", [container("a", "sleep 2; exit 3"), container("b", "sleep 4")]), "Failed"),
    "helped": (spec("Never", [container("a", "sleep 3")], [SIDECAR, INIT]), "Succeeded"),
    "onfailure": (spec("OnFailure", [container("a", "sleep 2"), container("b", "sleep 3")]), "Succeeded"),
    "late": (spec("Never", [container("a", "serve")], activeDeadlineSeconds=6), "Failed"),
    "serves": (spec("Always", [container("a", "serve")], [INIT, SIDECAR]), "Running"),
}
"""By name: the pod, and the phase it comes to."""


class Course:
    """One play, with the agent killed at the `number`-th moment (0: never), and away for `away` seconds."""

    def __init__(self, base: Path, number: int, away: float, *, events: bool, server_goes: bool) -> None:
        self.node = ClusterNode(1, base)
        if not events:
            self.node.service.unimplemented = frozenset({"GetContainerEvents"})
        self.moments = 0
        self._number, self._away, self._server_goes = number, away, server_goes
        self._killed = trio.Event()
        self._seen: set[str] = set()
        self._starts = Counter[tuple[str, str]]()
        self.node.on_story = self._moment
        self.node.on_call = lambda method: self._moment() if method.startswith(CHANGES) else None
        self.node.runtime.listeners.append(self._count)

    def _moment(self) -> None:
        self.moments += 1
        if self.moments == self._number:
            self.node.kill_agent()
            self._killed.set()

    def _count(self, event: Callable[[], cri.ContainerEventResponse]) -> None:
        for each in self.node.running_containers():
            if each.id not in self._seen:
                self._seen.add(each.id)
                pod = each.config.labels["io.kubernetes.pod.name"]
                self._starts[pod, each.config.metadata.name] += 1

    async def _start_again(self, nursery: trio.Nursery) -> None:
        await self._killed.wait()
        server = self.node.server
        if self._server_goes:
            server.down = True
            server.break_watches()
        await trio.sleep(self._away)
        await self.node.start_agent(nursery)
        await trio.sleep(15)
        server.down = False

    async def run(self) -> None:
        node = self.node
        async with node.running() as nursery:
            nursery.start_soon(self._start_again, nursery)
            await node.start_agent(nursery)
            for name, (shape, _) in SHAPES.items():
                metadata = {"name": f"api-{name}", "generation": 1}
                node.store.create("pods", "default", {"metadata": metadata, "spec": shape})
                node.desired[name] = _static(name, shape)
            await node.publish()
            await trio.sleep(30 + self._away)
            await _none(lambda: [*self._unlike(), *node.misreported()])
            assert dict(self._starts) == dict.fromkeys(_containers(), 1)
            for name in SHAPES:
                node.store.delete("pods", "default", f"api-{name}", {})
            node.desired.clear()
            await node.publish()
            await _none(lambda: [*node.unmet(), *(pod.metadata.name for pod in node.on_server())])

    def _unlike(self) -> Iterator[str]:
        """Pods that are not in the phase they should come to."""
        assert self.node.agent is not None
        phases = {pod.metadata.name: pod.status.phase for pod in self.node.agent.room.pods_with_status()}
        for name, (_, phase) in SHAPES.items():
            for full_name in (f"api-{name}", f"{name}-{NODE}"):
                if phases.get(full_name) != phase:
                    yield f"{full_name} is {phases.get(full_name)}"


def _containers() -> Iterator[tuple[str, str]]:
    for name, (shape, _) in SHAPES.items():
        for each in (*shape["initContainers"], *shape["containers"]):
            yield from ((full_name, each["name"]) for full_name in (f"api-{name}", f"{name}-{NODE}"))


def _static(name: str, shape: dict[str, Any]) -> v1.Pod:
    metadata = v1.ObjectMeta(
        name=f"{name}-{NODE}", namespace="default", uid=name, annotations={CONFIG_HASH_ANNOTATION: name}
    )
    status = v1.PodStatus(phase="Pending")
    return v1.Pod(metadata=metadata, spec=msgspec.convert(shape, v1.PodSpec), status=status)


async def _none(problems: Callable[[], list[str]]) -> None:
    with trio.move_on_after(QUIET):
        while problems():  # noqa: ASYNC110 - simulated time
            await trio.sleep(1)
    assert problems() == []


def play(base: Path, number: int, away: float, *, events: bool = True, server_goes: bool = False) -> int:
    """How many moments the play had."""
    moments = 0

    async def script() -> None:
        nonlocal moments
        course = Course(base, number, away, events=events, server_goes=server_goes)
        await course.run()
        moments = course.moments

    simulate(1, script)
    return moments


@pytest.mark.parametrize(
    ("first", "away", "events", "server_goes"),
    [(1, 0.0, True, False), (9, 3.0, False, False), (17, 1.0, True, True), (25, 20.0, True, False)],
)
def test_killed_at_any_moment_each_container_runs_once(
    tmp_path: Path, first: int, away: float, events: bool, server_goes: bool
) -> None:
    moments = play(tmp_path, 0, 0)
    assert moments > 200
    for number in range(first, moments + 1, EVERY):
        try:
            play(tmp_path, number, away, events=events, server_goes=server_goes)
        except BaseException as exc:
            exc.add_note(f"killed at moment {number} of {moments}")
            raise


def test_containers_that_end_at_once_restart_all_of_their_pod_once_a_second(tmp_path: Path) -> None:
    """No back-off holds back containers that are removed to start anew (KEP-5532)."""
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [3]}}
    ends = {**container("ends", "exit 3", "Never"), "restartPolicyRules": [rule]}
    pod = {"metadata": {"name": "api0"}, "spec": spec("Never", [ends, container("beside", "serve")])}
    calls = Counter[str]()

    async def script() -> None:
        node = ClusterNode(1, tmp_path)
        async with node.running() as nursery:
            await node.start_agent(nursery)
            node.store.create("pods", "default", pod)
            await trio.sleep(5)
            node.on_call = lambda method: calls.update([method])
            await trio.sleep(20)

    simulate(1, script)
    assert calls["StartContainer"] in range(38, 43)

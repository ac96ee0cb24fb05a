"""A probe manager whose runtime is the test's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.cri.doors import ExecResult
from trio_kubelet.cri.errors import CRIError, Unavailable
from trio_kubelet.observed.probes import ProbeUpdate
from trio_kubelet.probes.manager import ProbeManager
from trio_kubelet.probes.metrics import ProbeMetrics

EPOCH_NS = 1_700_000_000 * NANOSECONDS


class Repeating:
    """A command that the runtime's door repeats: the test says what becomes of it."""

    def __init__(
        self,
        container_id: str,
        due: float,
        period: float,
        passed: Callable[[float], None],
        end: Callable[[ExecResult | CRIError | None, float], None],
    ) -> None:
        self.container_id, self.due, self.period = container_id, due, period
        self.passed, self._end = passed, end
        self.under_way = False
        self.stopped = False

    def stop(self) -> float | None:
        self.stopped = True
        return None if self.under_way else self.due

    def end(self, found: ExecResult | CRIError | None) -> None:
        """What began just now has ended."""
        self._end(found, trio.current_time())


class World:
    """Pods whose exec probes answer what `exit_codes` says for their container."""

    def __init__(self, *, keeps_results: bool = True, epoch_ns: int = EPOCH_NS) -> None:
        self.clock = TrioClock(epoch_ns)
        self.events: list[str] = []
        self.runs: list[tuple[float, str]] = []
        self.repeating: list[Repeating] = []
        self.can_repeat = False
        self.output = b"out"
        self.exit_codes: dict[str, int] = {}
        self.told: list[ProbeUpdate] = []
        self.takes: dict[str, float] = {}
        self.away = False
        self.metrics = ProbeMetrics()
        self.manager = ProbeManager(
            exec_sync=self._exec,
            repeat_exec=self._repeat_exec,
            recorder=self,
            clock=self.clock,
            metrics=self.metrics,
            keeps_results=keeps_results,
        )
        self.manager.verdicts.listen(self.told.append)

    def record(self, pod: v1.Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        self.events.append(f"{type} {reason} {message} {field_path}")

    async def _exec(
        self, container_id: str, command: Sequence[str], timeout: float, enough: int
    ) -> ExecResult:
        self.runs.append((trio.current_time(), container_id))
        if self.away:
            raise Unavailable("the runtime is away")
        await trio.sleep(self.takes.get(container_id, 0.001))
        return ExecResult(self.output, b"", self.exit_codes.get(container_id, 0))

    def _repeat_exec(
        self,
        container_id: str,
        command: Sequence[str],
        timeout: float,
        due: float,
        period: float,
        passed: Callable[[float], None],
        end: Callable[[ExecResult | CRIError | None, float], None],
    ) -> Repeating | None:
        if not self.can_repeat:
            return None
        self.repeating.append(Repeating(container_id, due, period, passed, end))
        return self.repeating[-1]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.manager.run)
            yield
            nursery.cancel_scope.cancel()

    def pod(self, uid: str = "p", **probes: v1.Probe) -> v1.Pod:
        container = v1.Container(
            name="c",
            liveness_probe=probes.get("liveness"),
            readiness_probe=probes.get("readiness"),
            startup_probe=probes.get("startup"),
        )
        return v1.Pod(
            metadata=v1.ObjectMeta(name=uid, namespace="n", uid=uid),
            spec=v1.PodSpec(containers=[container], restart_policy="Always"),
        )

    def show(
        self,
        pod: v1.Pod,
        container_id: str = "id",
        started: bool = True,
        age: float = 0,
        phase: str = "Running",
    ) -> None:
        """Tells the manager of a running container, as the status manager does."""
        started_at = rfc3339(self.clock.now_ns() - round(age * NANOSECONDS))
        status = v1.ContainerStatus(
            name="c",
            container_id=f"containerd://{container_id}",
            started=started,
            state=v1.ContainerState(running=v1.ContainerStateRunning(started_at=started_at)),
        )
        self.manager.pod_status_changed(pod, v1.PodStatus(phase=phase, container_statuses=[status]))

    async def repeated(self, pod: v1.Pod, period: float) -> Repeating:
        """Shows a pod whose first run passes: its probe is repeated then, and waits for its next turn."""
        self.can_repeat = True
        before = len(self.repeating)
        self.manager.add_pod(pod)
        self.show(pod)
        while len(self.repeating) == before:
            await self.updates(period / 4)
        return self.repeating[-1]

    async def updates(self, seconds: float) -> list[ProbeUpdate]:
        await trio.sleep(seconds)
        told = list(self.told)
        self.told.clear()
        return told


def probe(period: int = 10, **fields: int) -> v1.Probe:
    return v1.Probe(
        exec=v1.ExecAction(command=["x"]),
        period_seconds=period,
        timeout_seconds=1,
        success_threshold=fields.get("success", 1),
        failure_threshold=fields.get("failure", 3),
        initial_delay_seconds=fields.get("delay", 0),
    )


def ended(exit_code: int) -> v1.ContainerStatus:
    state = v1.ContainerState(terminated=v1.ContainerStateTerminated(exit_code=exit_code))
    return v1.ContainerStatus(name="c", container_id="containerd://id", state=state)

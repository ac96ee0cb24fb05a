"""`--runonce`: starts the pods of one update and returns; nothing is looked after.

For images and tests that bring a machine up with a few pods and no agent afterwards.
"""

from __future__ import annotations

import math

import msgspec
import trio

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.duration import format_duration
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.observed.types import ContainerState, PodStatus
from trio_kubelet.podinfo.doors import RecorderDoor
from trio_kubelet.podinfo.updates import PodUpdate
from trio_kubelet.pods.admission.admitter import Admit, Allocate, Decision, Reject
from trio_kubelet.pods.admission.allocating import Allocating
from trio_kubelet.pods.admission.occupancy import Occupancy
from trio_kubelet.pods.doors import Admitter, RuntimeDoor, SyncerDoor
from trio_kubelet.pods.work import Attempt
from trio_kubelet.pods.worker_state import Create, step

log = get_logger(__name__)


class RunOnceError(Exception):
    """No update came, or pods did not start; the text names them."""


class RunOncePeriods(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait for an update, and how often to try each pod; seconds, the pauses double."""

    update: float = 1.0
    tries: int = 10
    first_pause: float = 1.0


class RunOnce:
    """Starts the pods of one update."""

    def __init__(
        self,
        *,
        runtime: RuntimeDoor,
        syncer: SyncerDoor,
        admitter: Admitter,
        allocating: Allocating,
        recorder: RecorderDoor,
        clock: Clock,
        periods: RunOncePeriods = RunOncePeriods(),  # noqa: B008 - frozen
    ) -> None:
        self._runtime = runtime
        self._syncer = syncer
        self._admitter = admitter
        self._allocating = allocating
        self._recorder = recorder
        self._clock = clock
        self._periods = periods

    async def run(self, updates: trio.MemoryReceiveChannel[PodUpdate]) -> list[Pod]:
        """The pods that run now. Raises RunOnceError."""
        update: PodUpdate | None = None
        with trio.move_on_after(self._periods.update):
            update = await updates.receive()
        if update is None:
            raise RunOnceError(f"no pod manifest update after {format_duration(self._periods.update)}")
        log.info("Processing pod manifests once", count=len(update.pods), source=update.source)
        admitted: list[Pod] = []
        taken = Occupancy()
        failed: dict[str, str] = {}
        for pod in update.pods:
            decision = self._admitter.admit(pod, taken.beside(pod.metadata.uid))
            if isinstance(decision, Allocate):
                await self._allocating.settle(pod)
                decision = self._admitter.admit(pod, taken.beside(pod.metadata.uid))
            if isinstance(decision, Admit):
                admitted.append(pod)
                taken.put(pod)
            else:
                self._refuse(pod, decision)
        async with trio.open_nursery() as nursery:
            for pod in admitted:
                nursery.start_soon(self._start, pod, failed)
        if failed:
            names = ", ".join(f"{name}: {why}" for name, why in sorted(failed.items()))
            raise RunOnceError(f"error running pods: {names}")
        return admitted

    def _refuse(self, pod: Pod, decision: Decision) -> None:
        """A pod this node does not take is an event and no failure, as with the kubelet."""
        reason, message = "OutOfResources", "there is no room for it"
        if isinstance(decision, Reject):
            reason, message = decision.reason, decision.message
        self._recorder.record(pod, "Warning", reason, message)
        log.info("Pod was rejected", pod=pod, reason=reason, message=message)

    async def _start(self, pod: Pod, failed: dict[str, str]) -> None:
        """Tries until all containers run; why they do not goes into `failed`."""
        pauses, why = Pauses(self._periods.first_pause, math.inf), ""
        for attempt in range(self._periods.tries + 1):
            try:
                status = await self._status(pod)
                if all_run(pod, status):
                    return
                if attempt == self._periods.tries:
                    break
                worker = step(None, Create(pod=pod), self._clock.now_ns()).worker
                if worker is not None:
                    why = (await self._syncer.sync_pod(worker, status, Attempt())).error
                if all_run(pod, await self._status(pod)):
                    return
            except CRIError as exc:
                why = str(exc)
            pause = pauses.after(attempt + 1)
            log.info("Pod's containers are not running, trying again", pod=pod, wait=pause, err=why)
            await trio.sleep(pause)
        failed[_name(pod)] = why or f"containers not running after {self._periods.tries} retries"

    async def _status(self, pod: Pod) -> PodStatus:
        meta = pod.metadata
        return await self._runtime.get_pod_status(meta.uid, meta.name, meta.namespace)


def all_run(pod: Pod, status: PodStatus) -> bool:
    """Whether every container of the pod runs."""
    newest = [status.container_status(container.name) for container in pod.spec.containers or ()]
    return all(one is not None and one.state is ContainerState.RUNNING for one in newest)


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"

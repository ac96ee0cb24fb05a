"""Ends pods in order before the machine goes down: a delay of logind's is held, and given back when all have
ended (kubelet: `nodeshutdown.Manager`).

What logind says is followed by looking, too: one that was restarted has forgotten the delay, and a shutdown
may have begun while nobody listened. A shutdown that is called off stops whatever of it is still to come.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import msgspec
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import parse_rfc3339, rfc3339_nano
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.common.small_files import replace_small
from trio_kubelet.dbus.doors import Bus, Subscription
from trio_kubelet.dbus.values import BusError
from trio_kubelet.nodeshutdown.doors import ShutdownPodsDoor
from trio_kubelet.nodeshutdown.logind import DROP_IN_DIRECTORY, SHUTDOWNS, DelayLock, Logind, LogindError
from trio_kubelet.nodeshutdown.plan import (
    MESSAGE,
    NOT_READY,
    REASON,
    REFUSED,
    REFUSED_MESSAGE,
    Group,
    Period,
    ShutdownState,
    grace_of,
    groups,
    requested,
)
from trio_kubelet.podinfo.doors import NodeRecorderDoor
from trio_kubelet.pods.admission.admitter import Reject

log = get_logger(__name__)

RECONNECTS: Final = Pauses(1.0, 60.0)
"""Seconds between tries to follow logind (kubelet: `dbusReconnectPeriod`), doubling up to a minute."""

_POLL: Final = 0.25


class NodeShutdown:
    """Whether the node goes down, and the task that ends its pods then. `changed` tells when that turns."""

    def __init__(self, periods: Sequence[Period], *, events: NodeRecorderDoor) -> None:
        self.changed: Listeners[[]] = Listeners()
        self._periods = periods
        self._events = events
        self._going_down = False

    @property
    def acts(self) -> bool:
        """Whether the machine is to wait for its pods at all."""
        return bool(self._periods)

    def errors(self) -> list[str]:
        """Why the node is not ready."""
        return [NOT_READY] if self._going_down else []

    def refusal(self, pod: v1.Pod) -> Reject | None:
        """A node that goes down takes no pods."""
        return Reject(REFUSED, REFUSED_MESSAGE) if self._going_down else None

    async def run(
        self,
        bus: Bus,
        pods: ShutdownPodsDoor,
        times: ShutdownTimes | None = None,
        drop_in_directory: str = DROP_IN_DIRECTORY,
    ) -> None:
        """Follows logind until cancelled; whatever happens to it, it is tried again. `times` None: nobody
        wants to know when shutdowns were.
        """
        periods = [f"{each.priority}: {each.seconds}s" for each in self._periods]
        log.info("Creating node shutdown manager", shutdownGracePeriodByPodPriority=periods)
        if times is not None:
            await times.load()
        logind, failures = Logind(bus, drop_in_directory), 0
        while True:
            began = trio.current_time()
            try:
                await self._follow(bus, logind, pods, times)
            except (BusError, LogindError, OSError) as error:
                log.error("Unable to watch the node for shutdown events", err=error)
            failures = 1 if trio.current_time() - began > RECONNECTS.most else failures + 1
            await trio.sleep(RECONNECTS.after(failures))

    async def _follow(
        self, bus: Bus, logind: Logind, pods: ShutdownPodsDoor, times: ShutdownTimes | None
    ) -> None:
        """Holds the delay and heeds logind's word, as long as it is the same logind."""
        async with bus.subscribe(SHUTDOWNS) as signals:
            while True:
                await logind.allow(requested(self._periods))
                async with logind.delayed() as lock:
                    if not await logind.is_going_down() and not await self._announced(signals):
                        continue  # a logind that was started anew knows nothing of the delay
                    await self._go_down(signals, lock, pods, times)

    async def _announced(self, signals: Subscription) -> bool:
        """Waits for a shutdown; False if something may have been missed."""
        while True:
            match await signals.next():
                case None:
                    return False
                case (True, *_):
                    return True
                case (False, *_):
                    continue
                case body:
                    log.error("PrepareForShutdown event was not bool type as expected", body=str(body)[:100])

    async def _go_down(
        self, signals: Subscription, lock: DelayLock, pods: ShutdownPodsDoor, times: ShutdownTimes | None
    ) -> None:
        """Ends all pods and lets logind go on; returns when the shutdown was called off."""
        log.info("Shutdown manager detected new shutdown event", event="shutdown")
        self._events.record_node("Normal", "Shutdown", "Shutdown manager detected shutdown event")
        self._turn(True)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_pods, lock, pods, times)
                while True:
                    match await signals.next():
                        case (False, *_) | None:
                            break
                nursery.cancel_scope.cancel()
        finally:
            self._turn(False)
        log.info("Shutdown manager detected new shutdown event", event="cancelled")
        self._events.record_node("Normal", "Shutdown", "Shutdown manager detected shutdown cancellation")

    def _turn(self, going_down: bool) -> None:
        self._going_down = going_down
        self.changed.tell()

    async def _end_pods(self, lock: DelayLock, pods: ShutdownPodsDoor, times: ShutdownTimes | None) -> None:
        try:
            if times is not None:
                await times.begin()
            for group in groups(self._periods, pods.active()):
                await self._end_group(group, pods)
            if times is not None:
                await times.end()
        finally:
            lock.release()
            log.info("Shutdown manager completed processing shutdown event, node will shutdown shortly")

    async def _end_group(self, group: Group, pods: ShutdownPodsDoor) -> None:
        """Ends the pods of a group, all at once, and waits for them and their volumes as long as they may
        take.
        """
        with trio.move_on_after(group.period.seconds) as scope:
            async with trio.open_nursery() as nursery:
                for pod in group.pods:
                    nursery.start_soon(self._end_pod, pod, grace_of(pod, group.period), pods)
            waiting = {pod.metadata.uid for pod in group.pods}
            while True:
                waiting = {uid for uid in waiting if not pods.is_finished(uid)}
                if not waiting:
                    break
                await trio.sleep(_POLL)
        text = (
            "Shutdown manager pod killing time out"
            if scope.cancelled_caught
            else "Done waiting for all pods in group to terminate"
        )
        log.info(text, gracePeriod=group.period.seconds, priority=group.period.priority)

    async def _end_pod(self, pod: v1.Pod, grace: int, pods: ShutdownPodsDoor) -> None:
        log.info("Shutdown manager killing pod with gracePeriod", pod=pod, gracePeriod=grace)
        try:
            stopped = pods.shut_down(pod, grace=grace, reason=REASON, message=MESSAGE)
            if await pods.wait_stopped(pod, stopped, grace):
                log.info("Shutdown manager finished killing pod", pod=pod)
        except Exception as exc:  # whatever one pod raises, the others are waited for
            log.error("Unexpected error in ending a pod for a shutdown", pod=pod, err=exc)


class ShutdownTimes:
    """When the last shutdown began and ended, in a file and in metrics. A file that cannot be written keeps
    no pod from its end.
    """

    def __init__(self, root_dir: str, clock: Clock, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self._root_dir = root_dir
        self._clock = clock
        self._began = make.gauge(
            "kubelet_graceful_shutdown_start_time_seconds",
            "When the last graceful shutdown began, in seconds since the epoch.",
        )
        self._ended = make.gauge(
            "kubelet_graceful_shutdown_end_time_seconds",
            "When the last graceful shutdown ended, in seconds since the epoch.",
        )
        self._state = ShutdownState()

    async def load(self) -> None:
        """Takes up what the last shutdown left."""
        try:
            self._state = await NODE_FILES.run(load_state, self._root_dir)
            self._show()
        except (OSError, ValueError) as error:
            log.error("Failed to load graceful shutdown state", err=error)

    async def begin(self) -> None:
        """A shutdown begins."""
        await self._store(ShutdownState(rfc3339_nano(self._clock.now_ns())))

    async def end(self) -> None:
        """It came to its end."""
        await self._store(ShutdownState(self._state.start_time, rfc3339_nano(self._clock.now_ns())))

    async def _store(self, state: ShutdownState) -> None:
        self._state = state
        self._show()
        try:
            await NODE_FILES.run(store_state, self._root_dir, state)
        except OSError as error:
            log.error("Failed to store graceful shutdown state", err=error)

    def _show(self) -> None:
        state = self._state
        self._began.set(parse_rfc3339(state.start_time) // NANOSECONDS if state.has_begun else 0)
        self._ended.set(parse_rfc3339(state.end_time) // NANOSECONDS if state.has_ended else 0)


STATE_FILE: Final = "graceful_node_shutdown_state"


def load_state(root_dir: str) -> ShutdownState:
    """When the last shutdown began and ended, for the metrics after the boot; nothing if there was none.
    Blocking. Raises OSError and ValueError.
    """
    try:
        with open(os.path.join(root_dir, STATE_FILE), "rb") as file:
            return decode_flat(file.read(4096), ShutdownState)
    except FileNotFoundError:
        return ShutdownState()


def store_state(root_dir: str, state: ShutdownState) -> None:
    """Writes the file, whole or not at all. Blocking. Raises OSError."""
    replace_small(os.path.join(root_dir, STATE_FILE), msgspec.json.encode(state), mode=0o644)

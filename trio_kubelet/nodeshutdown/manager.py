"""Ends pods in order before the machine goes down: a delay of logind's is held, and given back when all have
ended (kubelet: `nodeshutdown.Manager`).

What logind says is followed by looking, too: one that was restarted has forgotten the delay, and a shutdown
may have begun while nobody listened. A shutdown that is called off stops whatever of it is still to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.log import get_logger
from trio_kubelet.dbus.doors import Bus, Subscription
from trio_kubelet.dbus.values import BusError
from trio_kubelet.nodeshutdown.doors import ShutdownPodsDoor
from trio_kubelet.nodeshutdown.logind import DROP_IN_DIRECTORY, SHUTDOWNS, DelayLock, Logind, LogindError
from trio_kubelet.nodeshutdown.plan import MESSAGE, REASON, Group, Period, grace_of, groups, requested
from trio_kubelet.nodeshutdown.state import NodeShutdown
from trio_kubelet.nodeshutdown.times import ShutdownTimes
from trio_kubelet.podinfo.doors import NodeRecorderDoor

log = get_logger(__name__)

RECONNECTS: Final = Pauses(1.0, 60.0)
"""Seconds between tries to follow logind (kubelet: `dbusReconnectPeriod`), doubling up to a minute."""

_POLL: Final = 0.25


class ShutdownManager:
    """Follows logind, and ends the pods when the node goes down."""

    def __init__(
        self,
        periods: Sequence[Period],
        *,
        bus: Bus,
        node: NodeShutdown,
        pods: ShutdownPodsDoor,
        times: ShutdownTimes | None,  # None: nobody wants to know when shutdowns were
        events: NodeRecorderDoor,
        drop_in_directory: str = DROP_IN_DIRECTORY,
    ) -> None:
        self._periods = periods
        self._bus = bus
        self._logind = Logind(bus, drop_in_directory)
        self._node = node
        self._pods = pods
        self._times = times
        self._events = events

    async def run(self) -> None:
        """Follows logind until cancelled; whatever happens to it, it is tried again."""
        periods = [f"{each.priority}: {each.seconds}s" for each in self._periods]
        log.info("Creating node shutdown manager", shutdownGracePeriodByPodPriority=periods)
        if self._times is not None:
            await self._times.load()
        failures = 0
        while True:
            began = trio.current_time()
            try:
                await self._follow()
            except (BusError, LogindError, OSError) as error:
                log.error("Unable to watch the node for shutdown events", err=error)
            failures = 1 if trio.current_time() - began > RECONNECTS.most else failures + 1
            await trio.sleep(RECONNECTS.after(failures))

    async def _follow(self) -> None:
        """Holds the delay and heeds logind's word, as long as it is the same logind."""
        async with self._bus.subscribe(SHUTDOWNS) as signals:
            while True:
                await self._logind.allow(requested(self._periods))
                async with self._logind.delayed() as lock:
                    if not await self._logind.is_going_down() and not await self._announced(signals):
                        continue  # a logind that was started anew knows nothing of the delay
                    await self._go_down(signals, lock)

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

    async def _go_down(self, signals: Subscription, lock: DelayLock) -> None:
        """Ends all pods and lets logind go on; returns when the shutdown was called off."""
        log.info("Shutdown manager detected new shutdown event", event="shutdown")
        self._events.record_node("Normal", "Shutdown", "Shutdown manager detected shutdown event")
        with self._node.going_down():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_pods, lock)
                while True:
                    match await signals.next():
                        case (False, *_) | None:
                            break
                nursery.cancel_scope.cancel()
        log.info("Shutdown manager detected new shutdown event", event="cancelled")
        self._events.record_node("Normal", "Shutdown", "Shutdown manager detected shutdown cancellation")

    async def _end_pods(self, lock: DelayLock) -> None:
        try:
            if self._times is not None:
                await self._times.begin()
            for group in groups(self._periods, self._pods.active()):
                await self._end_group(group)
            if self._times is not None:
                await self._times.end()
        finally:
            lock.release()
            log.info("Shutdown manager completed processing shutdown event, node will shutdown shortly")

    async def _end_group(self, group: Group) -> None:
        """Ends the pods of a group, all at once, and waits for them and their volumes as long as they may
        take.
        """
        with trio.move_on_after(group.period.seconds) as scope:
            async with trio.open_nursery() as nursery:
                for pod in group.pods:
                    nursery.start_soon(self._end_pod, pod, grace_of(pod, group.period))
            waiting = {pod.metadata.uid for pod in group.pods}
            while True:
                waiting = {uid for uid in waiting if not self._pods.is_finished(uid)}
                if not waiting:
                    break
                await trio.sleep(_POLL)
        text = (
            "Shutdown manager pod killing time out"
            if scope.cancelled_caught
            else "Done waiting for all pods in group to terminate"
        )
        log.info(text, gracePeriod=group.period.seconds, priority=group.period.priority)

    async def _end_pod(self, pod: v1.Pod, grace: int) -> None:
        log.info("Shutdown manager killing pod with gracePeriod", pod=pod, gracePeriod=grace)
        try:
            stopped = self._pods.shut_down(pod, grace=grace, reason=REASON, message=MESSAGE)
            if await self._pods.wait_stopped(pod, stopped, grace):
                log.info("Shutdown manager finished killing pod", pod=pod)
        except Exception as exc:  # whatever one pod raises, the others are waited for
            log.error("Unexpected error in ending a pod for a shutdown", pod=pod, err=exc)

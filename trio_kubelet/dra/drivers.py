"""The drivers of dynamic resources that are registered, and what follows from one being away.

A driver may be there twice while it is updated: the newest that answers is asked. The ResourceSlices of a
driver that has been away for `WIPING_DELAY` are deleted, so that no more pods are scheduled for its devices;
those of drivers that went while no agent ran are deleted at the start (a driver that is there publishes its
own again).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.log import get_logger
from trio_kubelet.dra.claims import ClaimError
from trio_kubelet.dra.doors import SERVICES, ClaimObjects, DraDriver, DriverError
from trio_kubelet.dra.health import DeviceHealth, DriverHealth, Key
from trio_kubelet.dra.metrics import DraMetrics
from trio_kubelet.grpc.channel import Channel, connect
from trio_kubelet.grpc.errors import GrpcError
from trio_kubelet.grpc.loop import AsyncioLoop
from trio_kubelet.plugins.doors import PluginError
from trio_kubelet.plugins.states import PluginInfo

if TYPE_CHECKING:  # imported with the first driver
    from trio_kubelet.dra.driver import GrpcDriver

log = get_logger(__name__)

PLUGIN_TYPE: Final = "DRAPlugin"
WIPING_DELAY: Final = 30.0
"""Seconds a driver has to come back (kubelet: `defaultWipingDelay`)."""
WIPE_PAUSES: Final = Pauses(1.0, 300.0, jitter=0.2)
"""Seconds between attempts to delete slices, doubled from first to most."""
LOOK_PERIOD: Final = 5.0
"""Seconds between looks whether a driver answers on its socket, and attempts to hear of its health."""
_DIAL_SECONDS: Final = 5.0


class _Session(msgspec.Struct):
    """One registered endpoint of a driver."""

    endpoint: str
    driver: DraDriver
    scope: trio.CancelScope
    answers: bool = True


class DraDrivers:
    """Implements `plugins.doors.PluginHandler`. `objects` None: there is no API server."""

    def __init__(
        self,
        *,
        loop: AsyncioLoop,
        metrics: DraMetrics,
        objects: ClaimObjects | None,
        health_changed: Callable[[str, frozenset[Key]], None] | None,
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._objects = objects
        self._health_changed = health_changed
        self._sessions: dict[str, list[_Session]] = {}
        self._health: dict[str, DriverHealth] = {}
        self._nursery: trio.Nursery | None = None
        self._wipes: dict[str, trio.CancelScope] = {}

    def get(self, name: str) -> DraDriver:
        """The driver to ask. Raises DriverError."""
        sessions = self._sessions.get(name, [])
        for session in reversed(sessions):
            if session.answers:
                return session.driver
        if not sessions:
            raise DriverError(f"DRA driver {name} is not registered")
        return sessions[-1].driver

    def known_health(self) -> Mapping[str, Mapping[Key, DeviceHealth]]:
        """What was heard of devices, by driver."""
        return {name: reports for name, health in self._health.items() if (reports := health.reports)}

    def take_over_health(self, reports: Mapping[str, Mapping[Key, DeviceHealth]]) -> None:
        """What an earlier agent heard, good until a driver says otherwise."""
        self._health = {name: DriverHealth(of_driver) for name, of_driver in reports.items()}

    def health(self, name: str, key: Key) -> DeviceHealth:
        """What a driver says of one of its devices."""
        return self._health.get(name, DriverHealth()).get(key, trio.current_time())

    async def run(self) -> None:
        """Looks after drivers until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._wipe("", 0)
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._sessions.clear()
            self._wipes.clear()

    # As a handler of the plugin watcher

    def validate(self, plugin: PluginInfo) -> None:
        """Raises PluginError."""
        _service(plugin)

    async def register(self, plugin: PluginInfo) -> None:
        """Raises PluginError."""
        service = _service(plugin)
        if self._nursery is None:
            raise PluginError("the agent is not ready")
        if any(each.endpoint == plugin.endpoint for each in self._sessions.get(plugin.name, ())):
            raise PluginError(
                f"endpoint {plugin.endpoint} already registered for DRA driver plugin {plugin.name}"
            )
        await self._nursery.start(self._follow, plugin, service)

    async def deregister(self, plugin: PluginInfo) -> None:
        """Its socket has gone."""
        for session in self._sessions.get(plugin.name, ()):
            if session.endpoint == plugin.endpoint:
                session.scope.cancel()

    # Drivers

    async def _follow(self, plugin: PluginInfo, service: str, task_status: trio.TaskStatus[None]) -> None:
        """One endpoint, from its registration to its end."""
        from trio_kubelet.dra.driver import GrpcDriver

        name = plugin.name
        with trio.CancelScope() as scope, connect(self._loop, plugin.endpoint) as channel:
            driver = GrpcDriver(name, service, channel, self._called)
            session = _Session(plugin.endpoint, driver, scope)
            self._sessions.setdefault(name, []).append(session)
            self._settle(name)
            task_status.started()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._look, name, session, channel)
                    if self._health_changed is not None:
                        nursery.start_soon(self._hear, driver, self._health_changed)
            finally:
                self._sessions[name].remove(session)
                if not self._sessions[name]:
                    del self._sessions[name]
                    self._health.pop(name, None)  # it says nothing any more
                self._settle(name)

    async def _look(self, name: str, session: _Session, channel: Channel) -> None:
        """Whether anybody listens on the socket: a driver that dies leaves it behind. One connection is for
        this and for all calls: drivers may count them.
        """
        while True:
            await trio.sleep(LOOK_PERIOD)
            try:
                await channel.reach(_DIAL_SECONDS)
                answers = True
            except GrpcError:
                answers = False
            if answers != session.answers:
                log.info("Connection changed", driverName=name, endpoint=session.endpoint, connected=answers)
                session.answers = answers
                self._settle(name)

    async def _hear(self, driver: GrpcDriver, changed: Callable[[str, frozenset[Key]], None]) -> None:
        """The health of its devices, for as long as it is registered."""
        known = self._health.setdefault(driver.name, DriverHealth())

        def told(reports: Mapping[Key, DeviceHealth]) -> None:
            if keys := known.update(reports, trio.current_time()):
                changed(driver.name, keys)

        while True:
            try:
                await driver.watch_health(told)
            except DriverError as exc:
                log.v(3).info("Failed to watch health of devices", driverName=driver.name, err=exc)
            except Exception as exc:  # whatever one driver says, the others are heard
                log.error("Unexpected error in hearing a driver", driverName=driver.name, err=exc)
            finally:
                if keys := known.clear():
                    changed(driver.name, keys)
            await trio.sleep(LOOK_PERIOD)

    def _called(self, driver: str, method: str, code: str, seconds: float) -> None:
        self._metrics.calls.labels(driver, method, code).observe(seconds)

    # ResourceSlices

    def _settle(self, name: str) -> None:
        """A driver that is away loses its slices after a while, one that is back keeps them."""
        usable = any(session.answers for session in self._sessions.get(name, ()))
        if usable and name in self._wipes:
            self._wipes.pop(name).cancel()
        elif not usable and name not in self._wipes and self._nursery is not None:
            self._nursery.start_soon(self._wipe, name, WIPING_DELAY)

    async def _wipe(self, name: str, delay: float) -> None:
        if self._objects is None:
            return
        with trio.CancelScope() as scope:
            self._wipes[name] = scope
            await trio.sleep(delay)
            failures = 0
            while True:
                try:
                    await self._objects.delete_slices(name)
                    log.v(3).info("Deleted ResourceSlices", driverName=name)
                    break
                except ClaimError as exc:
                    log.v(3).info("Deleting ResourceSlices failed, retrying", driverName=name, err=exc)
                except Exception as exc:
                    log.error("Unexpected error in deleting ResourceSlices", driverName=name, err=exc)
                failures += 1
                await trio.sleep(WIPE_PAUSES.after(failures, random.random()))
        if self._wipes.get(name) is scope:
            del self._wipes[name]


def _service(plugin: PluginInfo) -> str:
    """The first service of the plugin that this agent speaks. Raises PluginError."""
    for service in plugin.versions:
        if service in SERVICES:
            return service
    where = f"DRA driver plugin {plugin.name} at endpoint {plugin.endpoint}"
    prefix = f"invalid supported gRPC versions of {where}: "
    if not plugin.versions:
        raise PluginError(f"{prefix}empty list of supported gRPC services (aka supported versions)")
    theirs, ours = (" ".join(f'"{each}"' for each in services) for services in (plugin.versions, SERVICES))
    text = f"none of services supported by the plugin ([{theirs}]) are supported by the kubelet ([{ours}])"
    raise PluginError(f"{prefix}{text}")

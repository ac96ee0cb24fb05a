"""The two ways to make a cgroup: as directories and files, or as a slice of systemd.

Which of them is the runtime's to say, for both have to use the same (gate KubeletCgroupDriverFromCRI).
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.cgroups.files import CgroupTree
from trio_kubelet.cgroups.limits import Limits
from trio_kubelet.cgroups.units import new_slice, properties, unit_name, with_whole_percents
from trio_kubelet.common.lanes import CGROUPS
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.cri.errors import CRIError, Unavailable
from trio_kubelet.cri.info import cgroup_driver
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.dbus.doors import Bus, Subscription
from trio_kubelet.dbus.values import BusError, BusUnavailable, ErrorReply, Method, Signals
from trio_kubelet.grpc.errors import Code

log = get_logger(__name__)

_CALL_SECONDS = 10.0
_JOB_SECONDS = 30.0
_JOBS_KEPT = 4096

_SYSTEMDS_OWN: Final = frozenset({"cpuset"})
"""Controllers that only systemd gives to slices. At each new slice it takes this one from those parents below
which nothing asks for it (scopes of containers do), which costs the kernel 0.1 s and more. To give it again
each time made a pod's slice cost that much."""

_SYSTEMD = "org.freedesktop.systemd1"
_PATH = "/org/freedesktop/systemd1"
_MANAGER = f"{_SYSTEMD}.Manager"
_UNIT_EXISTS: Final = f"{_SYSTEMD}.UnitExists"
_NO_SUCH_UNIT: Final = f"{_SYSTEMD}.NoSuchUnit"


def _manager(name: str, signature: str) -> Method:
    return Method(_SYSTEMD, _PATH, _MANAGER, name, signature)


START_UNIT = _manager("StartTransientUnit", "ssa(sv)a(sa(sv))")
SET_PROPERTIES = _manager("SetUnitProperties", "sba(sv)")
STOP_UNIT = _manager("StopUnit", "ss")
_RESET = _manager("ResetFailedUnit", "s")
JOB_REMOVED = Signals(_SYSTEMD, _PATH, _MANAGER, "JobRemoved")


class CgroupfsDriver:
    """See `doors.CgroupDriver`."""

    def __init__(self, tree: CgroupTree, *, besides: Collection[str] = ()) -> None:
        self._tree = tree
        self._besides = besides

    async def create(self, cgroup: str, limits: Limits) -> None:
        def make() -> None:
            self._tree.create(cgroup, besides=self._besides)
            self._tree.apply(cgroup, limits)

        await CGROUPS.run(make)

    async def update(self, cgroup: str, limits: Limits) -> None:
        await CGROUPS.run(lambda: self._tree.apply(cgroup, limits))

    async def remove(self, cgroup: str) -> bool:
        return await CGROUPS.run(lambda: self._tree.remove(cgroup))


class SystemdDriver:
    """See `doors.CgroupDriver`. One call to systemd makes a slice with all its limits.

    `buses` are tried in turn: the system bus, and systemd's own socket for when that is away.
    """

    def __init__(self, tree: CgroupTree, buses: Sequence[Bus]) -> None:
        self._files = CgroupfsDriver(tree, besides=_SYSTEMDS_OWN)
        self._tree = tree
        self._buses = buses
        self._waiting: dict[str, trio.Event] = {}  # jobs that somebody waits for
        self._results: OrderedDict[str, str] = OrderedDict()  # of the last jobs; "" is not known

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hears which jobs of systemd have ended."""
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            for bus in self._buses:
                ended = await stack.enter_async_context(bus.subscribe(JOB_REMOVED))
                nursery.start_soon(self._hear, ended)
            task_status.started()

    async def create(self, cgroup: str, limits: Limits) -> None:
        limits = with_whole_percents(limits)
        unit, wanted = unit_name(cgroup), properties(limits, v2=self._tree.is_v2)
        try:
            result = await self._job(START_UNIT, unit, "replace", [*new_slice(cgroup), *wanted], [])
        except ErrorReply as error:
            if error.name != _UNIT_EXISTS:
                raise
            await self._call(SET_PROPERTIES, unit, True, wanted)
            result = "done"
        if result not in ("done", ""):
            await self._reset(unit)
            raise OSError(f"error creating systemd unit `{unit}`: got `{result}`")
        await self._files.create(cgroup, limits)

    async def update(self, cgroup: str, limits: Limits) -> None:
        # Systemd takes properties of a slice that is not there, and makes its cgroup a little later.
        if not await CGROUPS.run(self._tree.exists, cgroup):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), cgroup)
        limits = with_whole_percents(limits)
        if wanted := properties(limits, v2=self._tree.is_v2):
            await self._call(SET_PROPERTIES, unit_name(cgroup), True, wanted)
        await self._files.update(cgroup, limits)

    async def remove(self, cgroup: str) -> bool:
        if not await CGROUPS.run(lambda: self._tree.exists_somewhere(cgroup)):
            return True
        unit = unit_name(cgroup)
        try:
            result = await self._job(STOP_UNIT, unit, "replace")
        except ErrorReply as error:
            if error.name != _NO_SUCH_UNIT:
                raise
            result = "done"
        if result != "done":
            # A scope that the runtime starts in a slice cancels its stop. Were only the directory removed
            # then, systemd would list an active slice for ever: nobody would find that it is left over.
            log.warning("Slice did not stop", unit=unit, result=result or "unknown")
            return False
        return await self._files.remove(cgroup)

    async def _call(self, method: Method, *arguments: Any) -> tuple[Any, ...]:
        last: BusError = BusUnavailable("no bus")
        for bus in self._buses:
            try:
                return await bus.call(method, *arguments, seconds=_CALL_SECONDS)
            except BusUnavailable as error:
                last = error
        raise last

    async def _job(self, method: Method, *arguments: Any) -> str:
        """Has systemd do something and waits until it is done; how that ended, "" if it is not known."""
        match await self._call(method, *arguments):
            case (str() as job,):
                pass
            case answer:
                raise BusError(f"systemd answered {method.name} without a job: {str(answer)[:100]}")
        if (result := self._results.pop(job, None)) is not None:
            return result
        ended = self._waiting.setdefault(job, trio.Event())
        try:
            with trio.move_on_after(_JOB_SECONDS):
                await ended.wait()
                return self._results.pop(job, "")
        finally:
            self._waiting.pop(job, None)
        await self._reset(str(arguments[0]))
        raise BusError(f"timeout waiting for systemd to carry out {method.name} of {arguments[0]}")

    async def _hear(self, ended: Subscription) -> None:
        while True:
            body = await ended.next()
            if body is None:  # jobs may have ended unheard: the cgroup itself will tell
                for event in self._waiting.values():
                    event.set()
                continue
            match body:
                case (_, str() as job, _, str() as result):
                    self._results[job] = result
                case _:
                    log.error("JobRemoved event was not as expected", body=str(body)[:100])
                    continue
            if len(self._results) > _JOBS_KEPT:
                self._results.popitem(last=False)
            if job in self._waiting:
                self._waiting[job].set()

    async def _reset(self, unit: str) -> None:
        """Lets systemd forget a unit that failed."""
        try:
            await self._call(_RESET, unit)
        except BusError as error:
            log.v(4).info("Unit is not reset", unit=unit, err=error)


_NAMES: Final = {cri.SYSTEMD: "systemd", cri.CGROUPFS: "cgroupfs"}
_RETRY_SECONDS = 2.0


async def runtime_cgroup_driver(runtime: RuntimeService, configured: str, registry: CollectorRegistry) -> str:
    """The runtime's cgroup driver, or `configured` if it does not say.

    A runtime that is away is waited for: a guess could put pods into cgroups of the wrong kind. Raises
    OSError for a driver that is none.
    """
    while True:
        try:
            answer = await runtime.runtime_config()
        except CRIError as error:
            if error.code is Code.UNIMPLEMENTED:
                MetricMaker(registry).gauge(
                    "kubelet_cri_losing_support",
                    "The Kubernetes version from which on this version of the runtime is not supported.",
                    ["version"],
                ).labels("1.37.0").inc()
                return await _driver_of_old_runtime(runtime, configured)
            log.warning("The runtime does not say which cgroup driver it uses", err=error)
            await trio.sleep(_RETRY_SECONDS)
            continue
        if not answer.HasField("linux"):
            return configured
        driver = _NAMES.get(answer.linux.cgroup_driver)
        if driver is None:
            raise OSError(f"runtime returned an unknown cgroup driver {answer.linux.cgroup_driver}")
        log.info("Using cgroup driver setting received from the CRI runtime", cgroupDriver=driver)
        return driver


async def _driver_of_old_runtime(runtime: RuntimeService, configured: str) -> str:
    """What a runtime without RuntimeConfig shows of its configuration, if it does. With another driver its
    containers would be outside of the pods' cgroups, and no limit of a pod in force.
    """
    shown = await _shown_driver(runtime)
    if shown and shown != configured:
        log.warning(
            "The runtime uses another cgroup driver than the configured one, which is ignored",
            cgroupDriver=shown,
            configured=configured,
        )
        return shown
    log.info(
        "CRI implementation should be updated to support RuntimeConfig. "
        "Falling back to using cgroupDriver from kubelet config."
    )
    return configured


async def _shown_driver(runtime: RuntimeService) -> str:
    while True:
        try:
            return cgroup_driver((await runtime.status(verbose=True)).info)
        except Unavailable as error:
            log.warning("The runtime does not say which cgroup driver it uses", err=error)
            await trio.sleep(_RETRY_SECONDS)
        except CRIError as error:
            log.warning("The runtime does not show its configuration", err=error)
            return ""

"""Which dead containers, sandboxes and log directories go: selection (pure) and removal (kubelet:
`containerGC`).

Dead containers are kept for a while because their logs and exit codes are what an operator looks at
after a crash.

The runtime is asked for what does not run: on a node where all is well that is little, while a list of
everything is megabytes.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import trio

from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.each import ASIDE, for_each
from trio_kubelet.common.lanes import LOGS
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError, NotFound
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import ContainerState, ContainerStatus, PodStatus
from trio_kubelet.runtime.configs.labels import read_identity
from trio_kubelet.runtime.doors import GCPolicy, PodStates
from trio_kubelet.runtime.kill_pod import Killer
from trio_kubelet.runtime.log_links import container_id_of, dead_links, remove_link
from trio_kubelet.runtime.plan import KillReason
from trio_kubelet.runtime.remove import ContainerRemover

log = get_logger(__name__)

_LINKS_PERIOD = 600.0
"""Seconds between searches for dead links. A log that goes with its container takes its link along."""

_AT_ONCE = 8  # removals, of containers or of sandboxes

_NOT_RUNNING = (cri.CONTAINER_CREATED, cri.CONTAINER_EXITED, cri.CONTAINER_UNKNOWN)


class DeadContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container that does not run: one in unknown state may, one only just created is about to."""

    id: str
    uid: str
    name: str
    attempt: int
    created_at_ns: int
    unknown: bool = False
    created: bool = False


class FoundSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox."""

    id: str
    uid: str
    attempt: int
    created_at_ns: int
    ready: bool


def containers_to_remove(
    dead: Iterable[DeadContainer], policy: GCPolicy, is_doomed: Callable[[str], bool]
) -> list[DeadContainer]:
    """Dead containers to remove, in order.

    All of a doomed pod; then, of each container name of a pod, the oldest beyond the limit; then
    what is beyond the total limit, at first evenly from all names, then the oldest. Of one name the
    oldest are those of the first attempts, for clocks are set back (`PodStatus.containers_named`).

    One that was created last of its name and not started yet is the successor of a dead one, and
    does not take its place. (For the kubelet it does: a crash that a collection coincides with
    leaves neither log nor exit code.)
    """
    units: dict[tuple[str, str], list[DeadContainer]] = {}
    for container in dead:
        units.setdefault((container.uid, container.name), []).append(container)
    for unit in units.values():
        unit.sort(key=lambda c: (-c.attempt, -c.created_at_ns))
    gone: list[DeadContainer] = []
    for key in [key for key in units if is_doomed(key[0])]:
        gone += reversed(units.pop(key))
    for key, unit in list(units.items()):
        if unit[0].created:
            del unit[0]
        if not unit:
            del units[key]

    def limit_units(limit: int) -> None:
        for unit in units.values():
            while len(unit) > limit:
                gone.append(unit.pop())

    def total() -> int:
        return sum(map(len, units.values()))

    if policy.max_per_pod_container >= 0:
        limit_units(policy.max_per_pod_container)
    if 0 <= policy.max_containers < total():
        limit_units(max(1, policy.max_containers // len(units)))
        left = sorted((c for unit in units.values() for c in unit), key=lambda c: c.created_at_ns)
        gone += left[: max(0, total() - policy.max_containers)]
    return gone


def sandboxes_to_remove(
    found: Iterable[FoundSandbox], is_doomed: Callable[[str], bool]
) -> list[FoundSandbox]:
    """Sandboxes to remove if no containers are in them, oldest first: those that are not ready, except the
    newest of a pod that still exists.
    """
    pods: dict[str, list[FoundSandbox]] = {}
    for sandbox in found:
        pods.setdefault(sandbox.uid, []).append(sandbox)
    gone: list[FoundSandbox] = []
    for uid, sandboxes in pods.items():
        oldest_first = sorted(sandboxes, key=lambda s: (s.attempt, s.created_at_ns))
        candidates = oldest_first if is_doomed(uid) else oldest_first[:-1]
        gone += [sandbox for sandbox in candidates if not sandbox.ready]
    return gone


def containers_to_prune(
    status: PodStatus, exited_id: str, remove_all: bool, keep: int
) -> list[ContainerStatus]:
    """Dead containers of a pod to remove after one of them has ended, newest first.

    Of the name of `exited_id` (of all names if that is "") all but the newest `keep`; with
    `remove_all` all of them. Nothing if the status does not know `exited_id` (kubelet:
    `getContainersToDeleteInPod`).
    """
    dead = [c for c in status.containers if c.state is ContainerState.EXITED]
    if not remove_all and exited_id:
        names = {c.name for c in status.containers if c.id == exited_id}
        dead = [c for c in dead if c.name in names]
    dead.sort(key=lambda c: (-c.restart_count, -c.created_at_ns))
    return dead if remove_all else dead[keep:]


def uid_of_log_directory(name: str) -> str:
    """The pod's uid in the name of its log directory (`NAMESPACE_NAME_UID`, long ago just `UID`)."""
    return name.rpartition("_")[2]


class GarbageCollector:
    """Removes what nobody needs any more."""

    def __init__(
        self,
        *,
        runtime: RuntimeService,
        killer: Killer,
        remover: ContainerRemover,
        clock: Clock,
        pod_logs_dir: str,
        container_logs_dir: str,
    ) -> None:
        self._runtime = runtime
        self._killer = killer
        self._remover = remover
        self._clock = clock
        self._pod_logs_dir = pod_logs_dir
        self._container_logs_dir = container_logs_dir
        self._links_due = -math.inf  # on Trio's clock

    async def collect(
        self, policy: GCPolicy, states: PodStates, all_sources_ready: bool, evict_non_deleted_pods: bool
    ) -> None:
        """One collection. Raises ExceptionGroup of what kept a step from being done; single
        failures are logged.
        """

        def is_doomed(uid: str) -> bool:
            return states.should_content_be_removed(uid) or (
                evict_non_deleted_pods and states.should_runtime_be_removed(uid)
            )

        def nobody(uid: str) -> bool:
            return False

        steps: tuple[Callable[[], Awaitable[None]], ...] = (
            lambda: self._containers(policy, is_doomed if all_sources_ready else nobody),
            lambda: self._sandboxes(is_doomed),
            lambda: self._log_directories(states),
            self._dead_links,
        )
        failures: list[Exception] = []
        for step in steps:
            try:
                await step()
            except (CRIError, OSError) as error:
                failures.append(error)
        if failures:
            raise ExceptionGroup("garbage collection", failures)

    async def _containers(self, policy: GCPolicy, is_doomed: Callable[[str], bool]) -> None:
        listed = [
            container
            for state in _NOT_RUNNING
            for container in await self._runtime.list_containers(
                cri.ContainerFilter(state=cri.ContainerStateValue(state=state))
            )
        ]
        now_ns = self._clock.now_ns()
        young_ns = now_ns - round(policy.min_age * NANOSECONDS)
        # By ID: one that starts and ends meanwhile is in two lists.
        dead = {
            container.id: DeadContainer(
                id=container.id,
                uid=read_identity(container.labels).uid,
                name=container.metadata.name,
                attempt=container.metadata.attempt,
                created_at_ns=container.created_at,
                unknown=container.state == cri.CONTAINER_UNKNOWN,
                created=container.state == cri.CONTAINER_CREATED,
            )
            for container in listed
            if not young_ns < container.created_at <= now_ns  # later than now: the clock was set back
        }
        doomed = containers_to_remove(dead.values(), policy, is_doomed)
        await for_each(doomed, self._remove_container, _AT_ONCE, ASIDE)

    async def _remove_container(self, container: DeadContainer) -> None:
        try:
            if container.unknown:
                await self._killer.kill(
                    None,
                    container.id,
                    container.name,
                    message="Container is in unknown state, try killing it before removal",
                    reason=KillReason.UNKNOWN,
                )
            await self._remover.remove(container.id)
        except Exception as error:  # whatever it is, the others are removed
            log.error("Failed to remove container", containerID=container.id, err=error)

    async def _sandboxes(self, is_doomed: Callable[[str], bool]) -> None:
        not_ready = cri.PodSandboxStateValue(state=cri.SANDBOX_NOTREADY)
        if not await self._runtime.list_pod_sandboxes(cri.PodSandboxFilter(state=not_ready)):
            return
        found = [
            FoundSandbox(
                id=sandbox.id,
                uid=sandbox.metadata.uid,
                attempt=sandbox.metadata.attempt,
                created_at_ns=sandbox.created_at,
                ready=sandbox.state == cri.SANDBOX_READY,
            )
            for sandbox in await self._runtime.list_pod_sandboxes()
        ]
        await for_each(sandboxes_to_remove(found, is_doomed), self._remove_sandbox, _AT_ONCE, ASIDE)

    async def _remove_sandbox(self, sandbox: FoundSandbox) -> None:
        """Removes a sandbox without containers."""
        try:
            if await self._runtime.list_containers(cri.ContainerFilter(pod_sandbox_id=sandbox.id)):
                return
            await self._runtime.stop_pod_sandbox(sandbox.id)
            await self._runtime.remove_pod_sandbox(sandbox.id)
        except NotFound:
            return
        except Exception as error:  # whatever it is, the others are removed
            log.error("Failed to remove sandbox", podSandboxID=sandbox.id, err=error)

    async def _log_directories(self, states: PodStates) -> None:
        """Removes the log directories of pods that are gone."""
        try:
            names = await LOGS.run(os.listdir, self._pod_logs_dir)
        except FileNotFoundError:
            return
        for name in names:
            if states.should_content_be_removed(uid_of_log_directory(name)):
                try:
                    if await LOGS.run(_remove_logs, os.path.join(self._pod_logs_dir, name)):
                        self._links_due = -math.inf
                except Exception as error:  # whatever it is, the others are removed
                    log.error("Failed to remove pod logs directory", path=name, err=error)

    async def _dead_links(self) -> None:
        """Removes links to logs that are gone, unless their container lives: its log may just be rotated."""
        if trio.current_time() < self._links_due:
            return
        self._links_due = trio.current_time() + _LINKS_PERIOD
        for name in await LOGS.run(dead_links, self._container_logs_dir):
            container_id = container_id_of(name)
            if container_id and await self._may_write(container_id):
                continue
            try:
                await LOGS.run(remove_link, self._container_logs_dir, name)
            except OSError as error:
                log.error("Failed to remove container log dead symlink", path=name, err=error)

    async def _may_write(self, container_id: str) -> bool:
        try:
            status = (await self._runtime.container_status(container_id)).status
        except NotFound:
            return False
        except CRIError as error:
            log.warning("Error getting ContainerStatus for containerID", containerID=container_id, err=error)
            return True
        return status.state != cri.CONTAINER_EXITED


def _remove_logs(path: str) -> bool:
    """Removes a pod's log directory with all in it, or a file; fine if it is gone. Returns whether there
    were logs in it, which may have links. Raises OSError.
    """
    try:
        if os.path.islink(path) or not os.path.isdir(path):
            os.unlink(path)
            return True
        had_logs = any(files for _, _, files in os.walk(path))
        shutil.rmtree(path)
    except FileNotFoundError:
        return True
    return had_logs

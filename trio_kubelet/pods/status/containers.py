"""Container statuses of a pod's API status, from what is observed and what was said before.

Follows the kubelet's `convertToAPIContainerStatuses`: the newest container of a name is the state, the one
before it the last state; a container that is missing after it ran is shown as lost, not as never started;
one that is about to be started again shows the reason of the last failed start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar, regular_containers
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.observed.types import ContainerState, ContainerStatus, ContainerUser, PodStatus
from trio_kubelet.podinfo import restarts
from trio_kubelet.pods.status.resources import container_status_resources

CONTAINER_CREATING = "ContainerCreating"
POD_INITIALIZING = "PodInitializing"
STATUS_UNKNOWN = "ContainerStatusUnknown"
RESTARTING_ALL = "RestartingAllContainers"
LOST_EXIT_CODE = 137
_NONE = v1.ContainerState()
_NORMAL_END = (
    "Unable to get init container status from container runtime and pod has been initialized, "
    "treat it as exited normally"
)
_REMOVED_FOR_RESTART = "The container is removed because RestartAllContainers in place"

Reasons: TypeAlias = Mapping[str, tuple[str, str]]
"""Why the last start failed, by container name: reason and message."""


class StatusContext(msgspec.Struct, frozen=True, kw_only=True):
    """What container statuses depend on besides pod and observation."""

    runtime_name: str = "containerd"  # what container ids begin with
    reasons: Reasons = {}
    recursive_read_only: bool = False  # whether the pod's runtime handler can do it
    stop_signals: bool = False  # whether they are shown (KEP-4960)
    adopted: bool = (
        False  # what was said before was said in a static pod's mirror, by an agent before this one
    )


def container_statuses(
    pod: v1.Pod,
    observed: PodStatus,
    old: v1.PodStatus,
    context: StatusContext,
) -> tuple[list[v1.ContainerStatus], list[v1.ContainerStatus], list[v1.ContainerStatus]]:
    """Statuses of init containers (in order), containers and ephemeral containers (by name)."""
    restarting = restarts_all(pod, observed, old)
    kinds: tuple[tuple[Sequence[v1.Container], Sequence[v1.ContainerStatus] | None, bool], ...] = (
        (pod.spec.init_containers or (), old.init_container_statuses, True),
        (pod.spec.containers or (), old.container_statuses, False),
        (
            tuple(restarts.as_container(c) for c in pod.spec.ephemeral_containers or ()),
            old.ephemeral_container_statuses,
            False,
        ),
    )
    init, regular, ephemeral = (
        _Conversion(pod, observed, containers, previous or (), context, is_init, restarting).run()
        for containers, previous, is_init in kinds
    )
    return init, sorted(regular, key=_name), sorted(ephemeral, key=_name)


def restarts_all(pod: v1.Pod, observed: PodStatus, old: v1.PodStatus) -> bool:
    """Whether a container's end makes all containers of the pod start again (KEP-5532)."""
    if restarts.are_all_restarting(old):
        return True
    said = {s.name: s for s in (*(old.init_container_statuses or ()), *(old.container_statuses or ()))}
    for container in regular_containers(pod.spec):
        newest = observed.container_status(container.name)
        if newest is None or newest.state is not ContainerState.EXITED:
            continue
        if restarts.asks_for_all(container, newest):
            return True
        status = said.get(container.name)
        if status is not None and status.state.terminated is not None:
            rule = restarts.matching_rule(container, status.state.terminated.exit_code)
            if rule is not None and rule.action == restarts.RESTART_ALL_CONTAINERS:
                return True
    return False


def _name(status: v1.ContainerStatus) -> str:
    return status.name


def _waiting(reason: str = "", message: str = "") -> v1.ContainerState:
    return v1.ContainerState(waiting=v1.ContainerStateWaiting(reason=reason, message=message))


def _lost(reason: str, message: str) -> v1.ContainerStateTerminated:
    return v1.ContainerStateTerminated(reason=reason, message=message, exit_code=LOST_EXIT_CODE)


class _Conversion:
    """The conversion of one kind of containers; a class only to hold what all its steps need."""

    def __init__(
        self,
        pod: v1.Pod,
        observed: PodStatus,
        containers: Sequence[v1.Container],
        previous: Sequence[v1.ContainerStatus],
        context: StatusContext,
        is_init: bool,
        restarting: bool,
    ) -> None:
        self._pod = pod
        self._observed = observed
        self._containers = containers
        self._by_name = {container.name: container for container in containers}
        self._context = context
        self._is_init = is_init
        self._restarting = restarting
        self._old = {status.name: status for status in previous}
        self._ephemeral = {each.name for each in pod.spec.ephemeral_containers or ()}
        initialising = bool(pod.spec.init_containers)
        self._default_reason = POD_INITIALIZING if initialising else CONTAINER_CREATING
        self._statuses: dict[str, v1.ContainerStatus] = {}

    def run(self) -> list[v1.ContainerStatus]:
        """The statuses in the order of the containers."""
        for container in self._containers:
            self._statuses[container.name] = self._default(container)
        there = {status.name for status in self._observed.containers}
        for container in self._containers:
            if container.name not in there:
                self._missing(container)
        self._seen()
        for container in self._containers:
            self._about_to_start(container)
        return [self._statuses[container.name] for container in self._containers]

    def _default(self, container: v1.Container) -> v1.ContainerStatus:
        old = self._old.get(container.name)
        if old is not None and old.state.terminated is not None:
            return old
        return v1.ContainerStatus(
            name=container.name,
            image=container.image,
            state=_waiting(self._default_reason),
            volume_mounts=volume_mount_statuses(container, self._context.recursive_read_only),
            restart_count=old.restart_count if old else 0,
            last_state=old.last_state if old else _NONE,
        )

    def _missing(self, container: v1.Container) -> None:
        """The runtime has no container of that name: never started, or lost after it ran."""
        old = self._old.get(container.name)
        status = self._statuses[container.name]
        if old is None:
            return
        if self._restarting and old.state.waiting is None:
            self._statuses[container.name] = replace(
                status,
                state=_waiting(RESTARTING_ALL, _REMOVED_FOR_RESTART),
                last_state=v1.ContainerState(terminated=_lost(RESTARTING_ALL, _REMOVED_FOR_RESTART)),
                restart_count=old.restart_count + 1,
            )
            return
        if old.state.running is None or status.last_state.terminated is not None:
            return
        if container.name in self._ephemeral:  # which do not start again
            ended = _lost(STATUS_UNKNOWN, "The container could not be located when the pod was terminated")
            self._statuses[container.name] = replace(old, state=v1.ContainerState(terminated=ended))
            return
        if status.state.waiting is None or status.state.waiting.reason != self._default_reason:
            return
        message = (
            "The container could not be located when the pod was deleted.  The container used to be Running"
        )
        again = self._pod.metadata.deletion_timestamp is None
        self._statuses[container.name] = replace(
            status,
            last_state=v1.ContainerState(terminated=_lost(STATUS_UNKNOWN, message)),
            restart_count=status.restart_count + again,
        )

    def _seen(self) -> None:
        """The two newest containers of each name become state and last state."""
        for name in self._by_name:
            two = [self._convert(each) for each in self._observed.containers_named(name)[:2]]
            if two:
                last = two[1].state if len(two) > 1 else two[0].last_state
                self._statuses[name] = replace(two[0], last_state=last)

    def _convert(self, seen: ContainerStatus) -> v1.ContainerStatus:
        old = self._old.get(seen.name)
        container_id = f"{self._context.runtime_name}://{seen.id}"
        container = self._by_name[seen.name]
        restart_count, last_state = seen.restart_count, _NONE
        mounts = volume_mount_statuses(container, self._context.recursive_read_only)
        if old is not None:
            mounts = old.volume_mounts or mounts
            restart_count = max(restart_count, old.restart_count)
            if old.container_id != container_id and old.state.terminated is not None:
                last_state = v1.ContainerState(terminated=old.state.terminated)
            elif old.last_state.terminated is not None:
                last_state = v1.ContainerState(terminated=old.last_state.terminated)
        state, restart_count = self._state(seen, container_id, old, restart_count)
        return v1.ContainerStatus(
            name=seen.name,
            restart_count=restart_count,
            image=seen.image,
            image_id=seen.image_ref,
            container_id=container_id,
            state=state,
            last_state=last_state,
            volume_mounts=mounts,
            # Of this very container: its successor has to pass its startup probe itself.
            started=old.started if old is not None and old.container_id == container_id else None,
            resources=container_status_resources(container, seen, container_id, old),
            allocated_resources=container.resources.requests,
            user=_user(seen.user) if seen.user is not None else None,
            stop_signal=(seen.stop_signal or None) if self._context.stop_signals else None,
        )

    def _state(
        self, seen: ContainerStatus, container_id: str, old: v1.ContainerStatus | None, restart_count: int
    ) -> tuple[v1.ContainerState, int]:
        """The container's state, and its restart count where that has to be inferred."""
        match seen.state:
            case ContainerState.RUNNING:
                if (
                    old is not None
                    and old.state.terminated is not None
                    and old.restart_count >= seen.restart_count
                ):
                    restart_count = old.restart_count + 1
                running = v1.ContainerStateRunning(started_at=rfc3339(seen.started_at_ns))
                return v1.ContainerState(running=running), restart_count
            case ContainerState.EXITED:
                terminated = v1.ContainerStateTerminated(
                    exit_code=seen.exit_code,
                    reason=seen.reason,
                    message=seen.message,
                    started_at=rfc3339(seen.started_at_ns),
                    finished_at=rfc3339(seen.finished_at_ns),
                    container_id=container_id,
                )
                return v1.ContainerState(terminated=terminated), restart_count
            case ContainerState.UNKNOWN if old is not None and old.state.running is not None:
                reason = RESTARTING_ALL if self._restarting else STATUS_UNKNOWN
                message = "The container could not be located when the pod was terminated"
                return v1.ContainerState(terminated=_lost(reason, message)), old.restart_count + 1
            case _:
                return _waiting(), restart_count

    def _about_to_start(self, container: v1.Container) -> None:
        """A container that will be started (again) waits, for the reason its last start failed."""
        newest = self._observed.container_status(container.name)
        status = self._statuses[container.name]
        if self._is_init:
            if newest is not None and newest.state is ContainerState.EXITED and newest.exit_code == 0:
                return
            if newest is None and (done := self._inferred_end(container, status.state)) is not None:
                self._statuses[container.name] = replace(status, state=v1.ContainerState(terminated=done))
                return
        if not restarts.should_start(self._pod, container, self._observed):
            return
        failed = self._context.reasons.get(container.name)
        if failed is None:
            return
        last = status.state if status.state.terminated is not None else status.last_state
        self._statuses[container.name] = replace(status, last_state=last, state=_waiting(*failed))

    def _inferred_end(
        self, container: v1.Container, state: v1.ContainerState
    ) -> v1.ContainerStateTerminated | None:
        """How an init container that the runtime does not have any more must have ended, if that is new.

        A mirror that knows when it ended is believed, where the kubelet shows an end without moments.
        """
        if is_sidecar(container) or not self._surely_initialised:
            return None
        if state.waiting is not None:
            return v1.ContainerStateTerminated(reason="Completed", message=_NORMAL_END, exit_code=0)
        told = state.terminated
        if self._context.adopted and told is not None and told.exit_code == 0 and not told.message:
            return replace(told, message=_NORMAL_END)
        return None

    @cached_property
    def _surely_initialised(self) -> bool:
        """Whether a lost init container must have completed, as regular containers were created."""
        made = (ContainerState.CREATED, ContainerState.RUNNING, ContainerState.EXITED)
        for regular in self._pod.spec.containers or ():
            newest = self._observed.container_status(regular.name)
            if newest is not None and newest.state in made:
                return True
        return False


def volume_mount_statuses(
    container: v1.Container, recursive_read_only: bool
) -> list[v1.VolumeMountStatus] | None:
    """What is said of a container's mounts; read-only ones say whether all below is, too (KEP-3857)."""
    statuses = []
    for mount in container.volume_mounts or ():
        mode = None
        if mount.read_only:
            asked = mount.recursive_read_only in ("Enabled", "IfPossible")
            mode = "Enabled" if asked and recursive_read_only else "Disabled"
        statuses.append(
            v1.VolumeMountStatus(
                name=mount.name,
                mount_path=mount.mount_path,
                read_only=mount.read_only,
                recursive_read_only=mode,
            )
        )
    return statuses or None


@lru_cache(maxsize=256)
def _user(seen: ContainerUser) -> v1.ContainerUser:
    """One object for all containers of the same user."""
    groups = list(seen.supplemental_groups) or None
    return v1.ContainerUser(
        linux=v1.LinuxContainerUser(uid=seen.uid, gid=seen.gid, supplemental_groups=groups)
    )

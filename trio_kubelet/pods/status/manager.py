"""The latest API status of every pod, the one that `/pods` shows and that goes to the API server.

Keeps what must not jump about: moments of transition, start time, terminal phases, ended containers. Purely
in memory; whoever writes statuses to the API server listens to `changed` and reads `get`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec
from msgspec.structs import replace

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common import utf8
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.common.log import get_logger
from trio_kubelet.podinfo import restarts
from trio_kubelet.podinfo.updates import is_mirror_of, is_static
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.refs import FAILED, is_terminal_phase
from trio_kubelet.pods.status.conditions import (
    DISRUPTION_TARGET,
    OWN,
    RESIZE_IN_PROGRESS,
    RESIZE_PENDING,
    containers_ready,
    find,
    put,
    ready,
)
from trio_kubelet.pods.status.containers import LOST_EXIT_CODE, STATUS_UNKNOWN

log = get_logger(__name__)

MAX_MESSAGE_BYTES = 12 * 1024
"""Termination messages of all containers of a pod together."""


class VersionedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A status with what a writer needs to know: `version` grows with every change; `finished`: the node
    has done all it does for the pod; `untold`: the listeners hear of it with the next status of the pod.
    """

    pod: v1.Pod
    status: v1.PodStatus
    version: int
    finished: bool = False
    untold: bool = False


class StatusManager:
    """Statuses by pod UID; of a static pod under its own UID, not its mirror's."""

    def __init__(
        self, pods: PodManager, clock: Clock, ended: Callable[[str, int, str], None] | None = None
    ) -> None:
        """`ended` hears of each container that has ended: its type, exit code and reason."""
        self._pods = pods
        self._clock = clock
        self._ended = ended
        self._statuses: dict[str, VersionedStatus] = {}
        self.changed: Listeners[[str]] = Listeners()  # the UID
        self.forgotten: Listeners[[str]] = Listeners()  # the UID

    def retell(self, uid: str) -> None:
        """Calls the listeners without a change: where the status is shown is another place now."""
        self.changed.tell(uid)

    def get(self, uid: str) -> v1.PodStatus | None:
        """The latest status; a mirror's UID leads to its static pod."""
        found = self._statuses.get(self._pods.translate_uid(uid))
        return found.status if found is not None else None

    def versioned(self, uid: str) -> VersionedStatus | None:
        """The latest status with its version."""
        return self._statuses.get(uid)

    def is_shown(self, pod: v1.Pod) -> bool:
        """Whether setting the same status once more would change nothing and tell nobody."""
        found = self._statuses.get(pod.metadata.uid)
        return found is not None and not found.untold and pod.metadata.deletion_timestamp is None

    def all(self) -> dict[str, VersionedStatus]:
        """All statuses by UID."""
        return dict(self._statuses)

    def before(self, pod: v1.Pod) -> v1.PodStatus:
        """What was last said of the pod: by this agent, else in its mirror, else by its source."""
        found = self._statuses.get(pod.metadata.uid)
        if found is not None:
            return found.status
        mirror = self._pods.mirror_of(pod)
        if mirror is not None and is_mirror_of(mirror, pod):
            return mirror.status
        return pod.status

    def remember(self, pod: v1.Pod, mirror: v1.Pod) -> None:
        """A static pod's mirror may tell of the time before this agent, and come after the pod's first
        status: its containers are as ready as they were until a probe says otherwise, and what has not
        changed keeps its moments. A mirror of this agent's own is not older.
        """
        found = self._statuses.get(pod.metadata.uid)
        started = mirror.status.start_time
        if found is None or not started or not is_mirror_of(mirror, pod):
            return
        if started < (found.status.start_time or ""):
            known = replace(mirror.status, observed_generation=0)  # that of another object
            status = _as_ready_as(pod, found.status, known)
            status = settle(pod, status, known, rfc3339(self._clock.now_ns()))
            self._statuses[pod.metadata.uid] = replace(found, status=status, version=found.version + 1)

    def set(self, pod: v1.Pod, status: v1.PodStatus) -> v1.PodStatus:
        """Takes a new status and returns what became of it."""
        status = replace(status, observed_generation=pod.metadata.generation)
        return self._store(pod, status, force=pod.metadata.deletion_timestamp is not None, finished=False)

    def set_readiness(self, uid: str, container_id: str, is_ready: bool) -> None:
        """A readiness probe's verdict, shown at once; `container_id` without the runtime's prefix."""
        pod, found = self._pods.get(uid), self._statuses.get(uid)
        if pod is None or found is None:
            return
        status = _with_container(found.status, container_id, ready=is_ready)
        if status != found.status:
            self._store(pod, _with_ready_conditions(pod, status), force=False, finished=False)

    def set_startup(self, uid: str, container_id: str, is_started: bool) -> None:
        """A startup probe's verdict."""
        pod, found = self._pods.get(uid), self._statuses.get(uid)
        if pod is None or found is None:
            return
        status = _with_container(found.status, container_id, started=is_started)
        if status != found.status:
            self._store(pod, status, force=False, finished=False)

    def start_resize(self, pod: v1.Pod, in_progress: v1.PodCondition) -> None:
        """The pod was granted what it asked for. Its next status, which shows the amounts, tells of it: a
        round of its worker follows.
        """
        known = self._statuses.get(pod.metadata.uid)
        if known is None:
            self.put_condition(pod, in_progress)
            return
        conditions = [c for c in known.status.conditions or () if c.type != RESIZE_PENDING]
        status = replace(known.status, conditions=put(conditions, in_progress))
        status = settle(pod, status, known.status, rfc3339(self._clock.now_ns()))
        self._statuses[pod.metadata.uid] = replace(
            known, status=status, version=known.version + 1, untold=True
        )

    def put_condition(self, pod: v1.Pod, condition: v1.PodCondition) -> None:
        """Sets one condition of a pod."""
        status = self.before(pod)
        status = replace(status, conditions=put(status.conditions, condition))
        self._store(pod, status, force=False, finished=False)

    def drop_condition(self, pod: v1.Pod, kind: str) -> bool:
        """Takes one condition away; whether it was there."""
        found = self._statuses.get(pod.metadata.uid)
        if found is None or find(found.status.conditions, kind) is None:
            return False
        conditions = [c for c in found.status.conditions or () if c.type != kind]
        self._store(pod, replace(found.status, conditions=conditions), force=False, finished=False)
        return True

    def terminate(self, pod: v1.Pod) -> None:
        """The node is done with the pod: what is not known to have ended well is said to have failed."""
        status = terminated_status(pod, self.before(pod))
        self._store(pod, status, force=True, finished=True)

    def remove(self, uid: str) -> None:
        """Forgets a pod."""
        if self._statuses.pop(uid, None) is not None:
            self.forgotten.tell(uid)

    def keep_only(self, uids: Collection[str]) -> None:
        """Forgets every pod that is not among `uids`."""
        for uid in [uid for uid in self._statuses if uid not in uids]:
            self.remove(uid)

    def _store(self, pod: v1.Pod, status: v1.PodStatus, *, force: bool, finished: bool) -> v1.PodStatus:
        uid = pod.metadata.uid
        known = self._statuses.get(uid)
        old = self.before(pod)
        if (error := illegal_transition(pod, old, status)) is not None:
            log.error("Status update on pod aborted", pod=pod, podUID=uid, err=error)
            return old
        status = settle(pod, status, old, rfc3339(self._clock.now_ns()))
        if known is not None and known.finished and not is_static(pod):
            finished = True
        if self._ended is not None:
            for end in newly_ended(old, status):
                self._ended(*end)
        if known is not None and known.status == status and not force and not known.untold:
            return status
        self._statuses[uid] = VersionedStatus(
            pod=pod,
            status=status,
            version=known.version + 1 if known is not None else 1,
            finished=finished,
        )
        self.retell(uid)
        return status


def settle(pod: v1.Pod, status: v1.PodStatus, old: v1.PodStatus, now: str) -> v1.PodStatus:
    """The status with moments of transition, start time and generation that fit the last one, and messages
    that fit into it and are text: others could never be written. Pure.
    """
    before = {c.type: c for c in old.conditions or ()}
    conditions = []
    for condition in status.conditions or ():
        if condition.type not in OWN and condition.type != DISRUPTION_TARGET:
            conditions.append(condition)  # who set it knows since when
            continue
        known = before.get(condition.type)
        same = known is not None and _is_same_state(known, condition) and known.last_transition_time
        moment = known.last_transition_time if known is not None and same else now
        message = utf8.valid(condition.message)
        conditions.append(replace(condition, message=message, last_transition_time=moment))
    return replace(
        status,
        message=utf8.valid(status.message),
        conditions=conditions or None,
        start_time=old.start_time or status.start_time or now,
        observed_generation=max(status.observed_generation, old.observed_generation),
        **_messages_that_fit(pod, status),
    )


def _is_same_state(known: v1.PodCondition, condition: v1.PodCondition) -> bool:
    """Whether nothing changed that counts as a transition: the status; with a resize also why it is so, and
    which one is being made.
    """
    if condition.type == RESIZE_IN_PROGRESS and known.observed_generation != condition.observed_generation:
        return False
    is_of_resize = condition.type in (RESIZE_PENDING, RESIZE_IN_PROGRESS)
    return known.status == condition.status and (known.reason == condition.reason or not is_of_resize)


def _messages_that_fit(pod: v1.Pod, status: v1.PodStatus) -> dict[str, list[v1.ContainerStatus] | None]:
    """The container statuses with messages that are text, and termination messages that fit into a status."""
    spec = pod.spec
    kinds = (spec.containers, spec.init_containers, spec.ephemeral_containers)
    share = MAX_MESSAGE_BYTES // max(sum(len(kind or ()) for kind in kinds), 1)

    def cut(state: v1.ContainerState) -> v1.ContainerState:
        if (waits := state.waiting) is not None and not waits.message.isascii():
            return replace(state, waiting=replace(waits, message=utf8.valid(waits.message)))
        ended = state.terminated
        if ended is None or (ended.message.isascii() and len(ended.message) <= share):
            return state
        message = utf8.valid(ended.message).encode()[:share].decode(errors="ignore")
        return (
            state if message == ended.message else replace(state, terminated=replace(ended, message=message))
        )

    def fitting(status: v1.ContainerStatus) -> v1.ContainerStatus:
        state, last = cut(status.state), cut(status.last_state)
        if state is status.state and last is status.last_state:
            return status
        return replace(status, state=state, last_state=last)

    def each(statuses: Sequence[v1.ContainerStatus] | None) -> list[v1.ContainerStatus] | None:
        return [fitting(status) for status in statuses or ()] or None

    return {
        "container_statuses": each(status.container_statuses),
        "init_container_statuses": each(status.init_container_statuses),
        "ephemeral_container_statuses": each(status.ephemeral_container_statuses),
    }


def newly_ended(old: v1.PodStatus, new: v1.PodStatus) -> list[tuple[str, int, str]]:
    """Type, exit code and reason of each container that is shown as ended, and was not before. Pure."""
    found = []
    for kind, before, after in (
        ("init_container", old.init_container_statuses, new.init_container_statuses),
        ("container", old.container_statuses, new.container_statuses),
        ("ephemeral_container", old.ephemeral_container_statuses, new.ephemeral_container_statuses),
    ):
        known = {s.name for s in before or () if s.state.terminated is not None}
        for status in after or ():
            if (end := status.state.terminated) is not None and status.name not in known:
                found.append((kind, end.exit_code, end.reason))
    return found


def illegal_transition(pod: v1.Pod, old: v1.PodStatus, new: v1.PodStatus) -> str | None:
    """Why a status must not follow another: a container that ended for good does not come back. Pure."""
    if pod.spec.restart_policy == restarts.ALWAYS or restarts.may_restart_all(pod.spec):
        return None
    kinds = (
        (pod.spec.containers, old.container_statuses, new.container_statuses, ""),
        (pod.spec.init_containers, old.init_container_statuses, new.init_container_statuses, "init "),
    )
    for containers, old_statuses, new_statuses, kind in kinds:
        specs = {container.name: container for container in containers or ()}
        alive = {status.name for status in new_statuses or () if status.state.terminated is None}
        for status in old_statuses or ():
            container, ended = specs.get(status.name), status.state.terminated
            if container is None or ended is None or status.name not in alive:
                continue
            if kind and is_sidecar(container):
                continue
            # In a new sandbox all of such a pod but what succeeded starts anew, whatever a container says.
            if ended.exit_code != 0 and pod.spec.restart_policy == restarts.ON_FAILURE:
                continue
            if not restarts.should_restart_after(pod, container, ended.exit_code):
                name = f"terminated {kind}container {status.name}"
                return f"{name} attempted illegal transition to non-terminated state"
    return None


def terminated_status(pod: v1.Pod, status: v1.PodStatus) -> v1.PodStatus:
    """The last status of a pod: what never reported its end is shown as lost. Pure.

    As the kubelet's `TerminatePod`.
    """
    containers = status.container_statuses
    if _has_initialised(pod):
        containers = [_as_lost(s) for s in containers or ()] or None
    init = list(status.init_container_statuses or ())
    started = max((i + 1 for i, s in enumerate(init) if _has_started(s)), default=min(len(init), 1))
    init = [_as_lost(s) if i < started else s for i, s in enumerate(init)]
    phase = status.phase
    if not is_static(pod) and not is_terminal_phase(phase):
        phase = FAILED
    return replace(status, container_statuses=containers, init_container_statuses=init or None, phase=phase)


def _has_initialised(pod: v1.Pod) -> bool:
    """Whether regular containers may have been started, as far as the pod's source knows."""
    if not pod.spec.init_containers:
        return True
    if any(s.last_state.terminated or not s.state.waiting for s in pod.status.container_statuses or ()):
        return True
    statuses = pod.status.init_container_statuses or []
    if not statuses:
        return False
    last = statuses[-1]
    container = next((c for c in pod.spec.init_containers if c.name == last.name), None)
    if container is not None and is_sidecar(container):
        return last.state.running is not None and bool(last.started)
    ends = (last.last_state.terminated, last.state.terminated)
    return any(end is not None and end.exit_code == 0 for end in ends)


def _has_started(status: v1.ContainerStatus) -> bool:
    return status.state.waiting is None or status.last_state.terminated is not None


def _as_lost(status: v1.ContainerStatus) -> v1.ContainerStatus:
    if status.state.terminated is not None:
        return status
    lost = v1.ContainerStateTerminated(
        reason=STATUS_UNKNOWN,
        message="The container could not be located when the pod was terminated",
        exit_code=LOST_EXIT_CODE,
    )
    return replace(status, state=v1.ContainerState(terminated=lost))


def _as_ready_as(pod: v1.Pod, status: v1.PodStatus, shown: v1.PodStatus) -> v1.PodStatus:
    """The status with those containers ready and started that run and were shown as such."""
    for one in (*(shown.init_container_statuses or ()), *(shown.container_statuses or ())):
        if one.state.running is not None:
            number = one.container_id.rpartition("://")[2]
            status = _with_container(status, number, ready=one.ready or None, started=one.started or None)
    return _with_ready_conditions(pod, status)


def _with_ready_conditions(pod: v1.Pod, status: v1.PodStatus) -> v1.PodStatus:
    """The status with the conditions that follow from its containers' readiness."""
    containers = [*(status.init_container_statuses or ()), *(status.container_statuses or ())]
    conditions = put(status.conditions, ready(pod, containers, status.phase, status.conditions or ()))
    return replace(status, conditions=put(conditions, containers_ready(pod, containers, status.phase)))


def _with_container(
    status: v1.PodStatus, container_id: str, *, ready: bool | None = None, started: bool | None = None
) -> v1.PodStatus:
    """The status with one container's flag changed; unchanged if no such container runs."""

    def change(statuses: Sequence[v1.ContainerStatus] | None) -> list[v1.ContainerStatus] | None:
        changed = []
        for one in statuses or ():
            if one.state.running is not None and one.container_id.rpartition("://")[2] == container_id:
                one = replace(
                    one,
                    ready=one.ready if ready is None else ready,
                    started=one.started if started is None else started,
                )
            changed.append(one)
        return changed or None

    return replace(
        status,
        container_statuses=change(status.container_statuses),
        init_container_statuses=change(status.init_container_statuses),
    )

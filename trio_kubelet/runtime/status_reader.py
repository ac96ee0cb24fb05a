"""Reads what the runtime knows of pods into the agent's own values.

The parts of a pod are read in parallel, a few at a time: one pod with many containers does not hold
up the others, and one slow answer not its neighbours. What vanished between list and status is left
out, as if the list had not had it; any other failure fails the look as a whole, because half a
status would look like a dead container.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from sys import intern

import trio
from msgspec.structs import replace

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.interning import shared
from trio_kubelet.common.ip import parse_ip
from trio_kubelet.common.lanes import CONTAINER_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError, NotFound
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import (
    OOM_KILLED,
    ContainerResources,
    ContainerState,
    ContainerStatus,
    ContainerUser,
    PodParts,
    PodStatus,
    RunningContainer,
    RunningPod,
    SandboxStatus,
)
from trio_kubelet.podinfo.paths import clean_container_path
from trio_kubelet.runtime.configs.labels import POD_UID, read_identity, read_notes
from trio_kubelet.runtime.termination import FALLBACK_TO_LOGS, read_termination_message

log = get_logger(__name__)

PARALLEL_PARTS = 8
"""Status calls in flight for one pod."""

KILLED = 128 + 9
"""The exit code after SIGKILL."""
_SAYS_NOTHING = ("", "Error")
"""Reasons by which a runtime does not say why a container was killed."""

_STATES = {
    cri.CONTAINER_CREATED: ContainerState.CREATED,
    cri.CONTAINER_RUNNING: ContainerState.RUNNING,
    cri.CONTAINER_EXITED: ContainerState.EXITED,
}
_NO_PLACES: Mapping[str, str] = {}


def container_state(state: cri.ContainerState.ValueType) -> ContainerState:
    """The agent's word for a CRI state; what it does not know is unknown."""
    return _STATES.get(state, ContainerState.UNKNOWN)


def nobody_knows(container_id: str) -> bool:
    """Of no container it is known that the kernel's OOM killer ended a process of it."""
    return False


class StatusReader:
    """Looks at pods in the runtime. `oom_killed` tells whether the OOM killer ended a process of a container
    (its ID).
    """

    def __init__(
        self, runtime: RuntimeService, clock: Clock, oom_killed: Callable[[str], bool] = nobody_knows
    ) -> None:
        self._runtime = runtime
        self._clock = clock
        self._oom_killed = oom_killed
        self._fresh: dict[str, SandboxStatus] = {}  # by pod: made, and not looked at since

    async def pods(self, all: bool) -> list[RunningPod]:
        """All pods the runtime knows, newest first. Raises CRIError."""
        sandbox_filter = container_filter = None
        if not all:
            sandbox_filter = cri.PodSandboxFilter(state=cri.PodSandboxStateValue(state=cri.SANDBOX_READY))
            container_filter = cri.ContainerFilter(state=cri.ContainerStateValue(state=cri.CONTAINER_RUNNING))
        sandboxes = await self._runtime.list_pod_sandboxes(sandbox_filter)
        containers = await self._runtime.list_containers(container_filter)
        await trio.lowlevel.checkpoint()  # of many pods, each of the two takes milliseconds
        return running_pods(sandboxes, containers)

    async def pod(self, uid: str, name: str, namespace: str) -> PodStatus:
        """Lists the parts of one pod and reads them. Raises CRIError."""
        timestamp_ns = self._clock.now_ns()
        selector = {POD_UID: uid}
        sandboxes = await self._runtime.list_pod_sandboxes(cri.PodSandboxFilter(label_selector=selector))
        containers = await self._runtime.list_containers(cri.ContainerFilter(label_selector=selector))
        ids = [sandbox.id for sandbox in sorted(sandboxes, key=_sandbox_order)]
        parts = PodParts(
            uid=uid,
            name=name,
            namespace=namespace,
            sandbox_ids=ids,
            container_ids=[c.id for c in containers],
            timestamp_ns=timestamp_ns,
        )
        return await self._read(parts, _places(containers) if len(ids) > 1 else {})

    async def parts(self, parts: PodParts) -> PodStatus:
        """Reads the given parts of one pod; those that are gone are left out. Raises CRIError."""
        if len(parts.sandbox_ids) < 2:
            return await self._read(parts, {})
        selector = {POD_UID: parts.uid}
        containers = await self._runtime.list_containers(cri.ContainerFilter(label_selector=selector))
        return await self._read(parts, _places(containers))

    async def _read(self, parts: PodParts, places: Mapping[str, str]) -> PodStatus:
        """Reads the parts of one pod, whose containers are in the sandboxes that `places` says."""
        sandbox_ids, known = parts.sandbox_ids, parts.known
        fresh = self._fresh.pop(parts.uid, None)
        seen = {fresh.id: fresh} if fresh is not None and fresh.id in parts.ready else {}
        sandboxes = [seen.get(each) for each in sandbox_ids]
        unknown = [each for each in parts.container_ids if each not in known]
        containers: list[ContainerStatus | None] = [None] * len(unknown)

        async def read_sandbox(index: int) -> None:
            sandboxes[index] = await self._sandbox(sandbox_ids[index])

        async def read_container(index: int) -> None:
            containers[index] = await self.container(unknown[index])

        await run_bounded(
            PARALLEL_PARTS,
            [lambda i=i: read_sandbox(i) for i, sandbox in enumerate(sandboxes) if sandbox is None]
            + [lambda i=i: read_container(i) for i in range(len(unknown))],
        )
        found = tuple(sandbox for sandbox in sandboxes if sandbox is not None)
        containers += [known[each] for each in parts.container_ids if each in known]
        return assemble(
            PodStatus(
                uid=parts.uid,
                name=parts.name,
                namespace=parts.namespace,
                sandboxes=found,
                containers=tuple(container for container in containers if container is not None),
                timestamp_ns=parts.timestamp_ns,
            ),
            newest_sandbox_id=sandbox_ids[0] if sandbox_ids else "",
            places=places,
        )

    async def container(self, container_id: str) -> ContainerStatus | None:
        """One container's status with its termination message, None if it is gone. Raises CRIError."""
        try:
            answer = await self._runtime.container_status(container_id)
        except NotFound:
            return None
        status = convert_container(answer.status)
        if status.state is not ContainerState.EXITED:
            return status
        if status.exit_code == KILLED and status.reason in _SAYS_NOTHING and self._oom_killed(status.id):
            status = replace(status, reason=OOM_KILLED)
        paths = {mount.container_path: mount.host_path for mount in answer.status.mounts}
        return await self._with_termination_message(status, paths)

    async def fresh_sandbox(self, sandbox_id: str) -> SandboxStatus:
        """Status of a sandbox that was just made. Raises CRIError.

        The next look at its pod, which comes when the containers are started, does not read it again if the
        lists show it ready still. One without an address may just not have it yet.
        """
        status = convert_sandbox((await self._runtime.pod_sandbox_status(sandbox_id)).status)
        if status.ips or status.host_network:
            self._fresh[status.uid] = status
        return status

    def forget_fresh(self) -> None:
        """What was made and has not been looked at since will be read: to be called now and then."""
        self._fresh.clear()

    async def _sandbox(self, sandbox_id: str) -> SandboxStatus | None:
        try:
            answer = await self._runtime.pod_sandbox_status(sandbox_id)
        except NotFound:
            return None
        return convert_sandbox(answer.status)

    async def _with_termination_message(
        self, status: ContainerStatus, paths: Mapping[str, str]
    ) -> ContainerStatus:
        """A container that has ended, with what it left in its message file or log.

        `paths` are its mounts, path in the container to path on the node.
        """
        path = status.termination_message_path
        file_path = paths.get(clean_container_path(path), "") if path else ""
        # A container that could not be started at all has no log to fall back to.
        fallback = (
            status.termination_message_policy == FALLBACK_TO_LOGS
            and status.exit_code != 0
            and status.reason != "ContainerCannotRun"
        )
        if not file_path and not fallback:
            return status
        text = await CONTAINER_FILES.run(  # for itself: readers of the pod's logs must not hold up its status
            read_termination_message, file_path, status.log_path, fallback, owner=status.id
        )
        if not text:
            return status
        message = f"{status.message}: {text}" if status.message else text
        return replace(status, message=message)


def assemble(status: PodStatus, newest_sandbox_id: str, places: Mapping[str, str] = _NO_PLACES) -> PodStatus:
    """Brings what was read in order: containers newest first, each with its sandbox; addresses of the pod.

    `places` says of containers in which sandbox they are. Of others that is told by the time: a pod's
    containers are only ever created in its newest sandbox. But the clock may have been set back since. The
    addresses are those of the newest sandbox, if that is ready.
    """
    ips: tuple[str, ...] = ()
    for sandbox in status.sandboxes:
        if sandbox.id == newest_sandbox_id and sandbox.ready:
            ips = sandbox.ips
    # Of one moment, which a coarse clock makes of two, the later attempt is the newer.
    containers = sorted(status.containers, key=lambda c: (-c.created_at_ns, -c.restart_count))
    return replace(
        status,
        ips=ips,
        containers=tuple(
            replace(c, pod_sandbox_id=places.get(c.id) or _sandbox_of(c, status.sandboxes))
            for c in containers
        ),
    )


def _places(containers: Iterable[cri.Container]) -> dict[str, str]:
    """In which sandbox each container is, which only lists say."""
    return {container.id: container.pod_sandbox_id for container in containers}


def _sandbox_of(container: ContainerStatus, sandboxes: Sequence[SandboxStatus]) -> str:
    if len(sandboxes) == 1:
        return sandboxes[0].id
    older = [s for s in sandboxes if s.created_at_ns <= container.created_at_ns]
    return max(older, key=lambda s: s.created_at_ns).id if older else ""


def convert_sandbox(status: cri.PodSandboxStatus) -> SandboxStatus:
    """A sandbox's status in the agent's terms."""
    metadata = status.metadata
    return SandboxStatus(
        id=status.id,
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        attempt=metadata.attempt,
        ready=status.state == cri.SANDBOX_READY,
        created_at_ns=status.created_at,
        ips=sandbox_ips(status),
        network_reported=status.HasField("network"),
        host_network=status.linux.namespaces.options.network == cri.NODE,
        runtime_handler=status.runtime_handler,
        labels=dict(status.labels),
        annotations=dict(status.annotations),
    )


def sandbox_ips(status: cri.PodSandboxStatus) -> tuple[str, ...]:
    """The sandbox's addresses, the primary one first; none at all if one of them is no address."""
    ips = [status.network.ip] if status.network.ip else []
    ips += [ip.ip for ip in status.network.additional_ips]
    for ip in ips:
        if parse_ip(ip) is None:
            log.warning("Pod Sandbox reported an unparseable IP", sandboxID=status.id, IP=ip)
            return ()
    return tuple(ips)


def convert_container(status: cri.ContainerStatus) -> ContainerStatus:
    """A container's status in the agent's terms, without the termination message.

    What many containers have in common is shared: a node keeps thousands of these.
    """
    identity = read_identity(status.labels)
    notes = read_notes(status.annotations)
    state = container_state(status.state)
    exited = state is ContainerState.EXITED
    return ContainerStatus(
        id=status.id,
        name=intern(identity.container or status.metadata.name),
        state=state,
        created_at_ns=status.created_at,
        started_at_ns=status.started_at if state is not ContainerState.CREATED else 0,
        finished_at_ns=status.finished_at if exited else 0,
        exit_code=status.exit_code if exited else 0,
        image=intern(status.image.image),
        image_id=intern(status.image_id or status.image_ref),
        image_ref=intern(status.image_ref),
        hash=intern(notes.hash),
        restart_count=notes.restart_count,
        reason=status.reason if exited else "",
        message=status.message if exited else "",
        log_path=status.log_path,
        termination_message_path=intern(notes.termination_message_path),
        termination_message_policy=intern(notes.termination_message_policy),
        termination_grace_period=notes.termination_grace_period,
        resources=_resources(status),
        user=_user(status),
        stop_signal=signal_name(status.stop_signal),
    )


def _resources(status: cri.ContainerStatus) -> ContainerResources | None:
    if not status.resources.HasField("linux"):
        return None
    linux = status.resources.linux
    return shared(
        ContainerResources(
            cpu_period=linux.cpu_period or None,
            cpu_quota=linux.cpu_quota or None,
            cpu_shares=linux.cpu_shares or None,
            memory_limit_in_bytes=linux.memory_limit_in_bytes or None,
            unified=tuple(sorted(linux.unified.items())),
        )
    )


def _user(status: cri.ContainerStatus) -> ContainerUser | None:
    if not status.user.HasField("linux"):
        return None
    linux = status.user.linux
    groups = tuple(linux.supplemental_groups)
    return shared(ContainerUser(uid=linux.uid, gid=linux.gid, supplemental_groups=groups))


def signal_name(signal: cri.Signal.ValueType) -> str:
    """A signal as pods name it (`SIGRTMIN+3`); "" where the runtime does not say."""
    if signal == cri.RUNTIME_DEFAULT:
        return ""
    try:
        return intern(cri.Signal.Name(signal).replace("PLUS", "+").replace("MINUS", "-"))
    except ValueError:
        return ""


def running_pods(
    sandboxes: Sequence[cri.PodSandbox], containers: Sequence[cri.Container]
) -> list[RunningPod]:
    """Groups list answers by pod, newest pod first (kubelet: `GetPods`)."""
    pods: dict[str, RunningPod] = {}
    for sandbox in sorted(sandboxes, key=_sandbox_order):
        uid = sandbox.metadata.uid
        pod = pods.get(uid) or RunningPod(
            uid=uid, name=sandbox.metadata.name, namespace=sandbox.metadata.namespace
        )
        state = ContainerState.RUNNING if sandbox.state == cri.SANDBOX_READY else ContainerState.EXITED
        entry = RunningContainer(
            id=sandbox.id, name="", state=state, pod_sandbox_id=sandbox.id, created_at_ns=sandbox.created_at
        )
        pods[uid] = replace(pod, sandboxes=(*pod.sandboxes, entry), created_at_ns=sandbox.created_at)
    for container in sorted(containers, key=lambda c: (-c.created_at, c.id)):
        owner = read_identity(container.labels)
        pod = pods.get(owner.uid) or RunningPod(uid=owner.uid, name=owner.name, namespace=owner.namespace)
        entry = RunningContainer(
            id=container.id,
            name=container.metadata.name,
            state=container_state(container.state),
            pod_sandbox_id=container.pod_sandbox_id,
            created_at_ns=container.created_at,
        )
        pods[owner.uid] = replace(pod, containers=(*pod.containers, entry))
    return sorted(pods.values(), key=lambda pod: -pod.created_at_ns)


def _sandbox_order(sandbox: cri.PodSandbox) -> tuple[int, int, str]:
    """Newest first: by attempt, which survives a clock that jumps, then by time."""
    return -sandbox.metadata.attempt, -sandbox.created_at, sandbox.id


async def run_bounded(limit: int, jobs: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Runs jobs in parallel, at most `limit` at a time. The first failure cancels the rest and is
    raised as it is.
    """
    if len(jobs) < 2:
        for job in jobs:
            await job()
        return
    places = trio.CapacityLimiter(limit) if len(jobs) > limit else nullcontext()
    errors: list[CRIError] = []

    async def run(job: Callable[[], Awaitable[None]]) -> None:
        async with places:
            try:
                await job()
            except CRIError as error:
                errors.append(error)
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for job in jobs[1:]:
            nursery.start_soon(run, job)
        await run(jobs[0])
    if errors:
        raise errors[0]

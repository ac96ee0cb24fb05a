"""What this room needs from others, as small Protocols: runtime, PLEG, volumes, cgroups, directories, probes.

The pod workers know how a pod lives, not how a mount or a cgroup is made. Whoever composes the agent hands
the real ones in; tests stand in for them with a few lines of memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import trio

from trio_kubelet.api import v1
from trio_kubelet.api.v1 import Pod
from trio_kubelet.api.v1 import PodStatus as ApiPodStatus
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.credential_providers.doors import PullSecret
from trio_kubelet.native.types import PodView
from trio_kubelet.observed.probes import ProbeReadings, ProbeUpdate, ProbeView
from trio_kubelet.observed.types import PodLifecycleEvent, PodStatus, RunningPod
from trio_kubelet.pods.admission.admitter import Admit, Decision, Postpone, Preempt
from trio_kubelet.pods.admission.occupancy import Others
from trio_kubelet.pods.work import Attempt, SyncReport
from trio_kubelet.pods.worker_state import Worker
from trio_kubelet.runtime.doors import GCPolicy, PodStates, SyncContext
from trio_kubelet.runtime.results import PodSyncResult


class RuntimeDoor(Protocol):
    """Pods in the runtime (implemented by `runtime.pod_runtime.PodRuntime`)."""

    async def get_pods(self) -> list[RunningPod]: ...

    async def get_pod_status(self, uid: str, name: str, namespace: str) -> PodStatus: ...

    async def sync_pod(self, pod: Pod, status: PodStatus, context: SyncContext) -> PodSyncResult: ...

    async def kill_pod(
        self, pod: Pod | None, running: RunningPod | PodStatus, grace_override: float | None = None
    ) -> PodSyncResult: ...

    async def prune(
        self, status: PodStatus, exited_container_id: str, remove_all: bool, keep: int = 1
    ) -> None: ...

    async def garbage_collect(
        self,
        policy: GCPolicy,
        states: PodStates,
        *,
        all_sources_ready: bool,
        evict_non_deleted_pods: bool = False,
    ) -> None: ...

    def starting(self, uid: str) -> str:
        """ID of the pod's container that is being started, until its hook has ended; "" if none."""
        ...

    def collect_back_offs(self) -> None: ...


class TracesDoor(Protocol):
    """Where this room's work is seen (implemented by `tracing.Traces`)."""

    def syncer(self, syncer: SyncerDoor) -> SyncerDoor:
        """A syncer whose syncs are."""
        ...

    def span(self, name: str) -> AbstractContextManager[object]:
        """Around other work."""
        ...


class Untraced:
    """Nothing is seen."""

    def syncer(self, syncer: SyncerDoor) -> SyncerDoor:
        return syncer

    def span(self, name: str) -> AbstractContextManager[object]:
        return nullcontext()


class ClaimsDoor(Protocol):
    """What pods claim of drivers. Both raise ConfigError and may be called again."""

    async def prepare(self, pod: Pod) -> None:
        """Before the pod's sandbox is made."""
        ...

    async def unprepare(self, pod: Pod) -> None:
        """After its containers have stopped, before that is told."""
        ...


class PluggedDoor(ClaimsDoor, Protocol):
    """What is plugged into the node and what its pods have of it (implemented by `plugged.Plugged`)."""

    def given_health(self, pod: Pod, container: str) -> Sequence[v1.ResourceStatus]:
        """What the pod's status says of what a container was given."""
        ...

    def healthy(self) -> str | None:
        """Why no device plugin can register, None if they can."""
        ...


class NothingPlugged:
    """A node where nothing is claimed or given."""

    async def prepare(self, pod: Pod) -> None:
        pass

    async def unprepare(self, pod: Pod) -> None:
        pass

    def given_health(self, pod: Pod, container: str) -> Sequence[v1.ResourceStatus]:
        return ()

    def healthy(self) -> str | None:
        return None


class StatusDoor(Protocol):
    """What is observed of each pod (implemented by `pleg.cache.StatusCache`). Moments are Trio's."""

    def get(self, uid: str) -> PodStatus | None: ...

    async def get_newer_than(self, uid: str, moment: float) -> PodStatus: ...

    def known_newer_than(self, uid: str, moment: float) -> PodStatus | None: ...


class PlegDoor(Protocol):
    """The pod lifecycle event generator (implemented by `pleg.generic.GenericPLEG`)."""

    def watch(self) -> trio.MemoryReceiveChannel[PodLifecycleEvent]: ...

    async def update_one(self, uid: str, *, inspect: bool = False) -> None: ...

    def at_work(self, uid: str) -> AbstractContextManager[None]:
        """What the pod's worker does in it, it looks at itself."""
        ...

    def is_look_coming(self, uid: str, since: float) -> bool:
        """Whether a look at the pod that is yet to tell rests on lists that are newer than that moment."""
        ...

    def pod(self, uid: str) -> PodView | None: ...

    def namesakes(self, name: str, namespace: str) -> Iterable[str]:
        """UIDs of the pods of that name that were last listed."""
        ...

    def pods(self) -> Iterator[str]: ...


class HealthDoor(Protocol):
    """Whether the runtime can be worked with."""

    def runtime_error(self) -> str | None:
        """Why nothing can be synced (runtime down, PLEG unhealthy), None if all is well."""
        ...

    def network_error(self) -> str | None:
        """Why pods that do not use the host's network cannot start, None if they can."""
        ...


class SourcesDoor(Protocol):
    """Which pod sources have reported."""

    def add_source(self, source: str) -> None:
        """This source has reported once."""
        ...

    def all_ready(self) -> bool:
        """Whether every configured source has reported."""
        ...

    def source_ready(self, source: str) -> bool:
        """Whether this one has, or is not configured at all."""
        ...

    def manifests_ready(self) -> bool:
        """Whether every configured source of static pods has."""
        ...


class VolumesDoor(Protocol):
    """The volumes of pods. All calls may be repeated and go on where the last one stopped."""

    async def set_up(self, pod: Pod) -> None:
        """Everything the pod mounts is there afterwards. Raises VolumeError."""
        ...

    async def renew(self, pod: Pod) -> None:
        """Files the agent has written for the pod are up to date afterwards, as far as can be had."""
        ...

    async def tear_down(self, uid: str) -> None:
        """Nothing is mounted for the pod any more and its volumes are gone. Raises VolumeError."""
        ...


class CgroupError(Exception):
    """A pod cgroup could not be made or removed now."""


class CgroupsDoor(Protocol):
    """The cgroups of pods; an implementation without pod cgroups does nothing."""

    async def ensure(self, pod: Pod, *, running: Collection[str] = (), new: bool = False) -> bool:
        """Whether the pod's cgroup is there with its limits; nothing is done for one that is known to be. It
        is made where it is not, but not for a pod of which containers run (their names): they are outside of
        it, and are to be ended first. Of a `new` pod the runtime has nothing. Raises CgroupError.
        """
        ...

    async def remove(self, uid: str) -> None:
        """The pod's cgroup is gone, whatever class of service it was under. Raises CgroupError."""
        ...

    async def pods(self) -> Collection[str]:
        """UIDs of all pods that have a cgroup."""
        ...

    async def update_classes(self, pods: Iterable[Pod], *, all_known: bool = True) -> None:
        """The classes of service get what these pods, the active ones, ask for, and every cgroup has its
        limits again, whoever changed them. Until `all_known` they do not get less than an earlier agent, that
        knew the others, gave them. Raises CgroupError.
        """
        ...


class DirectoriesDoor(Protocol):
    """The pods' directories under the agent's root."""

    async def make(self, pod: Pod) -> None:
        """The pod's directories are there. Raises OSError."""
        ...

    async def pods(self) -> Collection[str]:
        """UIDs of all pods that have a directory. Raises OSError."""
        ...

    async def remove(self, uid: str) -> None:
        """The pod's directory is gone; what was mounted in it keeps its files. Raises OSError."""
        ...


class ProbeResults(Protocol):
    """The prober. `verdicts` tells of those that are others than before."""

    @property
    def verdicts(self) -> Listeners[[ProbeUpdate]]: ...

    def view(self) -> ProbeView: ...

    def readings(self) -> ProbeReadings: ...

    def add_pod(self, pod: Pod) -> None: ...

    def pod_status_changed(self, pod: Pod, status: ApiPodStatus) -> None:
        """A new status was made for the pod; probes see their containers through it."""
        ...

    def stop_liveness_and_startup(self, pod: Pod) -> None: ...

    def remove_pod(self, uid: str) -> None: ...

    def keep_only(self, uids: Collection[str]) -> None:
        """Stops probing every pod that is not among `uids`."""
        ...


class MirrorsDoor(Protocol):
    """Mirror pods at the API server; what is asked for here is done beside the caller."""

    def reconcile(self, pod: v1.Pod) -> None:
        """A static pod is to have a mirror that fits; of other pods nothing is done."""
        ...

    def delete_orphan(self, full_name: str) -> None:
        """The mirror of a static pod that is gone is to go, too."""
        ...


class NoMirrors:
    """Static pods are not shown anywhere else."""

    def reconcile(self, pod: v1.Pod) -> None:
        pass

    def delete_orphan(self, full_name: str) -> None:
        pass


class ClusterDoor(Protocol):
    """What pods have of the node's cluster (implemented by `cluster.Cluster` and `alone.Alone`)."""

    @property
    def mirrors(self) -> MirrorsDoor:
        """Where static pods are shown to it."""
        ...

    def host_ips(self) -> tuple[str, ...]:
        """The node's addresses as statuses show them, the primary one first."""
        ...

    async def pull_secrets(self, pod: Pod) -> Sequence[PullSecret]:
        """What the pod's images are pulled with, the pod's own credentials first."""
        ...


class NoCluster:
    """Neither mirrors nor addresses, and images are pulled without credentials."""

    mirrors: MirrorsDoor = NoMirrors()

    def host_ips(self) -> tuple[str, ...]:
        return ()

    async def pull_secrets(self, pod: Pod) -> Sequence[PullSecret]:
        return ()


class SyncerDoor(Protocol):
    """Does the work of each stage (kubelet: `podSyncer`). An error is reported, not raised."""

    async def sync_pod(self, worker: Worker, status: PodStatus, attempt: Attempt) -> SyncReport: ...

    def tell(self, worker: Worker, status: PodStatus) -> bool:
        """Says how a pod is while such a sync goes on; whether that is to end, for the pod's time is up."""
        ...

    async def sync_terminating_pod(
        self, worker: Worker, status: PodStatus, look: Callable[[], Awaitable[PodStatus]]
    ) -> SyncReport:
        """`look`: how the pod is now, once all is stopped. Raises InspectionFailed."""
        ...

    async def sync_terminating_runtime_pod(self, running: RunningPod, grace: int | None) -> SyncReport: ...

    async def sync_terminated_pod(self, worker: Worker, status: PodStatus) -> SyncReport: ...


class ResourceAllocator(Protocol):
    """Knows who hands things out."""

    def concerns(self, pod: Pod) -> bool:
        """Whether the pod asks for anything of the kind."""
        ...

    def passes(self, pod: Pod) -> None:
        """A pod that asks for nothing is let through, which counts as an admission, too."""
        ...

    async def allocate(self, pod: Pod) -> tuple[str, str] | None:
        """Gives the pod what it asks for; else reason and message of its refusal. What a pod was given stays
        with it, and asking again gives the same.
        """
        ...


class Admitter(Protocol):
    """Decides about pods. Nothing here waits."""

    def admit(self, pod: Pod, others: Others) -> Decision:
        """Whether `pod` may run beside `others`, the active pods of the node with what they were granted."""
        ...

    def granted(self, pod: Pod) -> None:
        """The pod starts: what it was granted is to be remembered."""
        ...

    def as_granted(self, pod: Pod) -> Pod:
        """The pod with the resources it was granted; the same object if it asks for nothing else."""
        ...

    def as_actuated(self, pod: Pod) -> Pod:
        """The pod with the resources it had, as long as a resize of it is not made; else the same object."""
        ...

    def resize(self, pod: Pod, others: Others) -> Admit | Postpone | Preempt:
        """Grants a running pod the resources it now asks for, if that is possible beside `others`.

        Preempt: nothing is granted before the victims have ended.
        """
        ...

    def lacks(self, before: Pod, pod: Pod) -> str:
        """What features of the node, which it has not, the change of the pod needs, in words for its user; ""
        for none.
        """
        ...

    def grant(self, pod: Pod) -> None:
        """A running pod gets the resources it now asks for: others have ended for it."""
        ...

    def actuated(self, uid: str) -> None:
        """The pod and its containers have what it was granted."""
        ...

    def forget(self, uid: str) -> None:
        """The pod is not wanted any more."""
        ...

    def keep_only(self, uids: Collection[str]) -> None:
        """These are all pods there are; what was remembered of others goes."""
        ...

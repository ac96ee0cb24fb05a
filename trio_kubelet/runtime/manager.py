"""The runtime room's face: look at pods in the runtime, bring one in line, end one, clean up.

The kubelet calls this `kubeGenericRuntimeManager`. Everything decided here is decided by pure functions in
the modules next to this one (`actions`, `backoff`, `gc`); this class only joins them with the CRI door.

Methods that bring something about return a `PodSyncResult` rather than raise: a pod that could not be
synced is a normal event, and its reasons belong into the pod's status. Methods that only look raise
`CRIError`. All of them may be cancelled at any await; the next look at the runtime finds what was left
behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.runtime.ports import PodStates, ProbeReadings, PullSecret
from trio_kubelet.runtime.results import PodSyncResult
from trio_kubelet.runtime.types import PodStatus, RunningPod


class SyncContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a sync needs to know besides the pod and its status."""

    probes: ProbeReadings = ProbeReadings()
    pull_secrets: Sequence[PullSecret] = ()
    restart_all_containers: bool = False  # a container rule asked for all containers to start again
    # Asked when a sandbox could not be created: a pod that is being deleted is then no error.
    is_termination_requested: Callable[[], bool] = lambda: False
    # Called when a new sandbox is up, before the images are pulled (condition PodReadyToStartContainers).
    on_sandbox_ready: Callable[[], Awaitable[None]] | None = None


class GCPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for dead containers (kubelet flags minimum-container-ttl-duration, maximum-dead-containers…).

    A negative limit means no limit; `min_age` in seconds.
    """

    min_age: float = 0.0
    max_per_pod_container: int = 1
    max_containers: int = -1


class PodRuntime:
    """Pods in the container runtime."""

    async def get_pods(self, all: bool = False) -> list[RunningPod]:
        """The pods the runtime knows, newest first; without `all` only what runs or is ready. Raises
        CRIError.
        """
        raise NotImplementedError

    async def get_pod_status(self, uid: str, name: str, namespace: str) -> PodStatus:
        """Lists what the runtime has of one pod and reads the status of each part. Raises CRIError."""
        raise NotImplementedError

    async def read_pod_status(
        self,
        uid: str,
        name: str,
        namespace: str,
        sandbox_ids: Sequence[str],
        container_ids: Sequence[str],
        timestamp_ns: int,
    ) -> PodStatus:
        """The same for parts already known from a list answer that was requested at `timestamp_ns`.

        `sandbox_ids` newest first. Parts that vanished meanwhile are left out. Raises CRIError.
        """
        raise NotImplementedError

    async def sync_pod(self, pod: v1.Pod, status: PodStatus, context: SyncContext) -> PodSyncResult:
        """Brings the runtime in line with the pod, as far as it can be done now (kubelet: `SyncPod`).

        Does one round: kill what should not run, create the sandbox, start what should run. Call again on the
        next event of the pod, or at `result.retry_at_ns()`.
        """
        raise NotImplementedError

    async def kill_pod(
        self, pod: v1.Pod | None, running: RunningPod | PodStatus, grace_override: float | None = None
    ) -> PodSyncResult:
        """Ends all containers of the pod (preStop hooks, sidecars last), then its sandboxes (kubelet:
        `KillPod`).

        `pod` None: an orphan; what is needed is read back from the containers' annotations.
        `grace_override` in seconds replaces the grace period of the pod. To shorten the grace of a kill
        that is under way, cancel the call and call again with the smaller value; a preStop hook that has
        run is not run again.
        """
        raise NotImplementedError

    async def delete_container(self, container_id: str) -> None:
        """Removes a dead container, its log files and its link. Raises CRIError."""
        raise NotImplementedError

    async def prune(
        self, status: PodStatus, exited_container_id: str, remove_all: bool, keep: int = 1
    ) -> None:
        """Removes dead containers of a pod after one of them died (kubelet: `podContainerDeletor`).

        The newest `keep` ones of that container's name stay; with `remove_all` (evicted or terminated pod)
        none of any name. Failures are logged, the next garbage collection tries again.
        """
        raise NotImplementedError

    async def garbage_collect(
        self,
        policy: GCPolicy,
        states: PodStates,
        *,
        all_sources_ready: bool,
        evict_non_deleted_pods: bool = False,
    ) -> None:
        """Removes dead containers, sandboxes, log directories and dead links. Raises ExceptionGroup at the
        end when something could not be removed; the rest is done nevertheless.
        """
        raise NotImplementedError

    def collect_back_offs(self) -> None:
        """Forgets back-off entries that are long over; to be called now and then by housekeeping."""
        raise NotImplementedError

    async def rotate_logs(self) -> None:
        """Rotates the logs of running containers for ever (`containerLogMaxSize`, …); a task for a nursery."""
        raise NotImplementedError

    async def exec_in_container(self, container_id: str, cmd: Sequence[str], timeout: float) -> bytes:
        """Runs a command and returns what it wrote to both streams. Raises CRIError or `hooks.ExitError`."""
        raise NotImplementedError

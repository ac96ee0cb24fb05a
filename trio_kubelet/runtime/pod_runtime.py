"""The runtime room's face: look at pods in the runtime, bring one in line, end one, clean up.

The kubelet calls this `kubeGenericRuntimeManager`. Everything decided here is decided by pure
functions in the modules next to this one (`actions`, `backoff`, `gc`); this class only joins them
with the CRI door.

Methods that bring something about return a `PodSyncResult` rather than raise: a pod that could not
be synced is a normal event, and its reasons belong in the pod's status. Methods that only look
raise `CRIError`. All of them may be cancelled at any await; the next look at the runtime finds what
was left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.services import ImageService, RuntimeService
from trio_kubelet.observed.types import PodParts, PodStatus, RunningPod
from trio_kubelet.podinfo.amounts import amount, whole
from trio_kubelet.podinfo.doors import PodRecorderDoor
from trio_kubelet.runtime.backoff import (
    CRASH_LOOP_INITIAL,
    CRASH_LOOP_MAX,
    REDUCED_CRASH_LOOP_INITIAL,
    REDUCED_CRASH_LOOP_MAX,
    container_back_off_key,
    crash_loop_back_off,
)
from trio_kubelet.runtime.doors import (
    AccessCheck,
    GCPolicy,
    HookHTTP,
    PodConfigs,
    PodLimits,
    PodStates,
    SyncContext,
)
from trio_kubelet.runtime.gc import GarbageCollector, containers_to_prune
from trio_kubelet.runtime.hooks import HookClient, HookRunner
from trio_kubelet.runtime.image_access import OpenToAll
from trio_kubelet.runtime.image_pulls import ImagePullSettings
from trio_kubelet.runtime.images import ImageManager, PullListener, nobody_listens
from trio_kubelet.runtime.kill_pod import Killer, nothing_ended
from trio_kubelet.runtime.log_linker import LogLinker
from trio_kubelet.runtime.log_rotation import LogRotator, Observed, RotationSettings
from trio_kubelet.runtime.metrics import RuntimeMetrics
from trio_kubelet.runtime.naming import ContainerEvents
from trio_kubelet.runtime.remove import ContainerRemover
from trio_kubelet.runtime.resize_pod import Resizer
from trio_kubelet.runtime.results import PodSyncResult
from trio_kubelet.runtime.slots import RuntimeSlots
from trio_kubelet.runtime.start_container import ContainerStarter
from trio_kubelet.runtime.status_reader import StatusReader, nobody_knows
from trio_kubelet.runtime.sync_pod import RuntimeSyncer

log = get_logger(__name__)


class RuntimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator can set of this room. Durations in seconds."""

    pod_logs_dir: str = "/var/log/pods"
    container_logs_dir: str = "/var/log/containers"
    first_container_restart_period: float = CRASH_LOOP_INITIAL
    max_container_restart_period: float = CRASH_LOOP_MAX
    pulls: ImagePullSettings = ImagePullSettings()
    rotation: RotationSettings = RotationSettings()
    cpus: int = 2

    @classmethod
    def from_config(cls, config: KubeletConfiguration) -> RuntimeSettings:
        """The settings in a kubelet configuration. Raises ValueError.

        A gate shortens both ends of the back-off of containers, the longer one where no maximum can be set
        (kubelet: `newCrashLoopBackOff`).
        """
        gates = resolve_gates(config.feature_gates)
        reduced = gates.enabled("ReduceDefaultCrashLoopBackOffDecay")
        period = config.crash_loop_back_off.max_container_restart_period
        if period is None:
            period = REDUCED_CRASH_LOOP_MAX if reduced else CRASH_LOOP_MAX
        return cls(
            pod_logs_dir=config.pod_logs_dir,
            first_container_restart_period=REDUCED_CRASH_LOOP_INITIAL if reduced else CRASH_LOOP_INITIAL,
            max_container_restart_period=period,
            pulls=ImagePullSettings(
                serialize=config.serialize_image_pulls,
                max_parallel=config.max_parallel_image_pulls,
                qps=config.registry_pull_qps,
                burst=config.registry_burst,
                by_handler=gates.enabled("RuntimeClassInImageCriApi"),
            ),
            rotation=RotationSettings(
                max_size=whole(amount(config.container_log_max_size)),
                max_files=config.container_log_max_files,
                workers=config.container_log_max_workers,
                interval=config.container_log_monitor_interval,
            ),
        )


class PodRuntime:
    """Pods in the container runtime."""

    def __init__(
        self,
        *,
        runtime: RuntimeService,
        images: ImageService,
        configs: PodConfigs,
        recorder: PodRecorderDoor,
        clock: Clock,
        hook_http: HookHTTP | None = None,  # None: a real HTTP client
        pod_limits: PodLimits | None = None,  # None: pods have no cgroups of their own
        metrics: RuntimeMetrics | None = None,  # None: they are not shown
        pulled: PullListener = nobody_listens,
        image_access: AccessCheck | None = OpenToAll(),
        oom_killed: Callable[[str], bool] = nobody_knows,
        has_ended: Callable[[str, str], bool] = nothing_ended,
        settings: RuntimeSettings,
    ) -> None:
        metrics = metrics or RuntimeMetrics(CollectorRegistry())
        self._runtime = runtime
        self._clock = clock
        self._reader = StatusReader(runtime, clock, oom_killed)
        events = ContainerEvents(recorder)
        hooks = HookRunner(
            runtime=runtime,
            http=hook_http or HookClient(),
            recorder=recorder,
            pod_ips=self._pod_ips,
            metrics=metrics,
        )
        self._killer = Killer(runtime, hooks, events, has_ended)
        self._remover = ContainerRemover(runtime, settings.container_logs_dir)
        self._resizer = Resizer(runtime=runtime, configs=configs, pod_limits=pod_limits, metrics=metrics)
        self._back_off = crash_loop_back_off(
            settings.max_container_restart_period, settings.first_container_restart_period
        )
        self._images = ImageManager(
            service=images,
            recorder=recorder,
            clock=clock,
            settings=settings.pulls,
            metrics=metrics,
            pulled=pulled,
            access=image_access,
        )
        slots = RuntimeSlots(settings.cpus)
        self._linker = LogLinker(settings.container_logs_dir)
        self._starter = ContainerStarter(
            runtime=runtime,
            slots=slots,
            configs=configs,
            images=self._images,
            hooks=hooks,
            killer=self._killer,
            events=events,
            linker=self._linker,
        )
        self._syncer = RuntimeSyncer(
            runtime=runtime,
            reader=self._reader,
            slots=slots,
            configs=configs,
            starter=self._starter,
            killer=self._killer,
            remover=self._remover,
            resizer=self._resizer,
            recorder=recorder,
            back_off=self._back_off,
            clock=clock,
            metrics=metrics,
        )
        self._collector = GarbageCollector(
            runtime=runtime,
            killer=self._killer,
            remover=self._remover,
            clock=clock,
            pod_logs_dir=settings.pod_logs_dir,
            container_logs_dir=settings.container_logs_dir,
        )
        self._rotator = LogRotator(runtime, clock, settings.rotation)

    async def get_pods(self, all: bool = False) -> list[RunningPod]:
        """The pods the runtime knows, newest first; without `all` only what runs or is ready.

        Raises CRIError.
        """
        return await self._reader.pods(all)

    async def get_pod_status(self, uid: str, name: str, namespace: str) -> PodStatus:
        """Lists what the runtime has of one pod and reads the status of each part. Raises CRIError."""
        return await self._reader.pod(uid, name, namespace)

    async def read_pod_status(self, parts: PodParts) -> PodStatus:
        """The same for parts that were listed already; those that vanished meanwhile are left out.

        Raises CRIError.
        """
        return await self._reader.parts(parts)

    async def sync_pod(self, pod: v1.Pod, status: PodStatus, context: SyncContext) -> PodSyncResult:
        """Brings the runtime in line with the pod, as far as it can be done now (kubelet: `SyncPod`).

        Does one round: kill what should not run, create the sandbox, start what should run. Call
        again on the next event of the pod, or at `result.retry_at_ns()`, with a status read after
        this call.
        """
        return await self._syncer.sync(pod, status, context)

    async def kill_pod(
        self, pod: v1.Pod | None, running: RunningPod | PodStatus, grace_override: float | None = None
    ) -> PodSyncResult:
        """Ends all containers of the pod (preStop hooks, sidecars last), then its sandboxes.

        `pod` None: an orphan; what is needed is read back from the containers' annotations.
        `grace_override` in seconds replaces the grace period of the pod. To shorten the grace of a
        kill that is under way, cancel the call and call again with the smaller value; a preStop
        hook that has run is not run again.
        """
        return await self._killer.kill_pod(pod, running, grace_override)

    async def prune(
        self, status: PodStatus, exited_container_id: str, remove_all: bool, keep: int = 1
    ) -> None:
        """Removes dead containers of a pod after one of them died (kubelet: `podContainerDeletor`).

        The newest `keep` ones of that container's name stay; with `remove_all` (evicted or
        terminated pod) none of any name. Failures are logged, the next garbage collection tries
        again.
        """
        for container in containers_to_prune(status, exited_container_id, remove_all, keep):
            try:
                await self._remover.remove(container.id)
            except (CRIError, OSError) as error:
                log.info("DeleteContainer returned error", containerID=container.id, err=error)

    async def garbage_collect(
        self,
        policy: GCPolicy,
        states: PodStates,
        *,
        all_sources_ready: bool,
        evict_non_deleted_pods: bool = False,
    ) -> None:
        """Removes dead containers, sandboxes, log directories and dead links.

        Raises ExceptionGroup at the end when something could not be listed or read; the rest is
        done nevertheless.
        """
        self._reader.forget_fresh()
        await self._collector.collect(policy, states, all_sources_ready, evict_non_deleted_pods)
        if self._resizer.has_grown():
            containers = await self._runtime.list_containers()
            known = {id for c in containers for id in (c.id, c.pod_sandbox_id)}
            self._resizer.forget_all_but(known)
            self._killer.forget_all_but(known)

    def held_until_ns(self, pod: v1.Pod, container: v1.Container, died_ns: int) -> int:
        """When the back-off ends that keeps a container from being started, 0 for none.

        `died_ns` is when its last run ended, 0 if it never ran: then its image is what is waited for.
        """
        restart = self._back_off.delay_ns(container_back_off_key(pod, container)) if died_ns else 0
        return died_ns + restart if restart else self._images.held_until_ns(pod.metadata.uid, container.image)

    def starting(self, uid: str) -> str:
        """ID of the pod's container that is being started, until its hook has ended; "" if none."""
        return self._starter.starting.get(uid, "")

    def collect_back_offs(self) -> None:
        """Forgets back-off entries that are long over; to be called now and then by housekeeping."""
        self._back_off.collect(self._clock.now_ns())
        self._images.collect_back_offs()

    async def rotate_logs(self, observed: Observed) -> None:
        """Rotates the logs of running containers for ever (`containerLogMaxSize`, …); a task for a nursery.

        `observed` tells what is known of all pods. Returns at once when rotation is off.
        """
        await self._rotator.run(observed)

    async def link_logs(self) -> None:
        """Makes the links of started containers for log collectors for ever; a task for a nursery.

        Without it each start makes its own, and waits for that.
        """
        await self._linker.run()

    async def _pod_ips(self, pod: v1.Pod) -> Sequence[str]:
        meta = pod.metadata
        return (await self._reader.pod(meta.uid, meta.name, meta.namespace)).ips

"""Does what `actions` decided for a pod (kubelet: `SyncPod`): kill, sandbox, init containers, containers.

Regular containers start one after the other in the pod's order: operators see that order, and a
postStart hook holds back those behind it, which some pods rely on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.api.containers import containers_with_path, is_sidecar
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.duration import format_duration
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.native.hashes import container_hash
from trio_kubelet.observed.types import ContainerState, PodStatus
from trio_kubelet.podinfo.doors import ConfigError, LogDirectoryError, PodRecorderDoor
from trio_kubelet.podinfo.downward import MOST_EXPANDED
from trio_kubelet.podinfo.restarts import as_container
from trio_kubelet.runtime.actions import Observed, compute_pod_actions
from trio_kubelet.runtime.backoff import BackOff, container_back_off_key
from trio_kubelet.runtime.doors import PodConfigs, SyncContext
from trio_kubelet.runtime.kill_pod import Killer
from trio_kubelet.runtime.metrics import RuntimeMetrics
from trio_kubelet.runtime.naming import ContainerEvents, pod_name
from trio_kubelet.runtime.plan import KillReason, PodActions
from trio_kubelet.runtime.remove import ContainerRemover
from trio_kubelet.runtime.resize_pod import Resizer
from trio_kubelet.runtime.results import PodSyncResult, Reason, StartError, SyncAction
from trio_kubelet.runtime.slots import RuntimeSlots
from trio_kubelet.runtime.start_container import ContainerStarter, PodInRuntime
from trio_kubelet.runtime.status_reader import StatusReader

log = get_logger(__name__)

_SANDBOX_ENDS_WITHIN_NS = 5 * NANOSECONDS
"""So long a sandbox that is being stopped may still look ready after its containers have ended."""

_IMAGE_VOLUME_MOUNT_FAILED = "ImageVolumeMountFailed"
"""How the runtime's error begins when the image of a volume cannot be mounted (`cri-api/pkg/errors`)."""


class _Stop(Exception):
    """The rest of the sync has to wait for the next one; why is in the result."""


class RuntimeSyncer:
    """Brings pods in line in the runtime, one round at a time."""

    def __init__(
        self,
        *,
        runtime: RuntimeService,
        reader: StatusReader,
        slots: RuntimeSlots,
        configs: PodConfigs,
        starter: ContainerStarter,
        killer: Killer,
        remover: ContainerRemover,
        resizer: Resizer,
        recorder: PodRecorderDoor,
        back_off: BackOff,
        clock: Clock,
        metrics: RuntimeMetrics,
    ) -> None:
        self._runtime = runtime
        self._reader = reader
        self._slots = slots
        self._configs = configs
        self._starter = starter
        self._killer = killer
        self._remover = remover
        self._resizer = resizer
        self._recorder = recorder
        self._events = ContainerEvents(recorder)
        self._back_off = back_off
        self._clock = clock
        self._metrics = metrics

    async def sync(self, pod: v1.Pod, status: PodStatus, context: SyncContext) -> PodSyncResult:
        """One round for a pod. What failed is in the result; raises nothing but Cancelled."""
        actuated = self._resizer.actuated(pod, status)
        actions = compute_pod_actions(
            pod,
            Observed(
                status=status,
                probes=context.probes,
                hash_of=container_hash,
                restart_all_containers=context.restart_all_containers,
                actuated=actuated,
                pod_resized=self._resizer.pod_differs(pod, status, context.resizing),
            ),
        )
        if not actions.nothing_to_do:
            log.v(3).info("Actions for pod", pod=pod, actions=actions)
        result = PodSyncResult()
        try:
            await self._kill(pod, status, actions, result)
            await self._prune_init_containers(pod, status)
            if actions.containers_to_resize or actions.resize_pod:
                resizes = actions.containers_to_resize
                await self._resizer.apply(pod, actions.sandbox_id, resizes, actions.resize_pod, result)
            if actions.create_sandbox or actions.starts_something:
                try:
                    place = await self._sandbox(pod, status, actions, context, result)
                    await self._start_all(place, actions, result)
                finally:
                    # That a user namespace cannot be had may show wherever something is started.
                    if actions.create_sandbox and pod.spec.host_users is False and not result.ok:
                        self._metrics.started_user_namespaced_pods_errors.inc()
            elif not actions.kill_pod:
                self._configs.remind(pod)
        except _Stop:
            pass
        return result

    async def _kill(self, pod: v1.Pod, status: PodStatus, actions: PodActions, result: PodSyncResult) -> None:
        """Ends what must not go on."""
        if actions.create_sandbox and actions.sandbox_id:
            self._recorder.record(
                pod, "Normal", "SandboxChanged", "Pod sandbox changed, it will be killed and re-created."
            )
        if actions.kill_pod:
            killed = await self._killer.kill_pod(pod, status, None)
            result.extend(killed)
            if not killed.ok:
                raise _Stop
            if actions.create_sandbox:
                self._forgive(pod, actions.sandbox_id)
            return
        for kill in actions.containers_to_kill.values():
            try:
                await self._killer.kill(pod, kill.id, kill.name, message=kill.message, reason=kill.reason)
            except CRIError as error:
                result.add(SyncAction.KILL_CONTAINER, kill.name, Reason.KILL_CONTAINER_ERROR, str(error))
                raise _Stop from error
            result.add(SyncAction.KILL_CONTAINER, kill.name)
        await self._reset(pod, actions, result)

    async def _reset(self, pod: v1.Pod, actions: PodActions, result: PodSyncResult) -> None:
        """Removes all containers because a container's rule asked for it; their logs stay."""
        for reset in actions.containers_to_reset:
            reason = Reason.KILL_CONTAINER_ERROR
            try:
                if reset.kill:
                    await self._killer.kill(
                        pod,
                        reset.id,
                        reset.name,
                        message="killing",
                        reason=KillReason.RESTART_ALL_CONTAINERS,
                        grace_override=0,
                    )
                reason = Reason.REMOVE_CONTAINER_ERROR
                await self._remover.remove(reset.id, keep_logs=True)
            except (CRIError, OSError) as error:
                result.add(SyncAction.REMOVE_CONTAINER, reset.name, reason, error_words(error))
                raise _Stop from error
            result.add(SyncAction.REMOVE_CONTAINER, reset.name)

    def _forgive(self, pod: v1.Pod, sandbox_id: str) -> None:
        """Containers that died with their sandbox and were started in it once more, as it still looked ready,
        did not crash: what that start added to their back-off is taken back.
        """
        since_ns = self._clock.now_ns() - _SANDBOX_ENDS_WITHIN_NS
        for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
            self._back_off.take_back(container_back_off_key(pod, container), sandbox_id, since_ns)

    async def _prune_init_containers(self, pod: v1.Pod, status: PodStatus) -> None:
        """Removes all but the newest dead one of each init container."""
        superfluous: list[str] = []
        for container in pod.spec.init_containers or ():
            dead = [
                c.id
                for c in status.containers_named(container.name)
                if c.state in (ContainerState.EXITED, ContainerState.UNKNOWN)
            ]
            superfluous += dead[1:]
        await self._remove(superfluous, pod)

    async def _remove(self, ids: Sequence[str], pod: v1.Pod) -> None:
        for container_id in ids:
            try:
                await self._remover.remove(container_id)
            except (CRIError, OSError) as error:
                log.error("Failed to remove pod init container", pod=pod, containerID=container_id, err=error)

    async def _sandbox(
        self, pod: v1.Pod, status: PodStatus, actions: PodActions, context: SyncContext, result: PodSyncResult
    ) -> PodInRuntime:
        """The sandbox to start containers in, a new one if need be."""
        if actions.create_sandbox:
            self._metrics.started_pods.inc()
            if pod.spec.host_users is False:
                self._metrics.started_user_namespaced_pods.inc()
        try:
            handler = self._configs.runtime_handler(pod)
            config = await self._configs.sandbox_config(pod, actions.attempt)
        except ConfigError as error:
            if actions.create_sandbox:
                what = (
                    "create log directory"
                    if isinstance(error, LogDirectoryError)
                    else "generate sandbox config"
                )
                message = f'Failed to {what} for pod "{pod_name(pod)}": {error}'
                self._fail_sandbox(pod, context, result, message, str(error))
            else:
                result.fail(f'GeneratePodSandboxConfig for pod "{pod_name(pod)}" failed: {error}')
            raise _Stop from error
        place = PodInRuntime(
            pod=pod,
            status=status,
            sandbox_id=actions.sandbox_id,
            sandbox_config=config,
            ips=status.ips,
            runtime_handler=handler,
            pull_secrets=tuple(context.pull_secrets),
            finishing=context.finishing,
        )
        if not actions.create_sandbox:
            return place
        return await self._create_sandbox(place, context, result)

    async def _create_sandbox(
        self, place: PodInRuntime, context: SyncContext, result: PodSyncResult
    ) -> PodInRuntime:
        pod, config = place.pod, place.sandbox_config
        if context.prepare_claims is not None:
            try:
                await context.prepare_claims()
            except ConfigError as error:
                text = f"Failed to prepare dynamic resources: {error}"
                self._recorder.record(pod, "Warning", "FailedPrepareDynamicResources", text)
                log.error("Failed to prepare dynamic resources", pod=pod, err=error)
                result.fail(text)
                raise _Stop from error
        try:
            sandbox_id = await self._slots.call(
                "sandbox", lambda: self._run_sandbox(config, place.runtime_handler), critical=place.critical
            )
        except CRIError as error:
            self._metrics.run_sandbox_errors.labels(place.runtime_handler).inc()
            message = f'Failed to create sandbox for pod "{pod_name(pod)}": {error}'
            self._fail_sandbox(pod, context, result, message, str(error))
            raise _Stop from error
        result.add(SyncAction.CREATE_POD_SANDBOX, pod_name(pod))
        self._resizer.note_sandbox(sandbox_id, pod)
        try:
            sandbox = await self._reader.fresh_sandbox(sandbox_id)
        except CRIError as error:
            self._recorder.record(
                pod, "Warning", "FailedPodSandBoxStatus", f"Unable to get pod sandbox status: {error}"
            )
            result.fail(str(error))
            raise _Stop from error
        if context.on_sandbox_ready is not None:
            await context.on_sandbox_ready()
        ips = place.ips if pod.spec.host_network else sandbox.ips
        return msgspec.structs.replace(place, sandbox_id=sandbox_id, ips=ips)

    async def _run_sandbox(self, config: cri.PodSandboxConfig, handler: str) -> str:
        with self._metrics.run_sandbox_duration.labels(handler).time():
            return await self._runtime.run_pod_sandbox(config, handler)

    def _fail_sandbox(
        self, pod: v1.Pod, context: SyncContext, result: PodSyncResult, message: str, cause: str
    ) -> None:
        """A sandbox could not be made; of a pod that is being deleted nobody needs to hear that."""
        if context.is_termination_requested():
            log.v(4).info("Pod was deleted and sandbox failed to be created", pod=pod)
            result.add(SyncAction.CREATE_POD_SANDBOX, pod_name(pod))
            return
        log.error("CreatePodSandbox for pod failed", pod=pod, err=cause)
        self._metrics.started_pods_errors.inc()
        result.add(SyncAction.CREATE_POD_SANDBOX, pod_name(pod), Reason.CREATE_POD_SANDBOX_ERROR, message)
        self._recorder.record(
            pod, "Warning", "FailedCreatePodSandBox", f"Failed to create pod sandbox: {cause}"
        )

    async def _start_all(self, place: PodInRuntime, actions: PodActions, result: PodSyncResult) -> None:
        """Starts ephemeral containers, then init containers, then regular ones."""
        volumes = await self._image_volumes(place)
        pod = place.pod
        for index in actions.ephemeral_containers_to_start:
            assert pod.spec.ephemeral_containers is not None
            ephemeral = pod.spec.ephemeral_containers[index]
            container = as_container(ephemeral)
            target = ephemeral.target_container_name
            await self._start(place, container, "ephemeral_container", volumes, result, target)
        for index in actions.init_containers_to_start:
            assert pod.spec.init_containers is not None
            container = pod.spec.init_containers[index]
            started = await self._start(place, container, "init_container", volumes, result)
            if not started and not is_sidecar(container):
                raise _Stop
        for index in actions.containers_to_start:
            assert pod.spec.containers is not None
            await self._start(place, pod.spec.containers[index], "container", volumes, result)

    async def _start(
        self,
        place: PodInRuntime,
        container: v1.Container,
        kind: str,
        volumes: Mapping[str, cri.ImageSpec | StartError],
        result: PodSyncResult,
        target: str = "",
    ) -> bool:
        """Starts one container unless it is held back; whether it was started."""
        try:
            self._hold_back(place, container)
            self._metrics.started_containers.labels(kind).inc()
            mounted = await self._mounted_images(place, container, volumes)
            try:
                container_id = await self._starter.start(place, container, mounted, target)
            except StartError as error:
                self._count_images(container, mounted, error)
                self._metrics.started_containers_errors.labels(kind, error.reason).inc()
                raise
            self._resizer.note_start(container_id, container, place.pod)
            self._count_images(container, mounted, None)
        except StartError as error:
            result.add(
                SyncAction.START_CONTAINER, container.name, error.reason, error.message, error.retry_at_ns
            )
            log.v(3).info(
                "Container start failed in pod", pod=place.pod, containerName=container.name, err=error
            )
            await trio.lowlevel.checkpoint()  # it may have failed without one, and so may thousands
            return False
        result.add(SyncAction.START_CONTAINER, container.name)
        return True

    def _count_images(
        self, container: v1.Container, mounted: Collection[str], error: StartError | None
    ) -> None:
        """Counts the image volumes of a container: each mount of one failed only if the runtime says so."""
        self._metrics.image_volume_requested.inc(len(mounted))
        failed = (
            error is not None
            and error.reason is Reason.CREATE_CONTAINER_ERROR
            and error.message.startswith(_IMAGE_VOLUME_MOUNT_FAILED)
        )
        metric = self._metrics.image_volume_errors if failed else self._metrics.image_volume_mounted
        metric.inc(sum(mount.name in mounted for mount in container.volume_mounts or ()))

    def _hold_back(self, place: PodInRuntime, container: v1.Container) -> None:
        """Raises StartError while the back-off of a container that crashed has not passed."""
        dead = next(
            (c for c in place.status.containers_named(container.name) if c.state is ContainerState.EXITED),
            None,
        )
        if dead is None:
            return
        key = container_back_off_key(place.pod, container)
        now_ns = self._clock.now_ns()
        if not self._back_off.waits_since_event(key, dead.finished_at_ns, now_ns):
            again = place.sandbox_id if dead.pod_sandbox_id == place.sandbox_id else None
            self._back_off.next(key, dead.finished_at_ns, now_ns, again)
            return
        name = pod_name(place.pod)
        self._events.warning(
            place.pod,
            container.name,
            "BackOff",
            f"Back-off restarting failed container {container.name} in pod {name}",
        )
        delay_ns = self._back_off.delay_ns(key)
        raise StartError(
            Reason.CRASH_LOOP_BACK_OFF,
            f"back-off {format_duration(delay_ns / NANOSECONDS)} restarting failed"
            f" container={container.name} pod={name}",
            dead.finished_at_ns + delay_ns,
        )

    async def _image_volumes(self, place: PodInRuntime) -> dict[str, cri.ImageSpec | StartError]:
        """Makes the images of image volumes present; a failure counts only for those who mount the volume."""
        images: dict[str, cri.ImageSpec | StartError] = {}
        volumes = [volume for volume in place.pod.spec.volumes or () if volume.image is not None]
        if (problem := _too_much_annotated(place.pod, {volume.name for volume in volumes})) is not None:
            return dict.fromkeys((volume.name for volume in volumes), problem)
        for volume in volumes:
            await trio.lowlevel.checkpoint()  # that one is there, or never will be, may be known without one
            assert volume.image is not None
            try:
                present = await self._starter.ensure_image(
                    place, volume.image.reference, volume.image.pull_policy, None
                )
            except StartError as error:
                images[volume.name] = error
                continue
            images[volume.name] = cri.ImageSpec(
                image=present.ref,
                user_specified_image=volume.image.reference,
                annotations=place.pod.metadata.annotations or {},
                runtime_handler=present.handler,
            )
        return images

    async def _mounted_images(
        self, place: PodInRuntime, container: v1.Container, volumes: Mapping[str, cri.ImageSpec | StartError]
    ) -> dict[str, cri.ImageSpec]:
        mounted: dict[str, cri.ImageSpec] = {}
        failure: StartError | None = None
        for mount in container.volume_mounts or ():
            found = volumes.get(mount.name)
            if isinstance(found, StartError):
                self._events.warning(place.pod, container.name, "Failed", f"Error: {found.reason}")
                failure = found
                await trio.lowlevel.checkpoint()
            elif found is not None:
                mounted[mount.name] = found
        if failure is not None:
            raise failure
        return mounted


def _too_much_annotated(pod: v1.Pod, image_volumes: Collection[str]) -> StartError | None:
    """Why image volumes cannot be mounted: the runtime is told the pod's annotations with each of them, and
    with each of their mounts.
    """
    annotations = sum(len(key) + len(value) for key, value in (pod.metadata.annotations or {}).items())
    mounts = [m for each, _ in containers_with_path(pod.spec) for m in each.volume_mounts or ()]
    copies = len(image_volumes) + sum(mount.name in image_volumes for mount in mounts)
    if copies * annotations <= MOST_EXPANDED:
        return None
    text = f"the pod's annotations, in {copies} image volumes and mounts, have more than"
    return StartError(Reason.CREATE_CONTAINER_CONFIG_ERROR, f"{text} {MOST_EXPANDED} characters")

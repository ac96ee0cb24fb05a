"""Starts one container: image, config, create, start, link to its log, postStart hook (kubelet:
`startContainer`).

A create or start call that failed may have been executed nevertheless. Nothing is assumed about it:
the next look at the runtime shows what became of it. A container found created but not started is
removed before another one of its name is made, so a late start cannot bring two of them to life.

A start that is under way when its pod is to end goes on first (kubelet: a sync's context is never cancelled).
Broken off, it leaves a container that has failed to start, and so a pod that has failed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.common.finishing import Finishing
from trio_kubelet.common.log import get_logger
from trio_kubelet.credential_providers.doors import PullSecret
from trio_kubelet.cri.errors import CRIError, NotFound
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import ContainerState, PodStatus
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.qos import is_critical_pod
from trio_kubelet.podinfo.restarts import field_path
from trio_kubelet.runtime.doors import ContainerRequest, PodConfigs
from trio_kubelet.runtime.hooks import HookError, HookRunner
from trio_kubelet.runtime.images import ImageManager, ImageRequest, PresentImage
from trio_kubelet.runtime.kill_pod import Killer
from trio_kubelet.runtime.log_linker import LogLinker
from trio_kubelet.runtime.log_links import LogLink, link_name
from trio_kubelet.runtime.naming import ContainerEvents
from trio_kubelet.runtime.plan import KillReason
from trio_kubelet.runtime.results import Reason, StartError
from trio_kubelet.runtime.slots import RuntimeSlots

log = get_logger(__name__)

_STARTS_WITHIN = 10.0  # seconds, once the pod is to end


class PodInRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """A pod with the sandbox its containers are started in."""

    pod: v1.Pod
    status: PodStatus
    sandbox_id: str
    sandbox_config: cri.PodSandboxConfig
    ips: tuple[str, ...] = ()
    runtime_handler: str = ""
    pull_secrets: tuple[PullSecret, ...] = ()
    finishing: Finishing

    @property
    def critical(self) -> bool:
        """Whether it is started before others."""
        return is_critical_pod(self.pod)


class ContainerStarter:
    """Starts containers."""

    def __init__(
        self,
        *,
        runtime: RuntimeService,
        slots: RuntimeSlots,
        configs: PodConfigs,
        images: ImageManager,
        hooks: HookRunner,
        killer: Killer,
        events: ContainerEvents,
        linker: LogLinker,
    ) -> None:
        self._runtime = runtime
        self._slots = slots
        self._configs = configs
        self._images = images
        self._hooks = hooks
        self._killer = killer
        self._events = events
        self._linker = linker
        self.starting: dict[str, str] = {}
        """By UID of the pod: the container that has not started, whatever the runtime says, until its call to
        start is answered and its postStart hook has ended. A pod's containers start one after the other.
        """

    async def start(
        self,
        place: PodInRuntime,
        container: v1.Container,
        image_volumes: Mapping[str, cri.ImageSpec],
        target: str = "",
    ) -> str:
        """Starts the container and returns its id. `target`: the container an ephemeral one looks into.

        Raises StartError.
        """
        pod = place.pod
        image = await self.ensure_image(place, container.image, container.image_pull_policy, container)
        config = await self._config(place, container, image, image_volumes, target)
        await self._remove_never_started(place, container)
        try:
            container_id = await self._slots.call(
                "container",
                lambda: self._create_and_start(place, container, config),
                critical=place.critical,
                begun=True,
            )
            await self._linker.add(_log_link(place, config, container_id))
            await self._post_start(pod, container, container_id)
        finally:
            self.starting.pop(pod.metadata.uid, None)
        return container_id

    async def _create_and_start(
        self, place: PodInRuntime, container: v1.Container, config: cri.ContainerConfig
    ) -> str:
        pod = place.pod
        try:
            container_id = await self._runtime.create_container(
                place.sandbox_id, config, place.sandbox_config
            )
        except CRIError as error:
            self._images.doubt()
            self._events.warning(pod, container.name, "Failed", f"Error: {error.message}")
            raise StartError(Reason.CREATE_CONTAINER_ERROR, error.message) from error
        self.starting[pod.metadata.uid] = container_id
        self._events.normal(pod, container.name, "Created", "Container created", container_id)
        try:
            await place.finishing.let_finish(
                lambda: self._runtime.start_container(container_id), _STARTS_WITHIN
            )
        except CRIError as error:
            self._events.warning(pod, container.name, "Failed", f"Error: {error.message}", container_id)
            raise StartError(Reason.RUN_CONTAINER_ERROR, error.message) from error
        self._events.normal(pod, container.name, "Started", "Container started", container_id)
        return container_id

    async def ensure_image(
        self, place: PodInRuntime, image: str, pull_policy: str, container: v1.Container | None
    ) -> PresentImage:
        """Makes an image present for a container (None: for a volume of the pod). Raises StartError."""
        request = ImageRequest(
            pod=place.pod,
            image=image,
            pull_policy=pull_policy,
            field_path=field_path(place.pod, container.name) if container is not None else "",
            runtime_handler=place.runtime_handler,
            sandbox_config=place.sandbox_config,
            pull_secrets=place.pull_secrets,
        )
        try:
            return await self._images.ensure(request)
        except StartError as error:
            if container is not None:
                self._events.warning(place.pod, container.name, "Failed", f"Error: {error.reason}")
            raise

    async def _config(
        self,
        place: PodInRuntime,
        container: v1.Container,
        image: PresentImage,
        image_volumes: Mapping[str, cri.ImageSpec],
        target: str,
    ) -> cri.ContainerConfig:
        pod = place.pod
        try:
            target_id = _target_id(place.status, target)
            config = await self._configs.container_config(
                pod,
                container,
                ContainerRequest(
                    restart_count=_restart_count(place.status, container),
                    image_ref=image.ref,
                    image_user=image.user,
                    pod_ips=place.ips,
                    runtime_handler=place.runtime_handler,
                    target_container_id=target_id,
                    image_volumes=image_volumes,
                ),
            )
        except ConfigError as error:
            text = str(error)
            self._events.warning(pod, container.name, "Failed", f"Error: {text}")
            raise StartError(Reason.CREATE_CONTAINER_CONFIG_ERROR, text) from error
        return config

    async def _remove_never_started(self, place: PodInRuntime, container: v1.Container) -> None:
        for status in place.status.containers_named(container.name):
            if status.state is not ContainerState.CREATED:
                continue
            log.info("Removing a container that was never started", pod=place.pod, containerID=status.id)
            try:
                await self._runtime.remove_container(status.id)
            except NotFound:
                continue
            except CRIError as error:
                self._events.warning(
                    place.pod, container.name, "Failed", f"Error: {error.message}", status.id
                )
                raise StartError(Reason.CREATE_CONTAINER_ERROR, error.message) from error

    async def _post_start(self, pod: v1.Pod, container: v1.Container, container_id: str) -> None:
        handler = container.lifecycle.post_start if container.lifecycle is not None else None
        if handler is None:
            return
        try:
            await self._hooks.run(container_id, pod, container, handler)
        except HookError as error:
            log.error("Failed to execute PostStartHook", pod=pod, containerName=container.name, err=error)
            # The text may hold what a server said, secrets even; it stays out of the event.
            self._events.warning(
                pod, container.name, "FailedPostStartHook", "PostStartHook failed", container_id
            )
            try:
                await self._killer.kill(
                    pod,
                    container_id,
                    container.name,
                    message="FailedPostStartHook",
                    reason=KillReason.FAILED_POST_START_HOOK,
                )
            except CRIError as kill_error:
                log.error("Failed to kill container", pod=pod, containerName=container.name, err=kill_error)
            raise StartError(Reason.POST_START_HOOK_ERROR, str(error)) from error


def _log_link(place: PodInRuntime, config: cri.ContainerConfig, container_id: str) -> LogLink:
    meta = place.pod.metadata
    return LogLink(
        name=link_name(meta.name, meta.namespace, config.metadata.name, container_id),
        log_path=os.path.join(place.sandbox_config.log_directory, config.log_path),
        container_id=container_id,
    )


def _restart_count(status: PodStatus, container: v1.Container) -> int | None:
    """One more than any container of that name has; None if none is known.

    Of the newest alone is not enough: a call to create that the runtime carried out late leaves a
    container newer than its successor, whose name then would be asked for again and again.
    """
    counts = [seen.restart_count for seen in status.containers_named(container.name)]
    return max(counts) + 1 if counts else None


def _target_id(status: PodStatus, target: str) -> str:
    """Id of the container an ephemeral container looks into. Raises ConfigError."""
    if not target:
        return ""
    found = status.container_status(target)
    if found is None:
        raise ConfigError(f"unable to find target container {target}")
    return found.id

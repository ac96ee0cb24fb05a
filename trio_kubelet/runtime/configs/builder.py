"""Makes the configs of a pod that is about to start: gathers what they are made from and puts the files
they name in place. Everything decided here is decided in the pure modules next to this one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.common.container_files import open_below, open_regular
from trio_kubelet.common.go_words import error_words, os_words
from trio_kubelet.common.lanes import CONFIGS
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.small_files import TooLarge, read_capped, read_small, write_small
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podinfo.context import (
    ContainerInputs,
    EnvSources,
    NodeContext,
    ResolvConf,
    VolumeMountPoint,
)
from trio_kubelet.podinfo.doors import (
    ClusterObjects,
    ConfigError,
    LogDirectoryError,
    ObjectError,
    PodRecorderDoor,
    read_all,
)
from trio_kubelet.podinfo.downward import MOST_EXPANDED
from trio_kubelet.podinfo.given import NOTHING, Given
from trio_kubelet.podinfo.paths import container_dir, etc_hosts_path, pod_logs_path
from trio_kubelet.runtime.configs.container import container_config
from trio_kubelet.runtime.configs.dns import TOO_MUCH_DNS, DNSWarning, parse_resolv_conf, pod_dns
from trio_kubelet.runtime.configs.env import (
    config_map_names,
    env_file_values,
    env_files,
    environment,
    secret_names,
)
from trio_kubelet.runtime.configs.hostname import hosts_file
from trio_kubelet.runtime.configs.mounts import ETC_HOSTS, mounts_hosts_file, sub_paths
from trio_kubelet.runtime.configs.resources import container_resources
from trio_kubelet.runtime.configs.sandbox import sandbox_config
from trio_kubelet.runtime.doors import (
    ContainerRequest,
    Givers,
    RuntimeClasses,
    ServiceVariables,
    UserNamespaceMapper,
)
from trio_kubelet.runtime.log_links import read_restart_count
from trio_kubelet.volumes.doors import PersistentVolumesDoor
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.files import make_dirs
from trio_kubelet.volumes.plan import mount_points
from trio_kubelet.volumes.subpath import SubPathNotMade, bind_sub_path

log = get_logger(__name__)

T = TypeVar("T")

_REMEMBERED = 16
_MOST_OF_ENV_FILE = 1024 * 1024
_MOST_OF_NODES_FILE = 10 << 20  # what the kubelet takes of resolv.conf
_LOG_DIR_MODE = 0o755
_TERMINATION_LOG_MODE = 0o666
_HOSTS_MODE = 0o644


class NoRuntimeClasses:
    """A node without an API server has none: a pod that asks for one cannot run."""

    def handler(self, name: str) -> str:
        raise ConfigError(f'failed to get sandbox runtime: runtimeclass.node.k8s.io "{name}" not found')


class NoGivers:
    """A node without plugins."""

    async def given(self, pod: v1.Pod, container: v1.Container) -> Given:
        return NOTHING


class NoServices:
    """A node without an API server."""

    async def variables(self, pod: v1.Pod) -> Mapping[str, str]:
        return {}


class _MountPoints:
    """Where the volumes of the last pods are: of a pod each container asks, and it may have thousands."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[v1.PodSpec, Mapping[str, VolumeMountPoint]]] = {}  # by UID

    def of(self, pod: v1.Pod, node: NodeContext) -> Mapping[str, VolumeMountPoint]:
        """Raises VolumeError."""
        spec, found = self._last.pop(pod.metadata.uid, (None, {}))
        if spec is not pod.spec:  # one that is in use does not change
            found = mount_points(pod, node)
        self._last[pod.metadata.uid] = pod.spec, found
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]
        return found


class ConfigBuilder:
    """The configs of pods on one node (see `runtime.doors.PodConfigs`).

    `node` is asked each time; `resolv_conf` is the path of the file that resolvers are taken from, "" for
    none, and is read for each sandbox.
    """

    def __init__(
        self,
        node: Callable[[], NodeContext],
        resolv_conf: str,
        user_namespaces: UserNamespaceMapper,
        *,
        events: PodRecorderDoor | None = None,
        objects: ClusterObjects | None = None,
        services: ServiceVariables | None = None,
        runtime_classes: RuntimeClasses | None = None,
        persistent: PersistentVolumesDoor | None = None,
        givers: Givers | None = None,
    ) -> None:
        self._node = node
        self._resolv_conf = resolv_conf
        self._user_namespaces = user_namespaces
        self._events = events
        self._objects = objects
        self._services = services or NoServices()
        self._givers = givers or NoGivers()
        self._runtime_classes = runtime_classes or NoRuntimeClasses()
        self._persistent = persistent
        self._resolver: ResolvConf | None = None
        self._mount_points = _MountPoints()

    def runtime_handler(self, pod: v1.Pod) -> str:
        """The handler of the pod's runtime class, "" for the default. Raises ConfigError."""
        name = pod.spec.runtime_class_name
        return self._runtime_classes.handler(name) if name else ""

    async def sandbox_config(self, pod: v1.Pod, attempt: int) -> cri.PodSandboxConfig:
        """The sandbox's config; its log directory is there. Raises ConfigError, LogDirectoryError."""
        handler = self.runtime_handler(pod)
        userns = await self._user_namespaces.mapping(pod, handler)
        node, config = await _in_thread(pod, lambda: self._prepare_sandbox(pod, attempt, userns))
        self._resolver = node.resolv_conf
        self._warn(pod, pod_dns(pod, node).warnings)
        return config

    def remind(self, pod: v1.Pod) -> None:
        """Tells again what a pod's own DNS settings have too much, by resolv.conf as it was last read: such
        events last an hour, the pod may for years.
        """
        if pod.spec.dns_config is not None:
            node = msgspec.structs.replace(self._node(), resolv_conf=self._resolver)
            self._warn(pod, [each for each in pod_dns(pod, node).warnings if each.reason == TOO_MUCH_DNS])

    def _warn(self, pod: v1.Pod, warnings: Iterable[DNSWarning]) -> None:
        for warning in warnings:
            if self._events is not None:
                self._events.record(pod, "Warning", warning.reason, warning.message)

    async def container_config(
        self, pod: v1.Pod, container: v1.Container, request: ContainerRequest
    ) -> cri.ContainerConfig:
        """A container's config, its mounts, `/etc/hosts`, termination log and log directory being there.
        Raises ConfigError.
        """
        node = self._node()
        try:
            volumes = self._mount_points.of(pod, node)
        except VolumeError as error:
            raise ConfigError(str(error)) from error
        persistent, uid = self._persistent, pod.metadata.uid
        if persistent is not None:
            volumes = {**volumes, **persistent.mounts(uid)}
        inputs = ContainerInputs(
            image_ref=request.image_ref,
            restart_count=request.restart_count or 0,
            image_user=request.image_user,
            pod_ips=request.pod_ips,
            runtime_handler=request.runtime_handler,
            target_container_id=request.target_container_id,
            volumes=volumes,
            image_volumes=request.image_volumes,
            block_volumes=persistent.devices(uid) if persistent is not None else {},
            extra_groups=persistent.extra_groups(pod) if persistent is not None else (),
            env_sources=await self._env_sources(pod, container, volumes),
            given=await self._givers.given(pod, container),
            user_namespace=await self._user_namespaces.mapping(pod, request.runtime_handler),
        )
        counted = request.restart_count is not None
        return await _in_thread(pod, lambda: _prepare(pod, container, node, inputs, counted))

    def container_resources(self, pod: v1.Pod, container: v1.Container) -> cri.LinuxContainerResources:
        """The resources part of a container's config, for a change of a running one."""
        return container_resources(pod, container, self._node())

    def _prepare_sandbox(
        self, pod: v1.Pod, attempt: int, userns: cri.UserNamespace | None
    ) -> tuple[NodeContext, cri.PodSandboxConfig]:
        node = self._with_resolv_conf()
        extra = self._persistent.extra_groups(pod) if self._persistent is not None else ()
        config = sandbox_config(pod, node, attempt, userns, extra)
        try:
            make_dirs(config.log_directory, _LOG_DIR_MODE)
        except OSError as error:
            raise LogDirectoryError(error_words(error, "mkdir")) from error
        return node, config

    def _with_resolv_conf(self) -> NodeContext:
        if not self._resolv_conf:
            return self._node()
        try:
            text = read_small(self._resolv_conf, _MOST_OF_NODES_FILE).decode("utf-8", "surrogateescape")
            return msgspec.structs.replace(self._node(), resolv_conf=parse_resolv_conf(text))
        except (ValueError, TooLarge) as error:
            problem = "the read limit is reached" if isinstance(error, TooLarge) else error
            message = f"Encountered error while parsing resolv conf file. Error: {problem}"
            raise ConfigError(message) from None

    async def _env_sources(
        self, pod: v1.Pod, container: v1.Container, volumes: Mapping[str, VolumeMountPoint]
    ) -> EnvSources:
        files = env_files(container) if self._node().features.env_files else []
        in_files = await _in_thread(pod, lambda: _read_env_files(pod, files, volumes)) if files else {}
        namespace = pod.metadata.namespace
        wanted_maps = dict.fromkeys(config_map_names(container))
        wanted_secrets = dict.fromkeys(secret_names(container))
        objects = self._objects
        if objects is None:
            wanted = [*(f"configMap {namespace}/{name}" for name in wanted_maps)]
            wanted += [f"secret {namespace}/{name}" for name in wanted_secrets]
            if wanted:
                raise ConfigError(f"couldn't get {wanted[0]}, no kubeClient defined")
            return EnvSources(services=await self._services.variables(pod), env_files=in_files)
        services = await self._services.variables(pod)
        maps = await read_all(wanted_maps, lambda name: objects.config_map(namespace, name))
        found = await read_all(wanted_secrets, lambda name: objects.secret(namespace, name))
        for value in (*maps.values(), *found.values()):
            if isinstance(value, ObjectError):
                raise ConfigError(str(value)) from value
        return EnvSources(
            services=services,
            config_maps={
                name: each.data or {} for name, each in maps.items() if isinstance(each, v1.ConfigMap)
            },
            secrets={name: each.data or {} for name, each in found.items() if isinstance(each, v1.Secret)},
            env_files=in_files,
        )


async def _in_thread(pod: v1.Pod, work: Callable[[], T]) -> T:
    """Blocking work for a pod. Raises ConfigError."""
    try:
        return await CONFIGS.run(work, owner=pod.metadata.uid)
    except OSError as error:
        raise ConfigError(error_words(error, "open")) from error


def _prepare(
    pod: v1.Pod, container: v1.Container, node: NodeContext, inputs: ContainerInputs, counted: bool
) -> cri.ContainerConfig:
    """Puts in place what the config names, then makes it. Unless `counted`, restarts are, by the logs."""
    logs = f"{pod_logs_path(node.pod_logs_dir, pod)}/{container.name}"
    if not counted:
        inputs = msgspec.structs.replace(inputs, restart_count=read_restart_count(logs))
    try:
        make_dirs(logs, _LOG_DIR_MODE)
    except OSError as error:
        why = error_words(error, "mkdir")
        raise ConfigError(
            f"create container log directory for container {container.name} failed: {why}"
        ) from error
    env = environment(pod, container, node, inputs.env_sources, inputs.pod_ips)
    for part in sub_paths(pod, container, node.root_dir, inputs.volumes, env):
        try:
            bind_sub_path(part)
        except (OSError, VolumeError) as error:
            # What the user is told must not show what the node's filesystem looks like.
            log.error("Failed to prepare subPath", pod=pod, volume=part.volume, path=part.path, err=error)
            failed = "create subPath directory" if isinstance(error, SubPathNotMade) else "prepare subPath"
            raise ConfigError(
                f'failed to {failed} for volumeMount "{part.volume}" of container "{container.name}"'
            ) from None
    if mounts_hosts_file(pod, container, inputs.pod_ips):
        _write_hosts_file(pod, node, inputs.pod_ips)
    if container.termination_message_path:
        inputs = msgspec.structs.replace(inputs, termination_log=_new_termination_log(pod, container, node))
    return container_config(pod, container, node, inputs)


def _write_hosts_file(pod: v1.Pod, node: NodeContext, pod_ips: tuple[str, ...]) -> None:
    """Writes the pod's `/etc/hosts` if it changes. In place: running containers have this very file."""
    path = etc_hosts_path(node.root_dir, pod.metadata.uid)
    node_hosts = ""
    if pod.spec.host_network:
        node_hosts = read_small(ETC_HOSTS, _MOST_OF_NODES_FILE).decode("utf-8", "surrogateescape")
    content = hosts_file(pod, node, pod_ips, node_hosts).encode("utf-8", "surrogateescape")
    with contextlib.suppress(OSError):
        if read_capped(open_regular(path), len(content)) == content:
            return
    make_dirs(os.path.dirname(path))
    write_small(path, content, mode=_HOSTS_MODE)


def _new_termination_log(pod: v1.Pod, container: v1.Container, node: NodeContext) -> str:
    """An empty file of its own for each container that starts, writable for any user."""
    directory = container_dir(node.root_dir, pod.metadata.uid, container.name)
    make_dirs(directory)
    path = f"{directory}/{os.urandom(4).hex()}"
    write_small(path, b"", mode=_TERMINATION_LOG_MODE)
    return path


def _read_env_files(
    pod: v1.Pod, refs: Sequence[v1.FileKeySelector], volumes: Mapping[str, VolumeMountPoint]
) -> dict[tuple[str, str, str], str]:
    """Values from files in volumes; those that may be missing and are, are left out. Raises ConfigError.

    Each file is read once, and all together have a bound: a line of a manifest is enough for one of a
    megabyte.
    """
    values: dict[tuple[str, str, str], str] = {}
    unread: dict[tuple[str, str], set[str]] = {}  # keys by file
    for ref in refs:
        unread.setdefault((ref.volume_name, ref.path), set()).add(ref.key)
    room = MOST_EXPANDED
    for ref in refs:
        if ref.volume_name not in volumes:
            raise ConfigError(f'cannot find the volume "{ref.volume_name}" referenced by FileKeyRef')
        directory = volumes[ref.volume_name].host_path
        keys = unread.pop((ref.volume_name, ref.path), None)
        if keys is not None:
            try:
                data = read_capped(open_below(directory, ref.path, links=True), _MOST_OF_ENV_FILE)
                found = env_file_values(data.decode(), keys)
            except (OSError, ValueError) as error:  # its text is for those who can read the node's log
                problem = os_words(error) if isinstance(error, OSError) else str(error)
                log.error(
                    "Failed to parse env file", pod=pod, volume=ref.volume_name, path=ref.path, err=problem
                )
                raise ConfigError("couldn't parse env file") from error
            room -= len(data)
            if room < 0:
                raise ConfigError(f"the env files have more than {MOST_EXPANDED} bytes")
            values.update({(ref.volume_name, ref.path, key): value for key, value in found.items() if value})
        if not ref.optional and (ref.volume_name, ref.path, ref.key) not in values:
            path = os.path.join(directory, os.path.normpath(ref.path))
            raise ConfigError(f'environment variable key "{ref.key}" not found in file "{path}"')
    return values

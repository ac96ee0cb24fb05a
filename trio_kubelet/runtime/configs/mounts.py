"""Mounts of a container: volumes, `/etc/hosts` and the termination log.

Rules: `makeMounts` of the kubelet. A subPath is bound to a place of its own below the pod's directory
first, so that what is mounted cannot be exchanged for a link out of the volume; `sub_paths` says what has
to be bound, `mounts` already names those places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trio_kubelet.api import v1
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podinfo.context import BlockDevice, ContainerInputs, NodeContext, VolumeMountPoint
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.paths import clean_container_path, etc_hosts_path, subpath_target
from trio_kubelet.runtime.configs.env import expand_sub_path
from trio_kubelet.volumes.subpath import SubPath

ETC_HOSTS = "/etc/hosts"

_PROPAGATION = {
    None: cri.PROPAGATION_PRIVATE,
    "None": cri.PROPAGATION_PRIVATE,
    "HostToContainer": cri.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": cri.PROPAGATION_BIDIRECTIONAL,
}


def sub_paths(
    pod: v1.Pod,
    container: v1.Container,
    root_dir: str,
    volumes: Mapping[str, VolumeMountPoint],
    env: Mapping[str, str],
) -> list[SubPath]:
    """The parts of volumes a container mounts. Raises ConfigError."""
    found: list[SubPath] = []
    for index, mount in enumerate(container.volume_mounts or ()):
        path = _sub_path(mount, env)
        if path and mount.name in volumes:
            volume = volumes[mount.name]
            named = volume.inner or mount.name
            target = subpath_target(root_dir, pod.metadata.uid, named, container.name, index)
            found.append(SubPath(mount.name, volume.host_path, path, target))
    return found


def mounts(
    pod: v1.Pod,
    container: v1.Container,
    ctx: NodeContext,
    inputs: ContainerInputs,
    env: Mapping[str, str],
) -> list[cri.Mount]:
    """All mounts: plugins', the spec's in its order, then `/etc/hosts` and the termination log. Raises
    ConfigError.
    """
    result = [
        cri.Mount(container_path=mount.container_path, host_path=mount.host_path, readonly=mount.read_only)
        for mount in inputs.given.mounts
    ]
    result += _volume_mounts(pod, container, ctx, inputs, env)
    if mounts_hosts_file(pod, container, inputs.pod_ips):
        hosts = etc_hosts_path(ctx.root_dir, pod.metadata.uid)
        result.append(cri.Mount(container_path=ETC_HOSTS, host_path=hosts, selinux_relabel=ctx.selinux))
    if inputs.termination_log and container.termination_message_path:
        path = clean_container_path(container.termination_message_path)
        result.append(
            cri.Mount(container_path=path, host_path=inputs.termination_log, selinux_relabel=ctx.selinux)
        )
    userns = inputs.user_namespace
    if userns is not None:
        for mount in result:
            mount.uidMappings.extend(userns.uids)
            mount.gidMappings.extend(userns.gids)
    return result


def block_devices(container: v1.Container, volumes: Mapping[str, BlockDevice]) -> list[cri.Device]:
    """The volumes a container has as devices (kubelet: `makeBlockVolumes`). Raises ConfigError."""
    found: list[cri.Device] = []
    for device in container.volume_devices or ():
        if not device.device_path.startswith("/"):
            raise ConfigError(f"error DevicePath `{device.device_path}` must be an absolute path")
        volume = volumes.get(device.name)
        if volume is None:
            raise ConfigError(f'cannot find volume "{device.name}" to pass into container "{container.name}"')
        permissions = "r" if volume.read_only else "mrw"
        found.append(
            cri.Device(container_path=device.device_path, host_path=volume.path, permissions=permissions)
        )
    return found


def mounts_hosts_file(pod: v1.Pod, container: v1.Container, pod_ips: Sequence[str]) -> bool:
    """Whether `/etc/hosts` is the agent's: not before the pod has an address, and not where the
    container mounts something there itself.
    """
    return (bool(pod_ips) or pod.spec.host_network) and not any(
        mount.mount_path == ETC_HOSTS for mount in container.volume_mounts or ()
    )


def _volume_mounts(
    pod: v1.Pod,
    container: v1.Container,
    ctx: NodeContext,
    inputs: ContainerInputs,
    env: Mapping[str, str],
) -> Iterator[cri.Mount]:
    handler = ctx.handlers.get(inputs.runtime_handler)
    supports_rro = handler is not None and handler.recursive_read_only_mounts
    for index, mount in enumerate(container.volume_mounts or ()):
        image = inputs.image_volumes.get(mount.name)
        volume = inputs.volumes.get(mount.name)
        if image is None and volume is None:
            raise ConfigError(f'cannot find volume "{mount.name}" to mount into container "{container.name}"')
        if mount.mount_propagation not in _PROPAGATION:
            raise ConfigError(f'invalid MountPropagation mode: "{mount.mount_propagation}"')
        path = _sub_path(mount, env)
        result = cri.Mount(
            container_path=_absolute(mount.mount_path),
            readonly=mount.read_only or (volume is not None and volume.read_only),
            recursive_read_only=_recursive_read_only(mount, supports_rro),
            propagation=_PROPAGATION[mount.mount_propagation],
        )
        if image is not None:
            result.image.CopyFrom(image)
            result.image_sub_path = path
            result.readonly = True
        elif volume is not None:
            result.selinux_relabel = ctx.selinux and volume.relabel
            result.host_path = (
                subpath_target(
                    ctx.root_dir, pod.metadata.uid, volume.inner or mount.name, container.name, index
                )
                if path
                else volume.host_path
            )
        yield result


def _sub_path(mount: v1.VolumeMount, env: Mapping[str, str]) -> str:
    """The part of the volume to mount, "" for all of it. Raises ConfigError for one that leaves it."""
    path = expand_sub_path(mount.sub_path_expr, env) if mount.sub_path_expr else mount.sub_path
    if path.startswith("/"):
        raise ConfigError(f"error SubPath `{path}` must not be an absolute path")
    if ".." in path.split("/"):
        raise ConfigError(f"unable to provision SubPath `{path}`: must not contain '..'")
    return path


def _recursive_read_only(mount: v1.VolumeMount, supported: bool) -> bool:
    """Whether mounts below a read-only mount are read-only too (KEP-3857)."""
    mode = mount.recursive_read_only
    if mode is None or mode == "Disabled":
        return False
    prefix = f'volume "{mount.name}" requested recursive read-only mode, but it is'
    if not mount.read_only:
        raise ConfigError(f"failed to resolve recursive read-only mode: {prefix} not read-only")
    if mount.mount_propagation not in (None, "None"):
        raise ConfigError(
            "failed to resolve recursive read-only mode: "
            f'{prefix} not compatible with propagation "{mount.mount_propagation}"'
        )
    if mode == "IfPossible":
        return supported
    if mode != "Enabled":
        raise ConfigError(
            f'failed to resolve recursive read-only mode: unknown recursive read-only mode "{mode}"'
        )
    if not supported:
        raise ConfigError(
            f"failed to resolve recursive read-only mode: {prefix} not supported by the runtime"
        )
    return True


def _absolute(path: str) -> str:
    return path if path.startswith("/") else clean_container_path(path)

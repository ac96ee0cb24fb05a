"""The CRI config of a container."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trio_kubelet.api import v1
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podinfo.context import ContainerInputs, NodeContext
from trio_kubelet.podinfo.downward import expand_all
from trio_kubelet.podinfo.paths import container_log_path
from trio_kubelet.runtime.configs.env import environment
from trio_kubelet.runtime.configs.labels import container_annotations, container_labels
from trio_kubelet.runtime.configs.mounts import block_devices, mounts
from trio_kubelet.runtime.configs.resources import container_resources
from trio_kubelet.runtime.configs.security import (
    container_security_context,
    namespace_options,
    verify_run_as_non_root,
)

_NAMES = frozenset(cri.Signal.keys())


def signal_from_name(name: str) -> cri.Signal.ValueType:
    """`SIGTERM`, `SIGRTMIN+3`… as the CRI has it; RUNTIME_DEFAULT for a name it does not know."""
    key = name.replace("+", "PLUS").replace("-", "MINUS")
    return cri.Signal.Value(key) if key in _NAMES else cri.RUNTIME_DEFAULT


def signal_name(signal: cri.Signal.ValueType) -> str:
    """The name pods use, "" for the runtime's default."""
    if signal == cri.RUNTIME_DEFAULT:
        return ""
    return cri.Signal.Name(signal).replace("PLUS", "+").replace("MINUS", "-")


def container_config(
    pod: v1.Pod, container: v1.Container, ctx: NodeContext, inputs: ContainerInputs
) -> cri.ContainerConfig:
    """The config of one container (kubelet: `generateContainerConfig`). Raises ConfigError."""
    env = environment(pod, container, ctx, inputs.env_sources, inputs.pod_ips)
    verify_run_as_non_root(pod, container, inputs.image_user)
    namespaces = namespace_options(pod, inputs.user_namespace, inputs.target_container_id)
    resources = container_resources(pod, container, ctx)
    resources.cpuset_cpus, resources.cpuset_mems = inputs.given.cpus, inputs.given.memory_nodes
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=container.name, attempt=inputs.restart_count),
        image=cri.ImageSpec(image=inputs.image_ref, user_specified_image=container.image),
        command=expand_all(container.command, env),
        args=expand_all(container.args, env),
        working_dir=container.working_dir,
        envs=[cri.KeyValue(key=name, value=_bytes(value)) for name, value in _variables(inputs, env)],
        mounts=mounts(pod, container, ctx, inputs, env),
        labels=container_labels(pod, container.name),
        # What a plugin says never replaces what is the agent's own.
        annotations={
            **inputs.given.annotations,
            **container_annotations(pod, container, inputs.restart_count),
        },
        devices=[
            cri.Device(
                container_path=device.container_path,
                host_path=device.host_path,
                permissions=device.permissions,
            )
            for device in inputs.given.devices
        ]
        + block_devices(container, inputs.block_volumes),
        CDI_devices=[cri.CDIDevice(name=name) for name in inputs.given.cdi_devices],
        log_path=container_log_path(container.name, inputs.restart_count),
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        tty=container.tty,
        linux=cri.LinuxContainerConfig(
            resources=resources,
            security_context=container_security_context(
                pod, container, ctx, inputs.image_user, namespaces, inputs.extra_groups
            ),
        ),
    )
    lifecycle = container.lifecycle
    if ctx.features.container_stop_signals and lifecycle is not None and lifecycle.stop_signal:
        config.stop_signal = signal_from_name(lifecycle.stop_signal)
    return config


def _variables(inputs: ContainerInputs, env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Plugins' variables first: of two with one name the pod's own counts, being the later one."""
    yield from inputs.given.envs.items()
    yield from env.items()


def _bytes(value: str) -> bytes:
    """Bytes of a variable, which need not be text."""
    return value.encode("utf-8", "surrogateescape")

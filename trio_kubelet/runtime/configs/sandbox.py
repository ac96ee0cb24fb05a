"""The CRI config of a pod's sandbox."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from trio_kubelet.api import v1
from trio_kubelet.api.sysctls import normal_sysctl
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.paths import pod_logs_path
from trio_kubelet.podinfo.qos import pod_qos
from trio_kubelet.runtime.configs.dns import pod_dns
from trio_kubelet.runtime.configs.hostname import kernel_hostname
from trio_kubelet.runtime.configs.labels import pod_annotations, pod_labels
from trio_kubelet.runtime.configs.resources import overhead_resources, sandbox_resources
from trio_kubelet.runtime.configs.security import namespace_options, sandbox_security_context

_PROTOCOLS = {"TCP": cri.TCP, "UDP": cri.UDP, "SCTP": cri.SCTP}


def cgroup_parent(pod: v1.Pod, ctx: NodeContext) -> str:
    """The pod's cgroup as the runtime is told it."""
    names = CgroupNames(ctx.cgroup_root, ctx.cgroup_driver, ctx.cgroups_per_qos)
    return names.literal(names.pod(pod.metadata.uid, pod_qos(pod, ctx.features.pod_level_resources)))


def sandbox_config(
    pod: v1.Pod,
    ctx: NodeContext,
    attempt: int = 0,
    user_namespace: cri.UserNamespace | None = None,
    extra_groups: Sequence[int] = (),
) -> cri.PodSandboxConfig:
    """The config of the pod's sandbox (kubelet: `generatePodSandboxConfig`).

    `attempt` counts the pod's sandboxes; `user_namespace` None means the node's, `extra_groups` are
    those of its volumes. Raises ConfigError.
    """
    meta = pod.metadata
    namespaces = namespace_options(pod, user_namespace)
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(
            name=meta.name, namespace=meta.namespace, uid=meta.uid, attempt=attempt
        ),
        labels=pod_labels(pod),
        annotations=pod_annotations(pod),
        dns_config=pod_dns(pod, ctx).config,
        log_directory=pod_logs_path(ctx.pod_logs_dir, pod),
        port_mappings=[
            mapping for container in pod.spec.containers or () for mapping in port_mappings(container)
        ],
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=cgroup_parent(pod, ctx),
            security_context=sandbox_security_context(pod, namespaces, extra_groups),
            sysctls=_sysctls(pod),
            overhead=overhead_resources(pod, ctx),
            resources=sandbox_resources(pod, ctx),
        ),
    )
    if not pod.spec.host_network:
        config.hostname = kernel_hostname(pod, ctx)
    return config


def port_mappings(container: v1.Container) -> Iterator[cri.PortMapping]:
    """A container's ports; of two with the same name, or the same in everything, the first counts."""
    seen: set[str] = set()
    for port in container.ports or ():
        family = _family(port.host_ip) if port.host_ip else "any"
        name = port.name or (
            f"{family}-{port.protocol}-{port.host_ip}:{port.container_port}:{port.host_port}"
        )
        if name in seen:
            continue
        seen.add(name)
        yield cri.PortMapping(
            protocol=_PROTOCOLS.get(port.protocol, cri.TCP),
            container_port=port.container_port,
            host_port=port.host_port,
            host_ip=port.host_ip,
        )


def _family(host_ip: str) -> str:
    """Everything that is not an IPv6 address counts as IPv4, as it does for the kubelet: `127.1`, a name."""
    try:
        address = ipaddress.IPv6Address(host_ip)
    except ValueError:
        return "v4"
    return "v6" if address.ipv4_mapped is None and address.scope_id is None else "v4"


def _sysctls(pod: v1.Pod) -> dict[str, str]:
    """Kernel parameters, their names with dots: runtimes know the namespaces of no others."""
    context = pod.spec.security_context
    if context is None:
        return {}
    return {normal_sysctl(sysctl.name): sysctl.value for sysctl in context.sysctls or ()}

"""A pod's host name and its `/etc/hosts`.

Rules: `GeneratePodHostNameAndDomain` and `ensureHostsFile` of the kubelet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trio_kubelet.api import v1
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.doors import ConfigError

_MAX_HOSTNAME = 63
_MAX_FQDN = 64
_MAX_SUBDOMAIN = 253
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")

_MANAGED_HEADER = "# Kubernetes-managed hosts file.\n"
_HOST_NETWORK_HEADER = "# Kubernetes-managed hosts file (host network).\n"
_LOCAL_NAMES = """127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


def hostname_and_domain(pod: v1.Pod, ctx: NodeContext) -> tuple[str, str]:
    """The pod's short name and its domain ("" without a subdomain). Raises ConfigError."""
    spec = pod.spec
    if ctx.features.hostname_override and spec.hostname_override is not None:
        name = spec.hostname_override
        if len(name) > _MAX_SUBDOMAIN or not _SUBDOMAIN.fullmatch(name):
            raise ConfigError(f'pod HostnameOverride "{name}" is not a valid DNS subdomain')
        return _shorten(name, pod.metadata.name), ""
    if spec.hostname and not _is_label(spec.hostname):
        raise ConfigError(f'pod Hostname "{spec.hostname}" is not a valid DNS label')
    if spec.subdomain and not _is_label(spec.subdomain):
        raise ConfigError(f'pod Subdomain "{spec.subdomain}" is not a valid DNS label')
    name = _shorten(spec.hostname or pod.metadata.name, pod.metadata.name)
    if not spec.subdomain:
        return name, ""
    return name, f"{spec.subdomain}.{pod.metadata.namespace}.svc.{ctx.cluster_domain}"


def kernel_hostname(pod: v1.Pod, ctx: NodeContext) -> str:
    """What `uname -n` says in the pod: the short name, or all of it when `setHostnameAsFQDN` asks for
    that. Raises ConfigError when it does not fit into the kernel's field.
    """
    name, domain = hostname_and_domain(pod, ctx)
    if not domain or not pod.spec.set_hostname_as_fqdn:
        return name
    full = f"{name}.{domain}"
    if len(full) > _MAX_FQDN:
        raise ConfigError(
            f"failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long "
            f"({_MAX_FQDN} characters is the max, {len(full)} characters requested)"
        )
    return full


def hosts_file(pod: v1.Pod, ctx: NodeContext, pod_ips: Sequence[str], node_hosts: str) -> str:
    """Content of the pod's `/etc/hosts`; `node_hosts` is the node's own, used on its network."""
    found = pod.spec.host_aliases or ()
    aliases = "".join(f"{alias.ip}\t" + "\t".join(alias.hostnames or ()) + "\n" for alias in found)
    if aliases:
        aliases = "\n# Entries added by HostAliases.\n" + aliases
    if pod.spec.host_network:
        return _HOST_NETWORK_HEADER + node_hosts + aliases
    name, domain = hostname_and_domain(pod, ctx)
    names = f"{name}.{domain}\t{name}" if domain else name
    return _MANAGED_HEADER + _LOCAL_NAMES + "".join(f"{ip}\t{names}\n" for ip in pod_ips) + aliases


def _is_label(name: str) -> bool:
    return len(name) <= _MAX_HOSTNAME and _LABEL.fullmatch(name) is not None


def _shorten(name: str, pod_name: str) -> str:
    """Cuts to 63 characters; a name must not end with a dash or dot then."""
    if len(name) <= _MAX_HOSTNAME:
        return name
    short = name[:_MAX_HOSTNAME].rstrip("-.")
    if not short:
        raise ConfigError(f'hostname for pod "{pod_name}" was invalid: "{name}"')
    return short

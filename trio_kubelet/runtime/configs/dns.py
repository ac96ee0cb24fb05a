"""DNS settings of a pod: from the node's resolv.conf, the cluster's DNS and the pod's own wishes.

Rules: `pkg/kubelet/network/dns` of Kubernetes. resolvers take three name servers and 32 search domains;
what is beyond that is left out, and `DNSResult.warnings` says so.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podinfo.context import NodeContext, ResolvConf

MAX_NAME_SERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCH_LENGTH = 2048
_MAX_DOMAIN_LENGTH = 253
TOO_MUCH_DNS = "DNSConfigForming"
"""Reason of the event that something of a pod's DNS settings is left out."""
_OMITTED = "{} limits were exceeded, some {} have been omitted, the applied {} line is: {}"


class DNSWarning(msgspec.Struct, frozen=True):
    """Something an event tells the user: reason and message."""

    reason: str
    message: str


class DNSResult(msgspec.Struct, frozen=True):
    """A pod's DNS config and what had to be left out."""

    config: cri.DNSConfig
    warnings: tuple[DNSWarning, ...] = ()


def parse_resolv_conf(text: str) -> ResolvConf:
    """Reads a resolv.conf: name servers add up, the last search line counts, options of the same name
    replace each other. Raises ValueError for a `nameserver` line without an address.
    """
    servers: list[str] = []
    searches: list[str] = []
    options: dict[str, str] = {}
    for line in text.split("\n"):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        keyword, values = fields[0], fields[1:]
        if keyword == "nameserver":
            if not values:
                raise ValueError("nameserver list is empty ")
            servers.append(values[0])
        elif keyword == "search":
            # The same domain with and without its final dot is one.
            searches = [value.removesuffix(".") for value in values if value != "."]
        elif keyword == "options":
            options.update({value.split(":")[0]: value for value in values})
    return ResolvConf(tuple(servers), tuple(searches), tuple(options.values()))


def node_problem(path: str, node: ResolvConf, cluster_domain: str) -> str:
    """Why pods cannot have all of the node's search domains, "" if they can; `path` is of its resolv.conf."""
    most = MAX_SEARCHES - (3 if cluster_domain else 0)  # a pod has three of the cluster's first
    if len(node.searches) > most:
        return f"Resolv.conf file '{path}' contains search line consisting of more than {most} domains!"
    if any(len(domain) > _MAX_DOMAIN_LENGTH for domain in node.searches):
        what = f"which length is more than allowed {_MAX_DOMAIN_LENGTH} chars!"
        return f'Resolv.conf file "{path}" contains a search path {what}'
    if len(" ".join(node.searches)) > MAX_SEARCH_LENGTH:
        what = f"which length is more than allowed {MAX_SEARCH_LENGTH} chars!"
        return f"Resolv.conf file '{path}' contains search line {what}"
    return ""


def pod_dns(pod: v1.Pod, ctx: NodeContext) -> DNSResult:
    """DNS settings by the pod's policy, its `dnsConfig` added, within the limits."""
    warnings: list[DNSWarning] = []
    base = _base(pod, ctx, warnings)
    servers, searches, options = base.servers, base.searches, base.options
    wishes = pod.spec.dns_config
    if wishes is not None:
        servers = _unique(servers, wishes.nameservers)
        searches = _unique(searches, wishes.searches)
        options = _merge_options(options, wishes.options or ())
    config = cri.DNSConfig(
        servers=_fit_servers(servers, warnings),
        searches=_fit_searches(searches, warnings),
        options=options,
    )
    return DNSResult(config, tuple(warnings))


def _base(pod: v1.Pod, ctx: NodeContext, warnings: list[DNSWarning]) -> ResolvConf:
    """What the policy alone leads to. ClusterFirst on the host's network means Default."""
    policy = pod.spec.dns_policy
    if policy == "None":
        return ResolvConf()
    node = ctx.resolv_conf or ResolvConf()
    wants_cluster = policy != "Default" and not (policy == "ClusterFirst" and pod.spec.host_network)
    if wants_cluster and ctx.cluster_dns:
        domain = ctx.cluster_domain
        searches = node.searches
        if domain:
            own = (f"{pod.metadata.namespace}.svc.{domain}", f"svc.{domain}", domain)
            searches = _unique(own, searches)
        return ResolvConf(ctx.cluster_dns, searches, ("ndots:5",))
    if wants_cluster:
        meta = pod.metadata
        warnings.append(
            DNSWarning(
                "MissingClusterDNS",
                f'pod: "{meta.name}_{meta.namespace}({meta.uid})". kubelet does not have ClusterDNS IP '
                'configured and cannot create Pod using "ClusterFirst" policy. '
                'Falling back to "Default" policy.',
            )
        )
    if ctx.resolv_conf is not None:
        return node
    # No resolv.conf is wanted: the local machine, which is what an empty one would mean.
    local = tuple("::1" if ipaddress.ip_address(ip).version == 6 else "127.0.0.1" for ip in ctx.node_ips)
    return ResolvConf(local or ("127.0.0.1",), (".",))


def _unique(*lists: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for items in lists for item in items or ()))


def _merge_options(options: Sequence[str], wishes: Sequence[v1.PodDNSConfigOption]) -> tuple[str, ...]:
    """`name:value` options; a wish replaces one of the same name."""
    merged: dict[str, str] = {}
    for option in options:
        name, _, value = option.partition(":")
        merged[name] = value
    merged.update({wish.name: wish.value or "" for wish in wishes})
    return tuple(f"{name}:{value}" if value else name for name, value in merged.items())


def _fit_servers(servers: Sequence[str], warnings: list[DNSWarning]) -> Sequence[str]:
    if len(servers) <= MAX_NAME_SERVERS:
        return servers
    kept = servers[:MAX_NAME_SERVERS]
    warnings.append(
        DNSWarning(TOO_MUCH_DNS, _OMITTED.format("Nameserver", "nameservers", "nameserver", " ".join(kept)))
    )
    return kept


def _fit_searches(searches: Sequence[str], warnings: list[DNSWarning]) -> Sequence[str]:
    kept = [domain for domain in searches[:MAX_SEARCHES] if len(domain) <= _MAX_DOMAIN_LENGTH]
    while len(" ".join(kept)) > MAX_SEARCH_LENGTH:
        kept.pop()
    if len(kept) < len(searches):
        warnings.append(
            DNSWarning(TOO_MUCH_DNS, _OMITTED.format("Search Line", "search paths", "search", " ".join(kept)))
        )
    return kept

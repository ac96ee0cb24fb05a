"""Facts about a pod that its containers can ask for: the downward API, for variables and for volumes.

Rules: `pkg/fieldpath`, `pkg/api/v1/resource` and `kubelet_resources.go` of Kubernetes.

Then the expansion of `$(NAME)` in texts; rules: `third_party/forked/golang/expansion`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.containers import containers_by_name
from trio_kubelet.api.defaults import HUGE_PAGES_PREFIX
from trio_kubelet.common.ip import sort_ips
from trio_kubelet.common.log import go_quote
from trio_kubelet.podinfo.amounts import amount, milli, whole
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.totals import has_pod_level_limits

_DEFAULTED = ("cpu", "memory", "ephemeral-storage")


def metadata_field(pod: v1.Pod, path: str) -> str:
    """A field of the pod's metadata as text; labels and annotations whole or one of them
    (`metadata.labels['app']`). Raises ConfigError for any other path.
    """
    meta = pod.metadata
    maps = {"metadata.annotations": meta.annotations, "metadata.labels": meta.labels}
    base, bracket, key = path.partition("['")
    if bracket and path.endswith("']"):
        if base not in maps:
            raise ConfigError(f'fieldPath "{path}" does not support subscript')
        return (maps[base] or {}).get(key[:-2], "")
    if path in maps:
        return format_map(maps[path] or {})
    values = {"metadata.name": meta.name, "metadata.namespace": meta.namespace, "metadata.uid": meta.uid}
    if path not in values:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return values[path]


def pod_field(pod: v1.Pod, path: str, pod_ips: Sequence[str], ctx: NodeContext) -> str:
    """A field for an environment variable: metadata, or what is known once the pod has its addresses."""
    ordered = sort_ips(pod_ips, ipv6_first=any(":" in ip for ip in ctx.node_ips[:1]))
    if path in ("status.hostIP", "status.hostIPs") and not ctx.host_ips:
        raise ConfigError("the node's addresses are not known")
    match path:
        case "spec.nodeName" | "spec.host":
            return pod.spec.node_name
        case "spec.serviceAccountName":
            return pod.spec.service_account_name
        case "status.hostIP":
            return ctx.host_ips[0]
        case "status.hostIPs":
            return ",".join(ctx.host_ips)
        case "status.podIP":
            return ordered[0] if ordered else ""
        case "status.podIPs":
            return ",".join(ordered)
    return metadata_field(pod, path)


def container_resource(
    selector: v1.ResourceFieldSelector, container: v1.Container, defaults: Mapping[str, str]
) -> str:
    """A request or limit of a container in units of the divisor, rounded up.

    A CPU, memory or ephemeral-storage limit that is not set is the one in `defaults` (the node's
    allocatable resources). Raises ConfigError for anything that cannot be asked for.
    """
    kind, _, resource = selector.resource.partition(".")
    if kind not in ("limits", "requests") or not (
        resource in _DEFAULTED or resource.startswith(HUGE_PAGES_PREFIX)
    ):
        raise ConfigError(f"unsupported container resource : {selector.resource}")
    resources = container.resources
    given = (resources.limits if kind == "limits" else resources.requests) or {}
    number = amount(given.get(resource, ""))
    if not number and kind == "limits" and resource in _DEFAULTED:
        number = amount(defaults.get(resource, ""))
    divisor = amount(selector.divisor) or amount("1")
    scale = milli if resource == "cpu" else whole
    return str(-(-scale(number) // scale(divisor)))


def limit_defaults(pod: v1.Pod, ctx: NodeContext) -> dict[str, str]:
    """What a container without limits may use, for variables: the pod's limits, else the node's
    allocatable resources.
    """
    defaults = dict(ctx.allocatable)
    spec = pod.spec
    if ctx.features.pod_level_resources and has_pod_level_limits(spec) and spec.resources:
        limits = spec.resources.limits or {}
        defaults.update(
            {
                name: limits[name]
                for name in ("cpu", "memory")
                if name in defaults and amount(limits.get(name, ""))
            }
        )
    return defaults


def find_container(pod: v1.Pod, name: str) -> v1.Container:
    """A container or init container by name; raises ConfigError."""
    found = containers_by_name(pod.spec).get(name)
    if found is None or not isinstance(found.container, v1.Container):
        raise ConfigError(f"container {name} not found")
    return found.container


def format_map(values: Mapping[str, str]) -> str:
    """`key="value"` lines sorted by key, values quoted as Go quotes them."""
    return "\n".join(f"{key}={go_quote(values[key])}" for key in sorted(values))


MOST_EXPANDED: Final = 16 << 20
"""Characters that come in the place of references in the texts of one container at most; containerd takes no
larger message. A variable may consist of references to others that do so too: with some ten of them, each ten
times as long as the one before, a short manifest would fill the memory of the node.
"""

# `$$` is a dollar sign, `$(NAME)` a reference; a dollar sign before anything else stays.
_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


def expand(text: str, lookup: Callable[[str], str | None], most: int = MOST_EXPANDED) -> str:
    """Replaces references; one that `lookup` does not know (None) stays as it is. Raises ConfigError when
    more than `most` characters would come in their place.
    """
    if "$" not in text:
        return text
    room = most

    def replace(match: re.Match[str]) -> str:
        nonlocal room
        if match[1]:
            return "$"
        value = lookup(match[2])
        if value is None:
            return match[0]
        room -= len(value)
        if room < 0:
            raise ConfigError(f"references to variables stand for more than {most} characters")
        return value

    end = text.rfind(")") + 1  # behind it nothing is looked for that is not there, once for each "$("
    return _REFERENCE.sub(replace, text[:end]) + text[end:].replace("$$", "$")


def expand_all(texts: Sequence[str] | None, env: Mapping[str, str], most: int = MOST_EXPANDED) -> list[str]:
    """A command or its arguments with the container's variables put in. Raises ConfigError as `expand`."""
    expanded, room = list[str](), most
    for text in texts or ():
        expanded.append(expand(text, env.get, room))
        room -= max(0, len(expanded[-1]) - len(text))
    return expanded

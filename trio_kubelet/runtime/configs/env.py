"""Environment variables of a container.

Rules: `makeEnvironmentVariables` of the kubelet. Variables are in
the order in which they are first declared: `envFrom`, then `env`, then the services'.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.containers import INIT_CONTAINERS, containers_by_name
from trio_kubelet.podinfo.context import EnvSources, NodeContext
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.downward import (
    MOST_EXPANDED,
    container_resource,
    expand,
    find_container,
    limit_defaults,
    pod_field,
)

_MOST_PATH: Final = 4096  # Linux's PATH_MAX
_EACH: Final = 64
"""Characters that a variable counts for besides its own: a config map may have a hundred thousand of none."""


def expand_sub_path(expression: str, env: Mapping[str, str]) -> str:
    """A `subPathExpr`; raises ConfigError when a variable is missing or empty, for the mount would then
    be somewhere else, or when no path can be as long.
    """
    missing: set[str] = set()

    def lookup(name: str) -> str:
        value = env.get(name, "")
        if not value:
            missing.add(name)
        return value

    path = expand(expression, lookup, _MOST_PATH)
    if missing:
        raise ConfigError(f"missing value for {', '.join(sorted(missing))}")
    return path


def environment(
    pod: v1.Pod,
    container: v1.Container,
    ctx: NodeContext,
    sources: EnvSources,
    pod_ips: Sequence[str] = (),
) -> dict[str, str]:
    """All variables of a container. Raises ConfigError when one that is not optional cannot be had, or when
    they are more than a runtime takes.
    """
    if pod.spec.enable_service_links is None:
        raise ConfigError("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")
    env: dict[str, str] = {}
    room = MOST_EXPANDED
    for source in container.env_from or ():
        for key, value in _all_of(source, sources).items():
            room -= _EACH + len(source.prefix) + len(key) + len(value)
            _check(room)
            env[source.prefix + key] = value
    for variable in container.env or ():
        made: str | None = variable.value
        if variable.value:
            made = expand(variable.value, lambda name: env.get(name, sources.services.get(name)), room)
        elif variable.value_from is not None:
            made = _resolve(variable.value_from, pod, container, ctx, sources, pod_ips)
        if made is not None:
            room -= _EACH + len(made)
            _check(room)
            env[variable.name] = made
    return {**env, **{name: value for name, value in sources.services.items() if name not in env}}


def _check(room: int) -> None:
    """Many variables may be made of one large object, each with all of it."""
    if room < 0:
        raise ConfigError(f"the variables have more than {MOST_EXPANDED} characters")


def config_map_names(container: v1.Container) -> Iterator[str]:
    """Config maps the variables of a container come from."""
    for source in container.env_from or ():
        if source.config_map_ref is not None:
            yield source.config_map_ref.name
    for variable in container.env or ():
        origin = variable.value_from
        if not variable.value and origin is not None and origin.config_map_key_ref is not None:
            yield origin.config_map_key_ref.name


def secret_names(container: v1.Container) -> Iterator[str]:
    """Secrets the variables of a container come from."""
    for source in container.env_from or ():
        if source.secret_ref is not None:
            yield source.secret_ref.name
    for variable in container.env or ():
        origin = variable.value_from
        if not variable.value and origin is not None and origin.secret_key_ref is not None:
            yield origin.secret_key_ref.name


def env_files(container: v1.Container) -> list[v1.FileKeySelector]:
    """What the variables of a container are taken from in files of its volumes."""
    refs = (
        v.value_from.file_key_ref for v in container.env or () if not v.value and v.value_from is not None
    )
    return [ref for ref in refs if ref is not None]


def _all_of(source: v1.EnvFromSource, sources: EnvSources) -> Mapping[str, str]:
    """Every entry of a config map or secret."""
    data: Mapping[str, str] | None
    if source.config_map_ref is not None:
        kind, name, optional = "configmap", source.config_map_ref.name, source.config_map_ref.optional
        data = sources.config_maps.get(name)
    elif source.secret_ref is not None:
        kind, name, optional = "secret", source.secret_ref.name, source.secret_ref.optional
        secret = sources.secrets.get(name)
        data = None if secret is None else {key: _text(value) for key, value in secret.items()}
    else:
        return {}
    if data is None and not optional:
        raise ConfigError(f'{kind} "{name}" not found')
    return data or {}


def _resolve(
    source: v1.EnvVarSource,
    pod: v1.Pod,
    container: v1.Container,
    ctx: NodeContext,
    sources: EnvSources,
    pod_ips: Sequence[str],
) -> str | None:
    """The value a variable's source has now; None leaves an optional one out."""
    namespace = pod.metadata.namespace
    if source.field_ref is not None:
        return pod_field(pod, source.field_ref.field_path, pod_ips, ctx)
    if source.resource_field_ref is not None:
        return _resource(source.resource_field_ref, pod, container, ctx)
    if source.config_map_key_ref is not None:
        ref = source.config_map_key_ref
        return _key(("configmap", "ConfigMap"), ref, namespace, sources.config_maps.get(ref.name))
    if source.secret_key_ref is not None:
        secret = source.secret_key_ref
        return _key(("secret", "Secret"), secret, namespace, sources.secrets.get(secret.name))
    if source.file_key_ref is not None and ctx.features.env_files:
        file = source.file_key_ref
        return sources.env_files.get((file.volume_name, file.path, file.key))
    return ""


def _resource(
    selector: v1.ResourceFieldSelector, pod: v1.Pod, container: v1.Container, ctx: NodeContext
) -> str:
    """A request or limit; of an init container that is named, limits that are not set count as 0."""
    name = selector.container_name
    if not name:
        return container_resource(selector, container, limit_defaults(pod, ctx))
    named = find_container(pod, name)
    is_init = containers_by_name(pod.spec)[name].field == INIT_CONTAINERS
    return container_resource(selector, named, {} if is_init else limit_defaults(pod, ctx))


def _key(
    kind: tuple[str, str],
    ref: v1.ConfigMapKeySelector | v1.SecretKeySelector,
    namespace: str,
    data: Mapping[str, str] | Mapping[str, bytes] | None,
) -> str | None:
    if data is not None and ref.key in data:
        value = data[ref.key]
        return value if isinstance(value, str) else _text(value)
    if ref.optional:
        return None
    if data is None:
        raise ConfigError(f'{kind[0]} "{ref.name}" not found')
    raise ConfigError(f"couldn't find key {ref.key} in {kind[1]} {namespace}/{ref.name}")


def _text(value: bytes) -> str:
    """Bytes as text that keeps any byte."""
    return value.decode("utf-8", "surrogateescape")


def env_file_values(text: str, keys: Collection[str]) -> dict[str, str]:
    """The values of the first assignments to `keys` in a file that a container wrote into a volume
    (KEP-3721); those that have none are left out.

    Raises ValueError for a line before them that is not an assignment; what follows is not looked at.
    """
    found: dict[str, str] = {}
    for name, value in _assignments(text):
        if name in keys and name not in found:
            found[name] = value
            if len(found) == len(keys):
                break
    return found


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    """The format is a part of what a POSIX shell reads: `NAME='value'` with single quotes, the value over
    several lines if need be; comments and blank lines are skipped. Raises ValueError.
    """
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]  # as Go's scanner
    number = 0
    while number < len(lines):
        line = lines[number].lstrip(" \t")
        number += 1
        if not line or line.startswith("#"):
            continue
        name, equals, rest = line.partition("=")
        if not equals:
            raise ValueError(f"line {number}: missing '='")
        if not name or name != name.rstrip(" \t"):
            raise ValueError(f"line {number}: no variable name right before '='")
        if rest[:1] in (" ", "\t"):  # as a shell reads it: an empty value, then something else
            yield name, ""
            continue
        if not rest.startswith("'"):
            raise ValueError(f"line {number}: the value must be in single quotes")
        start = number
        value, quote, after = rest[1:].partition("'")
        while not quote:
            if number == len(lines):
                raise ValueError(f"line {start}: the quote is not closed")
            more, quote, after = lines[number].partition("'")
            value += "\n" + more
            number += 1
        after = after.lstrip(" \t")
        if after and not after.startswith("#"):
            raise ValueError(f"line {number}: unexpected text after the closing quote")
        yield name, value

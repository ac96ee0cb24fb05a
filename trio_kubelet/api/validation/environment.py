"""Environment variables and where their values come from."""

from __future__ import annotations

from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.containers import AnyContainer
from trio_kubelet.api.validation.downward import validate_field_selector, validate_resource_selector
from trio_kubelet.api.validation.formats import (
    config_key,
    dns_label,
    dns_subdomain,
    environment_name,
    path_without_backsteps,
    prefix_of_name,
)
from trio_kubelet.api.validation.problems import Problems

_FIELDS: Final = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
    "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
)  # fmt: skip

_TOO_MANY_SOURCES: Final = "may not have more than one field specified at a time"


def validate_environment(container: AnyContainer, here: str, problems: Problems, *, env_files: bool) -> None:
    """`env` and `envFrom` of a container; `env_files`: whether files are offered as sources."""
    for index, variable in enumerate(container.env or ()):
        where = f"{here}.env[{index}]"
        problems.named(f"{where}.name", variable.name, environment_name)
        if variable.value_from is not None:
            _source(variable, variable.value_from, env_files, f"{where}.valueFrom", problems)
    for index, source in enumerate(container.env_from or ()):
        where = f"{here}.envFrom[{index}]"
        if source.prefix:
            problems.check(f"{where}.prefix", source.prefix, environment_name)
        given = 0
        for reference, name in ((source.config_map_ref, "configMapRef"), (source.secret_ref, "secretRef")):
            if reference is not None:
                given += 1
                problems.named(f"{where}.{name}.name", reference.name, prefix_of_name)
        if given == 0:
            problems.invalid(f"{here}.envFrom", "", "must specify one of: `configMapRef` or `secretRef`")
        elif given > 1:
            problems.invalid(f"{here}.envFrom", "", _TOO_MANY_SOURCES)


def _source(
    variable: v1.EnvVar, source: v1.EnvVarSource, env_files: bool, here: str, problems: Problems
) -> None:
    given = 0
    if source.field_ref is not None:
        given += 1
        validate_field_selector(source.field_ref, _FIELDS, f"{here}.fieldRef", problems)
    if source.resource_field_ref is not None:
        given += 1
        where = f"{here}.resourceFieldRef"
        validate_resource_selector(source.resource_field_ref, where, problems, needs_container=False)
    for selector, name in (
        (source.config_map_key_ref, "configMapKeyRef"),
        (source.secret_key_ref, "secretKeyRef"),
    ):
        if selector is not None:
            given += 1
            problems.check(f"{here}.{name}.name", selector.name, dns_subdomain)
            problems.named(f"{here}.{name}.key", selector.key, config_key)
    if source.file_key_ref is not None:
        given += 1
        _file_key(source.file_key_ref, f"{here}.fileKeyRef", problems)
    if given == 0:
        last = ", `secretKeyRef` or `fileKeyRef`" if env_files else " or `secretKeyRef`"
        kinds = f"`fieldRef`, `resourceFieldRef`, `configMapKeyRef`{last}"
        problems.invalid(here, "", f"must specify one of: {kinds}")
    elif variable.value:
        problems.invalid(here, "", "may not be specified when `value` is not empty")
    elif given > 1:
        problems.invalid(here, "", _TOO_MANY_SOURCES)


def _file_key(selector: v1.FileKeySelector, here: str, problems: Problems) -> None:
    problems.named(f"{here}.key", selector.key, environment_name)
    problems.named(f"{here}.volumeName", selector.volume_name, dns_label)
    problems.named(f"{here}.path", selector.path, path_without_backsteps)

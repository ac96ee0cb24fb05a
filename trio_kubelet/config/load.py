"""From a command line to the settings the agent runs with: `load`.

The order is the kubelet's: defaults, then `--config`, then the drop-ins of `--config-dir` in lexical order
(JSON merge: objects merge, lists and values replace, null removes), then the flags. Feature gates given as
flags join those of the files. What cannot be used raises `ConfigurationError` with file, field and reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from trio_kubelet.api.errors import DecodeError
from trio_kubelet.config import implemented
from trio_kubelet.config.decode import (
    Findings,
    decode_configuration,
    describe,
    json_path,
    to_configz,
    with_exact_names,
    with_field,
)
from trio_kubelet.config.flag_table import attribute_of, kubelet_flags
from trio_kubelet.config.flag_values import is_label_value, is_qualified_name
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import FeatureGates, GateError, known_gates, resolve_gates
from trio_kubelet.config.pflag import CommandLine
from trio_kubelet.config.types import API_VERSION, KIND, KubeletConfiguration, legacy_configuration
from trio_kubelet.config.validation import validate

# What a configuration file gets if it does not set evictionHard; without a file there are no thresholds.
DEFAULT_EVICTION_HARD: Final = {
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
}
# Paths in the file of `--config` may be relative to that file.
_PATHS: Final = (
    "static_pod_path",
    "authentication.x509.client_ca_file",
    "tls_cert_file",
    "tls_private_key_file",
    "resolv_conf",
    "volume_plugin_dir",
    "pod_logs_dir",
)
NODE_LABELS: Final = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
    }
)
_NODE_LABEL_DOMAINS: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")


class ConfigurationError(Exception):
    """Settings that cannot be used; the message says where and why."""


class Settings(Struct, frozen=True, kw_only=True):
    """What the agent runs with.

    `warnings` are (message, key/value pairs) to log once logging is set up; `ineffective` names the settings
    that were given and do nothing here.
    """

    flags: KubeletFlags
    config: KubeletConfiguration
    gates: FeatureGates
    warnings: tuple[tuple[str, Mapping[str, object]], ...] = ()
    ineffective: tuple[str, ...] = ()


def load(line: CommandLine, check_host: bool = True) -> Settings:
    """The settings of a parsed command line, files included; raises `ConfigurationError`.

    `check_host=False` leaves out what depends on this host: for a dry run about another node.
    """
    flags = _flags_of(line)
    _gates_of(line.values.get("feature-gates", {}))
    if errors := list(_label_errors(flags.node_labels)):
        raise ConfigurationError(f"failed to validate kubelet flags: {'; '.join(errors)}")
    given: dict[str, str] = {}
    warnings: list[tuple[str, Mapping[str, object]]] = []
    config = legacy_configuration()
    if flags.config:
        config = _load_file(flags.config, given, warnings)
    if flags.config_dir:
        config = _merge_drop_ins(config, flags.config_dir, given, warnings)
    config = override(config, line.values)
    for name in line.values:
        target = kubelet_flags()[name].target
        given[json_path(target) if target else f"--{name}"] = f"--{name}"
    gates = _gates_of(config.feature_gates)
    if gates.warnings:
        warnings.append(
            ("Feature gates that will go away are set", {"featureGates": ", ".join(gates.warnings)})
        )
    config = _gated_defaults(config, gates, given)
    if errors := validate(config, gates, cgroup_v1=check_host and uses_cgroup_v1()):
        raise ConfigurationError(f"failed to validate kubelet configuration: {'; '.join(errors)}")
    return Settings(
        flags=flags,
        config=config,
        gates=gates,
        warnings=tuple(warnings),
        ineffective=tuple(ineffective(given, config.feature_gates)),
    )


def override(config: KubeletConfiguration, values: Mapping[str, Any]) -> KubeletConfiguration:
    """`config` under the flags that name a field of it."""
    for name, value in values.items():
        flag = kubelet_flags()[name]
        if not flag.target or (flag.kind == "ip" and not value):
            continue
        if name == "feature-gates":
            value = {**config.feature_gates, **value}
        elif name == "vmodule":
            value = [*config.logging.vmodule, *value]
        config = with_field(config, flag.target, value)
    return config


def ineffective(given: Mapping[str, str], gates: Mapping[str, bool]) -> Iterator[str]:
    """Of the settings given (path to how it was written), those that do nothing in this agent."""
    for path, written in given.items():
        if path.startswith("--"):
            if path[2:] not in implemented.FLAGS:
                yield written
        elif not implemented.acts(path):
            yield written
    for name in gates:
        # A finished feature has its own warning, and is as it was set or could not have been set.
        if name not in implemented.GATES and known_gates()[name].stage != "GA":
            yield f"featureGates.{name}"


def uses_cgroup_v1() -> bool:
    """Whether this host has no unified cgroup hierarchy."""
    return not os.path.exists("/sys/fs/cgroup/cgroup.controllers")


def merge_patch(base: Any, patch: Any) -> Any:
    """RFC 7386: objects merge key by key, null removes a key, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def _flags_of(line: CommandLine) -> KubeletFlags:
    flags = kubelet_flags()
    own, overrides = {}, {}
    for name, value in line.values.items():
        if flags[name].target or name in ("help", "version"):
            overrides[name] = value
        else:
            own[attribute_of(flags[name])] = value
    return KubeletFlags(overrides=overrides, **own)


def _gates_of(wanted: Mapping[str, bool]) -> FeatureGates:
    try:
        return resolve_gates(wanted)
    except GateError as error:
        raise ConfigurationError(f"failed to set feature gates: {error}") from None


def _label_errors(labels: Mapping[str, str]) -> Iterator[str]:
    """Rules for `--node-labels`: a node may only give itself certain labels in the kubernetes.io domains."""
    for key, value in labels.items():
        domain = key.partition("/")[0] if "/" in key else ""
        reserved = any(domain == d or domain.endswith(f".{d}") for d in ("kubernetes.io", "k8s.io"))
        own = any(domain == d or domain.endswith(f".{d}") for d in _NODE_LABEL_DOMAINS)
        if reserved and not own and key not in NODE_LABELS:
            yield f"--node-labels: {key!r} is a kubernetes.io label a node may not give itself"
        if not is_qualified_name(key):
            yield f"--node-labels: {key!r} is not a label name"
        if not is_label_value(value):
            yield f"--node-labels: {value!r} is not a label value"


def _load_file(
    name: str, given: dict[str, str], warnings: list[tuple[str, Mapping[str, object]]]
) -> KubeletConfiguration:
    path = os.path.abspath(name)
    what = f"failed to load kubelet config file, path: {path}"
    raw, duplicates = _read(path, what)
    config, findings = decode_configuration(raw)
    _check(findings, what)
    _warn_lenient(path, findings, duplicates, warnings)
    given.update((field, field) for field in findings.given)
    directory = os.path.dirname(path)
    for attribute in _PATHS:
        value = config
        for part in attribute.split("."):
            value = getattr(value, part)
        if value and not os.path.isabs(str(value)):  # what is absolute is left as it was written
            config = with_field(config, attribute, os.path.normpath(os.path.join(directory, str(value))))
    if "evictionHard" not in findings.given:
        return msgspec.structs.replace(config, eviction_hard=dict(DEFAULT_EVICTION_HARD))
    if config.merge_default_eviction_settings:
        merged = {**DEFAULT_EVICTION_HARD, **config.eviction_hard}
        return msgspec.structs.replace(config, eviction_hard=merged)
    return config


def _merge_drop_ins(
    config: KubeletConfiguration,
    directory: str,
    given: dict[str, str],
    warnings: list[tuple[str, Mapping[str, object]]],
) -> KubeletConfiguration:
    merged: Any = to_configz(config)
    try:
        paths = list(_drop_ins(directory))
    except OSError as error:
        raise ConfigurationError(
            f"failed to merge kubelet configs: --config-dir {error.filename}: {error.strerror}"
        ) from None
    for path in paths:
        what = f"failed to load kubelet dropin file, path: {path}"
        raw, duplicates = _read(path, what)
        if duplicates:
            raise ConfigurationError(f"{what}: {'; '.join(duplicates)}")
        own = with_exact_names(KubeletConfiguration, merge_patch({}, raw))
        _, findings = decode_configuration(own)
        _check(findings, what)
        _warn_lenient(path, findings, [], warnings)
        given.update((field, field) for field in findings.given)
        merged = merge_patch(merged, raw)
    config, findings = decode_configuration(with_exact_names(KubeletConfiguration, merged))
    _check(findings, f"failed to merge kubelet configs of {directory}")
    return config


def _drop_ins(directory: str) -> Iterator[str]:
    """The `.conf` files below `directory`, depth first and each level by name."""
    for entry in sorted(os.scandir(directory), key=lambda entry: os.fsencode(entry.name)):
        if entry.is_dir(follow_symlinks=False):
            yield from _drop_ins(entry.path)
        elif entry.name.endswith(".conf"):
            yield entry.path


def _read(path: str, what: str) -> tuple[dict[str, Any], list[str]]:
    """The document of a configuration file, and its duplicate keys."""
    from trio_kubelet.api.yaml import load_document  # only with a file

    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        from trio_kubelet.common.go_words import error_words  # needs Trio, as only what goes wrong does here

        raise ConfigurationError(f"{what}, error: {error_words(error, 'open')}") from None
    if not data:
        raise ConfigurationError(f"{what}: the file is empty")
    try:
        document = load_document(data)
    except DecodeError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    raw = document.value
    if not isinstance(raw, dict):
        raise ConfigurationError(f"{what}: expected a {KIND} object, got {describe(raw)}")
    names = {key.lower(): value for key, value in raw.items()}  # these two are looked for in any case
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        value = names.get(field.lower())
        if value != wanted:
            problem = f"is {value!r}" if value else "is missing"
            raise ConfigurationError(f"{what}: {field} {problem}, expected {wanted}")
    return raw, [
        f'line {duplicate.line}: key "{duplicate.key}" already set' for duplicate in document.duplicates
    ]


def _check(findings: Findings, what: str) -> None:
    if findings.errors:
        raise ConfigurationError(f"{what}: {'; '.join(findings.errors)}")


def _warn_lenient(
    path: str,
    findings: Findings,
    duplicates: list[str],
    warnings: list[tuple[str, Mapping[str, object]]],
) -> None:
    """One warning for all that strict decoding would refuse; v1beta1 lets it pass."""
    problems = [*duplicates, *(f'unknown field "{field}"' for field in findings.unknown)]
    if problems:
        warnings.append(
            ("Using lenient decoding as strict decoding failed", {"err": ", ".join(problems), "file": path})
        )


def _gated_defaults(
    config: KubeletConfiguration, gates: FeatureGates, given: Mapping[str, str]
) -> KubeletConfiguration:
    """Two defaults exist only while their feature is on."""
    if not gates.enabled("KubeletCrashLoopBackOffMax"):
        path = "crashLoopBackOff.maxContainerRestartPeriod"
        if path not in given:
            config = with_field(config, "crash_loop_back_off.max_container_restart_period", None)
    if not gates.enabled("KubeletEnsureSecretPulledImages"):
        path = "imagePullCredentialsVerificationPolicy"
        if path not in given:
            config = with_field(config, "image_pull_credentials_verification_policy", "")
    return config

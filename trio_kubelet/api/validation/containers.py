"""Containers, init containers and sidecars."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from trio_kubelet.api import v1
from trio_kubelet.api.containers import AnyContainer, is_sidecar, regular_containers
from trio_kubelet.api.pod_rules import PodRules
from trio_kubelet.api.validation.environment import validate_environment
from trio_kubelet.api.validation.formats import (
    dns_label,
    path_without_backsteps,
    port_name,
    port_number,
    relative_path,
)
from trio_kubelet.api.validation.handlers import validate_lifecycle, validate_probes
from trio_kubelet.api.validation.problems import Problems
from trio_kubelet.api.validation.resources import validate_container_resources
from trio_kubelet.api.validation.security import validate_container_security
from trio_kubelet.api.validation.volumes import PULL_POLICIES

_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_MESSAGE_POLICIES: Final = ("File", "FallbackToLogsOnError")
_PROPAGATIONS: Final = ("Bidirectional", "HostToContainer", "None")
_READ_ONLY_MODES: Final = ("Disabled", "Enabled", "IfPossible")
_RESIZE_POLICIES: Final = ("NotRequired", "RestartContainer")
_RESTART_POLICIES: Final = ("Always", "Never", "OnFailure")
_RULE_ACTIONS: Final = ("Restart", "RestartAllContainers")
PADDED: Final = "must not have leading or trailing whitespace"
_MAX_RULES: Final = 20
_MAX_EXIT_CODES: Final = 255
_NOT_EPHEMERAL: Final = "cannot be set for an Ephemeral Container"


class Surroundings(NamedTuple):
    """What the rules of a container need to know of its pod."""

    spec: v1.PodSpec
    volumes: Mapping[str, v1.Volume]
    claim_names: Collection[str]
    host_users: bool
    rules: PodRules


def validate_containers(pod: Surroundings, problems: Problems) -> None:
    here, containers = "spec.containers", pod.spec.containers or []
    if not containers:
        problems.required(here)
        return
    names: set[str] = set()
    for index, container in enumerate(containers):
        where = f"{here}[{index}]"
        _common(container, pod, where, problems)
        if container.name in names:
            problems.duplicate(f"{where}.name", container.name)
        names.add(container.name)
        _hooks_and_probes(container, pod, where, problems)
        if pod.rules.restart_rules:
            _restart(container, pod.rules, where, problems)
        elif container.restart_policy is not None:
            problems.forbidden(f"{where}.restartPolicy", "may not be set for non-init containers")
    _host_ports(containers, here, problems)


def validate_init_containers(pod: Surroundings, problems: Problems) -> None:
    here = "spec.initContainers"
    names = {container.name for container in pod.spec.containers or ()}
    for index, container in enumerate(pod.spec.init_containers or ()):
        where = f"{here}[{index}]"
        _common(container, pod, where, problems)
        _restart_of_init(container, pod.rules, where, problems)
        if container.name in names:
            problems.duplicate(f"{where}.name", container.name)
        elif container.name:
            names.add(container.name)
        # Every init container runs alone as to its ports, so each is counted from zero.
        _host_ports([container], here, problems)
        if is_sidecar(container):
            _hooks_and_probes(container, pod, where, problems)
        else:
            _no_hooks_and_probes(container, where, problems)
            for position, policy in enumerate(container.resize_policy or ()):
                if policy.restart_policy == "RestartContainer":
                    field = f"{where}.resizePolicy[{position}].restartPolicy"
                    why = "must not be set to 'RestartContainer' for non-sidecar initContainers"
                    problems.invalid(field, policy.restart_policy, why)


def validate_ephemeral_containers(pod: Surroundings, problems: Problems) -> None:
    here = "spec.ephemeralContainers"
    targets = {each.name for each in regular_containers(pod.spec)}
    names = set(targets)
    for index, container in enumerate(pod.spec.ephemeral_containers or ()):
        where = f"{here}[{index}]"
        _common(container, pod, where, problems)
        if container.image != container.image.strip():
            problems.invalid(f"{where}.image", container.image, PADDED)
        if container.name in names:
            problems.duplicate(f"{where}.name", container.name)
        names.add(container.name)
        target = container.target_container_name
        if target and target not in targets:
            problems.missing(f"{where}.targetContainerName", target)
        for value, field in (
            (container.ports, "ports"),
            (None if container.resources == v1.ResourceRequirements() else True, "resources"),
            (container.resize_policy, "resizePolicy"),
            (container.restart_policy, "restartPolicy"),
            (container.restart_policy_rules, "restartPolicyRules"),
            (container.liveness_probe, "livenessProbe"),
            (container.readiness_probe, "readinessProbe"),
            (container.startup_probe, "startupProbe"),
            (container.lifecycle, "lifecycle"),
        ):
            if value is not None:
                problems.forbidden(f"{where}.{field}", _NOT_EPHEMERAL)
        for position, mount in enumerate(container.volume_mounts or ()):
            for path, field in ((mount.sub_path, "subPath"), (mount.sub_path_expr, "subPathExpr")):
                if path:
                    problems.forbidden(f"{where}.volumeMounts[{position}].{field}", _NOT_EPHEMERAL)


def _hooks_and_probes(container: v1.Container, pod: Surroundings, here: str, problems: Problems) -> None:
    grace = pod.spec.termination_grace_period_seconds
    validate_lifecycle(container.lifecycle, pod.spec.os, f"{here}.lifecycle", problems, grace_seconds=grace)
    validate_probes(container, here, problems, grace_seconds=grace)


def _no_hooks_and_probes(container: v1.Container, here: str, problems: Problems) -> None:
    for value, field in (
        (container.lifecycle, "lifecycle"),
        (container.liveness_probe, "livenessProbe"),
        (container.readiness_probe, "readinessProbe"),
        (container.startup_probe, "startupProbe"),
    ):
        if value is not None:
            why = "may not be set for init containers without restartPolicy=Always"
            problems.forbidden(f"{here}.{field}", why)


def _common(container: AnyContainer, pod: Surroundings, here: str, problems: Problems) -> None:
    problems.named(f"{here}.name", container.name, dns_label)
    if not container.image:
        problems.required(f"{here}.image")
    problems.one_of(
        f"{here}.terminationMessagePolicy", container.termination_message_policy, _MESSAGE_POLICIES
    )
    _ports(container.ports or [], f"{here}.ports", problems)
    validate_environment(container, here, problems, env_files=pod.rules.env_files)
    _mounts(container, pod.volumes, f"{here}.volumeMounts", problems)
    _devices(container, pod.volumes, f"{here}.volumeDevices", problems)
    problems.one_of(f"{here}.imagePullPolicy", container.image_pull_policy, PULL_POLICIES)
    validate_container_resources(container.resources, pod.claim_names, f"{here}.resources", problems)
    _resize_policies(container, pod.spec, f"{here}.resizePolicy", problems)
    validate_container_security(
        container.security_context, f"{here}.securityContext", problems, host_users=pod.host_users
    )


def _ports(ports: Sequence[v1.ContainerPort], here: str, problems: Problems) -> None:
    names: set[str] = set()
    for index, port in enumerate(ports):
        where = f"{here}[{index}]"
        if port.name and problems.check(f"{where}.name", port.name, port_name):
            if port.name in names:
                problems.duplicate(f"{where}.name", port.name)
            names.add(port.name)
        if port.container_port == 0:
            problems.required(f"{where}.containerPort")
        else:
            problems.check(f"{where}.containerPort", port.container_port, port_number)
        if port.host_port:
            problems.check(f"{where}.hostPort", port.host_port, port_number)
        problems.one_of(f"{where}.protocol", port.protocol, _PROTOCOLS)


def _host_ports(containers: Sequence[v1.Container], here: str, problems: Problems) -> None:
    """No two ports of the containers may be the same port of the host."""
    used: set[tuple[str, str, int]] = set()
    for index, container in enumerate(containers):
        for position, port in enumerate(container.ports or ()):
            key = (port.protocol, port.host_ip, port.host_port)
            if port.host_port and key in used:
                where = f"{here}[{index}].ports[{position}].hostPort"
                problems.duplicate(where, f"{port.protocol}/{port.host_ip}/{port.host_port}")
            used.add(key)


def _mounts(container: AnyContainer, volumes: Mapping[str, v1.Volume], here: str, problems: Problems) -> None:
    devices = {device.name: device.device_path for device in container.volume_devices or ()}
    context = container.security_context
    privileged = context is not None and bool(context.privileged)
    paths: set[str] = set()
    for index, mount in enumerate(container.volume_mounts or ()):
        where = f"{here}[{index}]"
        if not mount.name:
            problems.required(f"{where}.name")
        if mount.name not in volumes:
            problems.missing(f"{where}.name", mount.name)
        if not mount.mount_path:
            problems.required(f"{where}.mountPath")
        if mount.mount_path in paths:
            problems.invalid(f"{where}.mountPath", mount.mount_path, "must be unique")
        paths.add(mount.mount_path)
        if mount.name in devices:
            problems.invalid(f"{where}.name", mount.name, "must not already exist in volumeDevices")
        if mount.mount_path in devices.values():
            why = "must not already exist as a path in volumeDevices"
            problems.invalid(f"{where}.mountPath", mount.mount_path, why)
        _sub_paths(mount, where, here, problems)
        _mount_modes(mount, here, problems, privileged=privileged)


def _sub_paths(mount: v1.VolumeMount, where: str, here: str, problems: Problems) -> None:
    if mount.sub_path:
        problems.check(f"{here}.subPath", mount.sub_path, relative_path)
    if mount.sub_path_expr:
        if mount.sub_path:
            why = "subPathExpr and subPath are mutually exclusive"
            problems.invalid(f"{where}.subPathExpr", mount.sub_path_expr, why)
        problems.check(f"{here}.subPathExpr", mount.sub_path_expr, relative_path)


def _mount_modes(mount: v1.VolumeMount, here: str, problems: Problems, *, privileged: bool) -> None:
    propagation = mount.mount_propagation
    if propagation is not None:
        if propagation not in _PROPAGATIONS:
            problems.unsupported(f"{here}.mountPropagation", propagation, _PROPAGATIONS)
        if propagation == "Bidirectional" and not privileged:
            why = "Bidirectional mount propagation is available only to privileged containers"
            problems.forbidden(f"{here}.mountPropagation", why)
    mode, field = mount.recursive_read_only, f"{here}.recursiveReadOnly"
    if mode is None or mode == "Disabled":
        return
    if mode not in _READ_ONLY_MODES:
        problems.unsupported(field, mode, _READ_ONLY_MODES)
        return
    if not mount.read_only:
        problems.forbidden(field, "may only be specified when readOnly is true")
    if propagation not in (None, "None"):
        problems.forbidden(field, "may only be specified when mountPropagation is None or not specified")


def _devices(
    container: AnyContainer, volumes: Mapping[str, v1.Volume], here: str, problems: Problems
) -> None:
    mounts = {mount.name: mount.mount_path for mount in container.volume_mounts or ()}
    names: set[str] = set()
    paths: set[str] = set()
    for index, device in enumerate(container.volume_devices or ()):
        where, name, path = f"{here}[{index}]", device.name, device.device_path
        volume = volumes.get(name)
        if not name:
            problems.required(f"{where}.name")
        if name in names:
            problems.invalid(f"{where}.name", name, "must be unique")
        if volume is None:
            problems.missing(f"{where}.name", name)
        elif volume.persistent_volume_claim is None and volume.ephemeral is None:
            why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            problems.invalid(f"{where}.name", name, why)
        if not path:
            problems.required(f"{where}.devicePath")
        if path in paths:
            problems.invalid(f"{where}.devicePath", path, "must be unique")
        if path_without_backsteps(path):
            problems.invalid(f"{where}.devicePath", path, "can not contain backsteps ('..')")
        else:
            paths.add(path)
        if name in mounts:
            problems.invalid(f"{where}.name", name, "must not already exist in volumeMounts")
        if path in mounts.values():
            why = "must not already exist as a path in volumeMounts"
            problems.invalid(f"{where}.devicePath", path, why)
        if name:
            names.add(name)


def _resize_policies(container: AnyContainer, spec: v1.PodSpec, here: str, problems: Problems) -> None:
    resources: set[str] = set()
    for index, policy in enumerate(container.resize_policy or ()):
        if policy.resource_name in resources:
            problems.duplicate(f"{here}[{index}]", policy.resource_name)
        resources.add(policy.resource_name)
        problems.one_of(here, policy.resource_name, ("cpu", "memory"))
        problems.one_of(here, policy.restart_policy, _RESIZE_POLICIES)
        if spec.restart_policy == "Never" and policy.restart_policy != "NotRequired":
            why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'"
            problems.invalid(here, policy.restart_policy, why)


def _restart_of_init(container: v1.Container, rules: PodRules, here: str, problems: Problems) -> None:
    """The same of an init container: without the gates of rules only a sidecar has a policy, and no rules."""
    policy = container.restart_policy
    if policy is None or (rules.restart_rules and (rules.restart_all or not is_sidecar(container))):
        _restart(container, rules, here, problems)
    elif not is_sidecar(container):
        problems.unsupported(f"{here}.restartPolicy", policy, ("Always",))
    elif container.restart_policy_rules and rules.restart_rules:
        why = "restartPolicyRules are not allowed for init containers with restart policy Always"
        problems.forbidden(f"{here}.restartPolicyRules", why)


def _restart(container: v1.Container, allowed: PodRules, here: str, problems: Problems) -> None:
    """Restart policy and rules of a single container."""
    policy, rules = container.restart_policy, container.restart_policy_rules or []
    if policy is None:
        if not rules:
            return
        problems.required(f"{here}.restartPolicy", "must specify restartPolicy when restart rules are used")
        if here.startswith("spec.initContainers"):
            return
    elif policy not in _RESTART_POLICIES:
        problems.unsupported(f"{here}.restartPolicy", policy, _RESTART_POLICIES)
    if len(rules) > _MAX_RULES:
        problems.too_many(f"{here}.restartPolicyRules", len(rules), _MAX_RULES)
    for index, rule in enumerate(rules):
        where = f"{here}.restartPolicyRules[{index}]"
        actions = _RULE_ACTIONS if allowed.restart_all else _RULE_ACTIONS[:1]
        if rule.action not in actions:
            problems.unsupported(f"{where}.action", rule.action, actions)
        codes = rule.exit_codes
        if codes is None:
            problems.required(f"{where}.exitCodes", "must be specified")
            continue
        if codes.operator not in ("In", "NotIn"):
            problems.unsupported(f"{where}.exitCodes.operator", codes.operator, ("In", "NotIn"))
        count = len(codes.values or ())
        if count > _MAX_EXIT_CODES:
            problems.too_many(f"{where}.exitCodes.values", count, _MAX_EXIT_CODES)

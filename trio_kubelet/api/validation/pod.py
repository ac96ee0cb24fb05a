"""The pod as a whole: puts the parts' rules together and adds those between the parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.containers import containers_with_path
from trio_kubelet.api.errors import FieldError
from trio_kubelet.api.pod_rules import DEFAULT_RULES, PodRules
from trio_kubelet.api.validation.containers import (
    PADDED,
    Surroundings,
    validate_containers,
    validate_ephemeral_containers,
    validate_init_containers,
)
from trio_kubelet.api.validation.formats import (
    between,
    dns_label,
    dns_subdomain,
    dns_subdomain_underscore,
    ip_address,
    loose_ip_address,
    qualified_name,
)
from trio_kubelet.api.validation.metadata import (
    MIRROR_ANNOTATION,
    validate_labels,
    validate_metadata,
    validate_pod_annotations,
)
from trio_kubelet.api.validation.operating_system import validate_host_processes, validate_operating_system
from trio_kubelet.api.validation.problems import Problems
from trio_kubelet.api.validation.resources import validate_overhead, validate_pod_resources
from trio_kubelet.api.validation.scheduling import (
    validate_affinity,
    validate_tolerations,
    validate_topology_spread,
)
from trio_kubelet.api.validation.security import validate_pod_security, validate_profile_annotations
from trio_kubelet.api.validation.volumes import validate_volumes

_RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
_DNS_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PREEMPTION_POLICIES: Final = ("PreemptLowerPriority", "Never")
_MAX_NAMESERVERS: Final = 3
_MAX_SEARCHES: Final = 32
_MAX_SEARCH_CHARACTERS: Final = 2048
_LONGEST_HOSTNAME: Final = 64
_MAX_INT32: Final = 2**31 - 1


def validate_pod(pod: v1.Pod, rules: PodRules = DEFAULT_RULES) -> list[FieldError]:
    """Everything that is wrong with a defaulted pod that is to be created on a node.

    Kubernetes' rules for creating a pod (feature gates at their defaults, but for those of `rules`), fields
    named and errors in order as there.
    """
    problems = Problems()
    validate_metadata(pod.metadata, problems)
    validate_pod_annotations(pod, rules, problems)
    _spec(pod, rules, problems)
    if pod.spec.ephemeral_containers:
        problems.forbidden("spec.ephemeralContainers", "cannot be set on create")
    if pod.spec.node_name and pod.spec.scheduling_gates:
        problems.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")
    validate_profile_annotations(pod.metadata.annotations or {}, pod.spec, problems)
    return problems.found


def _spec(pod: v1.Pod, rules: PodRules, problems: Problems) -> None:
    spec = pod.spec
    volumes = validate_volumes(spec.volumes or [], pod.metadata.name, "spec.volumes", problems)
    claim_names = sorted({claim.name for claim in spec.resource_claims or () if claim.name})
    _resource_claims(pod, problems)
    surroundings = Surroundings(spec, volumes, claim_names, spec.host_users is not False, rules)
    validate_containers(surroundings, problems)
    validate_init_containers(surroundings, problems)
    validate_ephemeral_containers(surroundings, problems)
    if rules.pod_resources:
        validate_pod_resources(spec, claim_names, "spec.resources", problems)
    _host_network(spec, problems)
    problems.one_of("spec.restartPolicy", spec.restart_policy, _RESTART_POLICIES)
    problems.one_of("spec.dnsPolicy", spec.dns_policy, _DNS_POLICIES)
    validate_labels(spec.node_selector, "spec.nodeSelector", problems)
    validate_pod_security(spec, problems, mount_option=rules.mount_option)
    validate_affinity(spec.affinity, "spec.affinity", problems)
    _dns(spec, "spec.dnsConfig", rules, problems)
    for index, gate in enumerate(spec.readiness_gates or ()):
        problems.check(f"spec.readinessGates[{index}].conditionType", gate.condition_type, qualified_name)
    _scheduling_gates(spec.scheduling_gates or [], problems)
    spread = spec.topology_spread_constraints or []
    validate_topology_spread(spread, "spec.topologySpreadConstraints", rules, problems)
    validate_host_processes(spec, problems)
    _user_namespace(spec, rules, problems)
    _hostname_override(spec, "spec.hostnameOverride", problems)
    _names(spec, problems)
    validate_tolerations(spec.tolerations or [], "spec.tolerations", rules, problems)
    _host_aliases(spec, rules, problems)
    _classes(spec, problems)
    if spec.overhead is not None:
        validate_overhead(spec.overhead, "spec.overhead", problems)
    validate_operating_system(spec, problems)
    if spec.scheduling_group is not None:
        here, group = "spec.schedulingGroup.podGroupName", spec.scheduling_group.pod_group_name
        if group is None:
            problems.invalid(here, None, "must specify one of: `podGroupName`")
        else:
            problems.check(here, group, dns_subdomain)
    _between_parts(spec, problems)


def _hostname_override(spec: v1.PodSpec, here: str, problems: Problems) -> None:
    override = spec.hostname_override
    if override is None:
        return
    if spec.set_hostname_as_fqdn:
        problems.forbidden(here, "may not be specified when setHostnameAsFQDN is true")
    if spec.host_network:
        problems.forbidden(here, "may not be specified when hostNetwork is true")
    if len(override.encode()) > _LONGEST_HOSTNAME:
        problems.too_long(here, _LONGEST_HOSTNAME)
    problems.check(here, override, dns_subdomain)


def _names(spec: v1.PodSpec, problems: Problems) -> None:
    """Whose the pod is, where it runs and for how long, and its name in the network."""
    if spec.service_account_name:
        problems.check("spec.serviceAccountName", spec.service_account_name, dns_subdomain)
    if spec.node_name:
        problems.check("spec.nodeName", spec.node_name, dns_subdomain)
    deadline = spec.active_deadline_seconds
    if deadline is not None and not 1 <= deadline <= _MAX_INT32:
        problems.invalid("spec.activeDeadlineSeconds", deadline, between(1, _MAX_INT32))
    if spec.hostname:
        problems.check("spec.hostname", spec.hostname, dns_label)
    if spec.subdomain:
        problems.check("spec.subdomain", spec.subdomain, dns_label)


def _classes(spec: v1.PodSpec, problems: Problems) -> None:
    """Its priority and its runtime."""
    if spec.priority_class_name:
        problems.check("spec.priorityClassName", spec.priority_class_name, dns_subdomain)
    if spec.runtime_class_name is not None:
        problems.check("spec.runtimeClassName", spec.runtime_class_name, dns_subdomain)
    if spec.preemption_policy is not None:
        problems.one_of("spec.preemptionPolicy", spec.preemption_policy, _PREEMPTION_POLICIES)


def _resource_claims(pod: v1.Pod, problems: Problems) -> None:
    names: set[str] = set()
    for index, claim in enumerate(pod.spec.resource_claims or ()):
        where = f"spec.resourceClaims[{index}]"
        if MIRROR_ANNOTATION in (pod.metadata.annotations or {}):
            problems.forbidden("", "static pods do not support resource claims")
            continue
        if claim.name in names:
            problems.duplicate(f"{where}.name", claim.name)
        else:
            problems.named(f"{where}.name", claim.name, dns_label)
        if claim.name:
            names.add(claim.name)
        named, of_template = claim.resource_claim_name, claim.resource_claim_template_name
        shown = {"Name": claim.name, "ResourceClaimName": named, "ResourceClaimTemplateName": of_template}
        if named is not None and of_template is not None:
            why = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            problems.invalid(where, shown, why)
        elif named is None and of_template is None:
            why = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            problems.invalid(where, shown, why)
        for name, field in (
            (named, "resourceClaimName"),
            (of_template, "resourceClaimTemplateName"),
        ):
            if name is not None:
                problems.check(f"{where}.{field}", name, dns_subdomain)


def _host_network(spec: v1.PodSpec, problems: Problems) -> None:
    """On the host's network a container port is a host port."""
    for index, container in enumerate((spec.containers or ()) if spec.host_network else ()):
        for position, port in enumerate(container.ports or ()):
            if port.host_port and port.host_port != port.container_port:
                where = f"spec.containers[{index}].ports[{position}].hostPort"
                why = "must match `containerPort` when `hostNetwork` is true"
                problems.invalid(where, port.host_port, why)


def _dns(spec: v1.PodSpec, here: str, rules: PodRules, problems: Problems) -> None:
    config = spec.dns_config
    if spec.dns_policy == "None":
        if config is None:
            problems.required(here, "must provide `dnsConfig` when `dnsPolicy` is None")
            return
        if not config.nameservers:
            why = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            problems.required(f"{here}.nameservers", why)
            return
    if config is None:
        return
    nameservers, searches = config.nameservers or [], config.searches or []
    if len(nameservers) > _MAX_NAMESERVERS:
        why = f"must not have more than {_MAX_NAMESERVERS} nameservers"
        problems.invalid(f"{here}.nameservers", nameservers, why)
    for index, nameserver in enumerate(nameservers):
        _address(f"{here}.nameservers[{index}]", nameserver, rules, problems)
    if len(searches) > _MAX_SEARCHES:
        why = f"must not have more than {_MAX_SEARCHES} search paths"
        problems.invalid(f"{here}.searches", searches, why)
    if len(" ".join(searches).encode()) > _MAX_SEARCH_CHARACTERS:
        limit = f"{_MAX_SEARCH_CHARACTERS} characters (including spaces)"
        problems.invalid(f"{here}.searches", searches, f"must not have more than {limit} in the search list")
    for index, search in enumerate(searches):
        if search != ".":
            problems.check(f"{here}.searches[{index}]", search.removesuffix("."), dns_subdomain_underscore)
    for index, option in enumerate(config.options or ()):
        if not option.name:
            problems.required(f"{here}.options[{index}]", "must not be empty")


def _scheduling_gates(gates: Sequence[v1.PodSchedulingGate], problems: Problems) -> None:
    names: set[str] = set()
    for index, gate in enumerate(gates):
        where = f"spec.schedulingGates[{index}]"
        problems.check(where, gate.name, qualified_name)
        if gate.name in names:
            problems.duplicate(where, gate.name)
        names.add(gate.name)


def _user_namespace(spec: v1.PodSpec, rules: PodRules, problems: Problems) -> None:
    if spec.host_users is not False:
        return
    # Two of the fields are spelled like this in the API's own errors.
    for value, field in (
        (spec.host_network and not rules.host_network_users, "hostNetwork"),
        (spec.host_pid, "HostPID"),
        (spec.host_ipc, "HostIPC"),
    ):
        if value:
            problems.forbidden(f"spec.{field}", "when `hostUsers` is false")
    for container, where in containers_with_path(spec):
        if container.volume_devices:
            problems.forbidden(f"{where}.volumeDevices", "when `hostUsers` is false")


def _address(here: str, value: str, rules: PodRules, problems: Problems) -> None:
    problems.check(here, value, ip_address if rules.strict_addresses else loose_ip_address)


def _host_aliases(spec: v1.PodSpec, rules: PodRules, problems: Problems) -> None:
    for index, alias in enumerate(spec.host_aliases or ()):
        where = f"spec.hostAliases[{index}]"
        _address(f"{where}.ip", alias.ip, rules, problems)
        for position, hostname in enumerate(alias.hostnames or ()):
            problems.check(f"{where}.hostnames[{position}]", hostname, dns_subdomain)


def _between_parts(spec: v1.PodSpec, problems: Problems) -> None:
    """Rules that need two parts of the pod."""
    volumes = {volume.name: volume for volume in spec.volumes or ()}
    for container, where in containers_with_path(spec):
        for index, variable in enumerate(container.env or ()):
            file_key = variable.value_from.file_key_ref if variable.value_from is not None else None
            if file_key is None:
                continue
            here, volume = f"{where}.env[{index}].valueFrom.fileKeyRef.volumeName", file_key.volume_name
            if volume not in volumes:
                problems.missing(here, volume)
            elif volumes[volume].empty_dir is None:
                problems.invalid(here, volume, "referenced volume must be of type emptyDir")
    for index, each in enumerate(spec.volumes or ()) if not spec.service_account_name else ():
        for position, source in enumerate((each.projected.sources or ()) if each.projected else ()):
            if source.service_account_token is not None:
                here = f"spec.volumes[{index}].projected.sources[{position}].serviceAccountToken"
                problems.forbidden(here, "must not be specified when serviceAccountName is not set")
    for containers, name in ((spec.containers, "containers"), (spec.init_containers, "initContainers")):
        for index, own in enumerate(containers or ()):
            if own.image != own.image.strip():
                problems.invalid(f"spec.{name}[{index}].image", own.image, PADDED)

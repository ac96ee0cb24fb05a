"""The defaults of a v1 Pod: what the API machinery fills in before anybody looks at the pod.

They are part of the static pod UID (which hashes the defaulted pod), so they are applied in the same
order as there: requests from limits, pod-level resources, host ports, then rounding. Changes the pod
in place; it works on freshly decoded pods, whose quantities are still `Quantity` objects.
"""

from __future__ import annotations

from typing import Final, TypeAlias, cast

from trio_kubelet.api import v1
from trio_kubelet.api.containers import AnyContainer, all_containers, is_sidecar, regular_containers
from trio_kubelet.api.images import default_pull_policy
from trio_kubelet.api.quantity import MILLI, Quantity

_FILE_MODE: Final = 0o644
_TOKEN_SECONDS: Final = 3600
_GRACE_SECONDS: Final = 30
HUGE_PAGES_PREFIX: Final = "hugepages-"

ResourceList: TypeAlias = dict[str, str]


def set_pod_defaults(pod: v1.Pod, *, pod_resources: bool = True) -> None:
    """Fill in everything the manifest left open (kubelet: `SetObjectDefaults_Pod`).

    `pod_resources`: whether pods have resources as a whole (gate PodLevelResources).
    """
    spec = pod.spec
    for container in regular_containers(spec):
        _requests_from_limits(container.resources)
    if pod_resources:
        _pod_level_resources(spec)
    if spec.enable_service_links is None:
        spec.enable_service_links = True
    if spec.host_network:
        for container in regular_containers(spec):
            for port in container.ports or ():
                port.host_port = port.host_port or port.container_port
    _pod_spec(spec)
    for volume in spec.volumes or ():
        _volume(volume)
    for each in all_containers(spec):
        _container(each)
    _round_resources(pod)


def _pod_spec(spec: v1.PodSpec) -> None:
    spec.dns_policy = spec.dns_policy or "ClusterFirst"
    spec.restart_policy = spec.restart_policy or "Always"
    spec.scheduler_name = spec.scheduler_name or "default-scheduler"
    if spec.security_context is None:
        spec.security_context = v1.PodSecurityContext()
    if spec.termination_grace_period_seconds is None:
        spec.termination_grace_period_seconds = _GRACE_SECONDS


def _volume(volume: v1.Volume) -> None:
    if all(getattr(volume, name) is None for name in volume.__struct_fields__ if name != "name"):
        volume.empty_dir = v1.EmptyDirVolumeSource()
    if volume.image is not None and not volume.image.pull_policy:
        volume.image.pull_policy = default_pull_policy(volume.image.reference)
    if volume.host_path is not None and volume.host_path.type is None:
        volume.host_path.type = ""
    for source in (volume.secret, volume.config_map, volume.downward_api, volume.projected):
        if source is not None and source.default_mode is None:
            source.default_mode = _FILE_MODE
    if volume.downward_api is not None:
        _downward_files(volume.downward_api.items)
    for projection in (volume.projected.sources or ()) if volume.projected is not None else ():
        if projection.downward_api is not None:
            _downward_files(projection.downward_api.items)
        token = projection.service_account_token
        if token is not None and token.expiration_seconds is None:
            token.expiration_seconds = _TOKEN_SECONDS
    _network_volume(volume)
    if volume.ephemeral is not None and volume.ephemeral.volume_claim_template is not None:
        claim = volume.ephemeral.volume_claim_template.spec
        claim.volume_mode = "Filesystem" if claim.volume_mode is None else claim.volume_mode


def _network_volume(volume: v1.Volume) -> None:
    if volume.iscsi is not None:
        volume.iscsi.iscsi_interface = volume.iscsi.iscsi_interface or "default"
    if volume.rbd is not None:
        volume.rbd.pool = volume.rbd.pool or "rbd"
        volume.rbd.user = volume.rbd.user or "admin"
        volume.rbd.keyring = volume.rbd.keyring or "/etc/ceph/keyring"
    if volume.scale_io is not None:
        volume.scale_io.storage_mode = volume.scale_io.storage_mode or "ThinProvisioned"
        volume.scale_io.fs_type = volume.scale_io.fs_type or "xfs"
    disk = volume.azure_disk
    if disk is not None:
        disk.caching_mode = "ReadWrite" if disk.caching_mode is None else disk.caching_mode
        disk.fs_type = "ext4" if disk.fs_type is None else disk.fs_type
        disk.read_only = False if disk.read_only is None else disk.read_only
        disk.kind = "Shared" if disk.kind is None else disk.kind


def _downward_files(items: list[v1.DownwardAPIVolumeFile] | None) -> None:
    for item in items or ():
        _field_selector(item.field_ref)


def _field_selector(selector: v1.ObjectFieldSelector | None) -> None:
    if selector is not None:
        selector.api_version = selector.api_version or "v1"


def _container(container: AnyContainer) -> None:
    container.image_pull_policy = container.image_pull_policy or default_pull_policy(container.image)
    container.termination_message_path = container.termination_message_path or "/dev/termination-log"
    container.termination_message_policy = container.termination_message_policy or "File"
    for port in container.ports or ():
        port.protocol = port.protocol or "TCP"
    for variable in container.env or ():
        if variable.value_from is not None:
            _field_selector(variable.value_from.field_ref)
            file_key = variable.value_from.file_key_ref
            if file_key is not None and file_key.optional is None:
                file_key.optional = False
    for probe in (container.liveness_probe, container.readiness_probe, container.startup_probe):
        if probe is not None:
            _probe(probe)
    if container.lifecycle is not None:
        for handler in (container.lifecycle.post_start, container.lifecycle.pre_stop):
            if handler is not None:
                _http_get(handler.http_get)


def _probe(probe: v1.Probe) -> None:
    probe.timeout_seconds = probe.timeout_seconds or 1
    probe.period_seconds = probe.period_seconds or 10
    probe.success_threshold = probe.success_threshold or 1
    probe.failure_threshold = probe.failure_threshold or 3
    _http_get(probe.http_get)
    if probe.grpc is not None and probe.grpc.service is None:
        probe.grpc.service = ""


def _http_get(action: v1.HTTPGetAction | None) -> None:
    if action is not None:
        action.path = action.path or "/"
        action.scheme = action.scheme or "HTTP"


# --- resources -------------------------------------------------------------------------------------


def _requests_from_limits(resources: v1.ResourceRequirements) -> None:
    if resources.limits is not None:
        resources.requests = {**resources.limits, **(resources.requests or {})}


def supported_at_pod_level(name: str) -> bool:
    """Whether a resource may be given for the pod as a whole."""
    return name in ("cpu", "memory") or name.startswith(HUGE_PAGES_PREFIX)


def _pod_level_resources(spec: v1.PodSpec) -> None:
    """Complete pod-level resources from those of the containers (KEP-2837)."""
    resources = spec.resources
    if resources is None:
        return
    if resources.limits or resources.requests:
        limits = resources.limits or {}
        for name, amount in aggregate(spec, "limits").items():
            huge_page = name.startswith(HUGE_PAGES_PREFIX)
            if huge_page and name not in (resources.requests or {}) and name not in limits:
                limits[name] = amount
        if limits:
            resources.limits = limits
    if not resources.limits:
        return
    requests = resources.requests or {}
    for name, amount in aggregate(spec, "requests").items():
        if name in ("cpu", "memory") and name not in requests:
            requests[name] = amount
    for name, amount in resources.limits.items():
        if supported_at_pod_level(name) and name not in requests:
            requests[name] = amount
    if requests:
        resources.requests = requests


def aggregate(spec: v1.PodSpec, side: str) -> ResourceList:
    """What the containers need together: "requests" or "limits".

    Containers and sidecars add up; an ordinary init container runs beside the sidecars started
    before it and counts with its peak.
    """
    total: ResourceList = {}
    sidecars: ResourceList = {}
    peak: ResourceList = {}
    for container in spec.containers or ():
        _add(total, getattr(container.resources, side))
    for container in spec.init_containers or ():
        own = getattr(container.resources, side)
        if is_sidecar(container):
            _add(total, own)
            _add(sidecars, own)
            _max(peak, sidecars)
        else:
            together: ResourceList = {}
            _add(together, own)
            _add(together, sidecars)
            _max(peak, together)
    _max(total, peak)
    return total


def _add(total: ResourceList, more: ResourceList | None) -> None:
    for name, amount in (more or {}).items():
        old = total.get(name)
        total[name] = amount if old is None else cast(Quantity, old).add(cast(Quantity, amount))


def _max(total: ResourceList, other: ResourceList) -> None:
    for name, amount in other.items():
        old = total.get(name)
        if old is None or cast(Quantity, amount).compare(cast(Quantity, old)) > 0:
            total[name] = amount


def _round_resources(pod: v1.Pod) -> None:
    """Resource amounts have at most milli precision."""
    spec, status = pod.spec, pod.status
    requirements: list[v1.ResourceRequirements | v1.VolumeResourceRequirements | None] = [
        container.resources for container in all_containers(spec)
    ]
    requirements.append(spec.resources)
    for volume in spec.volumes or ():
        if volume.ephemeral is not None and volume.ephemeral.volume_claim_template is not None:
            requirements.append(volume.ephemeral.volume_claim_template.spec.resources)
    statuses = (
        status.init_container_statuses,
        status.container_statuses,
        status.ephemeral_container_statuses,
    )
    for container_status in (entry for entries in statuses for entry in entries or ()):
        _round(container_status.allocated_resources)
        requirements.append(container_status.resources)
    requirements.append(status.resources)
    _round(spec.overhead)
    _round(status.allocated_resources)
    for needs in requirements:
        if needs is not None:
            _round(needs.limits)
            _round(needs.requests)


def _round(resources: ResourceList | None) -> None:
    for name, amount in (resources or {}).items():
        if resources is not None:
            resources[name] = cast(Quantity, amount).round_up(MILLI)

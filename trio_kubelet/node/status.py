"""The status of the Node object: what the agent last saw of its node, put into the object as it is. Pure.

Nothing is overwritten blindly: resources others advertise, conditions others set, addresses a cloud
controller gave and attached volumes stay (kubelet: `setNodeStatus`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.quantity import BINARY_SI, Quantity
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.devices.values import Counts
from trio_kubelet.node.conditions import NodeHealth, missing_capacities, with_conditions
from trio_kubelet.node.events import NodeEvent
from trio_kubelet.node.profile import PROVIDED_IP_ANNOTATION, NodeProfile, declared_features
from trio_kubelet.node.runtime_health import RuntimeFeatures
from trio_kubelet.podinfo.amounts import amount, whole
from trio_kubelet.podinfo.context import RuntimeHandler
from trio_kubelet.pods.admission.fit import is_extended

NAMES_PER_IMAGE = 5


class NodeObservation(msgspec.Struct, frozen=True, kw_only=True):
    """The node as it is at one moment. None: not known, what the object says stays.

    `addresses` are those found by the node itself, `runtime` is like `containerd://2.1.4`, `images` are
    those to show.
    """

    now_ns: int
    health: NodeHealth = NodeHealth()
    addresses: tuple[str, ...] | None = None
    runtime: str | None = None
    images: Sequence[v1.ContainerImage] | None = None
    handlers: Mapping[str, RuntimeHandler] = {}
    features: RuntimeFeatures | None = None
    volumes_in_use: Sequence[str] | None = None
    devices: Counts = Counts()


def with_status(
    node: v1.Node, profile: NodeProfile, seen: NodeObservation
) -> tuple[v1.Node, list[NodeEvent]]:
    """The object with the status it should have, and the events of what turned."""
    old, now = node.status, rfc3339(seen.now_ns)
    capacity, allocatable = _resources(old, profile, seen.devices)
    health = msgspec.structs.replace(
        seen.health,
        not_ready=[*seen.health.not_ready, *missing_capacities(capacity, profile.local_storage)],
        warning=profile.warning,
    )
    conditions, turned = with_conditions(old.conditions or (), health, profile.name, now)
    status = msgspec.structs.replace(
        old,
        addresses=_addresses(old.addresses, profile, seen.addresses),
        capacity=capacity,
        allocatable=allocatable,
        conditions=conditions,
        daemon_endpoints=v1.NodeDaemonEndpoints(kubelet_endpoint=v1.DaemonEndpoint(port=profile.port)),
        node_info=_node_info(old.node_info, profile, seen.runtime),
        images=old.images if seen.images is None else (list(seen.images) or None),
        runtime_handlers=_handlers(seen.handlers),
    )
    if profile.shows_features and seen.features is not None:
        policy = seen.features.supplemental_groups_policy
        status = msgspec.structs.replace(status, features=v1.NodeFeatures(supplemental_groups_policy=policy))
    if seen.volumes_in_use is not None:
        status = msgspec.structs.replace(status, volumes_in_use=list(seen.volumes_in_use) or None)
    host_users = seen.features is not None and seen.features.user_namespaces_host_network
    declared = declared_features(profile, host_users=host_users)
    if declared is not None:
        status = msgspec.structs.replace(status, declared_features=declared or None)
    rebooted = _rebooted(old.node_info.boot_id, profile)
    node = _with_metadata(msgspec.structs.replace(node, status=status), profile, seen.addresses)
    return node, [*rebooted, *turned]


def _with_metadata(node: v1.Node, profile: NodeProfile, found: tuple[str, ...] | None) -> v1.Node:
    """The labels of system and architecture, which nobody may change, and the hint for a cloud controller.
    That stays as it is while the addresses that were given are none the node may have.
    """
    labels = {
        **(node.metadata.labels or {}),
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": profile.system.architecture,
    }
    annotations = dict(node.metadata.annotations or {})
    if profile.external_cloud and profile.node_ips.addresses:
        if found is not None:
            annotations[PROVIDED_IP_ANNOTATION] = ",".join(profile.node_ips.addresses)
    else:
        annotations.pop(PROVIDED_IP_ANNOTATION, None)
    metadata = msgspec.structs.replace(node.metadata, labels=labels, annotations=annotations or None)
    return msgspec.structs.replace(node, metadata=metadata)


def _addresses(
    old: Sequence[v1.NodeAddress] | None, profile: NodeProfile, found: tuple[str, ...] | None
) -> list[v1.NodeAddress] | None:
    """The node's addresses; with a cloud controller its are kept, and without `--node-ip` left to it."""
    if profile.external_cloud and old:
        return list(old)
    name = v1.NodeAddress(type="Hostname", address=profile.name)
    if profile.external_cloud and not profile.node_ips.given:
        return [name]
    if found is None:
        return None if old is None else list(old)
    return [*(v1.NodeAddress(type="InternalIP", address=address) for address in found), name]


def _resources(
    old: v1.NodeStatus, profile: NodeProfile, devices: Counts
) -> tuple[dict[str, str], dict[str, str]]:
    """Capacity and allocatable: the node's own, and what else is advertised on it. Huge pages of sizes that
    the machine does not have (any more) are taken off its memory as long as the Node shows them.
    """
    others = {k: v for k, v in (old.capacity or {}).items() if k not in profile.capacity}
    capacity = {**others, **profile.capacity}
    stale = {k: v for k, v in (old.allocatable or {}).items() if k in capacity or not is_extended(k)}
    allocatable = {**stale, **others, **profile.allocatable}
    if huge := sum(whole(amount(size)) for name, size in others.items() if name.startswith("hugepages-")):
        left = max(0, whole(amount(allocatable.get("memory", ""))) - huge)
        allocatable["memory"] = str(Quantity(left, 0, BINARY_SI))
    # A resource whose plugin has gone for good stays in the object, with nothing of it.
    for part, counts in ((capacity, devices.capacity), (allocatable, devices.allocatable)):
        part.update(dict.fromkeys(devices.removed, "0"))
        part.update((name, str(number)) for name, number in counts.items())
    return capacity, allocatable


def _node_info(old: v1.NodeSystemInfo, profile: NodeProfile, runtime: str | None) -> v1.NodeSystemInfo:
    system = profile.system
    return v1.NodeSystemInfo(
        architecture=system.architecture,
        boot_id=system.boot_id,
        container_runtime_version=old.container_runtime_version if runtime is None else runtime,
        kernel_version=system.kernel,
        kubelet_version=profile.version,
        machine_id=system.machine_id,
        operating_system="linux",
        os_image=system.os_image,
        swap=v1.NodeSwapStatus(capacity=profile.swap) if profile.swap else old.swap,
        system_uuid=system.system_uuid,
    )


def _handlers(handlers: Mapping[str, RuntimeHandler]) -> list[v1.NodeRuntimeHandler] | None:
    return [
        v1.NodeRuntimeHandler(
            name=name,
            features=v1.NodeRuntimeHandlerFeatures(
                recursive_read_only_mounts=handler.recursive_read_only_mounts,
                user_namespaces=handler.user_namespaces,
            ),
        )
        for name, handler in sorted(handlers.items())
    ] or None


def _rebooted(boot_id: str, profile: NodeProfile) -> list[NodeEvent]:
    new = profile.system.boot_id
    if not boot_id or boot_id == new:
        return []
    return [NodeEvent("Warning", "Rebooted", f"Node {profile.name} has been rebooted, boot id: {new}")]


def shown_images(images: Iterable[cri.Image], most: int) -> list[v1.ContainerImage]:
    """The images a Node lists, the largest first; `most` is nodeStatusMaxImages, negative for all."""
    by_size = sorted(images, key=lambda image: (image.size, image.id), reverse=True)
    return [
        v1.ContainerImage(
            names=[*image.repo_digests, *image.repo_tags][:NAMES_PER_IMAGE] or None, size_bytes=image.size
        )
        for image in (by_size if most < 0 else by_size[:most])
    ]


def differs(old: v1.Node, new: v1.Node) -> bool:
    """Whether the new object says anything the old does not; the time of the last heartbeat is nothing."""
    return _comparable(old) != _comparable(new)


def _comparable(node: v1.Node) -> object:
    status = node.status
    conditions = [
        msgspec.structs.replace(condition, last_heartbeat_time=None)
        for condition in sorted(status.conditions or (), key=lambda condition: condition.type)
    ]
    resources = [
        {name: amount(quantity) for name, quantity in (part or {}).items()}
        for part in (status.capacity, status.allocatable)
    ]
    bare = msgspec.structs.replace(status, conditions=conditions, capacity=None, allocatable=None)
    metadata = (node.metadata.labels or {}, node.metadata.annotations or {})
    # Builtins, for an empty list or map is the same as none.
    return _pruned(msgspec.to_builtins(bare)), resources, metadata


def _pruned(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {key: _pruned(item) for key, item in value.items() if item not in (None, [], {})}

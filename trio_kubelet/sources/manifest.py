"""A manifest's bytes to the static pod this node makes of it.

The steps and their order are the kubelet's, because each leaves its mark: decode, default, bring v1's
aliases together, hash the result into the UID, add what belongs to this node, validate, refuse what
would need the API server. A function of its arguments only: the same manifest under the same path on
the same node is always the same pod, whichever agent runs there.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.decode import decode, plain, type_name
from trio_kubelet.api.defaults import set_pod_defaults
from trio_kubelet.api.errors import DecodeError, FieldError, InvalidPod, ManifestError
from trio_kubelet.api.managed_fields import ManifestPod, ManifestPodList, keep_spelling
from trio_kubelet.api.pod_rules import DEFAULT_RULES, PodRules
from trio_kubelet.api.references import api_reference
from trio_kubelet.api.uid_text import uid_text
from trio_kubelet.api.validation.formats import directory_name
from trio_kubelet.api.validation.pod import validate_pod
from trio_kubelet.api.yaml import load
from trio_kubelet.native.hashes import static_pod_uid
from trio_kubelet.podinfo.updates import (
    CONFIG_HASH_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    FILE_SOURCE,
    HTTP_SOURCE,
)

MAX_MANIFEST_BYTES: Final = 10 * 1024 * 1024


class Origin(NamedTuple):
    """Where a manifest came from: node, source ("file" or "http") and its path or URL; and what pods may have
    on this node.
    """

    node_name: str
    source: str
    location: str
    rules: PodRules = DEFAULT_RULES


def static_pod(data: bytes, origin: Origin) -> v1.Pod:
    """The static pod of a manifest with one Pod; raises `ManifestError`."""
    return _single(_load(data), data, origin)


def static_pods(data: bytes, origin: Origin) -> list[v1.Pod]:
    """The static pods of a manifest with a Pod or a PodList; raises `ManifestError`, naming the item."""
    tree = _load(data)
    if type_name(tree) != ("v1", "PodList"):
        return [_single(tree, data, origin)]
    pods = []
    manifest = decode(tree, ManifestPodList)
    keep_spelling(manifest, data)
    for index, pod in enumerate(manifest.items or ()):
        try:
            pods.append(_make(pod, origin))
        except ManifestError as exc:
            where = f"items[{index}]"
            errors = [FieldError(f"{where}.{e.field}" if e.field else where, e.reason) for e in exc.errors]
            kind = InvalidPod if isinstance(exc, InvalidPod) else ManifestError
            raise kind(errors) from None
    return pods


def as_wanted(pod: v1.Pod) -> v1.Pod:
    """The pod without what only a server writes, as it stands in a manifest that was copied from one: that
    the pod it was copied from was deleted or is over says nothing of this one.
    """
    metadata = msgspec.structs.replace(
        pod.metadata,
        creation_timestamp=None,
        deletion_timestamp=None,
        deletion_grace_period_seconds=None,
        finalizers=None,
        generation=0,
        resource_version="",
    )
    return msgspec.structs.replace(pod, metadata=metadata, status=v1.PodStatus(phase=pod.status.phase))


def _single(tree: Any, data: bytes, origin: Origin) -> v1.Pod:
    name = type_name(tree)
    if name != ("v1", "Pod"):
        field = "kind" if name.kind != "Pod" else "apiVersion"
        raise ManifestError([FieldError(field, f"{name.api_version}/{name.kind} is not a v1 Pod")])
    pod = decode(tree, ManifestPod)
    keep_spelling(pod, data)
    return _make(pod, origin)


def _load(data: bytes) -> Any:
    try:
        return load(data)
    except DecodeError as exc:
        raise ManifestError([FieldError("", str(exc))]) from None


def _make(pod: ManifestPod, origin: Origin) -> v1.Pod:
    """Turn a decoded pod into this node's static pod, in place."""
    if not pod.metadata.name:
        missing = FieldError("metadata.name", "name is needed for the pod")
        raise ManifestError([missing], f"invalid pod: {missing.reason}")
    set_pod_defaults(pod, pod_resources=origin.rules.pod_resources)
    unify(pod)
    if not pod.metadata.uid:
        pod.metadata.uid = _uid(pod, origin)
    elif wrong := directory_name(pod.metadata.uid):
        raise ManifestError([FieldError("metadata.uid", why) for why in wrong])
    _settle(pod, origin)
    errors = validate_pod(pod, origin.rules)
    if errors:
        raise InvalidPod(errors)
    reference = api_reference(pod, origin.rules)
    if reference is not None:
        raise ManifestError([reference])
    return plain(pod)


def _uid(pod: ManifestPod, origin: Origin) -> str:
    """The pod's identity: its content, and where it was found."""
    place = f"url:{origin.location}"
    if origin.source == FILE_SOURCE:
        place = f"host:{origin.node_name}file:{origin.location}"
    # Names of files are bytes, of whatever encoding.
    return static_pod_uid(uid_text(pod).encode() + place.encode("utf-8", "surrogateescape"))


def _settle(pod: v1.Pod, origin: Origin) -> None:
    """Add what belongs to this node."""
    metadata, spec = pod.metadata, pod.spec
    metadata.name = f"{metadata.name}-{origin.node_name.lower()}"
    metadata.namespace = metadata.namespace or "default"
    metadata.annotations = {
        **(metadata.annotations or {}),
        CONFIG_HASH_ANNOTATION: metadata.uid,
        CONFIG_SOURCE_ANNOTATION: origin.source,
    }
    # What was copied from the mirror is not that mirror.
    metadata.annotations.pop(CONFIG_MIRROR_ANNOTATION, None)
    spec.node_name = origin.node_name
    if origin.source != HTTP_SOURCE:
        spec.tolerations = _tolerating_no_execute(spec.tolerations or [])
    pod.status.phase = "Pending"


def _tolerating_no_execute(tolerations: list[v1.Toleration]) -> list[v1.Toleration]:
    """Static pods stay on a node with problems; an own toleration of that kind loses its time limit."""
    wanted = v1.Toleration(operator="Exists", effect="NoExecute")

    def matches(toleration: v1.Toleration) -> bool:
        return (toleration.key, toleration.operator, toleration.value, toleration.effect) == (
            wanted.key, wanted.operator, wanted.value, wanted.effect,
        )  # fmt: skip

    kept = [wanted if matches(toleration) else toleration for toleration in tolerations]
    return kept if any(map(matches, tolerations)) else [*kept, wanted]


# Leftovers of Kubernetes 1.5; the conversion drops them, so they are not hashed either.
_DROPPED_ANNOTATIONS: Final = frozenset(
    f"pod.{stage}.kubernetes.io/init-container{suffix}"
    for stage in ("alpha", "beta")
    for suffix in ("s", "-statuses")
)


def unify(pod: v1.Pod) -> None:
    """Bring both names of a value together and drop what the internal pod has no place for.

    Changes the pod in place; call it on a freshly decoded and defaulted one.
    """
    pod.api_version = pod.kind = ""
    spec, status = pod.spec, pod.status
    spec.service_account_name = spec.service_account_name or spec.service_account
    spec.service_account = spec.service_account_name
    grace = spec.termination_grace_period_seconds
    if grace is not None and grace < 0:
        spec.termination_grace_period_seconds = 1
    annotations = pod.metadata.annotations
    if annotations and not _DROPPED_ANNOTATIONS.isdisjoint(annotations):
        pod.metadata.annotations = {
            key: value for key, value in annotations.items() if key not in _DROPPED_ANNOTATIONS
        }
    if status.pod_ip and (not status.pod_ips or status.pod_ips[0].ip != status.pod_ip):
        status.pod_ips = [v1.PodIP(ip=status.pod_ip)]
    if status.pod_ips:
        status.pod_ip = status.pod_ips[0].ip

"""Pods as manifests have them: with managed fields, which all others are read without.

Nobody heeds them, but as in the kubelet they are checked, count for the UID and are shown. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.yaml import is_json
from trio_kubelet.common.deep_json import decode_flat


class ManifestMetadata(v1.ObjectMeta):
    """The metadata of a manifest's pod."""

    managed_fields: list[v1.ManagedFieldsEntry] | None = None


class ManifestPod(v1.Pod):
    """One manifest, or an item of one."""

    metadata: ManifestMetadata = msgspec.field(default_factory=ManifestMetadata)


class ManifestPodList(v1.Object):
    """A manifest of several."""

    items: list[ManifestPod] | None = None


class _Entry(v1.Object):
    fields_v1: msgspec.Raw = msgspec.Raw()


class _Metadata(v1.Object):
    managed_fields: list[_Entry | None] | None = None


class _Pod(v1.Object):
    metadata: _Metadata | None = None


class _PodList(v1.Object):
    items: list[_Pod | None] | None = None


def keep_spelling(manifest: ManifestPod | ManifestPodList, data: bytes) -> None:
    """Changes each `fields_v1` to what the manifest's bytes have, if they are JSON: white space and order of
    members count for the UID there (of YAML Kubernetes makes JSON of its own spelling first).
    """
    entries = list(_entries(manifest))
    if not entries or not is_json(data):
        return
    try:
        kind: type[_Pod | _PodList] = _PodList if isinstance(manifest, ManifestPodList) else _Pod
        spelled = [entry.fields_v1 for entry in _entries(decode_flat(data, kind))]
    except msgspec.MsgspecError:
        return  # only a more lenient decoder reads it
    if len(spelled) == len(entries):  # as they are, unless members stand twice
        for entry, text in zip(entries, spelled, strict=True):
            entry.fields_v1 = text and text.copy()


def _entries(
    manifest: ManifestPod | ManifestPodList | _Pod | _PodList,
) -> Iterator[v1.ManagedFieldsEntry | _Entry]:
    """The entries with fields, in their order."""
    pods: Iterable[ManifestPod | _Pod | None]
    pods = manifest.items or () if isinstance(manifest, ManifestPodList | _PodList) else (manifest,)
    for pod in pods:
        for entry in (pod and pod.metadata and pod.metadata.managed_fields) or ():
            if entry and entry.fields_v1 and bytes(entry.fields_v1) not in (b"", b"null"):
                yield entry

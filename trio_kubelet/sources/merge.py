"""The merge: from what is known of a source and one update to what changed. Values in, values out.

An update names pods; whether one of them is an addition, a change, a deletion or nothing follows from
the comparison with what is known, not from the update's own word (kubelet: `podStorage.merge`). Known
pods carry two annotations of this agent, the source and the moment they were first seen; those never
count as a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from trio_kubelet.api.timestamps import rfc3339_nano
from trio_kubelet.api.v1 import ObjectMeta, Pod
from trio_kubelet.podinfo.updates import (
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SEEN_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    PodOperation,
)

_LOCAL: Final = (CONFIG_SOURCE_ANNOTATION, CONFIG_MIRROR_ANNOTATION, CONFIG_SEEN_ANNOTATION)


class KnownPod(NamedTuple):
    """A pod in force: as its source gave it last, and as everybody else sees it."""

    given: Pod
    pod: Pod


Known: TypeAlias = Mapping[str, KnownPod]
"""The known pods of one source by UID."""


class Merge(NamedTuple):
    """What an update did. `duplicates` are pods left out for an earlier one of the same name or UID."""

    known: dict[str, KnownPod]
    adds: tuple[Pod, ...] = ()
    updates: tuple[Pod, ...] = ()
    deletes: tuple[Pod, ...] = ()
    removes: tuple[Pod, ...] = ()
    reconciles: tuple[Pod, ...] = ()
    duplicates: tuple[Pod, ...] = ()


class KnownPods:
    """The pods in force of one source. An update that names pods costs by their number, not that of all."""

    def __init__(self) -> None:
        self._pods: dict[str, KnownPod] = {}
        self._uids: dict[tuple[str, str], str] = {}

    def apply(self, op: PodOperation, pods: Sequence[Pod], source: str, now_ns: int) -> Merge:
        """Takes an update; `known` of the result are only the pods that it concerns."""
        concerned = self._pods if op is PodOperation.SET else self._concerned(pods)
        result = merge(concerned, op, pods, source, now_ns)
        if op is PodOperation.SET:
            self._pods = result.known
            self._uids = {full_name(entry.pod): uid for uid, entry in result.known.items()}
            return result
        for uid, entry in concerned.items():
            self._uids.pop(full_name(entry.pod), None)
            if uid not in result.known:
                del self._pods[uid]
        for uid, entry in result.known.items():
            self._pods[uid] = entry
            self._uids[full_name(entry.pod)] = uid
        return result

    def _concerned(self, pods: Sequence[Pod]) -> Known:
        """The known pods with the UID or the name of one of these."""
        uids = {pod.metadata.uid for pod in pods}
        uids.update(uid for pod in pods if (uid := self._uids.get(full_name(pod))) is not None)
        return {uid: self._pods[uid] for uid in uids if uid in self._pods}


def merge(known: Known, op: PodOperation, pods: Sequence[Pod], source: str, now_ns: int) -> Merge:
    """Apply one update of a source to its known pods; `now_ns` is the moment new pods are first seen.

    SET names all pods of the source: what it does not name is removed. REMOVE removes the named ones.
    Every other operation brings pods that are added or compared. A pod with a known name and another UID, or
    with a known UID and another name, replaces the known one: a remove and an add.
    """
    if op is PodOperation.REMOVE:
        gone = {pod.metadata.uid for pod in pods}
        return Merge(
            known={uid: entry for uid, entry in known.items() if uid not in gone},
            removes=tuple(entry.pod for uid, entry in known.items() if uid in gone),
        )
    accepted, duplicates = _distinct(pods)
    changes = _compare(known, accepted.values(), source, now_ns)
    if op is PodOperation.SET:
        kept = changes.known
    else:
        kept = {uid: entry for uid, entry in known.items() if full_name(entry.pod) not in accepted}
        kept.update(changes.known)
    return changes._replace(
        known=kept,
        removes=tuple(entry.pod for uid, entry in known.items() if _named(kept, uid, entry.pod) is None),
        duplicates=duplicates,
    )


def full_name(pod: Pod) -> tuple[str, str]:
    """What no two pods of a source may have in common, beside their UID."""
    metadata = pod.metadata
    return metadata.name, metadata.namespace


def _named(known: Known, uid: str, pod: Pod) -> KnownPod | None:
    """The known pod of that UID, if it has the name of this one; a UID may be a manifest's own words."""
    entry = known.get(uid)
    return entry if entry is not None and full_name(entry.pod) == full_name(pod) else None


def _distinct(pods: Sequence[Pod]) -> tuple[dict[tuple[str, str], Pod], tuple[Pod, ...]]:
    """The first pod of each full name and UID, and the others."""
    first: dict[tuple[str, str], Pod] = {}
    uids: set[str] = set()
    duplicates = []
    for pod in pods:
        if full_name(pod) in first or pod.metadata.uid in uids:
            duplicates.append(pod)
        else:
            first[full_name(pod)] = pod
            uids.add(pod.metadata.uid)
    return first, tuple(duplicates)


def _compare(known: Known, pods: Iterable[Pod], source: str, now_ns: int) -> Merge:
    """The given pods against the known ones; `removes` is left to the caller."""
    merged: dict[str, KnownPod] = {}
    adds: list[Pod] = []
    updates: list[Pod] = []
    deletes: list[Pod] = []
    reconciles: list[Pod] = []
    for given in pods:
        uid = given.metadata.uid
        entry = _named(known, uid, given)
        if entry is not None and entry.given is given:
            merged[uid] = entry
            continue
        if entry is None:
            pod = _annotated(given, source, rfc3339_nano(now_ns), {})
            adds.append(pod)
        elif _differ(entry.given, given):
            seen = (entry.pod.metadata.annotations or {}).get(CONFIG_SEEN_ANNOTATION, "")
            pod = _annotated(given, source, seen, entry.pod.metadata.annotations or {})
            (updates if given.metadata.deletion_timestamp is None else deletes).append(pod)
        elif entry.pod.status != given.status:
            pod = msgspec.structs.replace(entry.pod, status=given.status)
            reconciles.append(pod)
        else:
            pod = entry.pod
        merged[uid] = KnownPod(given, pod)
    return Merge(merged, tuple(adds), tuple(updates), tuple(deletes), (), tuple(reconciles))


def _annotated(given: Pod, source: str, seen: str, before: Mapping[str, str]) -> Pod:
    """The pod with this agent's annotations; a mirror annotation it once had stays."""
    annotations = dict(given.metadata.annotations or {})
    if CONFIG_MIRROR_ANNOTATION in before:
        annotations[CONFIG_MIRROR_ANNOTATION] = before[CONFIG_MIRROR_ANNOTATION]
    annotations[CONFIG_SOURCE_ANNOTATION] = source
    annotations[CONFIG_SEEN_ANNOTATION] = seen
    metadata: ObjectMeta = msgspec.structs.replace(given.metadata, annotations=annotations)
    return msgspec.structs.replace(given, metadata=metadata)


def _differ(before: Pod, given: Pod) -> bool:
    """Whether the desired state differs from what the source gave before; the status does not count."""
    old, new = before.metadata, given.metadata
    return (
        before.spec != given.spec
        or (old.labels or {}) != (new.labels or {})
        or old.deletion_timestamp != new.deletion_timestamp
        or old.deletion_grace_period_seconds != new.deletion_grace_period_seconds
        or (old.annotations != new.annotations and _foreign(old.annotations) != _foreign(new.annotations))
    )


def _foreign(annotations: Mapping[str, str] | None) -> dict[str, str]:
    """The annotations that are not this agent's own."""
    return {key: value for key, value in (annotations or {}).items() if key not in _LOCAL}

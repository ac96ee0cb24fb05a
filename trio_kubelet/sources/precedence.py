"""A manifest may name the UID that an object of the API server has, as one that was copied from there does:
then that object counts, and the manifest's pod as soon as it is gone. Of manifests of several sources that
name the same one, the first counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from trio_kubelet.api.v1 import Pod
from trio_kubelet.podinfo.updates import API_SOURCE, PodOperation, PodUpdate, pod_source


class Precedence:
    """Sees all that is delivered, in order. `ignored` is told of pods that do not count."""

    def __init__(self, ignored: Callable[[Pod], None]) -> None:
        self._ignored = ignored
        self._theirs: set[str] = set()
        self._manifests: dict[str, dict[str, Pod]] = {}  # by UID and source; the first counts

    def settle(self, update: PodUpdate) -> list[PodUpdate]:
        """What is delivered for the update, in order."""
        if update.source != API_SOURCE:
            return self._of_manifests(update)
        uids = [pod.metadata.uid for pod in update.pods]
        same = [_first(self._manifests[uid]) for uid in uids if uid in self._manifests]
        if update.op is PodOperation.REMOVE:
            self._theirs.difference_update(uids)
            return [update, *_each(PodOperation.ADD, same)]
        if update.op is not PodOperation.ADD:
            return [update]
        self._theirs.update(uids)
        for pod in same:
            self._ignored(pod)
        return [*_each(PodOperation.REMOVE, same), update]

    def _of_manifests(self, update: PodUpdate) -> list[PodUpdate]:
        counted, next_ones = [], []
        for pod in update.pods:
            uid = pod.metadata.uid
            same = self._manifests.setdefault(uid, {})
            same[update.source] = pod
            counts = uid not in self._theirs and _first(same) is pod
            if counts:
                counted.append(pod)
            if update.op is PodOperation.REMOVE:
                del same[update.source]
                if not same:
                    del self._manifests[uid]
                elif counts:
                    next_ones.append(_first(same))
            elif not counts:
                self._ignored(pod)
        return [update._replace(pods=tuple(counted)), *_each(PodOperation.ADD, next_ones)]


def _first(same: dict[str, Pod]) -> Pod:
    return next(iter(same.values()))


def _each(operation: PodOperation, pods: Iterable[Pod]) -> Iterator[PodUpdate]:
    return (PodUpdate(operation, pod_source(pod), (pod,)) for pod in pods)

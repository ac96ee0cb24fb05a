"""A manifest may name the UID that an object of the API server has, as one that was copied from there does:
then that object counts, and the manifest's pod as soon as it is gone.
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
        self._manifests: dict[str, Pod] = {}

    def settle(self, update: PodUpdate) -> list[PodUpdate]:
        """What is delivered for the update, in order."""
        uids = [pod.metadata.uid for pod in update.pods]
        if update.source != API_SOURCE:
            return [self._of_manifests(update)]
        same = [self._manifests[uid] for uid in uids if uid in self._manifests]
        if update.op is PodOperation.REMOVE:
            self._theirs.difference_update(uids)
            return [update, *_each(PodOperation.ADD, same)]
        if update.op is not PodOperation.ADD:
            return [update]
        self._theirs.update(uids)
        for pod in same:
            self._ignored(pod)
        return [*_each(PodOperation.REMOVE, same), update]

    def _of_manifests(self, update: PodUpdate) -> PodUpdate:
        counted = []
        for pod in update.pods:
            uid = pod.metadata.uid
            if update.op is PodOperation.REMOVE:
                self._manifests.pop(uid, None)
            else:
                self._manifests[uid] = pod
            if uid not in self._theirs:
                counted.append(pod)
            elif update.op is not PodOperation.REMOVE:
                self._ignored(pod)
        return update._replace(pods=tuple(counted))


def _each(operation: PodOperation, pods: Iterable[Pod]) -> Iterator[PodUpdate]:
    return (PodUpdate(operation, pod_source(pod), (pod,)) for pod in pods)

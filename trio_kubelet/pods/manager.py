"""The desired pods: what the sources want, by UID and by full name, and which mirror belongs to which pod.

The source of truth for the desired state (kubelet: `pkg/kubelet/pod`). A pod that is not here is not
wanted; the workers may still be ending it. Only the sync loop writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.podinfo.updates import is_mirror, is_mirror_of, is_static
from trio_kubelet.pods.refs import full_name, pod_full_name


class PodAndMirror(NamedTuple):
    """A pod, its mirror, and whether the one asked about was the mirror."""

    pod: Pod | None
    mirror: Pod | None
    was_mirror: bool


class PodsAndMirrors(NamedTuple):
    """All pods, all mirrors, and the full names of mirrors whose static pod is gone."""

    pods: tuple[Pod, ...]
    mirrors: tuple[Pod, ...]
    orphaned_mirrors: tuple[str, ...]


class PodManager:
    """Desired pods and mirror pods."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._mirrors: dict[str, Pod] = {}
        # By name, then by UID, newest last: a static pod and one of the API server may have the same name.
        self._pods_by_name: dict[str, dict[str, Pod]] = {}
        self._mirrors_by_name: dict[str, dict[str, Pod]] = {}
        self.changed: Listeners[[str]] = Listeners()  # UIDs of pods and mirrors that came, changed or went

    def set(self, pod: Pod) -> None:
        """Adds a pod or mirror, or replaces the one of its UID."""
        uids, names = self._maps(pod)
        uid, namesakes = pod.metadata.uid, names.setdefault(pod_full_name(pod), {})
        namesakes.pop(uid, None)
        uids[uid] = namesakes[uid] = pod
        self.changed.tell(pod.metadata.uid)

    def remove(self, pod: Pod) -> None:
        """The pod or mirror of this UID is not wanted any more."""
        uids, names = self._maps(pod)
        uids.pop(pod.metadata.uid, None)
        name = pod_full_name(pod)
        namesakes = names.get(name, {})
        namesakes.pop(pod.metadata.uid, None)
        if not namesakes:
            names.pop(name, None)
        self.changed.tell(pod.metadata.uid)

    def get(self, uid: str) -> Pod | None:
        """The pod of that UID; mirrors are not found here."""
        return self._pods.get(uid)

    def static_by_full_name(self, name: str) -> Pod | None:
        """The static pod of that full name (`name_namespace`); one of the API server may have it, too."""
        return _newest(filter(is_static, self._pods_by_name.get(name, {}).values()))

    def get_by_name(self, namespace: str, name: str) -> Pod | None:
        """The pod of that namespace and name."""
        return _newest(self._pods_by_name.get(full_name(name, namespace), {}).values())

    def pods(self) -> tuple[Pod, ...]:
        """All pods without mirrors."""
        return tuple(self._pods.values())

    def pods_and_mirrors(self) -> PodsAndMirrors:
        """Everything, for housekeeping."""
        orphaned = tuple(name for name in self._mirrors_by_name if name not in self._pods_by_name)
        return PodsAndMirrors(tuple(self._pods.values()), tuple(self._mirrors.values()), orphaned)

    def mirror_by_full_name(self, name: str) -> Pod | None:
        """The mirror of that full name."""
        return _newest(self._mirrors_by_name.get(name, {}).values())

    def mirror_of(self, pod: Pod) -> Pod | None:
        """The mirror of a static pod."""
        return self.mirror_by_full_name(pod_full_name(pod)) if is_static(pod) else None

    def pod_and_mirror(self, pod: Pod) -> PodAndMirror:
        """The pod a worker is to be told about, given a pod or a mirror."""
        if is_mirror(pod):
            return PodAndMirror(self._shown_in(pod), pod, True)
        return PodAndMirror(pod, self.mirror_of(pod), False)

    def translate_uid(self, uid: str) -> str:
        """A mirror's UID as the static pod's, others as they are."""
        mirror = self._mirrors.get(uid)
        pod = self._shown_in(mirror) if mirror is not None else None
        return pod.metadata.uid if pod is not None else uid

    def _shown_in(self, mirror: Pod) -> Pod | None:
        """The static pod that a mirror shows, else the newest of its name: two sources may have one."""
        name = pod_full_name(mirror)
        namesakes = filter(is_static, self._pods_by_name.get(name, {}).values())
        shown = _newest(pod for pod in namesakes if is_mirror_of(mirror, pod))
        return shown or self.static_by_full_name(name)

    def _maps(self, pod: Pod) -> tuple[dict[str, Pod], dict[str, dict[str, Pod]]]:
        if is_mirror(pod):
            return self._mirrors, self._mirrors_by_name
        return self._pods, self._pods_by_name


def _newest(namesakes: Iterable[Pod]) -> Pod | None:
    return next(reversed([*namesakes]), None)


def split_by_static(pods: Iterable[Pod]) -> tuple[list[Pod], list[Pod]]:
    """Pods of the API server, and static ones."""
    regular: list[Pod] = []
    static: list[Pod] = []
    for pod in pods:
        (static if is_static(pod) else regular).append(pod)
    return regular, static

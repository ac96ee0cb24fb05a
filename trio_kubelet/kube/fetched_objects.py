"""Config maps and secrets without watches: asked for at each read, or kept for a while.

Strategies `Get` and `Cache` of `configMapAndSecretChangeDetectionStrategy`. Changes arrive with the pods'
next sync, nobody is told of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.kube.client import KubeClient, PatientDoor
from trio_kubelet.kube.doors import APIDoor
from trio_kubelet.kube.errors import APIFailure
from trio_kubelet.kube.references import Reference, ReferenceKind, references
from trio_kubelet.podinfo.doors import ObjectError

T = TypeVar("T", v1.ConfigMap, v1.Secret)

REQUEST_TIMEOUT: Final = 10.0
DEFAULT_TTL: Final = 60.0
"""Seconds an answer is good for where the Node does not say (annotation `node.alpha.kubernetes.io/ttl`)."""


class _Answer(msgspec.Struct):
    value: v1.ConfigMap | v1.Secret | None
    at: float


class FetchedObjects:
    """Reads objects by single requests."""

    def __init__(self, door: APIDoor, ttl: Callable[[], float] | None) -> None:
        """`ttl`: seconds for which an answer is good (strategy `Cache`); None: always ask (`Get`)."""
        self._client = KubeClient(PatientDoor(door), REQUEST_TIMEOUT)
        self._ttl = ttl
        self._answers: dict[Reference, _Answer] = {}
        self._of_pod: dict[str, dict[Reference, bool]] = {}

    def register(self, pod: v1.Pod) -> None:
        """A pod that is new, or has changed, reads everything afresh."""
        wanted = references(pod)
        if self._of_pod.get(pod.metadata.uid) != wanted:
            self._of_pod[pod.metadata.uid] = wanted
            for ref in wanted:
                if ref in self._answers:
                    self._answers[ref].at = float("-inf")

    def unregister(self, uid: str) -> None:
        refs = self._of_pod.pop(uid, {})
        for ref in refs:
            if not any(ref in others for others in self._of_pod.values()):
                self._answers.pop(ref, None)

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        return await self._read(Reference(ReferenceKind.CONFIG_MAPS, namespace, name), v1.ConfigMap)

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        return await self._read(Reference(ReferenceKind.SECRETS, namespace, name), v1.Secret)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Nothing has to go on in the background."""
        task_status.started()

    async def _read(self, ref: Reference, kind: type[T]) -> T | None:
        if not any(ref in refs for refs in self._of_pod.values()):
            raise ObjectError(f'object "{ref.namespace}"/"{ref.name}" not registered')
        if self._ttl is None:
            try:
                return await self._fetch(ref, kind)
            except APIFailure as error:
                raise ObjectError(str(error)) from error
        last = self._answers.get(ref)
        # That there is none is asked again each time, as with the kubelet: somebody waits for it.
        if last is None or last.value is None or trio.current_time() - last.at >= self._ttl():
            try:
                value = await self._fetch(ref, kind)
                self._answers[ref] = last = _Answer(value, trio.current_time())
            except APIFailure as error:
                if last is None:
                    raise ObjectError(str(error)) from error
        assert last.value is None or isinstance(last.value, kind)
        return last.value

    async def _fetch(self, ref: Reference, kind: type[T]) -> T | None:
        path = f"/api/v1/namespaces/{ref.namespace}/{ref.resource}/{ref.name}"
        return await self._client.find(path, kind)

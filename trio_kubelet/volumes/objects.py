"""Where volumes and variables get config maps, secrets and tokens from: the API server, behind a Protocol."""

from __future__ import annotations

from typing import Protocol

from trio_kubelet.api import v1


class ObjectError(Exception):
    """An object could not be asked for now; the text is shown to the user."""


class ClusterObjects(Protocol):
    """Reads what pods of this node refer to. None: the object does not exist. Raises ObjectError."""

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None: ...

    async def secret(self, namespace: str, name: str) -> v1.Secret | None: ...

    async def service_account_token(self, pod: v1.Pod, source: v1.ServiceAccountTokenProjection) -> str: ...

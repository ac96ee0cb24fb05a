"""Where volumes and variables get what they are made of from: the API server, behind Protocols; and what
keeps a config from being made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol, TypeVar

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.each import for_each


class ConfigError(Exception):
    """A sandbox or container config cannot be made now; the text is shown in the pod's status."""


class LogDirectoryError(ConfigError):
    """The directory of a pod's logs cannot be made."""


K = TypeVar("K")
V = TypeVar("V")


class ObjectError(Exception):
    """An object could not be asked for now; the text is shown to the user."""


class CredentialBundle(msgspec.Struct, frozen=True):
    """A private key and the chain of certificates for it, as PEM."""

    key: bytes
    chain: bytes

    def __repr__(self) -> str:  # never the key
        return f"CredentialBundle({len(self.chain)} bytes of certificates)"


class GrantedToken(msgspec.Struct, frozen=True):
    """A service account token, and when it ends (RFC 3339)."""

    text: str
    expires: str

    def __repr__(self) -> str:  # never the text
        return f"GrantedToken(expires={self.expires})"


class ClusterObjects(Protocol):
    """Reads what pods of this node refer to. None: the object does not exist. Raises ObjectError."""

    def register(self, pod: v1.Pod) -> None:
        """What this pod refers to may be read from now on. May be repeated, after each change of the pod."""
        ...

    def unregister(self, uid: str) -> None:
        """The pod is gone: what only it referred to is not followed any longer, its tokens are forgotten."""
        ...

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None: ...

    async def secret(self, namespace: str, name: str) -> v1.Secret | None: ...

    async def service_account_token(self, pod: v1.Pod, source: v1.ServiceAccountTokenProjection) -> str: ...


class VolumeObjects(ClusterObjects, Protocol):
    """What only volumes are made of, as well."""

    async def trust_anchors(self, source: v1.ClusterTrustBundleProjection) -> bytes:
        """The anchors a projection shows, as PEM. Raises ObjectError."""
        ...

    async def pod_certificate(self, pod: v1.Pod, volume: str, index: int) -> CredentialBundle:
        """The certificate for source number `index` of one of the pod's volumes. Raises ObjectError."""
        ...


_READS: Final = 64
"""Objects of one pod that are read at a time. With the API server away waiting adds up beyond them."""


async def read_all(keys: Iterable[K], read: Callable[[K], Awaitable[V]]) -> dict[K, V | ObjectError]:
    """Reads each of `keys`, many at once."""
    found: dict[K, V | ObjectError] = {}

    async def one(key: K) -> None:
        try:
            found[key] = await read(key)
        except ObjectError as error:
            found[key] = error

    await for_each(dict.fromkeys(keys), one, _READS)
    return found


class PodRecorderDoor(Protocol):
    """Takes events about pods. Never waits and never fails."""

    def record(self, pod: Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        """`type` is Normal or Warning; `field_path` names a container: `spec.containers{web}`."""
        ...


class ObjectRecorderDoor(PodRecorderDoor, Protocol):
    """Takes events about other objects as well, claims say."""

    def record_object(self, about: v1.ObjectReference, type: str, reason: str, message: str) -> None: ...


class RecorderDoor(PodRecorderDoor, Protocol):
    """Takes events about the node as well, and events about pods with annotations."""

    def record(
        self,
        pod: Pod,
        type: str,
        reason: str,
        message: str,
        field_path: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None: ...

    def record_node(self, type: str, reason: str, message: str) -> None: ...


class NodeRecorderDoor(Protocol):
    """Takes events about the node. Never waits, never raises."""

    def record_node(self, type: str, reason: str, message: str) -> None:
        """Takes an event; `type` is Normal or Warning."""
        ...

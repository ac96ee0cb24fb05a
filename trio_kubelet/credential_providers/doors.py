"""Where registry credentials come from, as those who pull images see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.credential_providers.keyring import Credential

if TYPE_CHECKING:  # imported where plugins are configured
    from trio_kubelet.credential_providers.plugin import CredentialProviderRequest, CredentialProviderResponse


class PullSecret(Protocol):
    """A place where registry credentials come from; the image manager asks each in turn."""

    async def credentials(self, image: str) -> Sequence[Credential]:
        """What to try for a normalised image reference, best first. Never raises."""
        ...


class ServiceAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What plugins are told of a service account."""

    metadata: v1.ObjectMeta


class ServiceAccountIdentity(Protocol):
    """Asks the API server who a pod runs as. Raises ObjectError."""

    async def service_account(self, namespace: str, name: str) -> ServiceAccount: ...

    async def pull_token(self, pod: v1.Pod, audience: str, account_uid: str) -> str: ...


class PluginDoor(Protocol):
    """How a plugin is asked. Raises CredentialPluginError."""

    async def ask(self, question: CredentialProviderRequest) -> CredentialProviderResponse: ...

"""Who pods run as, for credential provider plugins: service accounts and tokens of the API server."""

from __future__ import annotations

from trio_kubelet.api import v1
from trio_kubelet.credential_providers.provider import ServiceAccount
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIError, APIUnavailable
from trio_kubelet.kube.tokens import TokenStore
from trio_kubelet.podinfo.objects import ObjectError


class ClusterIdentity:
    """Implements `credential_providers.provider.PodIdentity`.

    Accounts are asked for each time, as the kubelet does: a changed annotation counts at once.
    """

    def __init__(self, client: KubeClient, tokens: TokenStore) -> None:
        self._client = client
        self._tokens = tokens

    async def service_account(self, namespace: str, name: str) -> ServiceAccount:
        """Raises ObjectError."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
        try:
            return await self._client.get(path, ServiceAccount)
        except (APIError, APIUnavailable) as error:
            raise ObjectError(f"failed to get service account: {error}") from error

    async def pull_token(self, pod: v1.Pod, audience: str, account_uid: str) -> str:
        """Raises ObjectError."""
        try:
            return await self._tokens.pull_token(pod, audience, account_uid)
        except ObjectError as error:
            raise ObjectError(f"failed to get service account token: {error}") from error

"""From flags to the plugins of this node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.credential_providers.config import InvalidProviderConfig, Providers, load_providers
from trio_kubelet.credential_providers.doors import ServiceAccountIdentity
from trio_kubelet.credential_providers.plugin import Plugin, ProviderMetrics
from trio_kubelet.credential_providers.provider import PluginProvider, ProviderSecret


class InstalledProviders:
    """The plugins of this node; `of` asks them for a pod."""

    def __init__(self, loaded: Providers, directory: str, registry: CollectorRegistry) -> None:
        metrics = ProviderMetrics(registry, loaded.hash)
        self._plugins = [(config, Plugin(config, directory, metrics)) for config in loaded.providers]

    def keyrings(self, identity: ServiceAccountIdentity | None) -> Callable[[v1.Pod], ProviderSecret]:
        """What asks all plugins for a pod. `identity` None: there is no API server."""
        providers: Sequence[PluginProvider] = [
            PluginProvider(config, plugin, identity) for config, plugin in self._plugins
        ]
        return partial(ProviderSecret, providers)


async def installed_providers(
    flags: KubeletFlags, gates: FeatureGates, registry: CollectorRegistry
) -> InstalledProviders:
    """The plugins that the flags name. Raises ConfigurationError."""
    path, directory = flags.image_credential_provider_config, flags.image_credential_provider_bin_dir
    tokens = gates.enabled("KubeletServiceAccountTokenForCredentialProviders")
    try:
        loaded = await NODE_FILES.run(partial(load_providers, path, directory, tokens=tokens))
    except InvalidProviderConfig as exc:
        raise ConfigurationError(f"failed to register CRI auth plugins: {exc}") from exc
    return InstalledProviders(loaded, directory, registry)

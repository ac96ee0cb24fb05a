"""What plugins answer, kept as long as they say, and asked for once by many.

Follows the kubelet's `credentialprovider/plugin`. A plugin may be asked on behalf of a service account: it
gets a token of the pod, and its answer is then good for that account, or for that token, only. A plugin that
fails is logged and the pull goes on without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.caching import SingleFlight
from trio_kubelet.common.log import get_logger
from trio_kubelet.credential_providers.config import ProviderConfig, TokenAttributes
from trio_kubelet.credential_providers.doors import PluginDoor, ServiceAccountIdentity
from trio_kubelet.credential_providers.keyring import AccountSource, Credential, Keyring, Login, matches
from trio_kubelet.credential_providers.many_logins import ManyLogins
from trio_kubelet.credential_providers.plugin import (
    CACHE_KEY_TYPES,
    CredentialPluginError,
    CredentialProviderRequest,
    CredentialProviderResponse,
)
from trio_kubelet.podinfo.doors import ObjectError

log = get_logger(__name__)

MAX_CACHED: Final = 1000
"""Answers kept for one plugin; the oldest goes first."""
_MANY: Final = 1000
"""Logins of plugins above which they are looked through in a thread: a megabyte of output has 100,000."""
_GLOBAL: Final = "<global>"


class Logins(NamedTuple):
    """Logins by registry, and for whom they are."""

    by_registry: Mapping[str, Login] = {}
    source: AccountSource | None = None

    def __repr__(self) -> str:
        return f"Logins(source={self.source!r})"


class _Caller(NamedTuple):
    """On whose behalf a plugin is asked; all empty for the node's own."""

    token: str = ""
    annotations: tuple[tuple[str, str], ...] = ()
    source: AccountSource | None = None
    cache_key: tuple[object, ...] = ()

    @property
    def flight_key(self) -> tuple[object, ...]:
        return (_hash(self.token), self.annotations) if self.token else ()


class PluginProvider:
    """One plugin with its cache."""

    def __init__(
        self, config: ProviderConfig, plugin: PluginDoor, identity: ServiceAccountIdentity | None
    ) -> None:
        self._config = config
        self._plugin = plugin
        self._identity = identity
        self._cache: dict[tuple[object, ...], tuple[float, Mapping[str, Login]]] = {}
        self._asked: SingleFlight[tuple[object, ...], CredentialProviderResponse] = SingleFlight()

    async def logins(self, image: str, pod: v1.Pod) -> Logins:
        """What this plugin has for an image without tag and digest. Never raises."""
        if not any(matches(pattern, image) for pattern in self._config.match_images or ()):
            return Logins()
        try:
            caller = await self._caller(pod)
            if caller is None:
                return Logins()
            found = self._cached(image, caller.cache_key)
            return Logins(await self._ask(image, caller) if found is None else found, caller.source)
        except (CredentialPluginError, ObjectError) as error:
            log.error(
                "Failed to provide credentials for image",
                provider=self._config.name,
                image=image,
                pod=pod,
                err=error,
            )
            return Logins()

    def __len__(self) -> int:
        return len(self._cache)

    async def _caller(self, pod: v1.Pod) -> _Caller | None:
        """On whose behalf to ask; None: not at all. Raises CredentialPluginError, ObjectError."""
        attributes, account = self._config.token_attributes, pod.spec.service_account_name
        if attributes is None:
            return _Caller()
        if not account:
            return None if attributes.require_service_account else _Caller()
        if self._identity is None:
            raise CredentialPluginError(
                "failed to get service account: cannot get ServiceAccounts when kubelet is in standalone mode"
            )
        namespace = pod.metadata.namespace
        meta = (await self._identity.service_account(namespace, account)).metadata
        annotations = wanted_annotations(attributes, meta.annotations or {})
        if annotations is None:
            log.v(5).info("Service account lacks an annotation", provider=self._config.name, pod=pod)
            return None
        audience = attributes.service_account_token_audience
        token = await self._identity.pull_token(pod, audience, meta.uid)
        bound = (_hash(token),) if attributes.cache_type == "Token" else ()
        return _Caller(
            token=token,
            annotations=annotations,
            source=AccountSource(meta.uid, namespace, account),
            cache_key=(namespace, account, meta.uid, annotations, *bound),
        )

    def _cached(self, image: str, key: tuple[object, ...]) -> Mapping[str, Login] | None:
        now = trio.current_time()
        for place in (image, registry_of(image), _GLOBAL):
            expires, found = self._cache.get((place, key), (now, {}))
            if now < expires:
                return found
        return None

    async def _ask(self, image: str, caller: _Caller) -> Mapping[str, Login]:
        answer = await self._ask_once(image, caller)
        attributes = self._config.token_attributes
        echoed = any(caller.token and login.password == caller.token for login in answer.logins.values())
        if echoed and attributes is not None and attributes.cache_type != "Token":
            raise CredentialPluginError(
                "credential provider plugin returned the service account token as the password which is not "
                "allowed when service account cache type is not set to 'Token'"
            )
        if answer.cache_key_type not in CACHE_KEY_TYPES:
            shown = answer.cache_key_type[:100]
            raise CredentialPluginError(
                f"credential provider plugin did not return a valid cacheKeyType: {shown}"
            )
        seconds = self._config.cache_seconds if answer.cache_seconds is None else answer.cache_seconds
        if seconds > 0:
            place = {"Image": image, "Registry": registry_of(image)}.get(answer.cache_key_type, _GLOBAL)
            self._keep((place, caller.cache_key), seconds, answer.logins)
        return answer.logins

    async def _ask_once(self, image: str, caller: _Caller) -> CredentialProviderResponse:
        """Joins a run for the same that is under way, or starts one. Raises CredentialPluginError."""

        async def ask() -> CredentialProviderResponse:
            try:
                return await self._plugin.ask(
                    CredentialProviderRequest(image, caller.token, dict(caller.annotations))
                )
            except CredentialPluginError as error:
                text = f"failed to get credential from external registry credential provider: {error}"
                raise CredentialPluginError(text) from error

        return await self._asked.ask((image, *caller.flight_key), ask)

    def _keep(self, key: tuple[object, ...], seconds: float, logins: Mapping[str, Login]) -> None:
        now = trio.current_time()
        for old in [old for old, (expires, _) in self._cache.items() if expires <= now]:
            del self._cache[old]
        self._cache.pop(key, None)
        while len(self._cache) >= MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache[key] = (now + seconds, logins)


class ProviderSecret:
    """All plugins, asked for one pod (implements `doors.PullSecret`)."""

    def __init__(self, providers: Sequence[PluginProvider], pod: v1.Pod) -> None:
        self._providers = providers
        self._pod = pod

    async def credentials(self, image: str) -> Sequence[Credential]:
        """What the plugins have, asked all at once; their order is the configured one. Never raises."""
        found = [Logins()] * len(self._providers)

        async def ask(index: int, provider: PluginProvider) -> None:
            found[index] = await provider.logins(image, self._pod)

        async with trio.open_nursery() as nursery:
            for index, provider in enumerate(self._providers):
                nursery.start_soon(ask, index, provider)
        if sum(len(logins.by_registry) for logins in found) <= _MANY:
            return _lookup(found, image)
        return await ManyLogins(partial(_lookup, found), self._pod.metadata.uid).credentials(image)


def _lookup(found: Sequence[Logins], image: str) -> Sequence[Credential]:
    keyring = Keyring()
    for logins in found:
        keyring.add(logins.by_registry, logins.source)
    return keyring.lookup(image)


def wanted_annotations(
    attributes: TokenAttributes, has: Mapping[str, str]
) -> tuple[tuple[str, str], ...] | None:
    """The annotations a plugin is told, sorted; None: a required one is missing. Pure."""
    required = attributes.required_service_account_annotation_keys or []
    if any(key not in has for key in required):
        return None
    keys = {*required, *(attributes.optional_service_account_annotation_keys or [])}
    return tuple((key, has[key]) for key in sorted(keys) if key in has)


def registry_of(image: str) -> str:
    """Host and port of an image."""
    return image.partition("/")[0]


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()

"""Service account tokens of pods: bound to the pod, kept while they are young, renewed before they end.

A token is renewed when 80 % of its life is over or it is a day old, a few seconds earlier at random so that
pods that started together do not all ask at once (kubelet: `token.Manager`). Who mounts it is told when that
is due, so renewal does not depend on how often pods are synced. While the API server is away the old token
stays as long as it is valid.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import parse_rfc3339, rfc3339
from trio_kubelet.common.backoff import generator
from trio_kubelet.common.caching import SingleFlight
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.deep_json import decode_deep
from trio_kubelet.common.log import get_logger, go_quote
from trio_kubelet.credential_providers.doors import ServiceAccount
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.doors import APIDoor, APIRequest
from trio_kubelet.kube.errors import APIFailure, APIUnavailable, error_from
from trio_kubelet.podinfo.doors import GrantedToken, ObjectError

log = get_logger(__name__)

MAX_AGE: Final = 24 * 3600.0
MAX_JITTER: Final = 10.0
REQUEST_TIMEOUT: Final = 10.0
RETRY_PERIOD: Final = 30.0
"""Seconds between attempts to renew a token that is still good, and the soonest that a new one is due."""
_NEVER_NS: Final = 1 << 62
_LONGEST_SLEEP: Final = 60.0  # the wall clock may be set


class TokenKey(NamedTuple):
    """What a token is for; nothing in here is secret."""

    namespace: str
    service_account: str
    pod_name: str
    pod_uid: str
    audience: str
    seconds: int | None
    account_uid: str = ""


class _Token(msgspec.Struct):
    text: str
    expires_ns: int
    renew_at_ns: int  # askers get this one until then
    tell_at_ns: int  # its pod is told then

    def __repr__(self) -> str:  # never the text
        return f"_Token(expires_ns={self.expires_ns})"


def renewal_ns(expires_ns: int, seconds: int, jitter: float) -> int:
    """When to renew a token that was asked for `seconds`; `jitter` in [0, 1)."""
    age = min(MAX_AGE, seconds - seconds * 20 // 100)
    return expires_ns - round((seconds - age + jitter * MAX_JITTER) * NANOSECONDS)


def token_request(key: TokenKey) -> v1.TokenRequest:
    """What to ask the API server."""
    bound = v1.BoundObjectReference(api_version="v1", kind="Pod", name=key.pod_name, uid=key.pod_uid)
    return v1.TokenRequest(
        api_version="authentication.k8s.io/v1",
        kind="TokenRequest",
        metadata=v1.ObjectMeta(uid=key.account_uid),
        spec=v1.TokenRequestSpec(
            audiences=[key.audience] if key.audience else None,
            expiration_seconds=key.seconds,
            bound_object_ref=bound,
        ),
    )


class TokenStore:
    """Asks for tokens and keeps them, each until its pod is gone."""

    def __init__(
        self,
        door: APIDoor,
        clock: Clock,
        due: Callable[[frozenset[str]], None],
        rng: random.Random | None = None,
    ) -> None:
        """`due` hears the UIDs of pods that should ask again for their tokens; it must not wait."""
        self._door = door
        self._clock = clock
        self._due = due
        self._random = generator(rng).random
        self._tokens: dict[TokenKey, _Token] = {}
        self._asked: SingleFlight[TokenKey, str] = SingleFlight()
        self._pods: set[str] = set()  # UIDs; of pods that are gone nothing is kept
        self._changed = trio.Event()

    async def run(self) -> None:
        """Tells when tokens are due, until cancelled."""
        while True:
            self._changed = trio.Event()
            now_ns = self._clock.now_ns()
            due = [key for key, token in self._tokens.items() if token.tell_at_ns <= now_ns]
            for key in due:
                self._tokens[key].tell_at_ns = now_ns + round(RETRY_PERIOD * NANOSECONDS)
            if due:
                self._due(frozenset(key.pod_uid for key in due))
            next_ns = min((token.tell_at_ns for token in self._tokens.values()), default=None)
            seconds = _LONGEST_SLEEP if next_ns is None else (next_ns - now_ns) / NANOSECONDS
            with trio.move_on_after(min(max(seconds, 0.01), _LONGEST_SLEEP)):
                await self._changed.wait()

    async def token(self, pod: v1.Pod, source: v1.ServiceAccountTokenProjection) -> str:
        """The token for one projection of a pod. Raises ObjectError."""
        return await self._token(_key(pod, source.audience, source.expiration_seconds))

    async def pull_token(self, pod: v1.Pod, audience: str, account_uid: str) -> str:
        """A token with which a plugin gets registry credentials for a pod. Raises ObjectError.

        The pod is not told when it is due: it is wanted while an image is pulled, not all the time.
        """
        return await self._token(_key(pod, audience, None)._replace(account_uid=account_uid))

    async def granted(self, pod: v1.Pod, audience: str, seconds: int | None) -> GrantedToken:
        """A token for a driver of volumes, with its end; the pod is told when it is due. Raises
        ObjectError.
        """
        key = _key(pod, audience, seconds)
        text = await self._token(key)
        kept = self._tokens.get(key)
        return GrantedToken(text, rfc3339(kept.expires_ns) if kept is not None else "")

    async def _token(self, key: TokenKey) -> str:
        token = self._tokens.get(key)
        if token is not None and self._clock.now_ns() < token.renew_at_ns:
            return token.text
        self._pods.add(key.pod_uid)
        return await self._asked.ask(key, lambda: self._renew(key, token))

    async def _renew(self, key: TokenKey, old: _Token | None) -> str:
        new = await self._renewed(key, old)
        if key.pod_uid in self._pods:
            self._tokens[key] = new
            self._changed.set()
        return new.text

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        for key in [key for key in self._tokens if key.pod_uid == uid]:
            del self._tokens[key]
        self._pods.discard(uid)

    def __len__(self) -> int:
        return len(self._tokens)

    async def _renewed(self, key: TokenKey, old: _Token | None) -> _Token:
        """A new token, or the old one for some more time. Raises ObjectError."""
        try:
            return await self._ask(key)
        except APIFailure as error:
            if old is None:
                raise ObjectError(f"failed to fetch token: {error}") from error
            now_ns = self._clock.now_ns()
            if now_ns > old.expires_ns:
                raise ObjectError(f"token {_shown(key)} expired and refresh failed: {error}") from error
            log.error("Couldn't update token", cacheKey=_shown(key), err=error)
            retry_ns = now_ns + round(RETRY_PERIOD * NANOSECONDS)
            # It may not be handed out any longer than it lives.
            retry_ns = min(retry_ns, old.expires_ns + 1)
            tell_ns = _NEVER_NS if key.account_uid else max(retry_ns, now_ns + NANOSECONDS)
            return msgspec.structs.replace(old, renew_at_ns=retry_ns, tell_at_ns=tell_ns)

    async def _ask(self, key: TokenKey) -> _Token:
        path = f"/api/v1/namespaces/{key.namespace}/serviceaccounts/{key.service_account}/token"
        body = msgspec.json.encode(token_request(key))
        answer = await self._door.request(APIRequest("POST", path, body=body), REQUEST_TIMEOUT)
        if answer.status not in (200, 201):
            raise error_from(answer.status, answer.body, answer.retry_after, "POST", path)
        try:
            granted = decode_deep(msgspec.json.Decoder(v1.TokenRequest).decode, answer.body)
            expires_ns = parse_rfc3339(granted.status.expiration_timestamp or "")
            if not granted.status.token:
                raise ValueError
        except ValueError:  # what it says may hold the token, so it is not shown
            raise APIUnavailable("the API server's answer is not a token") from None
        # The server may have granted another lifetime than it was asked for.
        seconds = granted.spec.expiration_seconds
        renew_ns = expires_ns if seconds is None else renewal_ns(expires_ns, seconds, self._random())
        # By a clock that is not the server's a new token may be due at once, as would be the next one.
        tell_ns = max(renew_ns, self._clock.now_ns() + round(RETRY_PERIOD * NANOSECONDS))
        return _Token(granted.status.token, expires_ns, renew_ns, _NEVER_NS if key.account_uid else tell_ns)


def _key(pod: v1.Pod, audience: str, seconds: int | None) -> TokenKey:
    meta = pod.metadata
    return TokenKey(meta.namespace, pod.spec.service_account_name, meta.name, meta.uid, audience, seconds)


def _shown(key: TokenKey) -> str:
    """As the kubelet's messages have it (`keyFunc`): Go's own way to write these values."""
    audiences = f"[]string{{{go_quote(key.audience)}}}" if key.audience else "[]string(nil)"
    bound = (
        f'v1.BoundObjectReference{{Kind:"Pod", APIVersion:"v1", Name:{go_quote(key.pod_name)}, '
        f"UID:{go_quote(key.pod_uid)}}}"
    )
    account = f"{go_quote(key.service_account)}/{go_quote(key.namespace)}"
    return f"{account}/{audiences}/{key.seconds or 0}/{bound}/{go_quote(key.account_uid)}"


class ClusterIdentity:
    """Who pods run as, for credential provider plugins
    (`credential_providers.doors.ServiceAccountIdentity`).

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
        except APIFailure as error:
            raise ObjectError(f"failed to get service account: {error}") from error

    async def pull_token(self, pod: v1.Pod, audience: str, account_uid: str) -> str:
        """Raises ObjectError."""
        try:
            return await self._tokens.pull_token(pod, audience, account_uid)
        except ObjectError as error:
            raise ObjectError(f"failed to get service account token: {error}") from error

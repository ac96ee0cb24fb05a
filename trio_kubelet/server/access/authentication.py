"""Who is asking: client certificate, then bearer token, then nobody in particular if that is allowed.

As in the kubelet, credentials that are no good are not passed over in favour of being anonymous, but one good
credential is enough. Tokens are kept in the cache under a keyed hash only.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable

import msgspec

from trio_kubelet.common.caching import ExpiringCache
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.config.types import Authentication
from trio_kubelet.server.access.reviews import ReviewError, Reviews
from trio_kubelet.server.access.users import (
    ANONYMOUS,
    Unauthenticated,
    User,
    bearer_token,
    protocol_token,
    read_certificate,
    with_authenticated_group,
)
from trio_kubelet.server.http.messages import Request

CACHED_TOKENS = 4096
PROTOCOLS = "sec-websocket-protocol"


class Identified(msgspec.Struct, frozen=True):
    """Who it is, and the request without the token that told it: nobody further on has to see that."""

    user: User
    request: Request


class Authenticator:
    """What `authentication` of the configuration asks for. `certificate_uids`: certificates may say a user's
    UID (gate `AllowParsingUserUIDFromCertAuth`).
    """

    def __init__(
        self,
        settings: Authentication,
        clock: Clock,
        reviews: Reviews,
        *,
        certificate_uids: bool = True,
    ) -> None:
        """Raises ValueError for settings that let nobody in."""
        if not (settings.webhook.enabled or settings.x509.client_ca_file or settings.anonymous.enabled):
            raise ValueError("no authentication method configured")
        self._settings = settings
        self._clock = clock
        self._certificate_uids = certificate_uids
        self._reviews = reviews if settings.webhook.enabled else None
        self._key = secrets.token_bytes(32)
        self._tokens: ExpiringCache[bytes, User | None] = ExpiringCache(CACHED_TOKENS)

    async def identify(self, request: Request) -> Identified:
        """Who sent a request. Raises Unauthenticated."""
        reasons = []
        for ask in (self._by_certificate, self._by_bearer, self._by_protocol):
            try:
                found = await ask(request)
            except (Unauthenticated, ReviewError) as exc:
                reasons.append(str(exc))
                continue
            if found is not None:
                return msgspec.structs.replace(found, user=with_authenticated_group(found.user))
        if not reasons and self._settings.anonymous.enabled:
            return Identified(ANONYMOUS, request)
        raise Unauthenticated("; ".join(reasons) or "no credentials")

    async def _by_certificate(self, request: Request) -> Identified | None:
        if request.peer_certificate is None or not self._settings.x509.client_ca_file:
            return None
        certificate = read_certificate(request.peer_certificate, self._certificate_uids)
        # It was good when the connection was made, which may be long ago.
        now = self._clock.now_ns() / NANOSECONDS
        if not certificate.not_before <= now <= certificate.not_after:
            raise Unauthenticated("the client certificate has expired or is not yet valid")
        return Identified(certificate.user, request) if certificate.user is not None else None

    async def _by_bearer(self, request: Request) -> Identified | None:
        token = bearer_token(request.header("authorization"))
        if token is None or self._reviews is None:
            return None
        user = await self._by_token(token, self._reviews.token)
        rest = tuple(header for header in request.headers if header[0] != "authorization")
        return Identified(user, msgspec.structs.replace(request, headers=rest))

    async def _by_protocol(self, request: Request) -> Identified | None:
        if self._reviews is None or (request.header("upgrade") or "").lower() != "websocket":
            return None
        token, others = protocol_token([value for name, value in request.headers if name == PROTOCOLS])
        if token is None:
            return None
        user = await self._by_token(token, self._reviews.token)
        rest = tuple(header for header in request.headers if header[0] != PROTOCOLS)
        headers = (*rest, (PROTOCOLS, ",".join(others)))
        return Identified(user, msgspec.structs.replace(request, headers=headers))

    async def _by_token(self, token: str, review: Callable[[str], Awaitable[User | None]]) -> User:
        key = hmac.new(self._key, token.encode("utf-8", "surrogateescape"), hashlib.sha256).digest()
        lifetime = self._settings.webhook.cache_ttl
        user = await self._tokens.get(key, lambda: review(token), lambda _: lifetime)
        if user is None:
            raise Unauthenticated("invalid bearer token")
        return user

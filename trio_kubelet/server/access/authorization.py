"""What somebody may ask of this node: paths become subresources of the Node object, the API server decides.

With KubeletFineGrainedAuthz some paths have a subresource of their own that is asked about first; permission
for all of `proxy` still opens them. `guard` stands in front of every endpoint and refuses in the kubelet's
words.
"""

from __future__ import annotations

from typing import TypeAlias

from trio_kubelet.common.caching import ExpiringCache
from trio_kubelet.common.log import get_logger
from trio_kubelet.config.types import Authorization
from trio_kubelet.server.access.authentication import Authenticator
from trio_kubelet.server.access.reviews import Attributes, ReviewError, Reviews
from trio_kubelet.server.access.users import Unauthenticated, User
from trio_kubelet.server.http.messages import Request, Response, text
from trio_kubelet.server.http.router import Guard

CACHED_VERDICTS = 8192
CACHED_BYTES = 10_000  # longer questions are not kept
VERBS = {"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
FINE = (("/pods", "pods"), ("/healthz", "healthz"), ("/configz", "configz"), ("/runningpods", "pods"))
COARSE = (
    ("/stats", "stats"),
    ("/metrics", "metrics"),
    ("/logs", "log"),
    ("/checkpoint", "checkpoint"),
    ("/statusz", "statusz"),
    ("/flagz", "configz"),
)


def subresources(path: str, fine_grained: bool) -> list[str]:
    """The subresources of `nodes` that open a path, any of them."""
    fine = [name for root, name in FINE if _is_below(path, root)][:1] if fine_grained else []
    coarse = [name for root, name in COARSE if _is_below(path, root)][:1]
    return fine + (coarse or ["proxy"])


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root + "/")


def wanted(request: Request, node_name: str, fine_grained: bool) -> list[Attributes]:
    """What has to be allowed for a request, any of it; a method without an API verb has an empty one."""
    verb = VERBS.get(request.method, "")
    return [Attributes(verb, name, node_name) for name in subresources(request.path, fine_grained)]


class AlwaysAllow:
    """Whoever was let in may do everything."""

    async def allows(self, user: User, wanted: Attributes) -> bool:
        """Yes."""
        return True


class WebhookAuthorizer:
    """Asks the API server and keeps its verdicts for as long as the configuration says."""

    def __init__(self, settings: Authorization, reviews: Reviews) -> None:
        self._reviews = reviews
        self._allowed_ttl = settings.webhook.cache_authorized_ttl
        self._refused_ttl = settings.webhook.cache_unauthorized_ttl
        self._verdicts: ExpiringCache[tuple[User, Attributes], bool] = ExpiringCache(CACHED_VERDICTS)

    async def allows(self, user: User, wanted: Attributes) -> bool:
        """Whether `user` may. Raises ReviewError."""
        size = len(user.name) + sum(map(len, user.groups)) + sum(len(str(pair)) for pair in user.extra)

        def lifetime(allowed: bool) -> float:
            if size > CACHED_BYTES:
                return 0
            return self._allowed_ttl if allowed else self._refused_ttl

        return await self._verdicts.get((user, wanted), lambda: self._reviews.allowed(user, wanted), lifetime)


Authorizer: TypeAlias = AlwaysAllow | WebhookAuthorizer


def authorizer(settings: Authorization, reviews: Reviews) -> Authorizer:
    """What `authorization.mode` asks for. Raises ValueError."""
    if settings.mode == "AlwaysAllow":
        return AlwaysAllow()
    if settings.mode != "Webhook":
        raise ValueError(f"no authorization mode configured: {settings.mode!r}")
    return WebhookAuthorizer(settings, reviews)


log = get_logger(__name__)


def guard(authenticator: Authenticator, authorizer: Authorizer, node_name: str, fine_grained: bool) -> Guard:
    """Lets the requests pass that may; `fine_grained` is the gate KubeletFineGrainedAuthz."""

    async def check(request: Request) -> Request | Response:
        try:
            found = await authenticator.identify(request)
        except Unauthenticated as exc:
            log.v(2).info("Unauthorized", peer=request.peer, err=exc)
            return text(401, "Unauthorized")
        user = found.user.name
        asked = wanted(request, node_name, fine_grained)
        for one in asked:
            try:
                if await authorizer.allows(found.user, one):
                    return found.request
            except ReviewError as exc:
                about = f"user={user}, verb={one.verb}, resource=nodes, subresource={one.subresource}"
                log.error("Authorization error", user=user, verb=one.verb, err=exc)
                return text(500, f"Authorization error ({about})")
        names = " ".join(one.subresource for one in asked)
        about = f"user={user}, verb={asked[0].verb}, resource=nodes, subresource(s)=[{names}]"
        log.v(2).info("Forbidden", user=user, verb=asked[0].verb, subresources=names)
        return text(403, f"Forbidden ({about})\n")

    return check

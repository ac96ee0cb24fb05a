"""Authentication and authorization in front of every endpoint, with the kubelet's answers."""

from __future__ import annotations

from trio_kubelet.common.log import get_logger
from trio_kubelet.server.access.authentication import Authenticator
from trio_kubelet.server.access.authorization import Authorizer, wanted
from trio_kubelet.server.access.reviews import ReviewError
from trio_kubelet.server.access.users import Unauthenticated
from trio_kubelet.server.http.router import Guard
from trio_kubelet.server.http.serve import Request, Response, text

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

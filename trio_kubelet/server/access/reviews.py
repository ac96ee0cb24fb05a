"""TokenReview and SubjectAccessReview: the API server is asked who somebody is and what they may do.

Few are in flight at once, so that a peer that shows one wrong token after the other cannot take the
connection to the API server away from statuses and leases.
"""

from __future__ import annotations

import random
from typing import TypeVar

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.kube.errors import APIError, APIFailure, APIUnavailable
from trio_kubelet.server.access.users import Unauthenticated, User
from trio_kubelet.server.doors import ReviewClient

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
IN_FLIGHT = 8
DEADLINE = 30.0
ATTEMPTS = 5
PAUSES = Pauses(0.5, 30.0, factor=1.5, jitter=0.2)

T = TypeVar("T")


class ReviewError(Exception):
    """The API server gave no verdict."""


class NoServer:
    """A node without an API server: nobody can say who somebody is."""

    async def create(self, path: str, thing: v1.Object, kind: type[T]) -> T:
        raise APIUnavailable("this node has no API server to ask")


class Attributes(msgspec.Struct, frozen=True):
    """What somebody wants to do to this node."""

    verb: str
    subresource: str
    name: str


class Reviews:
    """Asks the API server."""

    def __init__(self, client: ReviewClient) -> None:
        self._client = client
        self._slots = trio.CapacityLimiter(IN_FLIGHT)

    async def token(self, token: str) -> User | None:
        """The user a token belongs to; None when the server says nobody without a reason.

        Raises Unauthenticated when the server says why not, ReviewError when it says nothing.
        """
        asked = v1.TokenReview(
            api_version="authentication.k8s.io/v1",
            kind="TokenReview",
            spec=v1.TokenReviewSpec(token=token),
        )
        status = (await self._create(TOKEN_REVIEWS, asked, v1.TokenReview)).status
        if not status.authenticated:
            if status.error:
                raise Unauthenticated(status.error)
            return None
        user = status.user
        extra = tuple((key, tuple(values)) for key, values in sorted((user.extra or {}).items()))
        return User(user.username, tuple(user.groups or ()), user.uid, extra)

    async def allowed(self, user: User, wanted: Attributes) -> bool:
        """Whether `user` may. Raises ReviewError."""
        asked = v1.SubjectAccessReview(
            api_version="authorization.k8s.io/v1",
            kind="SubjectAccessReview",
            spec=v1.SubjectAccessReviewSpec(
                resource_attributes=v1.ResourceAttributes(
                    verb=wanted.verb,
                    version="v1",
                    resource="nodes",
                    subresource=wanted.subresource,
                    name=wanted.name,
                ),
                user=user.name,
                groups=list(user.groups) or None,
                uid=user.uid,
                extra={key: list(values) for key, values in user.extra} or None,
            ),
        )
        status = (await self._create(ACCESS_REVIEWS, asked, v1.SubjectAccessReview)).status
        if status.allowed and status.denied:
            raise ReviewError("the review returned both an allow and a deny")
        return status.allowed

    async def _create(self, path: str, thing: v1.Object, kind: type[T]) -> T:
        try:
            with trio.fail_after(DEADLINE):
                async with self._slots:
                    return await self._attempts(path, thing, kind)
        except (APIError, APIUnavailable, trio.TooSlowError) as exc:
            raise ReviewError(str(exc) or "no answer in time") from exc

    async def _attempts(self, path: str, thing: v1.Object, kind: type[T]) -> T:
        failures = 0
        while True:
            try:
                return await self._client.create(path, thing, kind)
            except APIFailure as exc:
                failures += 1
                if failures >= ATTEMPTS or not worth_another_try(exc, failures):
                    raise
            await trio.sleep(PAUSES.after(failures, random.random()))


def worth_another_try(error: APIFailure, failures: int) -> bool:
    """Whether an error is a passing one; an old connection may have broken, so that gets one more try."""
    if not isinstance(error, APIError):
        return failures == 1
    return error.code in (429, 500, 504) or error.retry_after is not None

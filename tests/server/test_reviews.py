"""What the API server is asked about users, how often, and for how long its answers are kept."""

from __future__ import annotations

from typing import TypeVar

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.kube.apiserver import APIServer, User
from tests.kube.certs import CA, new_key
from tests.kube.door import SimulatedDoor
from tests.kube.store import Refused
from trio_kubelet.api import v1
from trio_kubelet.common.caching import ExpiringCache
from trio_kubelet.common.clock import TrioClock
from trio_kubelet.config.types import (
    Authentication,
    Authorization,
    WebhookAuthentication,
    WebhookAuthorization,
)
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.server.access import users
from trio_kubelet.server.access.authentication import Authenticator
from trio_kubelet.server.access.authorization import WebhookAuthorizer
from trio_kubelet.server.access.reviews import Attributes, ReviewError, Reviews
from trio_kubelet.server.access.users import Unauthenticated
from trio_kubelet.server.http.messages import Request

T = TypeVar("T")
SETTINGS = Authentication(webhook=WebhookAuthentication(cache_ttl=120))
LIFETIMES = Authorization(webhook=WebhookAuthorization(cache_authorized_ttl=300, cache_unauthorized_ttl=30))
ALICE = users.User("alice")
READ = Attributes("get", "metrics", "node-1")


def with_token(token: str) -> Request:
    return Request(
        method="GET",
        path="/metrics",
        target="/metrics",
        query={},
        headers=(("authorization", f"Bearer {token}"),),
    )


def api_server() -> tuple[APIServer, Reviews]:
    server = APIServer()
    server.tokens["t"] = User("alice")
    return server, Reviews(KubeClient(SimulatedDoor(server)))


def authenticator(reviews: Reviews) -> Authenticator:
    return Authenticator(SETTINGS, TrioClock(0), reviews)


async def test_a_token_is_reviewed_again_after_its_lifetime(autojump_clock: trio.testing.MockClock) -> None:
    server, reviews = api_server()
    check = authenticator(reviews)
    for pause, count in ((0, 1), (119, 1), (2, 2)):
        await trio.sleep(pause)
        found = await check.identify(with_token("t"))
        assert found.user.groups == ("system:authenticated",)
        assert len(server.requests) == count


async def test_a_revoked_token_ends_with_its_lifetime(autojump_clock: trio.testing.MockClock) -> None:
    server, reviews = api_server()
    check = authenticator(reviews)
    await check.identify(with_token("t"))
    del server.tokens["t"]
    await check.identify(with_token("t"))
    await trio.sleep(121)
    with pytest.raises(Unauthenticated):
        await check.identify(with_token("t"))


async def test_a_refused_token_is_asked_about_each_time(autojump_clock: trio.testing.MockClock) -> None:
    """The server gives a reason then, and such answers are not kept: the token may be good in a moment."""
    server, reviews = api_server()
    check = authenticator(reviews)
    for count in (1, 2):
        with pytest.raises(Unauthenticated):
            await check.identify(with_token("new"))
        assert len(server.requests) == count
    server.tokens["new"] = User("bob")
    assert (await check.identify(with_token("new"))).user.name == "bob"


async def test_many_requests_with_one_token_ask_once(autojump_clock: trio.testing.MockClock) -> None:
    server, reviews = api_server()
    server.latency = 1
    check = authenticator(reviews)
    names = []

    async def one() -> None:
        names.append((await check.identify(with_token("t"))).user.name)

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(one)
    assert names == ["alice"] * 50
    assert len(server.requests) == 1


async def test_when_the_asker_leaves_another_one_asks(autojump_clock: trio.testing.MockClock) -> None:
    server, reviews = api_server()
    server.latency = 1
    check = authenticator(reviews)
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.5):
            await check.identify(with_token("t"))
        nursery.start_soon(check.identify, with_token("t"))
    assert len(server.requests) == 2


async def test_wrong_tokens_cannot_fill_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    server, reviews = api_server()
    server.latency = 1
    check = authenticator(reviews)

    async def one(number: int) -> None:
        with pytest.raises(Unauthenticated):
            await check.identify(with_token(f"wrong-{number}"))

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(one, number)
        await trio.sleep(0.5)
        assert len(server.requests) == 8


@pytest.mark.parametrize(("allowed", "lifetime"), [(True, 300), (False, 30)])
async def test_verdicts_live_as_configured(
    autojump_clock: trio.testing.MockClock, allowed: bool, lifetime: float
) -> None:
    server, reviews = api_server()
    server.review = lambda spec: allowed
    check = WebhookAuthorizer(LIFETIMES, reviews)
    for pause, count in ((0, 1), (lifetime - 1, 1), (2, 2)):
        await trio.sleep(pause)
        assert await check.allows(ALICE, READ) is allowed
        assert len(server.requests) == count
    assert await check.allows(ALICE, Attributes("get", "log", "node-1")) is allowed
    assert len(server.requests) == 3


async def test_a_verdict_that_contradicts_itself_is_none(autojump_clock: trio.testing.MockClock) -> None:
    class Both:
        async def create(self, path: str, thing: v1.Object, kind: type[T]) -> T:
            return kind(status=v1.SubjectAccessReviewStatus(allowed=True, denied=True))  # type: ignore[call-arg]

    with pytest.raises(ReviewError, match="both"):
        await Reviews(Both()).allowed(ALICE, READ)


async def test_what_would_take_much_memory_is_not_remembered(autojump_clock: trio.testing.MockClock) -> None:
    server, reviews = api_server()
    check = WebhookAuthorizer(LIFETIMES, reviews)
    for number, user in enumerate(
        (users.User("n" * 10_001), users.User("x", groups=("g" * 6_000, "h" * 6_000)))
    ):
        for _ in range(2):
            await check.allows(user, READ)
        assert len(server.requests) == 2 * (number + 1)


async def test_passing_errors_are_tried_again_others_are_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server, reviews = api_server()
    failures = [Refused(429, "TooManyRequests", "later"), Refused(500, "InternalError", "oops")]
    server.refuse = lambda request: failures.pop() if failures else None
    assert await reviews.allowed(ALICE, READ)
    assert len(server.requests) == 3
    server.refuse = lambda request: Refused(403, "Forbidden", "the node may not ask")
    with pytest.raises(ReviewError, match="the node may not ask"):
        await reviews.allowed(ALICE, READ)
    assert len(server.requests) == 4


async def test_a_silent_server_is_not_waited_for_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    server, reviews = api_server()
    server.silent = True
    with pytest.raises(ReviewError):
        await reviews.allowed(ALICE, READ)
    assert trio.current_time() <= 61


async def test_the_cache_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    cache: ExpiringCache[int, int] = ExpiringCache(10)
    asked: list[int] = []

    async def get(key: int) -> int:
        async def look_up() -> int:
            asked.append(key)
            return key

        return await cache.get(key, look_up, lambda _: 1000)

    for key in range(10):
        await get(key)
    await get(0)  # used again, so 1 is now the oldest
    await get(99)
    assert len(cache) == 10
    asked.clear()
    await get(0)
    await get(1)
    assert asked == [1]


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        (users.User("alice"), ("system:authenticated",)),
        (users.User("alice", ("a",)), ("a", "system:authenticated")),
        (users.User("alice", ("system:authenticated", "a")), ("system:authenticated", "a")),
        (users.User("alice", ("system:unauthenticated",)), ("system:unauthenticated",)),
        (users.User("system:anonymous"), ()),
    ],
)
def test_who_is_authenticated(user: users.User, groups: tuple[str, ...]) -> None:
    """Whose certificate or token says `system:anonymous` has not proved to be anybody."""
    assert users.with_authenticated_group(user).groups == groups


@pytest.mark.parametrize(
    ("uids", "heeded", "told"),
    [((), True, ""), (("u-1",), True, "u-1"), (("u-1",), False, ""), (("u-1", "u-2"), False, "")],
)
def test_the_uid_of_a_certificate(uids: tuple[str, ...], heeded: bool, told: str) -> None:
    user = users.read_certificate(certificate(uids), heeded).user
    assert user is not None
    assert (user.name, user.uid) == ("alice", told)


@pytest.mark.parametrize("uids", [("u-1", "u-2"), ("",)])
def test_a_certificate_with_other_than_one_uid_is_nobodys(uids: tuple[str, ...]) -> None:
    with pytest.raises(Unauthenticated):
        users.read_certificate(certificate(uids))


def certificate(uids: tuple[str, ...]) -> bytes:
    """alice's, in DER."""
    named = [x509.NameAttribute(x509.NameOID.COMMON_NAME, "alice")]
    oid = x509.ObjectIdentifier(users.UID_OID)
    named += [x509.NameAttribute(oid, uid, _validate=False) for uid in uids]
    pem = CA("clients").issue(x509.Name(named), new_key().public_key())
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (None, None),
        ("", None),
        ("Bearer abc", "abc"),
        ("bearer abc", "abc"),
        ("Bearer  abc", None),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer abc def", "abc"),
    ],
)
def test_bearer_headers(header: str | None, token: str | None) -> None:
    assert users.bearer_token(header) == token


@pytest.mark.parametrize(
    "protocols",
    [
        ["base64url.bearer.authorization.k8s.io.Zw"],  # nothing is left to agree on
        ["base64url.bearer.authorization.k8s.io.Zw,base64url.bearer.authorization.k8s.io.Zw", "v4"],
        ["v4,base64url.bearer.authorization.k8s.io.Z?"],
        ["v4,base64url.bearer.authorization.k8s.io.Zw=="],
        ["v4,base64url.bearer.authorization.k8s.io.____"],
    ],
)
def test_unusable_tokens_among_the_subprotocols(protocols: list[str]) -> None:
    with pytest.raises(Unauthenticated):
        users.protocol_token(protocols)

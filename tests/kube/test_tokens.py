"""Service account tokens of pods, on virtual time."""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.kube.doors import APIAnswer, APIRequest
from trio_kubelet.kube.tokens import TokenStore, renewal_ns
from trio_kubelet.podinfo.doors import ObjectError

HOUR = 3600


class HeldDoor(SimulatedDoor):
    """Requests wait until `held` is set, and get `answer` instead of the server's."""

    held: trio.Event | None = None
    answer: APIAnswer | None = None

    async def request(self, request: APIRequest, timeout: float) -> APIAnswer:
        if self.held is not None:
            await self.held.wait()
        return self.answer or await super().request(request, timeout)


class World:
    def __init__(self) -> None:
        self.server = APIServer()
        self.told: list[tuple[float, frozenset[str]]] = []
        self.door = HeldDoor(self.server)
        self.tokens = TokenStore(self.door, self.server.clock, self._due, random.Random(1))
        self.server.store.create("serviceaccounts", "ns", {"metadata": {"name": "sa"}})

    def _due(self, uids: frozenset[str]) -> None:
        self.told.append((trio.current_time(), uids))

    def a_pod(self, name: str) -> v1.Pod:
        made = self.server.store.create("pods", "ns", {"metadata": {"name": name}, "spec": {}})
        meta = v1.ObjectMeta(name=name, namespace="ns", uid=made["metadata"]["uid"])
        return v1.Pod(metadata=meta, spec=v1.PodSpec(service_account_name="sa"))

    @property
    def asked(self) -> int:
        return sum(request.method == "POST" for request in self.server.requests)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tokens.run)
            yield
            nursery.cancel_scope.cancel()


def a_source(seconds: int = HOUR, audience: str = "") -> v1.ServiceAccountTokenProjection:
    return v1.ServiceAccountTokenProjection(audience=audience, expiration_seconds=seconds, path="token")


async def test_what_is_asked_of_the_server(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    pod = world.a_pod("p")
    text = await world.tokens.token(pod, a_source(600, "vault"))
    assert text.startswith("token-ns-sa-")
    request = next(r for r in world.server.requests if r.method == "POST")
    assert request.path == "/api/v1/namespaces/ns/serviceaccounts/sa/token"
    assert json.loads(request.body)["spec"] == {
        "audiences": ["vault"],
        "expirationSeconds": 600,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod.metadata.uid},
    }
    await world.tokens.token(pod, a_source())
    assert json.loads(world.server.requests[-1].body)["spec"]["audiences"] is None


async def test_tokens_are_kept_for_each_pod_audience_and_lifetime(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    pods = [world.a_pod("p"), world.a_pod("q")]
    wanted = [(pod, a_source(*how)) for pod in pods for how in ((HOUR,), (HOUR, "a"), (600, "a"))]
    first = [await world.tokens.token(pod, source) for pod, source in wanted]
    assert len(set(first)) == 6
    assert [await world.tokens.token(pod, source) for pod, source in wanted] == first
    assert world.asked == 6
    world.tokens.forget(pods[0].metadata.uid)
    assert len(world.tokens) == 3
    assert await world.tokens.token(*wanted[0]) != first[0]


async def test_many_askers_share_one_request(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    pod = world.a_pod("p")
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(world.tokens.token, pod, a_source())
    assert world.asked == 1


async def test_a_token_that_arrives_after_its_pod_has_gone_is_not_kept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    pod = world.a_pod("p")
    async with trio.open_nursery() as nursery:
        world.door.held = trio.Event()
        nursery.start_soon(world.tokens.token, pod, a_source())
        await trio.testing.wait_all_tasks_blocked()
        world.tokens.forget(pod.metadata.uid)
        world.door.held.set()
    assert world.asked == 1
    assert len(world.tokens) == 0


@pytest.mark.parametrize(
    ("seconds", "after"), [(600, 480), (HOUR, 2880), (3607, 2886), (10 * 24 * HOUR, 24 * HOUR)]
)
async def test_renewed_before_its_end_and_told_when_due(
    autojump_clock: trio.testing.MockClock, seconds: int, after: int
) -> None:
    world = World()
    pod = world.a_pod("p")
    async with world.running():
        old = await world.tokens.token(pod, a_source(seconds))
        began = trio.current_time()
        await trio.sleep(after - 11)
        assert await world.tokens.token(pod, a_source(seconds)) == old
        assert world.told == []
        await trio.sleep(12)
        ((moment, uids),) = world.told
        assert uids == {pod.metadata.uid}
        assert after - 11 <= moment - began <= after + 1
        assert await world.tokens.token(pod, a_source(seconds)) != old
        await trio.sleep(60)
        assert len(world.told) == 1


async def test_the_old_token_stays_while_the_server_is_away_and_it_is_valid(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    pod = world.a_pod("p")
    async with world.running():
        old = await world.tokens.token(pod, a_source(600))
        world.server.down = True
        await trio.sleep(500)
        assert await world.tokens.token(pod, a_source(600)) == old
        asked = len(world.door.attempts)
        for _ in range(20):
            assert await world.tokens.token(pod, a_source(600)) == old
        assert len(world.door.attempts) == asked
        await trio.sleep(101)
        with pytest.raises(ObjectError) as error:
            await world.tokens.token(pod, a_source(600))
        bound = f'v1.BoundObjectReference{{Kind:"Pod", APIVersion:"v1", Name:"p", UID:"{pod.metadata.uid}"}}'
        key = f'"sa"/"ns"/[]string(nil)/600/{bound}/""'
        assert str(error.value).startswith(f"token {key} expired and refresh failed: ")
        assert old not in str(error.value)
        assert len(world.told) > 2  # it goes on being due
        world.server.down = False
        assert await world.tokens.token(pod, a_source(600)) != old


async def test_no_token_is_handed_out_after_its_end(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    pod = world.a_pod("p")
    old = await world.tokens.token(pod, a_source(600, "api"))
    world.server.down = True
    await trio.sleep(599)
    assert await world.tokens.token(pod, a_source(600, "api")) == old
    await trio.sleep(1.5)
    with pytest.raises(ObjectError, match=r'/\[\]string{"api"}/600/.* expired and refresh failed'):
        await world.tokens.token(pod, a_source(600, "api"))


@pytest.mark.parametrize("end", ["soon", "", None, 7])
async def test_an_answer_that_makes_no_sense_is_not_quoted(
    autojump_clock: trio.testing.MockClock, end: object
) -> None:
    world = World()
    pod = world.a_pod("p")
    status = {"token": "canary", "expirationTimestamp": end}
    world.door.answer = APIAnswer(201, json.dumps({"spec": {"audiences": []}, "status": status}).encode())
    with pytest.raises(ObjectError, match="not a token") as caught:
        await world.tokens.token(pod, a_source())
    seen = "".join(traceback.format_exception(caught.value))
    assert "canary" not in seen


async def test_failures_have_the_servers_words(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    pod = world.a_pod("p")
    world.server.store.delete("serviceaccounts", "ns", "sa")
    with pytest.raises(ObjectError, match='failed to fetch token: serviceaccounts "sa" not found'):
        await world.tokens.token(pod, a_source())
    assert len(world.tokens) == 0


@given(st.integers(600, 10**7), st.floats(0, 1, exclude_max=True), st.integers(10**18, 2 * 10**18))
def test_renewal_is_within_the_life_of_the_token(seconds: int, jitter: float, issued_ns: int) -> None:
    expires_ns = issued_ns + seconds * NANOSECONDS
    renewed = renewal_ns(expires_ns, seconds, jitter)
    assert issued_ns < renewed <= expires_ns - seconds * NANOSECONDS // 5 + NANOSECONDS
    assert renewed - issued_ns <= 24 * HOUR * NANOSECONDS
    assert renewed - issued_ns >= min(seconds * 4 // 5, 24 * HOUR) * NANOSECONDS - 10 * NANOSECONDS


async def test_a_token_for_a_plugin_names_its_account_and_nobody_is_told_when_it_is_due(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    pod = world.a_pod("p")
    async with world.running():
        text = await world.tokens.pull_token(pod, "registry", "account-uid")
        assert await world.tokens.pull_token(pod, "registry", "account-uid") == text
        body = json.loads(world.server.requests[-1].body)
        assert body["metadata"] == {"uid": "account-uid"}
        assert body["spec"]["audiences"] == ["registry"]
        assert body["spec"]["boundObjectRef"]["uid"] == pod.metadata.uid
        await trio.sleep(2 * HOUR)
        assert world.told == []
        assert await world.tokens.pull_token(pod, "registry", "account-uid") != text


async def test_a_clock_that_is_ahead_of_the_servers_makes_no_busy_loop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each new token has ended already by our clock: it is handed out, for who is asked with it may think
    otherwise, and its pod is told again only after a while.
    """
    world = World()
    pod = world.a_pod("p")
    end = rfc3339(world.server.clock.now_ns() - HOUR * NANOSECONDS)
    granted = {"spec": {"expirationSeconds": HOUR}, "status": {"token": "t", "expirationTimestamp": end}}
    world.door.answer = APIAnswer(201, json.dumps(granted).encode())
    asked = 0
    async with world.running():
        with trio.move_on_after(600):
            while asked < 100:
                told = len(world.told)
                assert await world.tokens.token(pod, a_source()) == "t"
                asked += 1
                while len(world.told) == told:  # noqa: ASYNC110 - as a pod does, which asks when it is told
                    await trio.sleep(0.1)
    assert 15 <= asked <= 20


async def test_an_answer_without_a_token_leaves_the_old_one(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    pod = world.a_pod("p")
    text = await world.tokens.token(pod, a_source())
    await trio.sleep(0.9 * HOUR)
    world.door.answer = APIAnswer(
        201, b'{"status":{"token":"","expirationTimestamp":"2030-01-01T00:00:00Z"}}'
    )
    assert await world.tokens.token(pod, a_source()) == text

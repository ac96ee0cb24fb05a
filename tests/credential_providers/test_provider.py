"""Plugins as pulls see them: who is asked, for whom, how often, on virtual time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api import v1
from trio_kubelet.credential_providers import provider as module
from trio_kubelet.credential_providers.config import ProviderConfig, TokenAttributes
from trio_kubelet.credential_providers.doors import ServiceAccount
from trio_kubelet.credential_providers.keyring import (
    AccountSource,
    Credential,
    Keyring,
    Login,
    matches,
)
from trio_kubelet.credential_providers.plugin import (
    CredentialPluginError,
    CredentialProviderRequest,
    CredentialProviderResponse,
)
from trio_kubelet.credential_providers.provider import Logins, PluginProvider, ProviderSecret
from trio_kubelet.podinfo.doors import ObjectError

IMAGE, SIBLING, OTHER = "a.org/x/app", "a.org/y", "b.org/z"


class Asked:
    """A plugin that answers as told after some seconds."""

    def __init__(self, **fields: Any) -> None:
        logins = {"a.org": Login("u", "p"), "b.org": Login("v", "q")}
        self.answer: CredentialProviderResponse | CredentialPluginError = CredentialProviderResponse(
            **({"cache_key_type": "Image", "cache_seconds": None, "logins": logins} | fields)
        )
        self.questions: list[CredentialProviderRequest] = []
        self.seconds = 0.0

    async def ask(self, question: CredentialProviderRequest) -> CredentialProviderResponse:
        self.questions.append(question)
        await trio.sleep(self.seconds)
        if isinstance(self.answer, CredentialPluginError):
            raise self.answer
        return self.answer


class Identity:
    def __init__(self, **annotations: str) -> None:
        self.annotations: dict[str, str] = annotations
        self.uid = "account-uid"

    async def service_account(self, namespace: str, name: str) -> ServiceAccount:
        if name == "missing":
            raise ObjectError("not found")
        return ServiceAccount(metadata=v1.ObjectMeta(uid=self.uid, annotations=self.annotations))

    async def pull_token(self, pod: v1.Pod, audience: str, account_uid: str) -> str:
        return f"token-{audience}-{account_uid}-{pod.metadata.name}"


def a_pod(name: str = "p", account: str = "sa") -> v1.Pod:
    meta = v1.ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}")
    return v1.Pod(metadata=meta, spec=v1.PodSpec(service_account_name=account))


def configured(**fields: Any) -> ProviderConfig:
    return ProviderConfig(
        **({"name": "ask", "match_images": ["a.org", "b.org"], "default_cache_duration": "1m"} | fields)
    )


def for_accounts(cache_type: str = "ServiceAccount", **fields: Any) -> ProviderConfig:
    attributes = TokenAttributes(
        service_account_token_audience="aud",
        cache_type=cache_type,
        **({"require_service_account": True} | fields),
    )
    return configured(token_attributes=attributes)


@pytest.mark.parametrize(
    ("key_type", "runs"),
    [("Image", [1, 1, 2, 3]), ("Registry", [1, 1, 1, 2]), ("Global", [1, 1, 1, 1])],
)
async def test_what_an_answer_is_good_for(
    autojump_clock: trio.testing.MockClock, key_type: str, runs: list[int]
) -> None:
    plugin = Asked(cache_key_type=key_type)
    provider = PluginProvider(configured(), plugin, None)
    counted = []
    for image in (IMAGE, IMAGE, SIBLING, OTHER):
        assert (await provider.logins(image, a_pod())).by_registry["a.org"] == Login("u", "p")
        counted.append(len(plugin.questions))
    assert counted == runs


@pytest.mark.parametrize(
    ("said", "default", "seconds"),
    [(None, "1m", 60.0), (10.0, "1m", 10.0), (0.0, "1m", 0.0), (None, "0", 0.0)],
)
async def test_how_long_an_answer_is_good(
    autojump_clock: trio.testing.MockClock, said: float | None, default: str, seconds: float
) -> None:
    plugin = Asked(cache_seconds=said)
    provider = PluginProvider(configured(default_cache_duration=default), plugin, None)
    await provider.logins(IMAGE, a_pod())
    await trio.sleep(max(seconds - 0.1, 0.0))
    await provider.logins(IMAGE, a_pod())
    assert len(plugin.questions) == (1 if seconds else 2)
    await trio.sleep(0.2)
    await provider.logins(IMAGE, a_pod())
    assert len(plugin.questions) == (2 if seconds else 3)


async def test_an_image_of_others_asks_nobody() -> None:
    plugin = Asked()
    assert await PluginProvider(configured(), plugin, None).logins("c.org/x", a_pod()) == Logins()
    assert plugin.questions == []


async def test_many_pods_ask_once(autojump_clock: trio.testing.MockClock) -> None:
    plugin = Asked(cache_seconds=0.0)
    plugin.seconds = 5.0
    provider = PluginProvider(configured(), plugin, None)
    found: list[Logins] = []

    async def ask() -> None:
        found.append(await provider.logins(IMAGE, a_pod()))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert len(plugin.questions) == 1
    assert all(logins.by_registry for logins in found)
    assert len(found) == 20


async def test_who_waits_takes_over_when_the_first_gives_up(autojump_clock: trio.testing.MockClock) -> None:
    plugin = Asked()
    plugin.seconds = 5.0
    provider = PluginProvider(configured(), plugin, None)

    async def impatient() -> None:
        with trio.move_on_after(1):
            await provider.logins(IMAGE, a_pod())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(impatient)
        await trio.sleep(0.5)
        assert (await provider.logins(IMAGE, a_pod())).by_registry
    assert len(plugin.questions) == 2


@pytest.mark.parametrize("answer", [CredentialPluginError("broken"), "Nonsense"])
async def test_a_failing_plugin_gives_nothing_and_is_asked_again(answer: CredentialPluginError | str) -> None:
    plugin = Asked(cache_key_type="Nonsense")
    if isinstance(answer, CredentialPluginError):
        plugin.answer = answer
    provider = PluginProvider(configured(), plugin, None)
    for _ in range(2):
        assert await provider.logins(IMAGE, a_pod()) == Logins()
    assert len(plugin.questions) == 2


async def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED", 3)
    plugin = Asked()
    provider = PluginProvider(configured(), plugin, None)
    for number in range(10):
        await provider.logins(f"a.org/{number}", a_pod())
    assert len(provider) == 3
    await provider.logins("a.org/9", a_pod())
    assert len(plugin.questions) == 10


async def test_an_account_s_answer_is_for_that_account() -> None:
    plugin, identity = Asked(), Identity()
    provider = PluginProvider(for_accounts(), plugin, identity)
    logins = await provider.logins(IMAGE, a_pod())
    assert logins.source == AccountSource("account-uid", "ns", "sa")
    assert plugin.questions == [CredentialProviderRequest(IMAGE, "token-aud-account-uid-p", {})]
    await provider.logins(IMAGE, a_pod("q"))
    assert len(plugin.questions) == 1
    await provider.logins(IMAGE, a_pod(account="other"))
    assert len(plugin.questions) == 2
    identity.uid = "made-again"
    await provider.logins(IMAGE, a_pod())
    assert len(plugin.questions) == 3


async def test_a_token_s_answer_is_for_that_token() -> None:
    plugin = Asked()
    provider = PluginProvider(for_accounts("Token"), plugin, Identity())
    for name in ("p", "p", "q"):
        await provider.logins(IMAGE, a_pod(name))
    assert len(plugin.questions) == 2


@pytest.mark.parametrize(("cache_type", "works"), [("ServiceAccount", False), ("Token", True)])
async def test_a_plugin_that_gives_the_token_back(cache_type: str, works: bool) -> None:
    plugin = Asked(logins={"a.org": Login("u", "token-aud-account-uid-p")})
    provider = PluginProvider(for_accounts(cache_type), plugin, Identity())
    assert bool((await provider.logins(IMAGE, a_pod())).by_registry) is works


async def test_annotations_and_missing_accounts() -> None:
    config = for_accounts(
        required_service_account_annotation_keys=["need"], optional_service_account_annotation_keys=["may"]
    )
    for has, expected in (
        ({}, None),
        ({"may": "1"}, None),
        ({"need": "2", "more": "3"}, {"need": "2"}),
        ({"need": "2", "may": "1"}, {"need": "2", "may": "1"}),
    ):
        plugin = Asked()
        identity = Identity(**has)
        await PluginProvider(config, plugin, identity).logins(IMAGE, a_pod())
        asked: list[Mapping[str, str]] = [question.annotations for question in plugin.questions]
        assert asked == ([expected] if expected is not None else [])
    plugin = Asked()
    assert (
        await PluginProvider(for_accounts(), plugin, Identity()).logins(IMAGE, a_pod(account="")) == Logins()
    )
    assert (
        await PluginProvider(for_accounts(), plugin, Identity()).logins(IMAGE, a_pod(account="missing"))
        == Logins()
    )
    assert await PluginProvider(for_accounts(), plugin, None).logins(IMAGE, a_pod()) == Logins()
    assert plugin.questions == []
    optional = for_accounts(require_service_account=False)
    found = await PluginProvider(optional, plugin, None).logins(IMAGE, a_pod(account=""))
    assert (bool(found.by_registry), found.source) == (True, None)
    assert plugin.questions == [CredentialProviderRequest(IMAGE)]


async def test_plugins_are_asked_side_by_side_and_the_best_login_is_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, second = Asked(), Asked(logins={"a.org/x": Login("w", "r")})
    first.seconds = second.seconds = 5.0
    secret = ProviderSecret(
        [PluginProvider(configured(), plugin, None) for plugin in (first, second)], a_pod()
    )
    began = trio.current_time()
    found = await secret.credentials(IMAGE)
    assert [credential.login.username for credential in found] == ["w", "u"]
    assert trio.current_time() - began == 5.0
    assert "hidden" not in repr(found)


LABEL = st.text("abcz09-", min_size=1, max_size=6)
HOST = st.lists(LABEL, min_size=1, max_size=4)
PATH = st.lists(LABEL, max_size=3)


@given(HOST, st.sampled_from(["", ":5000"]), PATH, PATH, st.data())
def test_patterns_fit_their_images(
    host: list[str], port: str, path: list[str], more: list[str], data: st.DataObject
) -> None:
    image = ".".join(host) + port + "".join(f"/{part}" for part in (*path, *more))
    starred = [data.draw(st.sampled_from([part, "*", part[0] + "*", "*" + part[-1]])) for part in host]
    pattern = ".".join(starred) + port + "".join(f"/{part}" for part in path)
    assert matches(pattern, image)
    assert not matches(f"*.{pattern}", image)
    assert not matches(pattern, f"x.{image}")
    other_port = ".".join(starred) + (":5001" if port else ":5000")
    assert not matches(other_port, image)
    if path:
        assert not matches(".".join(starred) + port + "/Other", image)


@pytest.mark.parametrize("count", [10, 5000])
async def test_many_logins_of_a_plugin_are_looked_through_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    threads = set[int]()

    class Watched(Keyring):
        def lookup(self, image: str) -> Sequence[Credential]:
            threads.add(threading.get_ident())
            return super().lookup(image)

    monkeypatch.setattr(module, "Keyring", Watched)
    logins = {f"a.org/{number}": Login("u", str(number)) for number in range(count)}
    provider = PluginProvider(configured(), Asked(logins=logins), None)
    found = await ProviderSecret([provider], a_pod()).credentials("a.org/7/app")
    assert [credential.login.password for credential in found] == ["7"]
    assert (threads == {threading.get_ident()}) is (count == 10)

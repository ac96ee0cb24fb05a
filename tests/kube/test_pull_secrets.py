"""Credentials for the images of pods."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
import trio.testing

from trio_kubelet.api import v1
from trio_kubelet.credential_providers.keyring import Credential, Keyring, Login, SecretSource
from trio_kubelet.kube import pull_secrets
from trio_kubelet.kube.pull_secrets import NODE_CONFIG_LIFE, NodeLogins, PullSecrets
from trio_kubelet.podinfo.doors import ObjectError

TYPE = "kubernetes.io/dockerconfigjson"


def config(user: str, registry: str = "foo.bar") -> bytes:
    return json.dumps({"auths": {registry: {"username": user, "password": "hidden"}}}).encode()


class Objects:
    secrets: ClassVar = {
        "one": v1.Secret(type=TYPE, data={".dockerconfigjson": config("one")}),
        "two": v1.Secret(type=TYPE, data={".dockerconfigjson": config("two", "foo.bar/team")}),
        "broken": v1.Secret(type=TYPE, data={".dockerconfigjson": b"{hidden"}),
        "other": v1.Secret(type="Opaque", data={".dockerconfigjson": config("other")}),
    }

    def __init__(self, **secrets: v1.Secret) -> None:
        self._given = secrets or self.secrets

    def register(self, pod: v1.Pod) -> None: ...

    def unregister(self, uid: str) -> None: ...

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        raise NotImplementedError

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        if name == "away":
            raise ObjectError("the API server does not answer")
        return self._given.get(name)

    async def service_account_token(self, pod: v1.Pod, source: v1.ServiceAccountTokenProjection) -> str:
        raise NotImplementedError


class Events:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def record(self, pod: v1.Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        self.told.append((reason, message))


def a_pod(*names: str) -> v1.Pod:
    refs = [v1.LocalObjectReference(name=name) for name in names]
    return v1.Pod(metadata=v1.ObjectMeta(name="p", namespace="ns"), spec=v1.PodSpec(image_pull_secrets=refs))


async def users(secrets: PullSecrets, pod: v1.Pod, image: str) -> list[str]:
    return [c.login.username for found in await secrets.of(pod) for c in await found.credentials(image)]


async def test_the_pods_secrets_then_the_nodes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(config("node"))
    events = Events()
    secrets = PullSecrets(Objects(), events, NodeLogins(str(tmp_path), ""))
    found = await users(secrets, a_pod("one", "two", "other", ""), "foo.bar/team/app")
    assert found == ["two", "one", "node"]
    assert events.told == []


async def test_what_cannot_be_had_is_told_and_done_without(tmp_path: Path) -> None:
    events = Events()
    secrets = PullSecrets(Objects(), events, NodeLogins(str(tmp_path), str(tmp_path)))
    assert await users(secrets, a_pod("gone", "one", "away", "broken"), "foo.bar/a") == ["one"]
    assert events.told == [
        (
            "FailedToRetrieveImagePullSecret",
            "Unable to retrieve some image pull secrets (gone, away, broken); "
            "attempting to pull the image may not succeed.",
        )
    ]


async def test_without_an_api_server_the_node_has_its_own(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    secrets = PullSecrets(None, Events(), NodeLogins(str(tmp_path), str(tmp_path)))
    assert await users(secrets, a_pod("one"), "foo.bar/a") == []
    (tmp_path / ".dockercfg").write_bytes(b'{"foo.bar": {"username": "legacy"}}')
    assert await users(secrets, a_pod("one"), "foo.bar/a") == []
    await trio.sleep(NODE_CONFIG_LIFE + 1)
    assert await users(secrets, a_pod("one"), "foo.bar/a") == ["legacy"]


class Plugin:
    async def credentials(self, image: str) -> list[Credential]:
        return [Credential(Login("plugin", "hidden"))]


async def test_plugins_come_last(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(config("node"))
    asked: list[v1.Pod] = []

    def plugins(pod: v1.Pod) -> Plugin:
        asked.append(pod)
        return Plugin()

    secrets = PullSecrets(Objects(), Events(), NodeLogins(str(tmp_path), ""), plugins)
    pod = a_pod("one")
    assert await users(secrets, pod, "foo.bar/app") == ["one", "node", "plugin"]
    assert asked == [pod]


async def test_large_secrets_are_read_and_looked_through_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod names as many as it likes, with tens of thousands of logins each."""
    login = {"username": "large", "password": "hidden"}
    many = {f"{place}foo.bar/team/{n}": login for n in range(2000) for place in ("", "*")}
    large = v1.Secret(type=TYPE, data={".dockerconfigjson": json.dumps({"auths": many}).encode()})
    threads: list[threading.Thread] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            threads.append(threading.current_thread())
            return function(*args)

        return call

    parse = pull_secrets._FORMATS[TYPE][1]
    monkeypatch.setitem(pull_secrets._FORMATS, TYPE, (".dockerconfigjson", watched(parse)))
    monkeypatch.setattr(Keyring, "lookup", watched(Keyring.lookup))
    secrets = PullSecrets(
        Objects(one=Objects.secrets["one"], large=large), Events(), NodeLogins(str(tmp_path), "")
    )
    pod = a_pod(*["large"] * 500, "one", "large")
    assert await users(secrets, pod, "foo.bar/team/1999") == [*["large"] * 4, "one", *["large"] * 4]
    assert len(threads) == 3
    assert threading.main_thread() not in threads
    assert await users(secrets, a_pod("one"), "foo.bar/app") == ["one"]
    assert threads[3:] == [threading.main_thread()] * 2


async def test_a_login_knows_its_secret(tmp_path: Path) -> None:
    secrets = PullSecrets(Objects(), Events(), NodeLogins(str(tmp_path), ""))
    (keyring,) = await secrets.of(a_pod("one"))
    (found,) = await keyring.credentials("foo.bar/app")
    assert found.source == SecretSource("", "ns", "one")


async def test_all_pods_that_start_together_get_the_nodes_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first of them did; and when that one was cancelled nobody, for minutes."""
    (tmp_path / "config.json").write_bytes(config("node"))
    logins, reads = NodeLogins(str(tmp_path), home=str(tmp_path)), []
    read = logins._read

    def slow() -> Keyring:
        reads.append(1)
        time.sleep(0.1)
        return read()

    monkeypatch.setattr(logins, "_read", slow)
    with trio.move_on_after(0.02):
        await logins.keyring()
    found: list[int] = []

    async def ask() -> None:
        found.append(len(await (await logins.keyring()).credentials("foo.bar/app")))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)
    assert found == [1] * 10
    assert len(found) == 10
    assert len(reads) == 1

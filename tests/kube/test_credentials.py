"""Who we are to the API server: certificates, tokens, plugins, and what happens when they are replaced."""

from __future__ import annotations

import datetime
import json
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives import serialization
from prometheus_client import CollectorRegistry

from tests.common.test_programs import running
from tests.kube.apiserver import APIServer, User, serving
from tests.kube.certs import CA, key_pem, new_key
from tests.kube.test_network import create_event, following, used_websocket
from tests.kube.test_reflector import eventually
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.kube import exec_plugin, network
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.credentials import Credentials
from trio_kubelet.kube.errors import APIError, APIUnavailable
from trio_kubelet.kube.kubeconfig import ClientConfig, ExecPlugin, Source
from trio_kubelet.kube.metrics import PluginMetrics
from trio_kubelet.kube.tls import client_context, make_tls


@pytest.fixture(scope="module")
def ca() -> CA:
    return CA()


def files(directory: Path, pair: tuple[bytes, bytes]) -> tuple[Source, Source]:
    certificate, key = directory / "client.crt", directory / "client.key"
    certificate.write_bytes(pair[0])
    key.write_bytes(pair[1])
    return Source(file=str(certificate)), Source(file=str(key))


@asynccontextmanager
async def secured(ca: CA, directory: Path) -> AsyncIterator[tuple[APIServer, str]]:
    server = APIServer()
    server.authenticate = True
    async with serving(server, ca.server_context(directory, ("127.0.0.1", "api.test"))) as url:
        yield server, url


@pytest.mark.parametrize("inline", [True, False])
async def test_client_certificates(ca: CA, tmp_path: Path, inline: bool) -> None:
    pair = ca.pair("system:node:n", ("system:nodes",))
    certificate, key = (Source(data=pair[0]), Source(data=pair[1])) if inline else files(tmp_path, pair)
    async with secured(ca, tmp_path) as (server, url):
        users: list[User] = []
        server.allow = lambda user, verb, route: users.append(user) or True  # type: ignore[func-returns-value]
        config = ClientConfig(
            server=url, ca=Source(data=ca.pem), client_certificate=certificate, client_key=key
        )
        async with following(config) as (pods, door):
            await eventually(lambda: pods.synced.is_set(), 30)
            await create_event(KubeClient(door))
        assert {(u.name, u.groups[0]) for u in users} == {("system:node:n", "system:nodes")}
        assert used_websocket(server)


async def test_an_unknown_authority_and_a_wrong_name_are_refused(ca: CA, tmp_path: Path) -> None:
    async with secured(ca, tmp_path) as (_, url):
        wrong_name = url.replace("127.0.0.1", "localhost")
        for config in (
            ClientConfig(server=url, ca=Source(data=CA().pem)),
            ClientConfig(server=wrong_name, ca=Source(data=ca.pem)),
        ):
            async with network.connect(config, SystemClock(), {}) as door:
                with pytest.raises(APIUnavailable, match=r"(?i)certificate"):
                    await KubeClient(door).get("/api/v1/nodes/n", v1.Node)
                with pytest.raises(APIUnavailable, match=r"(?i)certificate"):
                    async with door.watch("/api/v1/pods", {}, 15):
                        pass


@pytest.mark.parametrize("change", [{"tls_server_name": "api.test"}, {"insecure": True}])
async def test_another_server_name_and_no_verification(
    ca: CA, tmp_path: Path, change: dict[str, Any]
) -> None:
    async with secured(ca, tmp_path) as (server, url):
        server.tokens["t"] = User("n")
        authority = Source() if change.get("insecure") else Source(data=ca.pem)
        wrong_name = url.replace("127.0.0.1", "localhost")
        config = ClientConfig(server=wrong_name, ca=authority, token="t", **change)
        async with following(config) as (pods, _):
            await eventually(lambda: pods.synced.is_set(), 30)
        assert used_websocket(server)


async def test_a_rotated_token_file_is_read_again_when_the_old_one_is_refused(ca: CA, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    async with secured(ca, tmp_path) as (server, url):
        server.tokens["one"] = User("n")
        config = ClientConfig(server=url, ca=Source(data=ca.pem), token_file=str(token))
        async with network.connect(config, SystemClock(), {}) as door:
            client = KubeClient(door)
            await create_event(client)
            server.tokens = {"two": User("n")}
            token.write_text("two")
            with pytest.raises(APIError) as caught:
                await create_event(client)
            assert caught.value.code == 401
            await create_event(client)
            token.unlink()
            door._credentials.changed()
            await create_event(client)  # an unreadable file leaves the last token in force


async def test_rotated_certificates_leave_running_requests_alone(ca: CA, tmp_path: Path) -> None:
    certificate, key = files(tmp_path, ca.pair("old"))
    async with secured(ca, tmp_path) as (server, url):
        users: list[str] = []
        server.allow = lambda user, verb, route: users.append(user.name) or True  # type: ignore[func-returns-value]
        config = ClientConfig(
            server=url, ca=Source(data=ca.pem), client_certificate=certificate, client_key=key
        )
        async with network.connect(config, SystemClock(), {}) as door:
            client = KubeClient(door)
            await create_event(client)
            server.latency = 0.5
            outcomes: list[str] = []

            async def slow() -> None:
                await create_event(client)
                outcomes.append("done")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(slow)
                await eventually(lambda: len(server.requests) == 2, 30)
                files(tmp_path, ca.pair("new"))
                door._credentials.changed()
                await create_event(client)
            assert outcomes == ["done"]
            assert (users[0], sorted(users[1:])) == ("old", ["new", "old"])
            (tmp_path / "client.crt").write_bytes(b"half writ")
            door._credentials.changed()
            await create_event(client)  # what cannot be loaded leaves the last identity in force
            assert users[-1] == "new"


def script(directory: Path, body: str) -> str:
    path = directory / "plugin"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


async def with_plugin(
    ca: CA, directory: Path, body: str, use: Callable[[APIServer, KubeClient], Awaitable[None]]
) -> None:

    plugin = ExecPlugin(
        command=script(directory, body), api_version=V1, install_hint="install it", provide_cluster_info=True
    )
    async with secured(ca, directory) as (server, url):
        config = ClientConfig(server=url, ca=Source(data=ca.pem), exec_plugin=plugin)
        async with network.connect(config, SystemClock(), {}) as door:
            await use(server, KubeClient(door))


V1 = "client.authentication.k8s.io/v1"
ANSWER = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{%s}}'


async def test_an_exec_plugin_gives_a_token_and_is_asked_again_when_it_is_refused(
    ca: CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.kube.credentials.PLUGIN_REST", 0)
    runs = tmp_path / "runs"
    body = f'echo "$KUBERNETES_EXEC_INFO" >> {runs}; n=$(wc -l < {runs})\n' + (
        "echo '" + ANSWER.replace("%s", '"token":"t\'$n\'"') + "'"
    )

    async def use(server: APIServer, client: KubeClient) -> None:
        server.tokens["t1"] = User("n")
        await create_event(client)
        await create_event(client)
        assert len(runs.read_text().splitlines()) == 1
        assert '"certificate-authority-data"' in runs.read_text()
        server.tokens = {"t2": User("n")}
        with pytest.raises(APIError):
            await create_event(client)
        await create_event(client)

    await with_plugin(ca, tmp_path, body, use)


async def test_an_exec_credential_is_replaced_before_it_expires(ca: CA, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    soon = '"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"'
    body = f"echo x >> {runs}; echo '{ANSWER % soon}'"

    async def use(server: APIServer, client: KubeClient) -> None:
        server.tokens["t"] = User("n")
        for _ in range(3):
            await create_event(client)
        assert len(runs.read_text().splitlines()) == 1  # not at once again, whatever it says

    await with_plugin(ca, tmp_path, body, use)


@pytest.mark.parametrize(
    ("expires", "runs"),
    [
        ("2020-01-01T00:00:00Z", 3),
        ("1970-01-01T00:00:00Z", 3),
        ("1913-01-01T00:00:00Z", 3),
        ("9999-01-01T00:00:00Z", 1),
        ("0001-01-01T00:00:00Z", 1),  # Go's for none
        ("", 1),
    ],
)
async def test_when_an_exec_credential_has_expired(
    ca: CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expires: str, runs: int
) -> None:
    monkeypatch.setattr("trio_kubelet.kube.credentials.PLUGIN_REST", 0)
    counted = tmp_path / "runs"
    answer = ANSWER % f'"token":"t","expirationTimestamp":"{expires}"'

    async def use(server: APIServer, client: KubeClient) -> None:
        server.tokens["t"] = User("n")
        for _ in range(3):
            await create_event(client)
        assert len(counted.read_text().splitlines()) == runs

    await with_plugin(ca, tmp_path, f"echo x >> {counted}; echo '{answer}'", use)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo no such profile >&2; exit 3", "exit status 3: no such profile"),
        ("echo '{}'", "no ExecCredential"),
        ("echo '" + ANSWER % "" + "'", "no token and no certificate"),
        ("echo '" + ANSWER % '"clientCertificateData":"secret"' + "'", "come together"),
    ],
)
async def test_a_failing_exec_plugin_says_so_and_keeps_secrets(
    ca: CA, tmp_path: Path, body: str, said: str
) -> None:
    async def use(server: APIServer, client: KubeClient) -> None:
        with pytest.raises(APIUnavailable, match=said) as caught:
            await create_event(client)
        assert "install it" in str(caught.value)
        assert "secret" not in str(caught.value)

    await with_plugin(ca, tmp_path, body, use)


async def test_an_exec_plugin_is_bounded(ca: CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In what it says, in time, and in what it leaves behind."""
    pids = tmp_path / "pids"
    flood = f"while :; do echo {'x' * 60}; done"
    hang = f"sleep 1000 & echo $$ $! > {pids}; wait"
    for body, limit, said in ((flood, 60.0, "bytes of output"), (hang, 1.0, "no answer in time")):
        monkeypatch.setattr(exec_plugin, "TIMEOUT", limit)
        plugin = ExecPlugin(command=script(tmp_path, body), api_version=V1)
        with trio.fail_after(60), pytest.raises(OSError, match=said):
            await exec_plugin.run_exec_plugin(plugin, ClientConfig(server="https://x"))
    with trio.fail_after(60):
        while any(running(int(pid)) for pid in pids.read_text().split()):  # noqa: ASYNC110 - the kernel's news
            await trio.sleep(0.05)


async def test_a_failing_exec_plugin_does_not_show_the_credential_it_printed(tmp_path: Path) -> None:
    answer = ANSWER % '"token":"not-to-be-told-anybody"'
    body = f"echo '{answer}'; echo got not-to-be-told-any >&2; exit 1"
    with pytest.raises(OSError, match=r"exit status 1: got …$"):
        await exec_plugin.run_exec_plugin(
            ExecPlugin(command=script(tmp_path, body), api_version=V1), ClientConfig(server="https://x")
        )


@pytest.mark.parametrize("more", [{"args": ["a\0b"]}, {"env": [{"name": "A", "value": "\0"}]}])
async def test_an_exec_plugin_with_words_that_no_program_can_have(tmp_path: Path, more: Any) -> None:
    path = script(tmp_path, "true")
    with pytest.raises(OSError, match=f"^credential plugin: fork/exec {path}: invalid argument$"):
        await exec_plugin.run_exec_plugin(
            ExecPlugin(command=path, api_version=V1, **more), ClientConfig(server="https://x")
        )


BROKEN = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def test_an_encrypted_key_is_an_error_not_a_question(ca: CA, tmp_path: Path) -> None:

    certificate, _ = ca.pair("n")
    key = new_key().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"pw"),
    )
    config = ClientConfig(
        server="https://x", client_certificate=Source(data=certificate), client_key=Source(data=key)
    )
    with pytest.raises(OSError, match="encrypted"):
        make_tls(config)


async def test_a_plugin_of_an_unknown_version_is_refused() -> None:

    with pytest.raises(OSError, match="v9"):
        Credentials(ClientConfig(server="x", exec_plugin=ExecPlugin("p", api_version="v9")), SystemClock())


async def test_an_empty_file_of_authorities_does_not_stand_for_those_of_the_system(
    ca: CA, tmp_path: Path
) -> None:
    file = tmp_path / "ca.crt"
    file.write_bytes(b"")
    config = ClientConfig(server="https://api", ca=Source(file=str(file)))
    with pytest.raises(OSError, match=f"{file}: has no certificate of an authority"):
        make_tls(config)
    credentials = Credentials(config, SystemClock())
    with pytest.raises(OSError, match="no certificate"):
        await credentials.identity()
    file.write_bytes(ca.pem)
    good = await credentials.identity()
    file.write_bytes(b"")
    credentials.changed()
    assert await credentials.identity() == good


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("# Főtanúsítvány\n", "# es folgt nichts\n"),
        (BROKEN, ""),
        ("", BROKEN),
        (key_pem(new_key()).decode(), "\0"),
    ],
)
def test_authorities_are_found_among_other_things(before: str, behind: str) -> None:
    text = before.encode() + CA("mine").pem + behind.encode()
    [found] = client_context(Source(data=text)).get_ca_certs()
    assert "mine" in str(found["subject"])


@pytest.mark.parametrize("text", ["garbage", BROKEN, key_pem(new_key()).decode()])
def test_what_holds_no_authority_is_refused(text: str) -> None:
    with pytest.raises(OSError, match="certificate authority data: has no certificate of an authority"):
        client_context(Source(data=text.encode()))


def test_tls_contexts_speak_http_1_only() -> None:

    assert isinstance(client_context(Source()), ssl.SSLContext)


@pytest.mark.parametrize("token", ["canary\nX: y", "canary\0", "c\u00e4nary", 5, ["canary"], {"a": "canary"}])
async def test_a_token_that_no_header_may_have_is_one_error_which_does_not_show_it(
    tmp_path: Path, token: object
) -> None:
    plugin = ExecPlugin(command="p", api_version=V1)
    answer = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "status": {"token": token}}
    with pytest.raises(OSError, match="credential plugin p: no ExecCredential") as told:
        exec_plugin.parse_exec_credential(json.dumps(answer).encode(), plugin)
    assert "nary" not in str(told.value)
    if not isinstance(token, str):
        return
    file = tmp_path / "token"
    file.write_text("good")
    credentials = Credentials(ClientConfig(server="http://x", token_file=str(file)), SystemClock())
    good = await credentials.identity()
    file.write_text(token, encoding="utf-8")
    credentials.changed()
    assert (await credentials.identity()).headers == good.headers == {"Authorization": "Bearer good"}


async def test_a_variable_of_a_plugin_without_a_value_is_empty(tmp_path: Path) -> None:
    body = "echo '" + ANSWER % '"token":"t\'${A-unset}${B-unset}\'"' + "'"
    plugin = ExecPlugin(
        command=script(tmp_path, body), api_version=V1, env=[{"name": "A"}, {"name": "B", "value": "b"}]
    )
    answer = await exec_plugin.run_exec_plugin(plugin, ClientConfig(server="https://x"))
    assert answer.token == "tb"


async def test_the_certificates_of_a_plugin_are_measured(
    ca: CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.kube.credentials.PLUGIN_REST", 0)
    registry, answer = CollectorRegistry(), tmp_path / "answer"
    plugin = ExecPlugin(command=script(tmp_path, f"cat {answer}"), api_version=V1)
    config = ClientConfig(server="https://x", exec_plugin=plugin)
    credentials = Credentials(config, SystemClock(), PluginMetrics(registry))
    name = "rest_client_exec_plugin_"
    assert registry.get_sample_value(f"{name}ttl_seconds") == math.inf
    now = datetime.datetime.now(datetime.UTC)
    for hours in (1, 5):
        began, lifetime = now - datetime.timedelta(hours=2), datetime.timedelta(hours=2 + hours)
        certificate, key = ca.pair_at("n", began, lifetime)
        told = {"clientCertificateData": certificate.decode(), "clientKeyData": key.decode()}
        answer.write_text(ANSWER % json.dumps(told)[1:-1])
        credentials.rejected(await credentials.identity())
        left = registry.get_sample_value(f"{name}ttl_seconds")
        assert left == pytest.approx(hours * 3600, abs=120)
    assert registry.get_sample_value(f"{name}certificate_rotation_age_count") == 1
    age = registry.get_sample_value(f"{name}certificate_rotation_age_sum")
    assert age == pytest.approx(2 * 3600, abs=120)
    assert registry.get_sample_value(f"{name}call_total", {"code": "0", "call_status": "no_error"}) == 2


@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        ("exit 3", "3", "plugin_execution_error"),
        ("kill -9 $$", "-1", "plugin_execution_error"),
        (None, "1", "plugin_not_found_error"),
        ("echo '{}'", "0", "no_error"),  # what it says is another matter
    ],
)
async def test_calls_of_a_plugin_are_counted_by_what_became_of_them(
    tmp_path: Path, body: str | None, code: str, status: str
) -> None:
    registry = CollectorRegistry()
    command = script(tmp_path, body) if body is not None else str(tmp_path / "none")
    config = ClientConfig(server="https://x", exec_plugin=ExecPlugin(command=command, api_version=V1))
    with pytest.raises(OSError, match="credential plugin"):
        await Credentials(config, SystemClock(), PluginMetrics(registry)).identity()
    counted = {"code": code, "call_status": status}
    assert registry.get_sample_value("rest_client_exec_plugin_call_total", counted) == 1

"""One run of a plugin, with real programs."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.common.test_programs import running
from trio_kubelet.common.programs import MAX_COMPLAINT
from trio_kubelet.credential_providers import plugin as module
from trio_kubelet.credential_providers.config import ProviderConfig, Variable
from trio_kubelet.credential_providers.keyring import Login
from trio_kubelet.credential_providers.plugin import (
    CredentialPluginError,
    CredentialProviderRequest,
    CredentialProviderResponse,
    Plugin,
    ProviderMetrics,
    decode_response,
    encode_request,
)

V1 = "credentialprovider.kubelet.k8s.io/v1"
QUESTION = CredentialProviderRequest("example.org/app", "token-hidden", {"a/b": "c"})


class Programs:
    """Plugins that are Python programs in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registry = CollectorRegistry()
        self._metrics = ProviderMetrics(self.registry, "sha256:1")

    def make(self, body: str, **fields: Any) -> Plugin:
        path = self.directory / "ask"
        path.write_text(f"#!{sys.executable} -IS\nimport json, os, sys, time\n{body}\n")
        path.chmod(0o755)
        config = ProviderConfig(name="ask", api_version=V1, default_cache_duration="1m", **fields)
        return Plugin(config, str(self.directory), self._metrics)

    async def refused(self, body: str) -> str:
        with pytest.raises(CredentialPluginError) as error:
            await self.make(body).ask(QUESTION)
        assert "hidden" not in str(error.value)
        return str(error.value)

    @property
    def errors(self) -> float | None:
        name = "kubelet_credential_provider_plugin_errors_total"
        return self.registry.get_sample_value(name, {"plugin_name": "ask"})

    @property
    def runs(self) -> float | None:
        name = "kubelet_credential_provider_plugin_duration_count"
        return self.registry.get_sample_value(name, {"plugin_name": "ask"})


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def response(**fields: Any) -> dict[str, Any]:
    return {"kind": "CredentialProviderResponse", "apiVersion": V1, "cacheKeyType": "Image"} | fields


def says(text: str) -> str:
    return f"sys.stdout.write({text!r})"


async def test_a_plugin_is_asked(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "1")
    monkeypatch.setenv("REPLACED", "old")
    asked = programs.directory / "asked"
    plugin = programs.make(
        "seen = [sys.argv[1:], os.environ['INHERITED'], os.environ['REPLACED'], json.load(sys.stdin)]\n"
        f"open({str(asked)!r}, 'w').write(json.dumps(seen))\n"
        + says(
            json.dumps(response(cacheDuration="5m", auth={"example.org": {"username": "u", "password": "p"}}))
        ),
        args=["$(get)", "; x"],
        env=[Variable(name="REPLACED", value="new")],
    )
    answer = await plugin.ask(QUESTION)
    assert answer == CredentialProviderResponse(
        cache_key_type="Image", cache_seconds=300.0, logins={"example.org": Login("u", "p")}
    )
    request = {
        "kind": "CredentialProviderRequest",
        "apiVersion": V1,
        "image": "example.org/app",
        "serviceAccountToken": "token-hidden",
        "serviceAccountAnnotations": {"a/b": "c"},
    }
    assert json.loads(asked.read_text()) == [["$(get)", "; x"], "1", "new", request]
    assert (programs.runs, programs.errors) == (1, None)


async def test_failures_are_told_without_the_token(programs: Programs) -> None:
    prefix = "error execing credential provider plugin ask for image example.org/app: "
    body = "sys.stderr.write('no: ' + json.load(sys.stdin)['serviceAccountToken']); sys.exit(3)"
    assert await programs.refused(body) == f"{prefix}exit status 3: no: …"
    assert await programs.refused("os.kill(os.getpid(), 9)") == f"{prefix}signal: SIGKILL: "
    long = await programs.refused("sys.stderr.write('x' * 1000000); sys.exit(1)")
    assert len(long) < 2000
    assert programs.errors == 3
    (programs.directory / "ask").write_text("no program")
    with pytest.raises(CredentialPluginError, match=r"fork/exec \S+/ask: exec format error$"):
        await Plugin(
            ProviderConfig(name="ask", api_version=V1), str(programs.directory), programs._metrics
        ).ask(QUESTION)


async def test_a_token_that_is_cut_is_told_no_more_than_a_whole_one(programs: Programs) -> None:
    """Standard error is kept up to a length: a token at its end is there in part."""
    for kept in range(len(QUESTION.token) + 1):
        body = (
            "token = json.load(sys.stdin)['serviceAccountToken']\n"
            f"sys.stderr.write('x' * {MAX_COMPLAINT - kept} + token + token[3:]); sys.exit(3)"
        )
        said = await programs.refused(body)
        assert "token-hi" not in said


@pytest.mark.parametrize(
    "output",
    [
        "",
        "garbage hidden",
        "[]",
        '{"apiVersion": 1}',
        json.dumps(response(kind="Other")),
        json.dumps(response(hidden=1)),
        json.dumps(response(cacheDuration="hidden")),
        json.dumps(response(auth={"a": {"username": "u", "password": "p", "hidden": "x"}})),
        json.dumps(response(apiVersion=f"{V1}beta1")),
    ],
)
async def test_garbage_is_refused_without_showing_it(programs: Programs, output: str) -> None:
    await programs.refused(says(output))
    assert programs.errors is None  # it ran well


async def test_a_plugin_that_says_too_much_is_killed(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    text = await programs.refused("while True: sys.stdout.write('x' * 100000)")
    assert "bytes of output" in text
    assert time.monotonic() - began < module.TIMEOUT


async def test_a_plugin_that_hangs_is_killed_with_its_children(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 3.0)
    pids = programs.directory / "pids"
    text = await programs.refused(
        f"child = os.fork()\nif child: open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child}}')\n"
        "time.sleep(1000)"
    )
    assert text.endswith("context deadline exceeded")
    with trio.fail_after(60):
        while any(running(int(pid)) for pid in pids.read_text().split()):  # noqa: ASYNC110 - the kernel's news
            await trio.sleep(0.05)
    assert programs.errors == 1


async def test_a_plugin_that_does_not_read_is_no_failure(programs: Programs) -> None:
    plugin = programs.make("sys.stdin.close()\n" + says(json.dumps(response())))
    answer = await plugin.ask(CredentialProviderRequest("example.org/" + "a" * 1_000_000))
    assert answer.logins == {}


async def test_nothing_is_left_open(programs: Programs) -> None:
    plugin = programs.make(says(json.dumps(response())))
    await plugin.ask(QUESTION)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await plugin.ask(QUESTION)
    with trio.move_on_after(0.3):
        await programs.make("time.sleep(100)").ask(QUESTION)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_older_versions_know_the_image_only() -> None:
    assert json.loads(encode_request(f"{V1}beta1", QUESTION)) == {
        "kind": "CredentialProviderRequest",
        "apiVersion": f"{V1}beta1",
        "image": "example.org/app",
    }
    assert "hidden" not in repr(QUESTION)


@given(st.binary(max_size=300))
def test_any_output_is_read_or_refused(output: bytes) -> None:
    with pytest.raises(CredentialPluginError):
        decode_response(V1, output)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
    )
)
def test_any_auth_is_read_or_refused(value: Any) -> None:
    try:
        answer = decode_response(V1, json.dumps(response(auth={"a": value})).encode())
    except CredentialPluginError:
        return
    assert answer.logins == {"a": Login("", "")}


@pytest.mark.parametrize("place", ['"auth":', '"auth":{"x":', '"other":'])
def test_an_answer_of_endless_depth_is_an_error_like_others(place: str) -> None:
    ends = "}" if "{" in place else ""
    deep = "[" * 200_000 + "]" * 200_000
    said = f'{{"kind":"CredentialProviderResponse","apiVersion":"{V1}",{place}{deep}{ends}}}'
    with pytest.raises(CredentialPluginError, match="error decoding credential provider plugin response"):
        decode_response(V1, said.encode())

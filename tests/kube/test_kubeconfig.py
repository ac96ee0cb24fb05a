"""Kubeconfigs, in-cluster configuration and proxies."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trio_kubelet.kube.credentials import ClientIdentity
from trio_kubelet.kube.exec_plugin import ExecCredential, exec_info
from trio_kubelet.kube.kubeconfig import (
    ClientConfig,
    ExecPlugin,
    KubeconfigError,
    Source,
    client_config,
    in_cluster,
    parse_kubeconfig,
    read_kubeconfig,
)
from trio_kubelet.kube.proxy import proxy_for

PATH = "/etc/kubernetes/kubelet.conf"
V1 = "client.authentication.k8s.io/v1"


def exec_of(**fields: Any) -> dict[str, Any]:
    """A user with a credential plugin."""
    return {"exec": {"command": "x", "apiVersion": V1, "interactiveMode": "Never", **fields}}


def config(cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **top: Any) -> bytes:
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://api:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        **{key.replace("_", "-"): value for key, value in top.items()},
    }
    return msgspec.json.encode(tree)


def test_what_kubeadm_writes() -> None:
    pem = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    parsed = parse_kubeconfig(
        config(
            {"certificate-authority-data": base64.b64encode(b"CA").decode()},
            {"client-certificate": pem, "client-key": pem},
        ),
        PATH,
    )
    assert parsed.server == "https://api:6443"
    assert parsed.ca == Source(data=b"CA")
    assert parsed.client_certificate == parsed.client_key == Source(file=pem)


def test_base64_may_have_lines() -> None:
    lines = base64.encodebytes(b"CA" * 100).decode()
    assert lines.count("\n") > 1
    assert parse_kubeconfig(config({"certificate-authority-data": lines}), PATH).ca == Source(
        data=b"CA" * 100
    )


@pytest.mark.parametrize("server", ["http://api:8080", "api:8080"])
def test_nobody_says_who_they_are_without_tls(server: str) -> None:
    """As client-go: what goes there can be read by anybody."""
    user = {
        "token": "t",
        "tokenFile": "f",
        "client-certificate": "c",
        "client-key": "k",
        **exec_of(),
    }
    plain = parse_kubeconfig(config({"server": server}, user), PATH)
    assert plain == ClientConfig(server="http://api:8080")
    assert parse_kubeconfig(config({"server": "HTTPS://api"}, user), PATH).token == "t"


def test_relative_files_are_relative_to_the_kubeconfig() -> None:
    parsed = parse_kubeconfig(
        config(
            {"certificate-authority": "pki/ca.crt"},
            {"tokenFile": "token"},
        ),
        PATH,
    )
    plugin = parse_kubeconfig(config(user=exec_of(command="./login")), PATH).exec_plugin
    assert parsed.ca == Source(file="/etc/kubernetes/pki/ca.crt")
    assert parsed.token_file == "/etc/kubernetes/token"
    assert plugin is not None
    assert plugin.command == "/etc/kubernetes/./login"


@pytest.mark.parametrize(
    "known", [{"token": "t"}, {"tokenFile": "f"}, {"client-certificate": "c", "client-key": "k"}]
)
def test_no_plugin_is_asked_who_we_are_when_the_kubeconfig_says_so(known: dict[str, str]) -> None:
    assert parse_kubeconfig(config(user=exec_of()), PATH).exec_plugin is not None
    assert parse_kubeconfig(config(user={**exec_of(), **known}), PATH).exec_plugin is None


def test_what_a_cluster_has_to_say_to_plugins() -> None:
    extensions = [
        {"name": "other", "extension": 1},
        {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}},
    ]
    told = parse_kubeconfig(config({"extensions": extensions}, exec_of(provideClusterInfo=True)), PATH)
    assert told.exec_plugin is not None
    assert json.loads(exec_info(told.exec_plugin, told))["spec"] == {
        "cluster": {"server": "https://api:6443", "config": {"audience": "a"}},
        "interactive": False,
    }


def test_a_plugin_that_does_not_ask_for_it_is_not_told_of_the_cluster() -> None:
    told = parse_kubeconfig(config(user=exec_of()), PATH)
    assert told.exec_plugin is not None
    assert json.loads(exec_info(told.exec_plugin, told))["spec"] == {"interactive": False}


def test_a_command_without_slash_stays_for_the_search_path() -> None:
    parsed = parse_kubeconfig(config(user=exec_of(command="aws", args=["eks"])), PATH)
    assert parsed.exec_plugin is not None
    assert (parsed.exec_plugin.command, parsed.exec_plugin.args) == ("aws", ["eks"])


@pytest.mark.parametrize(
    ("cluster", "server"),
    [
        ({"server": "localhost:8080"}, "http://localhost:8080"),
        ({"server": "api:6443", "certificate-authority": "x"}, "https://api:6443"),
        ({"server": "api:6443", "insecure-skip-tls-verify": True}, "https://api:6443"),
        ({"server": "https://api/a/b?timeout=1#c"}, "https://api/a/b"),
    ],
)
def test_what_an_address_is_taken_for(cluster: dict[str, Any], server: str) -> None:
    assert parse_kubeconfig(config(cluster), PATH).server == server


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "kubelet.conf"),
        (b"kind: Pod", "kind"),
        (config(current_context="other"), 'no context "other"'),
        (config(current_context=None), "current-context"),
        (config(clusters=[]), 'no cluster "k"'),
        (config(users=[]), 'no user "u"'),
        (config({"server": ""}), "with a server"),
        (config(contexts=2 * [{"name": "c"}]), 'contexts: more than one is named "c"'),
        (config(clusters=2 * [{"name": "k"}]), 'clusters: more than one is named "k"'),
        (config(users=2 * [{"name": "u", "user": {"token": "geheim"}}]), 'users: more than one is named "u"'),
        (config({"server": "https://[::1"}), "clusters: server: it is no URL"),
        (config({"server": "https://api:99999"}), "clusters: server: its port is no number up to 65535"),
        (config({"server": "api:https"}), "clusters: server: its port is no number up to 65535"),
        (config({"server": "https://a b"}), "clusters: server: it has characters that no URL has"),
        (
            config({"server": "https://u:geheim@api"}),
            "clusters: server: username and password are not accepted",
        ),
        (config({"server": "https:///api"}), "clusters: server: it names no host"),
        (config({"server": "ftp://api"}), "clusters: server: the scheme is ftp, but has to be http or https"),
        (config({"proxy-url": "ftp://p:1"}), "is ftp, but has to be http or https or socks5"),
        (config({"proxy-url": "http://u:ge/heim@p:1"}), "clusters: proxy-url: its port is no number"),
        (
            config({"certificate-authority": "/a\0b"}),
            "clusters[0].cluster.certificate-authority: has a zero byte",
        ),
        (config({"certificate-authority-data": "%%"}), "certificate-authority-data: not base64"),
        (config(user={"client-key-data": "gehé"}), "client-key-data: not base64"),
        (config(user={"username": "a", "password": "geheim"}), "not accepted"),
        (config(user={"username": "geheim"}), "not accepted"),
        (config(user={"password": "geheim"}), "not accepted"),
        (config(user=exec_of(command="")), "users: exec: command is missing"),
        (config(user=exec_of(apiVersion=None)), "users: exec: apiVersion is missing"),
        (config(user=exec_of(interactiveMode=None)), "users: exec: interactiveMode is missing"),
        (config(user=exec_of(interactiveMode="Perhaps")), 'users: exec: interactiveMode: "Perhaps" is none'),
        (config(user=exec_of(env=[{"value": "geheim"}])), "users: exec: env: a variable has no name"),
        (config(user={"auth-provider": {"name": "gcp"}}), "users: auth-provider: there is none any more"),
        (config(user={"token": "geheim", "as": "jane"}), "users: as: an agent does not act"),
        (config(user={"as-groups": ["system:masters"]}), "users: as: an agent does not act"),
        (config(user={"client-certificate": "c"}), "users: client-key-data or client-key must be specified"),
        (
            config(user={"client-certificate": "c", "client-certificate-data": "Yw=="}),
            "users: client-certificate-data and client-certificate are both specified",
        ),
        (
            config(user={"client-certificate": "c", "client-key": "k", "client-key-data": "aw=="}),
            "users: client-key-data and client-key are both specified",
        ),
        (
            config({"certificate-authority": "c", "certificate-authority-data": "Yw=="}),
            "clusters: certificate-authority-data and certificate-authority are both specified",
        ),
        (
            config({"certificate-authority": "c", "insecure-skip-tls-verify": True}),
            "clusters: insecure-skip-tls-verify: not allowed with a certificate authority",
        ),
        (config(apiVersion="v2"), 'apiVersion: expected "v1", got "v2"'),
        (config(user={"token": "geheim\n"}), "users: token: has characters"),
        (config(clusters=7), "clusters"),
    ],
)
def test_errors_name_file_and_field_and_no_secret(data: bytes, said: str) -> None:
    with pytest.raises(KubeconfigError) as caught:
        parse_kubeconfig(data, PATH)
    assert said in str(caught.value)
    assert PATH in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_a_plugin_of_a_beta_need_not_say_whether_it_asks() -> None:
    parsed = parse_kubeconfig(config(user=exec_of(apiVersion=f"{V1}beta1", interactiveMode=None)), PATH)
    assert parsed.exec_plugin is not None


def test_nulls_are_absent() -> None:
    parsed = parse_kubeconfig(config({"proxy-url": None}, {"token": None}), PATH)
    assert (parsed.proxy_url, parsed.token) == ("", "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="no such file"):
        read_kubeconfig(str(tmp_path / "absent"))


def test_in_cluster() -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    parsed = in_cluster(environment, "/sa")
    assert parsed.server == "https://[fd00::1]:443"
    assert (parsed.ca, parsed.token_file) == (Source(file="/sa/ca.crt"), "/sa/token")
    with pytest.raises(KubeconfigError, match="not in a cluster"):
        in_cluster({})


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("10.96.0.1", "", "not in a cluster"),
        ("", "443", "not in a cluster"),
        ("10.96.0.1", "https", "KUBERNETES_SERVICE_HOST and _PORT: its port is no number"),
        ("a b", "443", "KUBERNETES_SERVICE_HOST and _PORT: it has characters that no URL has"),
    ],
)
def test_what_no_pod_finds_of_its_cluster(host: str, port: str, said: str) -> None:
    with pytest.raises(KubeconfigError, match=said):
        in_cluster({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port})


PROXY = {"HTTPS_PROXY": "proxy:3128", "http_proxy": "http://plain:80"}


@pytest.mark.parametrize(
    ("url", "no_proxy", "proxy"),
    [
        ("https://api:6443", "", "http://proxy:3128"),
        ("http://api", "", "http://plain:80"),
        ("https://localhost:6443", "", None),
        ("https://127.0.0.1:6443", "", None),
        ("https://[::1]:6443", "", None),
        ("https://10.1.2.3:6443", "10.0.0.0/8,example.com", None),
        ("https://10.1.2.3:6443", "10.2.0.0/16", "http://proxy:3128"),
        ("https://10.1.2.3", "10.1.2.3", None),
        ("https://api.example.com", "example.com", None),
        ("https://example.com", "example.com", None),
        ("https://badexample.com", "example.com", "http://proxy:3128"),
        ("https://api.example.com", ".example.com", None),
        ("https://example.com", ".example.com", "http://proxy:3128"),
        ("https://api.example.com", "*.example.com", None),
        ("https://api:6443", "api:6443", None),
        ("https://api:6443", "api:443", "http://proxy:3128"),
        ("https://api", " * ", None),
        ("https://api", "not/a/network", "http://proxy:3128"),
    ],
)
def test_proxies_by_go_rules(url: str, no_proxy: str, proxy: str | None) -> None:
    assert proxy_for(url, {**PROXY, "NO_PROXY": no_proxy}) == proxy
    assert proxy_for(url, {}) is None


def test_the_flag_names_a_file_or_the_cluster_the_agent_runs_in(tmp_path: Path) -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert client_config("in-cluster", inside).server == "https://10.0.0.1:443"
    with pytest.raises(KubeconfigError, match="not in a cluster"):
        client_config("in-cluster", {})
    with pytest.raises(KubeconfigError, match="absent"):
        client_config(str(tmp_path / "absent"), inside)


def test_no_credential_is_shown_by_accident() -> None:
    config = ClientConfig(
        server="https://api",
        token="canary",
        client_key=Source(data=b"canary"),
        exec_plugin=ExecPlugin("login", args=["canary"], env=[{"name": "A", "value": "canary"}]),
    )
    given = ExecCredential(token="canary", key=b"canary", certificate=b"c")
    identity = ClientIdentity(None, {"Authorization": "Bearer canary"})
    for value in (config, config.client_key, config.exec_plugin, given, identity):
        assert "canary" not in f"{value!r} {value}"
    assert "/k" in repr(Source(file="/k"))

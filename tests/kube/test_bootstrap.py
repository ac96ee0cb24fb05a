"""From a bootstrap token to a node's own, rotating identity: files, and over real TLS."""

from __future__ import annotations

import datetime
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import yaml
from prometheus_client import CollectorRegistry

from tests.kube.apiserver import APIServer, User, serving
from tests.kube.certs import CA
from tests.kube.opened import open_connections
from tests.kube.signer import Signer
from tests.kube.test_network import create_event
from tests.kube.test_reflector import eventually
from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS, SystemClock
from trio_kubelet.kube.bootstrap import ClientCertificate
from trio_kubelet.kube.certificates.store import PairStore
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.client_plan import ClientPlan, plan_client, render_kubeconfig
from trio_kubelet.kube.connections import Connections
from trio_kubelet.kube.errors import APIError, APIUnavailable
from trio_kubelet.kube.kubeconfig import ClientConfig, KubeconfigError, Source, read_kubeconfig
from trio_kubelet.kube.metrics import KubeMetrics
from trio_kubelet.kube.reflector import Reflector

TOKEN = "token-of-the-bootstrapper"
HOUR = datetime.timedelta(hours=1)


class Cluster:
    """An API server over TLS that knows one bootstrap token, and the files of a node that wants to join."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = CA()
        self.server = APIServer(clock=SystemClock())
        self.server.authenticate = True
        self.server.tokens[TOKEN] = User("system:bootstrap:abc", ("system:bootstrappers",))
        self.users: list[str] = []
        self.server.allow = lambda user, verb, route: self.users.append(user.name) or True  # type: ignore[func-returns-value]
        self.signer = Signer(self.server, self.ca, SystemClock())
        self.url = ""
        self.kubeconfig = directory / "etc" / "kubelet.conf"
        self.bootstrap = directory / "bootstrap.conf"
        self.pki = directory / "pki"
        self.registry = CollectorRegistry()
        self.metrics = KubeMetrics(self.registry)

    def write(self, path: Path, **user: str) -> None:
        path.parent.mkdir(exist_ok=True)
        (self.directory / "ca.crt").write_bytes(self.ca.pem)
        cluster = {"server": self.url, "certificate-authority": str(self.directory / "ca.crt")}
        tree = {
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(tree))

    def plan(self, rotate: bool = True, bootstrap: bool = True) -> ClientPlan:
        path = str(self.bootstrap) if bootstrap else ""
        return plan_client(str(self.kubeconfig), path, str(self.pki), rotate, time.time_ns(), {})

    @property
    def current(self) -> Path:
        return self.pki / "kubelet-client-current.pem"


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    found = Cluster(directory)
    tls = found.ca.server_context(directory, ("127.0.0.1",))
    async with serving(found.server, tls) as found.url, trio.open_nursery() as nursery:
        found.write(found.bootstrap, token=TOKEN)
        nursery.start_soon(found.signer.run)
        yield found
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def node(of: Cluster, plan: ClientPlan) -> AsyncIterator[tuple[Connections, ClientCertificate]]:
    async with (
        open_connections(plan.config, SystemClock(), metrics=of.metrics) as connections,
        trio.open_nursery() as nursery,
    ):
        certificate = ClientCertificate(plan, connections, "n", SystemClock(), of.metrics)
        await certificate.load()
        nursery.start_soon(certificate.run)
        yield connections, certificate
        nursery.cancel_scope.cancel()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("rotate", [True, False])
async def test_a_node_joins_and_comes_back(tmp_path: Path, rotate: bool) -> None:
    async with cluster(tmp_path) as of:
        of.signer.verdict = ""
        plan = of.plan(rotate)
        assert of.kubeconfig.exists() is rotate
        async with node(of, plan) as (connections, certificate):
            with pytest.raises(APIUnavailable, match="kubelet-client-current"):  # nobody yet
                await create_event(connections.client)
            await eventually(lambda: bool(of.signer.requests()), 60)
            assert certificate.rotation.seconds_left() == float("inf")
            of.signer.verdict = "Approved"
            await eventually(lambda: certificate.rotation.valid, 60)
            await eventually(lambda: of.kubeconfig.exists(), 60)
            of.users.clear()
            await create_event(connections.client)
            await create_event(KubeClient(connections.heartbeat))
            await create_event(KubeClient(connections.events))
            assert set(of.users) == {"system:node:n"}
        assert of.current.is_symlink()
        assert mode(of.current) == 0o600
        pointed_to = of.current.resolve().name
        assert {p.name for p in of.pki.iterdir()} == {"kubelet-client-current.pem", pointed_to}
        assert mode(of.kubeconfig) == 0o600
        if rotate:
            name = "kubelet_certificate_manager_client_ttl_seconds"
            assert 0 < (of.registry.get_sample_value(name) or 0) <= 86400
        of.bootstrap.write_text("not needed any more")
        async with node(of, of.plan(rotate)) as (connections, _):
            await create_event(connections.client)
        assert len(of.signer.requests()) == 1


def test_the_kubeconfig_is_laid_out_as_the_kubelets(tmp_path: Path) -> None:
    config = ClientConfig(server="https://10.0.0.1:6443", ca=Source(file="/etc/ca.crt"))
    assert (
        render_kubeconfig(config, "/pki/kubelet-client-current.pem").decode()
        == """\
apiVersion: v1
clusters:
- cluster:
    certificate-authority: /etc/ca.crt
    server: https://10.0.0.1:6443
  name: default-cluster
contexts:
- context:
    cluster: default-cluster
    namespace: default
    user: default-auth
  name: default-context
current-context: default-context
kind: Config
users:
- name: default-auth
  user:
    client-certificate: /pki/kubelet-client-current.pem
    client-key: /pki/kubelet-client-current.pem
"""
    )
    odd = ClientConfig(
        server="https://x", ca=Source(data=b"PEM" * 100), tls_server_name="api.test", proxy_url="http://p"
    )
    path = tmp_path / "k"
    path.write_bytes(render_kubeconfig(odd, "/pki/p.pem"))
    again = read_kubeconfig(str(path))
    assert (again.server, again.ca.data, again.tls_server_name) == (odd.server, odd.ca.data, "api.test")
    assert again.proxy_url == "http://p"
    assert again.client_certificate.file == again.client_key.file == "/pki/p.pem"


async def test_an_expired_certificate_is_bootstrapped_anew(tmp_path: Path) -> None:
    async with cluster(tmp_path) as of:
        old = datetime.datetime.now(datetime.UTC) - 48 * HOUR
        pair = of.ca.pair_at("system:node:n", old, HOUR)
        PairStore(str(of.pki), "kubelet-client").update(*pair, time.time_ns())
        of.write(of.kubeconfig, **{"client-certificate": str(of.current), "client-key": str(of.current)})
        async with node(of, of.plan()) as (connections, certificate):
            await eventually(lambda: certificate.rotation.valid, 60)
            await create_event(connections.client)
        assert "default-cluster" in of.kubeconfig.read_text()


class LaterClock:
    """The machine's clock, set forward."""

    def __init__(self) -> None:
        self.days = 0

    def now_ns(self) -> int:
        return time.time_ns() + self.days * 86400 * NANOSECONDS


async def test_a_certificate_that_expires_meanwhile_is_bootstrapped_anew(tmp_path: Path) -> None:
    clock = LaterClock()
    async with (
        cluster(tmp_path) as of,
        open_connections(of.plan().config, SystemClock()) as connections,
    ):
        certificate = ClientCertificate(of.plan(), connections, "n", clock, of.metrics)
        await certificate.load()
        await certificate.rotation.rotate()
        assert of.users[0] == "system:bootstrap:abc"
        clock.days, of.signer.lifetime, of.users = 3, 10 * 86400, []
        assert certificate.rotation.seconds_left() == float("inf")
        await certificate.rotation.rotate()
        assert set(of.users) == {"system:bootstrap:abc"}
        assert certificate.rotation.valid
        of.bootstrap.unlink()
        of.users.clear()
        await certificate.rotation.rotate()
        assert set(of.users) == {"system:node:n"}


@pytest.mark.parametrize("content", ["", "{", "kind: Config", None])
async def test_an_unusable_kubeconfig_is_replaced(tmp_path: Path, content: str | None) -> None:
    async with cluster(tmp_path) as of:
        if content is None:
            of.write(of.kubeconfig, token="no certificate")
        else:
            of.kubeconfig.parent.mkdir()
            of.kubeconfig.write_text(content)
        of.plan()
        assert read_kubeconfig(str(of.kubeconfig)).client_certificate.file == str(of.current)


async def test_unusable_files_are_one_clear_error(tmp_path: Path) -> None:
    async with cluster(tmp_path) as of:
        with pytest.raises(KubeconfigError, match=r"kubelet\.conf: no such file"):
            of.plan(bootstrap=False)
        with pytest.raises(KubeconfigError, match="needs a --kubeconfig"):
            plan_client("", str(of.bootstrap), str(of.pki), True, time.time_ns(), {})
        of.bootstrap.write_text("kind: Nothing")
        with pytest.raises(KubeconfigError, match=r"unable to load bootstrap kubeconfig: .*bootstrap\.conf"):
            of.plan()
        of.bootstrap.unlink()
        with pytest.raises(KubeconfigError, match="unable to load bootstrap kubeconfig"):
            of.plan()
        of.write(of.kubeconfig, **{"client-certificate": str(of.current), "client-key": str(of.current)})
        of.pki.mkdir()
        of.current.write_text("no pem")
        plan = of.plan(bootstrap=False)
        async with open_connections(plan.config, SystemClock()) as connections:
            with pytest.raises(OSError, match=r"kubelet-client-current\.pem: no readable certificate"):
                await ClientCertificate(plan, connections, "n", SystemClock(), of.metrics).load()


async def test_a_lent_certificate_is_replaced_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as of:
        of.signer.verdict = ""
        certificate, key = of.ca.pair("kubernetes-admin", ("system:masters",))
        config = ClientConfig(
            server=of.url,
            ca=Source(data=of.ca.pem),
            client_certificate=Source(data=certificate),
            client_key=Source(data=key),
        )
        plan = ClientPlan(config=config, managed=True, rotate=True, cert_dir=str(of.pki))
        async with node(of, plan) as (connections, _):
            await eventually(lambda: bool(of.signer.requests()), 60)
            assert of.users[0] == "kubernetes-admin"
            lent = int(time.time())
            await eventually(lambda: int(time.time()) > lent, 60)  # files are named after the second
            of.signer.verdict = "Approved"
            await eventually(lambda: len(list(of.pki.iterdir())) == 3, 60)  # the lent one, ours, the link
            with trio.fail_after(60):
                while of.users[-1] != "system:node:n":
                    await trio.sleep(0.02)
                    await create_event(connections.client)


async def test_a_rotated_certificate_is_used_at_once_by_watches_too(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path) as of,
        node(of, of.plan()) as (connections, certificate),
        trio.open_nursery() as nursery,
    ):
        await eventually(lambda: certificate.rotation.valid, 60)
        pods: Reflector[v1.Pod] = Reflector(connections.api, "/api/v1/pods", v1.Pod)
        nursery.start_soon(pods.run)
        await pods.synced.wait()
        await eventually(lambda: bool(of.server.watches), 60)
        first = set(of.server.watches)
        begun = len(of.server.requests)
        await certificate.rotation.rotate()
        await eventually(lambda: bool(of.server.watches - first), 60)
        peers = {r.peer_certificate for r in of.server.requests[:begun] if r.peer_certificate}
        later = [r for r in of.server.requests[begun:] if r.first("watch") and "/pods" in r.path]
        assert later
        assert not {r.peer_certificate for r in later} & peers
        nursery.cancel_scope.cancel()


async def test_secrets_do_not_reach_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with cluster(tmp_path) as of:
        of.server.tokens.clear()  # the token is refused
        async with node(of, of.plan()) as (_, certificate):
            await eventually(lambda: of.metrics.client_renew_errors._value.get() > 0, 60)
            of.server.tokens[TOKEN] = User("b")
            await eventually(lambda: certificate.rotation.valid, 60)
        text = capfd.readouterr().err
        assert "Cannot get a certificate" in text
        assert TOKEN not in text
        assert "PRIVATE KEY" not in text


async def test_a_refusal_is_told_to_those_who_ask(tmp_path: Path) -> None:
    async with cluster(tmp_path) as of:
        of.server.allow = lambda user, verb, route: False
        async with node(of, of.plan()) as (_, certificate):
            with pytest.raises(APIError):
                async with certificate._client(False) as client:
                    await create_event(client)

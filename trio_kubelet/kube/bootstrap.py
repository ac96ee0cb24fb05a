"""Who the node is to its cluster: from `--kubeconfig`, or by way of `--bootstrap-kubeconfig`.

The rules for the files are the kubelet's: a kubeconfig whose client certificate has not expired is used;
otherwise one is written that points to the certificate directory, and the bootstrap credentials are used to
ask for the certificate. With `rotateCertificates` the certificate is kept current from then on.

Asking happens in the background: what runs from manifests does not wait for a cluster. A client certificate
that expires while the agent runs is asked for with the bootstrap credentials again, if there are any.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import yaml

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.lanes import CERTIFICATES
from trio_kubelet.common.log import get_logger
from trio_kubelet.kube import network
from trio_kubelet.kube.certificates.files import PairFiles, write_whole
from trio_kubelet.kube.certificates.pair import describe, parse_certificates
from trio_kubelet.kube.certificates.request import CLIENT_AUTH, CLIENT_SIGNER, node_template
from trio_kubelet.kube.certificates.rotation import CertificateRotation, Measures, Purpose
from trio_kubelet.kube.certificates.store import PairStore
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.connections import Connections
from trio_kubelet.kube.kubeconfig import (
    IN_CLUSTER,
    ClientConfig,
    KubeconfigError,
    Source,
    client_config,
    read_kubeconfig,
)
from trio_kubelet.kube.metrics import KubeMetrics
from trio_kubelet.kube.tls import make_tls

log = get_logger(__name__)

PREFIX = "kubelet-client"
LOOK_PERIOD = 600.0


class ClientPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to be somebody to the API server."""

    config: ClientConfig
    """What to connect with."""
    managed: bool = False
    """Whether the client certificate is ours to get and to keep; else it is as `config` says."""
    rotate: bool = False
    kubeconfig: str = ""
    bootstrap: str = ""
    cert_dir: str = ""
    write_when_done: bool = False
    """Whether the kubeconfig is written only when there is a certificate."""


def plan_client(
    kubeconfig: str, bootstrap: str, cert_dir: str, rotate: bool, now_ns: int, environment: dict[str, str]
) -> ClientPlan:
    """What the flags and files ask for; may write the kubeconfig. Raises KubeconfigError. Blocking."""
    if kubeconfig == IN_CLUSTER:
        return ClientPlan(config=client_config(kubeconfig, environment))
    if not kubeconfig:
        raise KubeconfigError("--bootstrap-kubeconfig needs a --kubeconfig to write")
    if not bootstrap or _still_valid(kubeconfig, now_ns):
        return ClientPlan(
            config=read_kubeconfig(kubeconfig),
            managed=rotate,
            rotate=rotate,
            kubeconfig=kubeconfig,
            bootstrap=bootstrap,
            cert_dir=cert_dir,
        )
    pair = _store(cert_dir, None).current_files
    try:
        config = _with_certificate(read_kubeconfig(bootstrap), pair)
    except KubeconfigError as exc:
        raise KubeconfigError(f"unable to load bootstrap kubeconfig: {exc}") from exc
    if rotate:
        write_kubeconfig(config, pair.certificate, kubeconfig)
    return ClientPlan(
        config=config,
        managed=True,
        rotate=rotate,
        kubeconfig=kubeconfig,
        bootstrap=bootstrap,
        cert_dir=cert_dir,
        write_when_done=not rotate,
    )


def _still_valid(path: str, now_ns: int) -> bool:
    """Whether a kubeconfig has a client certificate that can be used and has not expired."""
    if not os.path.exists(path):
        return False
    try:
        config = read_kubeconfig(path)
        make_tls(config)
        certificates = parse_certificates(config.client_certificate.read(), path)
    except (KubeconfigError, OSError) as exc:
        log.warning("The kubeconfig cannot be used, bootstrapping anew", kubeconfig=path, err=exc)
        return False
    if any(describe(certificate).expired(now_ns) for certificate in certificates):
        log.warning("The client certificate has expired, bootstrapping anew", kubeconfig=path)
        return False
    return True


def _with_certificate(config: ClientConfig, files: PairFiles) -> ClientConfig:
    """The same server, but with this certificate and nothing else as identity."""
    return msgspec.structs.replace(
        config,
        client_certificate=Source(file=files.certificate),
        client_key=Source(file=files.key),
        token="",
        token_file="",
        exec_plugin=None,
    )


def write_kubeconfig(config: ClientConfig, pem_path: str, path: str) -> None:
    """Writes a kubeconfig as the kubelet lays it out. Raises KubeconfigError. Blocking."""
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o755, exist_ok=True)
        write_whole(path, render_kubeconfig(config, pem_path), 0o600)
    except OSError as exc:
        raise KubeconfigError(f"{path}: cannot be written: {exc}") from exc


def render_kubeconfig(config: ClientConfig, pem_path: str) -> bytes:
    """One cluster, one user with certificate and key in `pem_path`, one context."""
    cluster: dict[str, object] = {"server": config.server}
    if config.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if config.ca.file:
        cluster["certificate-authority"] = config.ca.file
    elif config.ca.data:
        cluster["certificate-authority-data"] = config.ca.base64()
    # The kubelet forgets these two; without them the server could not be reached again.
    if config.tls_server_name:
        cluster["tls-server-name"] = config.tls_server_name
    if config.proxy_url:
        cluster["proxy-url"] = config.proxy_url
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "contexts": [
            {
                "name": "default-context",
                "context": {"cluster": "default-cluster", "namespace": "default", "user": "default-auth"},
            }
        ],
        "current-context": "default-context",
        "users": [{"name": "default-auth", "user": {"client-certificate": pem_path, "client-key": pem_path}}],
    }
    text: str = yaml.safe_dump(tree, default_flow_style=False, width=1 << 30)
    return text.encode()


def _store(cert_dir: str, given: PairFiles | None) -> PairStore:
    return PairStore(cert_dir, PREFIX, given)


class ClientCertificate:
    """Gets and keeps the client certificate of a managed plan. `load` first, then `run`."""

    def __init__(
        self,
        plan: ClientPlan,
        connections: Connections,
        node_name: str,
        clock: Clock,
        metrics: KubeMetrics,
    ) -> None:
        self._plan = plan
        self._connections = connections
        self._clock = clock
        config = plan.config
        given = PairFiles(config.client_certificate.file, config.client_key.file)
        self._store = _store(plan.cert_dir, given if given.certificate and given.key else None)
        template = node_template(node_name)
        self.rotation = CertificateRotation(
            Purpose(
                name=CLIENT_SIGNER,
                signer=CLIENT_SIGNER,
                usage=CLIENT_AUTH,
                look_period=LOOK_PERIOD,
                first_key=os.path.join(plan.cert_dir, f"{PREFIX}.key.tmp"),
            ),
            self._store,
            lambda: template,
            self._client,
            connections.use_certificate,
            clock,
            Measures(metrics.client_renew_errors.inc),
        )
        if plan.managed:
            metrics.client_ttl.set_function(self.rotation.seconds_left)

    async def load(self) -> None:
        """Takes what is there as identity. Raises OSError when it cannot be read."""
        if not self._plan.managed:
            return
        await self.rotation.load()
        inline = self._plan.config.client_certificate.data, self._plan.config.client_key.data
        if not self.rotation.valid and all(inline):
            # kubeadm hands a mighty certificate over this way; it is replaced at once.
            await CERTIFICATES.run(self._store.update, *inline, self._clock.now_ns())
            await self.rotation.load()
            self.rotation.must_rotate_now()
        stored = self.rotation.stored
        await self._connections.use_certificate(stored.files if stored else self._store.current_files)

    async def run(self) -> None:
        """Gets a certificate when there is none, then keeps it current; returns when that is not wanted."""
        if not self._plan.managed:
            return
        if self._plan.rotate:
            await self.rotation.run()
        if not self.rotation.valid:
            await self.rotation.rotate()
        if self._plan.write_when_done:
            await CERTIFICATES.run(
                write_kubeconfig, self._plan.config, self._store.current_path, self._plan.kubeconfig
            )

    @asynccontextmanager
    async def _client(self, valid: bool) -> AsyncIterator[KubeClient]:
        """The way to ask: as the node itself if that is possible, else with what bootstrapping offers."""
        if valid:
            yield self._connections.client
            return
        try:
            config = await CERTIFICATES.run(self._ask_with)
        except KubeconfigError as exc:
            raise OSError(str(exc)) from exc
        async with network.connect(config, self._clock) as door:
            yield KubeClient(door)

    def _ask_with(self) -> ClientConfig:
        """Read each time: the file may hold a new token by now."""
        path = self._plan.bootstrap if os.path.exists(self._plan.bootstrap) else self._plan.kubeconfig
        return read_kubeconfig(path)

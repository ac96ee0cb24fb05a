"""A node's server on a real port with TLS, in front of a test API server that knows its users."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import trio
from prometheus_client import CollectorRegistry

from tests.kube.apiserver import APIServer, User
from tests.kube.certs import CA, trusting
from tests.kube.door import SimulatedDoor
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.config.types import (
    AnonymousAuthentication,
    Authentication,
    KubeletConfiguration,
    WebhookAuthentication,
    X509Authentication,
)
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.certificates.serving import ServingCertificate
from trio_kubelet.kube.certificates.tls_settings import TLSSettings
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.server.access.authentication import Authenticator
from trio_kubelet.server.access.authorization import authorizer, guard
from trio_kubelet.server.access.reviews import Reviews
from trio_kubelet.server.http.messages import Handler, Hijack, Request, Response, text
from trio_kubelet.server.http.metrics import HTTPMetrics
from trio_kubelet.server.http.serve import ServerLimits
from trio_kubelet.server.logs.system_logs import SystemLogs
from trio_kubelet.server.node_server import NODE_LIMITS, NodeServer, ServerPages, node_handler
from trio_kubelet.server.pages.health import Check
from trio_kubelet.server.pages.local import metrics_page
from trio_kubelet.server.pages.node_pages import NodeHandlers, ReadOnlyHandlers
from trio_kubelet.server.pages.small import HealthMetrics, configz, debug_flags, pod_list, profiling
from trio_kubelet.server.pages.z_pages import flagz, statusz

NODE = "node-1"


class Node:
    """The server with its surroundings; change its attributes before `serving`."""

    def __init__(self, directory: Path, **authentication: object) -> None:
        self.directory = directory
        self.ca, self.client_ca = CA("serving"), CA("clients")
        self.api = APIServer()
        self.api.tokens = {
            "good": User("alice", ("devs",)),
            "poor": User("bob"),
        }
        self.api.review = lambda spec: spec["user"] != "bob"
        self.ca_file = directory / "client-ca.pem"
        self.ca_file.write_bytes(self.client_ca.pem)
        self.config = KubeletConfiguration(
            authentication=Authentication(
                x509=X509Authentication(client_ca_file=str(self.ca_file)),
                webhook=WebhookAuthentication(),
                anonymous=AnonymousAuthentication(enabled=bool(authentication.get("anonymous"))),
            ),
            enable_system_log_query=True,
        )
        self.limits: ServerLimits = NODE_LIMITS
        self.registry = CollectorRegistry()
        self.metrics = HTTPMetrics(self.registry)
        self.verbosity: list[int] = []
        self.flags: dict[str, str] = {}
        self.began_ns = SystemClock().now_ns()
        self.handlers: dict[str, Handler] = {}
        self.port = 0
        self.server: NodeServer | None = None

    def handler(self, name: str) -> Handler:
        """A stand-in that tells its name and the path's parameters."""

        async def page(request: Request) -> Response | Hijack:
            given = self.handlers.get(name)
            return await given(request) if given else text(200, f"{name} {request.params}")

        return page

    def pages(self) -> ServerPages:
        """What is served: stand-ins for what other rooms know."""
        health = HealthMetrics(CollectorRegistry(), self.metrics.health)
        checks: dict[str, Check] = {"ping": lambda: None, "log": lambda: None, "syncloop": lambda: None}
        metrics = metrics_page(self.registry)
        return ServerPages(
            checks=checks,
            read_only=ReadOnlyHandlers(
                pods=pod_list(list),
                stats_summary=self.handler("stats"),
                metrics=metrics,
                metrics_cadvisor=self.handler("cadvisor"),
                metrics_resource=self.handler("resource"),
                metrics_probes=self.handler("probes"),
                metrics_slis=health.page,
            ),
            node=NodeHandlers(
                **{
                    name: self.handler(name)
                    for name in ("run", "exec", "attach", "port_forward", "container_logs", "checkpoint")
                },
                running_pods=pod_list(list),
                configz=configz(self.config, "/pki", "systemd"),
                system_logs=SystemLogs(True, str(self.directory), "no-such-journalctl").get,
                profiling=profiling,
                debug_flags=debug_flags(self.verbosity.append),
                flagz=flagz(lambda: self.flags),
                statusz=lambda paths: statusz(SystemClock(), "v1.36.2", self.began_ns, paths),
            ),
        )

    def _handler(self) -> Handler:
        reviews = Reviews(KubeClient(SimulatedDoor(self.api)))
        check = guard(
            Authenticator(self.config.authentication, SystemClock(), reviews),
            authorizer(self.config.authorization, reviews),
            NODE,
            True,
        )
        return node_handler(self.pages(), check, self.config, self.metrics)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ServingCertificate]:
        """Serves on a free port of the loopback interface."""
        files, authority = self._write_pair(), str(self.ca_file)
        shown = ServingCertificate(TLSSettings(), SystemClock(), files, client_ca_file=authority)
        await shown.load()
        failed = partial(self.metrics.count_failed, "readwrite")
        self.server = NodeServer(
            handler=self._handler(),
            provider=shown,
            host="127.0.0.1",
            port=0,
            limits=self.limits,
            failed=failed,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(self.server.run)
            self.port = self.server.ports[0]
            yield shown
            nursery.cancel_scope.cancel()

    def _write_pair(self) -> PairFiles:
        certificate, key = self.ca.pair(NODE, hosts=("127.0.0.1",))
        (self.directory / "tls.crt").write_bytes(certificate)
        (self.directory / "tls.key").write_bytes(key)
        return PairFiles(str(self.directory / "tls.crt"), str(self.directory / "tls.key"))

    def context(self, user: str = "", groups: tuple[str, ...] = (), ca: CA | None = None) -> ssl.SSLContext:
        """A client's TLS settings, with a certificate for `user` if that is given."""
        context = trusting(self.ca.pem)
        if user:
            certificate, key = (ca or self.client_ca).pair(user, groups)
            path = self.directory / f"client-{user}.pem"
            path.write_bytes(certificate + key)
            context.load_cert_chain(path)
        return context

    @asynccontextmanager
    async def client(
        self, token: str = "", context: ssl.SSLContext | None = None
    ) -> AsyncIterator[httpx.AsyncClient]:
        """An HTTP client of this server."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{self.port}",
            verify=context or self.context(),
            headers=headers,
            trust_env=False,
            timeout=60,
        ) as client:
            yield client

    async def stream(self) -> trio.SSLStream[trio.SocketStream]:
        """A bare connection."""
        stream = trio.SSLStream(
            await trio.open_tcp_stream("127.0.0.1", self.port), self.context(),
            server_hostname="127.0.0.1", https_compatible=True,
        )  # fmt: skip
        await stream.do_handshake()
        return stream


async def read_all(stream: trio.abc.Stream, seconds: float = 60) -> bytes:
    """What the server sends until it closes; closes the stream as well."""
    received = bytearray()
    with trio.fail_after(seconds):
        try:
            while data := await stream.receive_some():
                received += data
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)
    return bytes(received)

"""Where the agent can be asked: its own port, the read-only port, and two sockets on the node.

Only the main port (`port`, 10250) is for everybody, so only it asks who somebody is; the read-only port is
off by default, and the local socket is its owner's alone. (`health_port` is there before.)
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import trio

from trio_kubelet.api.v1 import Node
from trio_kubelet.base import Base
from trio_kubelet.commands.client import SOCKET_NAME
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.common.unix_socket import listen_at
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.certificates.serving import ServingCertificate, serving_certificate
from trio_kubelet.kube.certificates.tls_settings import tls_settings
from trio_kubelet.machine.cgroup_reader import cgroup_reader
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.node_page import page_feed
from trio_kubelet.nodepage.feed import Feed
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podresources.doors import Holdings
from trio_kubelet.podresources.server import PodResourcesServer, socket_path
from trio_kubelet.podresources.service import PodResourcesService
from trio_kubelet.server.access.authentication import Authenticator
from trio_kubelet.server.access.authorization import authorizer, guard
from trio_kubelet.server.access.reviews import NoServer, Reviews
from trio_kubelet.server.assembly import Endpoints
from trio_kubelet.server.doors import ReviewClient
from trio_kubelet.server.health_port import serve_on
from trio_kubelet.server.http.messages import Handler
from trio_kubelet.server.http.metrics import HTTPMetrics
from trio_kubelet.server.http.router import Around, Guard
from trio_kubelet.server.http.serve import serve
from trio_kubelet.server.logs.watch import LogWatch
from trio_kubelet.server.node_server import NodeServer, node_handler, read_only_handler
from trio_kubelet.server.pages.node_page import NodePage
from trio_kubelet.stats.pages import StatsPages
from trio_kubelet.stats.pods import ContainerUse

log = get_logger(__name__)


class Servers:
    """The ports and sockets of one agent. `client` asks the API server who somebody is; None without one."""

    def __init__(
        self,
        *,
        base: Base,
        agent: NodeAgent,
        stats: StatsPages,
        client: ReviewClient | None,
        holdings: Holdings,
        metrics: HTTPMetrics,
        node: Callable[[], Awaitable[Node]],
        around: Around | None,  # each request to either port
    ) -> None:
        self._base = base
        self._flags, self._config = base.flags, base.config
        self._agent = agent
        self._stats = stats
        self._client = client
        self._holdings = holdings
        self._metrics = metrics
        self._node = node
        self._around = around

    async def start(self, nursery: trio.Nursery) -> ServingCertificate | None:
        """Starts them, each under its own supervision: a port that is taken is tried again.

        Returns the certificate of the main port, if that is served. Raises ConfigurationError.
        """
        config, agent = self._config, self._agent
        metrics = self._metrics
        log_watch = LogWatch()
        feed = self._feed() if self._flags.node_page else None
        endpoints = Endpoints(
            base=self._base,
            agent=agent,
            stats=self._stats,
            log_watch=log_watch,
            page=NodePage(feed).answer if feed is not None else None,
            node=self._node,
            counts=metrics.health,
        )
        pages = endpoints.pages()
        local = partial(_serve_local, self._flags.root_dir, endpoints.local(pages), metrics)
        nursery.start_soon(keep_running, "log watch", log_watch.run)
        nursery.start_soon(keep_running, "local socket", local)
        if feed is not None:
            nursery.start_soon(keep_running, "page of the node", feed.run)
        if config.read_only_port:
            handler = read_only_handler(pages.read_only, pages.checks, metrics, self._around)
            nursery.start_soon(serve_on, "readonly", config.address, config.read_only_port, handler, metrics)
        nursery.start_soon(keep_running, "pod resources service", self._pod_resources().run)
        if not config.enable_server:  # says something about the main port only, as with the kubelet
            return None
        certificate = await self._certificate()  # seconds on a busy machine; only the main port waits for it
        handler = node_handler(pages, self._guard(), config, metrics, self._around)
        failed = partial(metrics.count_failed, "readwrite")
        server = NodeServer(
            handler=handler, provider=certificate, host=config.address, port=config.port, failed=failed
        )
        nursery.start_soon(keep_running, "serving certificate", certificate.run)
        nursery.start_soon(keep_running, "node server", server.run)
        return certificate

    def _feed(self) -> Feed:
        """What the page of the node shows."""
        base, agent = self._base, self._agent
        machine, node = base.machine, base.machine.node
        names = CgroupNames(node.cgroup_root, node.cgroup_driver, node.cgroups_per_qos)

        def context() -> NodeContext:
            return msgspec.structs.replace(
                node, handlers=agent.health.handlers, allocatable=base.profile.allocatable
            )

        use = ContainerUse(cgroup_reader(machine.hierarchies, base.clock), names)
        return page_feed(agent, base.event_log, context=context, use=use, clock=base.clock)

    def _pod_resources(self) -> PodResourcesServer:
        room = self._agent.room
        active = room.handler.active_pods
        only_active = self._base.gates.enabled("KubeletPodResourcesListUseActivePods")
        service = PodResourcesService(
            active_pods=active,
            listed_pods=active if only_active else room.pods.pods,
            all_pods=room.pods.pods,
            holdings=self._holdings,
            registry=self._agent.registry,
        )
        return PodResourcesServer(service, socket_path(self._flags.root_dir))

    async def _certificate(self) -> ServingCertificate:
        """What the main port shows. Raises ConfigurationError."""
        config, flags = self._config, self._flags
        try:
            settings = tls_settings(
                config.tls_min_version, config.tls_cipher_suites, config.tls_curve_preferences
            )
            certificate = serving_certificate(
                settings,
                self._base.clock,
                cert_dir=flags.cert_dir,
                host=self._base.machine.node.node_name,
                files=PairFiles(config.tls_cert_file, config.tls_private_key_file),
                bootstrap=config.server_tls_bootstrap and self._client is not None,
                client_ca_file=config.authentication.x509.client_ca_file,
                reload_pair=self._base.gates.enabled("ReloadKubeletServerCertificateFile"),
                reload_client_ca=self._base.gates.enabled("ReloadKubeletClientCAFile"),
            )
            await certificate.load()
        except (OSError, ValueError) as exc:
            text = f"the certificate of port {config.port} cannot be used: {error_words(exc)}"
            raise ConfigurationError(text) from exc
        return certificate

    def _guard(self) -> Guard:
        """Who may ask the main port. Raises ConfigurationError."""
        config = self._config
        asks = config.authentication.webhook.enabled or config.authorization.mode == "Webhook"
        if self._client is None and asks:
            # The kubelet does not start like this; here the node's pods run, and the port trusts nobody.
            log.warning("Without an API server nobody can be authorized by webhook", port=config.port)
        reviews = Reviews(self._client or NoServer())
        try:
            return guard(
                Authenticator(
                    config.authentication,
                    self._base.clock,
                    reviews,
                    certificate_uids=self._base.gates.enabled("AllowParsingUserUIDFromCertAuth"),
                ),
                authorizer(config.authorization, reviews),
                self._base.machine.node.node_name,
                self._base.gates.enabled("KubeletFineGrainedAuthz"),
            )
        except ValueError as exc:
            raise ConfigurationError(str(exc)) from exc


async def _serve_local(root_dir: str, handler: Handler, metrics: HTTPMetrics) -> None:
    listening = listen_at(os.path.join(root_dir, SOCKET_NAME), 0o600, 128)
    try:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        await serve([listener], handler, failed=partial(metrics.count_failed, "local"))
    finally:
        listening.close()

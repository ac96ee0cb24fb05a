"""Who we are to the API server, now: certificates and tokens that may be replaced while the agent runs.

Certificate files are looked at once a minute and loaded anew when they changed, token files are read once
a minute (bound tokens are replaced well before they expire), an exec plugin runs when its credential
expires. An answer 401 makes all of it be looked at at once. What cannot be read leaves the last good
identity in force.
"""

from __future__ import annotations

import math
import ssl
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import trio

from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.lanes import CERTIFICATES
from trio_kubelet.common.log import get_logger
from trio_kubelet.kube.certificates.files import file_versions
from trio_kubelet.kube.exec_plugin import API_VERSIONS, ExecCredential, run_exec_plugin
from trio_kubelet.kube.kubeconfig import ClientConfig, Source, can_be_sent
from trio_kubelet.kube.metrics import PluginMetrics
from trio_kubelet.kube.tls import make_tls

if TYPE_CHECKING:  # imported with the library for certificates, where a plugin gives one
    from trio_kubelet.kube.certificates.pair import Leaf

log = get_logger(__name__)

TOKEN_LIFETIME = 60.0
FILES_LIFETIME = 60.0
EARLY = 10.0
"""Seconds before its expiry at which an exec credential is replaced."""
PLUGIN_REST = 5.0
"""Seconds between two runs of a plugin; a server that refuses everything must not make it a busy loop."""

_LONG_AGO = float("-inf")


class ClientIdentity(NamedTuple):
    """What a connection (`tls`; None for plain HTTP) and a request (`headers`, never logged) need."""

    tls: ssl.SSLContext | None
    headers: dict[str, str]

    def __repr__(self) -> str:  # never the headers
        return f"ClientIdentity({self.tls!r})"


class Credentials:
    """Keeps the identity current. One task at a time does the work, the others wait for its result."""

    def __init__(self, config: ClientConfig, clock: Clock, metrics: PluginMetrics | None = None) -> None:
        if config.exec_plugin is not None and config.exec_plugin.api_version not in API_VERSIONS:
            raise OSError(
                f"credential plugin {config.exec_plugin.command}: unknown apiVersion "
                f"{config.exec_plugin.api_version!r}"
            )
        self.config = config
        self._clock = clock
        self._lock = trio.Lock()
        self._tls: ssl.SSLContext | None = None
        self._tls_made_of: tuple[object, ...] | None = None
        self._files_read = _LONG_AGO
        self._token = config.token
        self._token_read = _LONG_AGO
        self._metrics = metrics
        self._credential: ExecCredential | None = None
        self._leaf: Leaf | None = None  # of the credential's certificate
        self._plugin_ran = _LONG_AGO
        self._refused = False

    async def identity(self) -> ClientIdentity:
        """The identity to use now. Raises OSError when there has never been a usable one."""
        if self._lock.locked() or self._token_is_due() or self._files_are_due() or self._plugin_is_due():
            async with self._lock:
                await self._refresh_plugin()
                await self._refresh_token()
                await self._refresh_tls()
        return ClientIdentity(self._tls, self._headers())

    def rejected(self, identity: ClientIdentity) -> None:
        """The server did not take this identity: look at everything again for the next request."""
        if identity.tls is self._tls and identity.headers == self._headers():
            self._refused = True
            self._files_read = self._token_read = _LONG_AGO

    def changed(self) -> None:
        """Certificate or token files were replaced just now: do not wait for the next look."""
        self._files_read = self._token_read = _LONG_AGO

    def use_certificate(self, certificate: Source, key: Source) -> None:
        """From now on this is who we are; token and plugin of the configuration no longer count."""
        self.config = msgspec.structs.replace(
            self.config,
            client_certificate=certificate,
            client_key=key,
            token="",
            token_file="",
            exec_plugin=None,
        )
        self._token, self._credential = "", None
        self._files_read = _LONG_AGO

    def _headers(self) -> dict[str, str]:
        token = self._credential.token if self._credential and self._credential.token else self._token
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def _refresh_plugin(self) -> None:
        plugin = self.config.exec_plugin
        if plugin is None or not self._plugin_is_due():
            return
        self._plugin_ran = trio.current_time()
        self._refused = False
        try:
            self._credential = await run_exec_plugin(plugin, self.config, self._plugin_called)
        except OSError as exc:
            if self._credential is None:
                raise
            log.error("Credential plugin failed, keeping the last credential", err=exc)
        else:
            await self._measure_certificate(self._credential.certificate)
        self._files_read = _LONG_AGO

    def _plugin_called(self, code: int, status: str) -> None:
        if self._metrics is not None:
            self._metrics.plugin_calls.labels(str(code), status).inc()

    async def _measure_certificate(self, pem: bytes) -> None:
        """How long the plugin's certificate is good, and how old that before it has become."""
        if self._metrics is None:
            return
        before, self._leaf = self._leaf, await CERTIFICATES.run(_leaf_of, pem) if pem else None
        if before is not None and before != self._leaf:
            age = self._clock.now_ns() - before.not_before_ns
            self._metrics.plugin_rotation.observe(age / NANOSECONDS)
        self._metrics.plugin_ttl.set_function(self._seconds_left)

    def _seconds_left(self) -> float:
        if self._leaf is None:
            return math.inf
        return (self._leaf.not_after_ns - self._clock.now_ns()) / NANOSECONDS

    def _plugin_is_due(self) -> bool:
        if self.config.exec_plugin is None:
            return False
        if self._credential is None:
            return True
        if trio.current_time() - self._plugin_ran < PLUGIN_REST:
            return False
        expires = self._credential.expires_ns
        is_over = expires is not None and expires <= self._clock.now_ns() + EARLY * NANOSECONDS
        return self._refused or is_over

    async def _refresh_token(self) -> None:
        if not self._token_is_due():
            return
        path = self.config.token_file
        self._token_read = trio.current_time()
        try:
            token = (await CERTIFICATES.run(_read_text, path)).strip()
            if not token:
                raise OSError(f"{path}: the token file is empty")
            if not can_be_sent(token):
                raise OSError(f"{path}: the token has characters that no header may have")
            self._token = token
        except OSError as exc:
            if not self._token:
                self._token_read = _LONG_AGO
                raise
            log.error("Cannot read the token file, keeping the last token", file=path, err=exc)

    def _token_is_due(self) -> bool:
        return bool(self.config.token_file) and trio.current_time() - self._token_read >= TOKEN_LIFETIME

    def _files_are_due(self) -> bool:
        return self._tls_made_of is None or trio.current_time() - self._files_read >= FILES_LIFETIME

    async def _refresh_tls(self) -> None:
        if not self._files_are_due():
            return
        # Before reading: what is called stale meanwhile is read again.
        self._files_read = trio.current_time()
        config = self.config
        files = [s.file for s in (config.ca, config.client_certificate, config.client_key) if s.file]
        certificate = (self._credential.certificate, self._credential.key) if self._credential else ()
        try:
            made_of = (*files, *await CERTIFICATES.run(file_versions, files), certificate)
            if made_of != self._tls_made_of:
                self._tls = await CERTIFICATES.run(make_tls, config, self._credential)
                self._tls_made_of = made_of
        except OSError as exc:
            if self._tls_made_of is None:
                raise
            log.error("Cannot load certificates, keeping the last ones", err=exc)


def _leaf_of(pem: bytes) -> Leaf | None:
    """The certificate of a plugin; None for one that cannot be read, and so not be used."""
    from trio_kubelet.kube.certificates.pair import describe, parse_certificates

    try:
        return describe(parse_certificates(pem, "the credential plugin")[0])
    except (OSError, ValueError):
        return None


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(1 << 20)

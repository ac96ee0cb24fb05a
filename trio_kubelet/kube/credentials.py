"""Who we are to the API server, now: certificates and tokens that may be replaced while the agent runs.

A `Session` is an HTTP client with the TLS identity of the moment and the headers to send. Certificate files
are looked at again when their modification time changes, token files once a minute (bound tokens are
replaced well before they expire), an exec plugin is run when its credential expires or was refused. The old
client is closed; a request that was on its way fails and is repeated by its caller.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import tempfile
from typing import Any, NamedTuple

import httpx
import msgspec
import trio

from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.clock import NANOSECONDS, Clock
from trio_kubelet.kube.kubeconfig import ClientConfig, ExecPlugin, Source
from trio_kubelet.log import get_logger

log = get_logger(__name__)

TOKEN_LIFETIME = 60.0
FILES_LIFETIME = 60.0
EXEC_TIMEOUT = 60.0
# Idle watches are kept alive by their own rules; requests have their deadline from the caller.
TIMEOUT = httpx.Timeout(None, connect=10.0)


class Session(NamedTuple):
    """What a request needs: where to, with which client, and headers that are never logged."""

    server: str
    http: httpx.AsyncClient
    tls: ssl.SSLContext | None
    headers: dict[str, str]


class ExecCredential(msgspec.Struct, frozen=True, kw_only=True):
    """What an exec plugin said; `expires_ns` 0: when it is refused."""

    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    expires_ns: int = 0


class Credentials:
    """Keeps the session current."""

    def __init__(self, config: ClientConfig, clock: Clock) -> None:
        self.config = config
        self._clock = clock
        self._lock = trio.Lock()
        self._session: Session | None = None
        self._identity: tuple[object, ...] = ()
        self._checked = -1e9
        self._token = config.token
        self._token_read = -1e9
        self._exec: ExecCredential | None = None

    async def session(self) -> Session:
        """The session to use now. Raises OSError when certificates, keys or tokens cannot be read."""
        async with self._lock:
            if self.config.exec_plugin is not None and self._exec_is_stale():
                self._exec = await run_exec_plugin(self.config.exec_plugin, self.config)
                self._checked = -1e9
            await self._refresh_token()
            if self._session is None or trio.current_time() - self._checked >= FILES_LIFETIME:
                await self._refresh_client()
            assert self._session is not None
            token = self._exec.token if self._exec and self._exec.token else self._token
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return self._session._replace(headers=headers)

    def rejected(self) -> None:
        """The server did not take what we sent: read everything afresh for the next request."""
        self._exec = None
        self._checked = self._token_read = -1e9

    async def aclose(self) -> None:
        """Closes the client."""
        if self._session is not None:
            await self._session.http.aclose()

    def _exec_is_stale(self) -> bool:
        if self._exec is None:
            return True
        return 0 < self._exec.expires_ns <= self._clock.now_ns() + 10 * NANOSECONDS

    async def _refresh_token(self) -> None:
        path = self.config.token_file
        if path and trio.current_time() - self._token_read >= TOKEN_LIFETIME:
            try:
                self._token = (await trio.Path(path).read_text()).strip()
            except OSError as exc:
                if not self._token:
                    raise
                log.error("Cannot read the token file, keeping the last token", file=path, err=exc)
            self._token_read = trio.current_time()

    async def _refresh_client(self) -> None:
        config = self.config
        files = [s.file for s in (config.ca, config.client_certificate, config.client_key) if s.file]
        identity = await trio.to_thread.run_sync(_identity, files)
        self._checked = trio.current_time()
        if self._session is not None and (*identity, self._exec) == self._identity:
            return
        tls = await trio.to_thread.run_sync(make_tls, config, self._exec)
        old = self._session
        proxy = config.proxy_url or None
        client = httpx.AsyncClient(
            verify=tls if tls is not None else False,
            timeout=TIMEOUT,
            proxy=proxy,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=60),
        )
        self._session = Session(config.server, client, tls, {})
        self._identity = (*identity, self._exec)
        if old is not None:
            await old.http.aclose()


def _identity(files: list[str]) -> tuple[object, ...]:
    """What changes when one of the files is replaced. Blocking."""
    stats = [os.stat(path) for path in files]
    return tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in stats)


def make_tls(config: ClientConfig, credential: ExecCredential | None = None) -> ssl.SSLContext | None:
    """The TLS context for a server, None for plain HTTP. Raises OSError, ssl.SSLError. Blocking."""
    if not config.server.startswith("https://"):
        return None
    context = ssl.create_default_context(cadata=config.ca.read().decode() if config.ca else None)
    if config.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credential is not None and credential.certificate:
        _load_chain(context, Source(data=credential.certificate), Source(data=credential.key))
    elif config.client_certificate:
        _load_chain(context, config.client_certificate, config.client_key)
    return context


def _load_chain(context: ssl.SSLContext, certificate: Source, key: Source) -> None:
    """Python loads keys from files only; what stands inline goes through one nobody else can read."""
    if certificate.file and (key.file or not key):
        context.load_cert_chain(certificate.file, key.file or None)
        return
    with tempfile.NamedTemporaryFile(prefix="trio-kubelet-") as file:  # mode 0600
        file.write(certificate.read() + b"\n" + key.read())
        file.flush()
        context.load_cert_chain(file.name)


async def run_exec_plugin(plugin: ExecPlugin, config: ClientConfig) -> ExecCredential:
    """Runs a credential plugin. Raises OSError with what to do when it fails."""
    info: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        info["cluster"] = {"server": config.server, "insecure-skip-tls-verify": config.insecure}
    request = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": info}
    environment = {
        **os.environ,
        **{e["name"]: e["value"] for e in plugin.env or [] if "name" in e and "value" in e},
        "KUBERNETES_EXEC_INFO": json.dumps(request),
    }
    hint = f" ({plugin.install_hint})" if plugin.install_hint else ""
    try:
        with trio.fail_after(EXEC_TIMEOUT):
            done = await trio.run_process(
                [plugin.command, *(plugin.args or [])],
                env=environment,
                stdin=b"",
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
    except (OSError, trio.TooSlowError) as exc:
        raise OSError(f"credential plugin {plugin.command}: {exc or 'no answer in time'}{hint}") from exc
    return parse_exec_credential(done, plugin, hint)


def parse_exec_credential(
    done: subprocess.CompletedProcess[bytes], plugin: ExecPlugin, hint: str = ""
) -> ExecCredential:
    """What a plugin printed. Raises OSError; the text never holds the credential."""
    if done.returncode != 0:
        said = done.stderr[-200:].decode("utf-8", "replace").strip()
        raise OSError(f"credential plugin {plugin.command}: exit code {done.returncode}: {said}{hint}")
    try:
        answer = json.loads(done.stdout)
        if answer.get("kind") != "ExecCredential" or answer.get("apiVersion") != plugin.api_version:
            raise ValueError(f"not an ExecCredential of {plugin.api_version}")
        status = answer["status"]
        expires = status.get("expirationTimestamp")
        credential = ExecCredential(
            token=status.get("token") or "",
            certificate=(status.get("clientCertificateData") or "").encode(),
            key=(status.get("clientKeyData") or "").encode(),
            expires_ns=parse_rfc3339(expires) if expires else 0,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        kind = type(exc).__name__
        raise OSError(
            f"credential plugin {plugin.command}: its answer cannot be read: {kind}{hint}"
        ) from None
    if not credential.token and not credential.certificate:
        raise OSError(f"credential plugin {plugin.command}: no token and no certificate{hint}")
    return credential

"""The certificate our HTTPS server shows, replaced while it runs.

A new `ssl.SSLContext` is made for each new pair of files and taken by the next handshake: loading another
pair into a context in use would leave the old key in it when the kinds of key differ. The client
authorities are part of the context too, and are looked at along with the pair.

What can not be loaded leaves the last good context in force; files that are replaced one after the other
are taken once they fit. Files are looked at every few seconds rather than watched: they may be links into
directories that are swapped, as kubernetes mounts them.
"""

from __future__ import annotations

import ssl

import trio

from trio_kubelet.common.clock import Clock, sleep_with_others
from trio_kubelet.common.lanes import CERTIFICATES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.trouble import Trouble
from trio_kubelet.kube.certificates.files import PairFiles, file_versions, held
from trio_kubelet.kube.certificates.selfsigned_process import (
    DiskFull,
    ensure_self_signed,
    self_signed_files,
)
from trio_kubelet.kube.certificates.tls_settings import TLSSettings
from trio_kubelet.kube.tls import verify_as_go

log = get_logger(__name__)

LOOK_PERIOD = 10.0


class NoServingCertificate(OSError):
    """There is no certificate to show yet, or it has expired: the connection cannot be served."""


class ServingCertificate:
    """What handshakes use now. `load` first, then `run`; safe to ask from any task."""

    def __init__(
        self,
        settings: TLSSettings,
        clock: Clock,
        files: PairFiles | None = None,
        *,
        client_ca_file: str = "",
        self_signed: tuple[str, str] | None = None,
        reload_pair: bool = True,
        reload_client_ca: bool = True,
    ) -> None:
        """`files`: given ones; `self_signed`: certificate directory and host name, to make a pair there;
        neither: none until `use`. With `client_ca_file` clients are asked for a certificate, which they may
        leave out; one by another authority ends the handshake. What is not to be read again stays as it is at
        the start; that goes for `files` only, not for a pair of our own.
        """
        self._settings = settings
        self._clock = clock
        self._files = files
        self._client_ca = client_ca_file
        self._self_signed = self_signed
        self._holds_pair = files is not None and not reload_pair
        self._holds_client_ca = bool(client_ca_file) and not reload_client_ca
        self._self_signed_until_ns = -1
        self._context: ssl.SSLContext | None = None
        self._made_of: tuple[object, ...] | None = None
        self._refused: tuple[object, ...] | None = None
        self._lock = trio.Lock()

    def ssl_context(self) -> ssl.SSLContext:
        """The context for a handshake that begins now. Raises NoServingCertificate."""
        if self._context is None:
            raise NoServingCertificate("no serving certificate available for the kubelet")
        return self._context

    async def load(self) -> None:
        """Loads what is configured. Raises OSError, naming the file, when it cannot be used.

        On a full disk a self-signed pair is made later: whoever evicts pods from it has to be there.
        """
        try:
            await self._make_self_signed()
        except DiskFull as exc:
            log.error("Nobody is served until there is room for the serving certificate", err=exc)
        if self._files is None:
            await CERTIFICATES.run(self._settings.context)  # settings OpenSSL does not take are told at once
        else:
            async with self._lock:
                await self._look(self._files)
        if self._holds_pair or self._holds_client_ca:
            await CERTIFICATES.run(self._hold)

    def _hold(self) -> None:
        """From now on what is not to be read again is read from copies; it was looked at before."""
        if self._holds_pair and self._files is not None:
            certificate, key = self._files.certificate, self._files.key
            self._files = PairFiles(held(certificate), held(key))
        if self._holds_client_ca:
            self._client_ca = held(self._client_ca)
        if self._files is not None and self._context is not None:
            self._made_of = (self._files, *self._versions(self._files))

    async def use(self, files: PairFiles) -> None:
        """Shows another pair from now on. Raises OSError when it cannot be used; the last one stays then."""
        async with self._lock:
            await self._look(files)
            self._files = files

    async def run(self) -> None:
        """Follows changes of the files until cancelled."""
        trouble = Trouble()
        while True:
            await sleep_with_others(LOOK_PERIOD)
            try:
                await self._make_self_signed()
                async with self._lock:
                    if self._files is not None:
                        await self._look(self._files)
                trouble.over()
            except OSError as exc:
                if trouble.is_new(str(exc)):
                    log.error("Cannot load the serving certificate, keeping the last one", err=exc)

    async def _make_self_signed(self) -> None:
        now_ns = self._clock.now_ns()
        if self._self_signed is None or now_ns <= self._self_signed_until_ns:
            return
        cert_dir, host = self._self_signed
        files = self_signed_files(cert_dir)
        answer = await CERTIFICATES.run(ensure_self_signed, files, host, now_ns)
        if answer.unusable:
            log.warning("The self-signed certificate cannot be used, made a new one", err=answer.unusable)
        self._files, self._self_signed_until_ns = files, answer.not_after_ns

    async def _look(self, files: PairFiles) -> None:
        made_of = (files, *await CERTIFICATES.run(self._versions, files))
        if made_of == self._made_of or made_of == self._refused:
            return
        try:
            context = await CERTIFICATES.run(self._load, files)
        except OSError:
            self._refused = made_of  # not read again before something changes
            raise
        if self._context is not None:
            log.info("Loaded a new serving certificate", file=files.certificate)
        self._context, self._made_of, self._refused = context, made_of, None

    def _versions(self, files: PairFiles) -> tuple[object, ...]:
        ca = (self._client_ca,) if self._client_ca else ()
        return file_versions((files.certificate, files.key, *ca))

    def _load(self, files: PairFiles) -> ssl.SSLContext:
        context = self._settings.context()
        try:
            context.load_cert_chain(files.certificate, files.key, password="")  # never ask for one
        except OSError as exc:
            raise _told_better(files, exc) from exc
        if self._client_ca:
            context.verify_mode = ssl.CERT_OPTIONAL
            verify_as_go(context)
            try:
                context.load_verify_locations(cafile=self._client_ca)
            except ssl.SSLError as exc:
                raise OSError(f"{self._client_ca}: not a CA bundle: {exc.reason or exc}") from exc
        return context


def _told_better(files: PairFiles, error: OSError) -> OSError:
    """What is wrong with a pair, in words that OpenSSL does not have."""
    from trio_kubelet.kube.certificates.pair import read_pair  # big, and seldom needed

    try:
        read_pair(files)
    except OSError as exc:
        return exc
    return OSError(f"{files.certificate}, {files.key}: {getattr(error, 'reason', None) or error}")


def serving_certificate(
    settings: TLSSettings,
    clock: Clock,
    *,
    cert_dir: str,
    host: str,
    files: PairFiles,
    bootstrap: bool = False,
    client_ca_file: str = "",
    reload_pair: bool = True,
    reload_client_ca: bool = True,
) -> ServingCertificate:
    """What `tlsCertFile`, `tlsPrivateKeyFile` (`files`, may be empty) and `serverTLSBootstrap` ask for.

    With `bootstrap` nothing is there before a rotation hands a pair over; without anything a self-signed pair
    is made for `host` in `cert_dir`. Raises ValueError for half a pair.
    """
    if bool(files.certificate) is not bool(files.key):
        raise ValueError("tlsCertFile and tlsPrivateKeyFile have to be given together")
    given = bool(files.certificate)
    return ServingCertificate(
        settings,
        clock,
        files if given else None,
        client_ca_file=client_ca_file,
        self_signed=None if given or bootstrap else (cert_dir, host),
        reload_pair=reload_pair,
        reload_client_ca=reload_client_ca,
    )
